"""Lab 12: reconcile the counters.

The parent's counters follow the rows, and never the other way round. The lesson is in README.md
beside this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 12
"""

from __future__ import annotations

import psycopg

from harness.contract import Reconciliation, Totals, UnknownParent  # noqa: F401  (you will need them)


def reconcile(conn: psycopg.Connection, parent_id: str, dry_run: bool = True) -> Reconciliation:
    """Compare a parent's counters with its child rows and, on request, repair the counters.

    The counters are `total`, `processed`, `failed` and `skipped`; `complete` means that `completed_at`
    is set. By the ledger, a parent is complete when every child has ended. Where the two disagree the
    parent changes: a premature completion is cleared, a missing one is set. Child rows never change.

    A parent without `decomposed_at` is left alone: `before` and `after` are the same.

    Args:
        conn: An autocommit connection. Inside an open transaction this call nests in it.
        parent_id: A row of `parent_work`.
        dry_run: Whether to report only. A dry run writes nothing and works in a read-only transaction.

    Returns:
        The counters as they were, the counters by the ledger, and whether they differ. The answer is
        the same with and without `dry_run`.

    Raises:
        UnknownParent: No parent has this ID.
    """
    # TODO: Read the counters and count the rows, both at the same moment.
    # TODO: What may a dry run not do, not even for an instant?
    # TODO: Repair the parent. What if a worker completes it while you write?
    raise NotImplementedError("lab12: reconcile")
