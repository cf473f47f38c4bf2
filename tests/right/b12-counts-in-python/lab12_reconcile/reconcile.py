from __future__ import annotations

import psycopg

from harness.contract import Reconciliation, Totals, UnknownParent

ROWS = """
    SELECT p.total, p.processed, p.failed, p.skipped, p.completed_at, p.decomposed_at,
           c.child_id, c.processed_at, c.failed_at, c.skipped_at
      FROM parent_work p LEFT JOIN child_work c USING (parent_id)
     WHERE parent_id = %s
"""


def reconcile(conn: psycopg.Connection, parent_id: str, dry_run: bool = True) -> Reconciliation:
    with conn.transaction():
        if not dry_run:
            conn.execute("SELECT 1 FROM parent_work WHERE parent_id = %s FOR UPDATE", (parent_id,))
        rows = conn.execute(ROWS, (parent_id,)).fetchall()
        if not rows:
            raise UnknownParent(parent_id)
        *counters, completed_at, decomposed_at = rows[0][:6]
        before = Totals(*counters, completed_at is not None)
        if decomposed_at is None:
            return Reconciliation(before, before, False)
        ends = [row[7:] for row in rows if row[6] is not None]
        counts = [sum(child[n] is not None for child in ends) for n in range(3)]
        after = Totals(len(ends), *counts, all(any(child) for child in ends))
        if before != after and not dry_run:
            stamp = "coalesce(completed_at, now())" if after.complete else "NULL"
            conn.execute(
                "UPDATE parent_work SET total = %s, processed = %s, failed = %s, skipped = %s,"
                f" completed_at = {stamp} WHERE parent_id = %s",
                (len(ends), *counts, parent_id),
            )
        return Reconciliation(before, after, before != after)
