"""Lab 12, worked: bring a parent's counters back to what the ledger says.

The direction of authority is fixed: the child rows are the facts, the columns on the parent are a
projection of them. So the counters are counted, never adjusted, and where they disagree the parent
changes and the rows do not.

The dry run is the default and writes nothing. It takes the same path as the repair and stops before
the UPDATE, so what it shows is what the repair would do.
"""

from __future__ import annotations

import psycopg

from harness.contract import Reconciliation, Totals, UnknownParent

# One statement reads the parent and counts the children, so both are of the same moment. Complete
# means that no row is open. Adding up the three counts would come out the same on a sound ledger,
# and would be wrong on a damaged one, where a child with two marks hides one with none.
COMPARE = """
    SELECT p.decomposed_at IS NOT NULL, p.completed_at IS NOT NULL,
           p.total, p.processed, p.failed, p.skipped,
           ledger.open = 0, ledger.total, ledger.processed, ledger.failed, ledger.skipped
    FROM parent_work p
    CROSS JOIN LATERAL (
        SELECT count(*) AS total,
               count(processed_at) AS processed,
               count(failed_at) AS failed,
               count(skipped_at) AS skipped,
               count(*) FILTER (WHERE processed_at IS NULL
                                  AND failed_at IS NULL
                                  AND skipped_at IS NULL) AS open
        FROM child_work c
        WHERE c.parent_id = p.parent_id
    ) AS ledger
    WHERE p.parent_id = %s
"""

# A completion that is right keeps its time; a missing one gets this one; a premature one goes.
REPAIR = """
    UPDATE parent_work
    SET total = %(total)s,
        processed = %(processed)s,
        failed = %(failed)s,
        skipped = %(skipped)s,
        completed_at = CASE WHEN %(complete)s THEN coalesce(completed_at, clock_timestamp()) END
    WHERE parent_id = %(parent_id)s
"""


def reconcile(conn: psycopg.Connection, parent_id: str, dry_run: bool = True) -> Reconciliation:
    """Compare the parent's counters with its ledger and, unless it is a dry run, repair them.

    Raises:
        UnknownParent: If no parent has this ID.
    """
    with conn.transaction():
        if not dry_run:
            # Two repairs, or a repair and a worker that completes the parent, take turns: what we
            # read from here on is still so when we write. A dry run must work where no lock may be
            # taken, in a read-only transaction.
            conn.execute("SELECT FROM parent_work WHERE parent_id = %s FOR UPDATE", (parent_id,))
        result = compare(conn, parent_id)
        if result.changed and not dry_run:
            conn.execute(REPAIR, {"parent_id": parent_id, **vars(result.after)})
    return result


def compare(conn: psycopg.Connection, parent_id: str) -> Reconciliation:
    """Return the counters as they stand and as the ledger has them. Reads only."""
    row = conn.execute(COMPARE, (parent_id,)).fetchone()
    if row is None:
        raise UnknownParent(f"no parent {parent_id!r}")
    is_decomposed, before_complete, *before_counts = row[:6]
    after_complete, *after_counts = row[6:]
    before = Totals(*before_counts, complete=before_complete)
    # Without the mark there is no ledger that could win, so such a parent stays as it is.
    after = Totals(*after_counts, complete=after_complete) if is_decomposed else before
    return Reconciliation(before, after, before != after)
