"""Lab 4: doubt the checkpoint until the audit proves it.

`next_index = 20` is a claim. The proof is an audit that repeats the first 20 lines of the approved
list: the same positions, orders, versions and quantities, no more and no fewer. Twenty rows prove
nothing if one of them belongs to another order. Where claim and proof disagree, nobody can tell from
here which is wrong, so nothing is repaired: the job stops and a person decides.
"""

from __future__ import annotations

import psycopg

from harness.contract import ChunkResult, DamagedProgress, UnknownJob

from ..lab03_chunk.chunk import run_chunk

# One statement is one snapshot: list, audit and checkpoint are compared as they were at one moment,
# even while another worker commits a chunk. The FULL JOIN keeps what only one side has, and IS
# DISTINCT FROM counts a missing side as a difference. The first difference is enough.
COMPARE = """
    SELECT j.chunk_size, j.next_index, list.total,
           d.position, d.approved, d.audited
    FROM jobs AS j
    CROSS JOIN LATERAL (
        SELECT count(*) AS total FROM job_items AS i WHERE i.job_id = j.job_id
    ) AS list
    LEFT JOIN LATERAL (
        SELECT position,
               CASE WHEN i.order_id IS NOT NULL
                    THEN (i.order_id, i.revision, i.revision + 1, i.qty)::text END AS approved,
               CASE WHEN a.order_id IS NOT NULL
                    THEN (a.order_id, a.revision_before, a.revision_after, a.qty)::text END AS audited
        FROM (SELECT * FROM job_items WHERE job_id = j.job_id AND position < j.next_index) AS i
        FULL JOIN (SELECT * FROM job_audit WHERE job_id = j.job_id) AS a USING (position)
        WHERE (i.order_id, i.revision, i.revision + 1, i.qty)
              IS DISTINCT FROM (a.order_id, a.revision_before, a.revision_after, a.qty)
        ORDER BY position
        LIMIT 1
    ) AS d ON true
    WHERE j.job_id = %s
"""

LOCK_JOB = "SELECT FROM jobs WHERE job_id = %s FOR UPDATE"


def verify_progress(conn: psycopg.Connection, job_id: str) -> int:
    """Return the checkpoint after proving it from the audit. Read only.

    Raises:
        UnknownJob: If no job has this ID.
        DamagedProgress: If checkpoint or audit contradict the approved list; says what and where.
    """
    row = conn.execute(COMPARE, (job_id,)).fetchone()
    if row is None:
        raise UnknownJob(f"no job is registered as {job_id!r}")
    chunk_size, next_index, total, position, approved, audited = row
    if next_index > total:
        raise DamagedProgress(f"checkpoint {next_index} lies past the end of the list, {total}")
    if next_index % chunk_size and next_index != total:  # only the last chunk may be short
        raise DamagedProgress(f"checkpoint {next_index} lies inside a chunk of {chunk_size}")
    if position is not None:
        raise DamagedProgress(_describe(position, next_index, approved, audited))
    return next_index


def _describe(position: int, next_index: int, approved: str | None, audited: str | None) -> str:
    """Say what is wrong at one position. The values read (order, revision before, after, qty)."""
    if position >= next_index:
        return f"position {position}: audited as {audited}, past the checkpoint {next_index}"
    if audited is None:
        return f"position {position}: {approved} is not in the audit"
    return f"position {position}: the approval makes it {approved}, the audit says {audited}"


def resume_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Prove the progress, then run the next chunk, with nobody in between.

    Raises:
        UnknownJob, DamagedProgress, Conflict: As `verify_progress` and `run_chunk` do.
    """
    with conn.transaction():
        # Lock before looking: what was proven is then still true when the chunk runs. `run_chunk`
        # asks for the same lock again, which costs nothing, and nests as a savepoint.
        conn.execute(LOCK_JOB, (job_id,))
        verify_progress(conn, job_id)
        return run_chunk(conn, job_id)
