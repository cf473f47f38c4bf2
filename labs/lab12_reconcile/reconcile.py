"""Lab 12: Reconcile the counters.

The lesson is in README.md beside this file. The tables are in labs/schema.sql.
"""

from __future__ import annotations

from psycopg import Connection

from harness.contract import Reconciliation


def reconcile(conn: Connection, parent_id: str, dry_run: bool = True) -> Reconciliation:
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
    # TODO
    raise NotImplementedError("lab12: reconcile is still to be written")
