"""Lab 11, worked: continue a parent from its ledger.

`failed_at` on a parent says that a run of it stopped. It does not say what became of the children,
so it is history and decides nothing here. Two other facts decide: `completed_at` (is there anything
left to do?) and `decomposed_at` (is there a ledger to continue from?).

A parent of the time before the ledger may have failed without leaving any child rows. It cannot
resume from rows that never existed, so it is decomposed now. A parent that has its ledger is never
parsed again: a second reading would be a second source of truth.
"""

from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ParentStep

from ..lab08_decompose.decompose import decompose
from ..lab09_claim.claim import claim
from ..lab10_finish.finish import decide, finish

RESUMABLE = """
    SELECT parent_id, CASE WHEN decomposed_at IS NULL THEN 'decompose' ELSE 'dispatch' END
    FROM parent_work
    WHERE completed_at IS NULL
    ORDER BY parent_id
"""

# Asked of the rows, not of a counter, and after our own last commit. When two workers end the last
# two children at the same time, the one that asks later sees both. An ended child never opens
# again and no child is added after the mark, so an answer of "none is open" stays true.
COMPLETE = """
    UPDATE parent_work p
    SET completed_at = clock_timestamp()
    WHERE p.parent_id = %s
      AND p.completed_at IS NULL
      AND p.decomposed_at IS NOT NULL
      AND NOT EXISTS (
          SELECT FROM child_work c
          WHERE c.parent_id = p.parent_id
            AND c.processed_at IS NULL
            AND c.failed_at IS NULL
            AND c.skipped_at IS NULL
      )
"""


def resumable(conn: psycopg.Connection) -> list[ParentStep]:
    """List every parent that is not complete, with the step that comes next for it."""
    return [ParentStep(*row) for row in conn.execute(RESUMABLE)]


def run_parent(conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta) -> None:
    """Bring the parent as far as this worker can, and complete it if nothing is open afterwards.

    Raises:
        UnknownParent: If no parent has this ID.
    """
    decompose(conn, parent_id)  # does nothing where the mark is set
    # Ends for certain: after its turn every child we claimed is terminal, by us or by another.
    # The loop asks `claim`, not `process`: a chunk that others ended first makes `process` return
    # an empty list, and that does not mean that nothing is left to claim.
    while children := claim(conn, parent_id, limit, lease):
        for child in children:
            finish(conn, child.child_id, decide(conn, child.event))
    conn.execute(COMPLETE, (parent_id,))
