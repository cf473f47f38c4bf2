"""Everything is read in one REPEATABLE READ snapshot and compared in Python."""

from __future__ import annotations

import psycopg
from psycopg.pq import TransactionStatus

from harness.contract import ChunkResult, DamagedProgress, UnknownJob

from ..lab03_chunk.chunk import run_chunk


def verify_progress(conn: psycopg.Connection, job_id: str) -> int:
    """Return the checkpoint once the audit proves it."""
    outermost = conn.info.transaction_status == TransactionStatus.IDLE
    with conn.transaction():
        if outermost:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        else:
            # The caller's transaction may take a new snapshot for each statement. No worker can
            # commit a chunk of this job while its row is locked.
            conn.execute("SELECT FROM jobs WHERE job_id = %s FOR SHARE", (job_id,))
        job = conn.execute(
            "SELECT chunk_size, next_index FROM jobs WHERE job_id = %s", (job_id,)
        ).fetchone()
        lines = conn.execute(
            "SELECT position, order_id, revision, revision + 1, qty FROM job_items"
            " WHERE job_id = %s ORDER BY position",
            (job_id,),
        ).fetchall()
        audit = conn.execute(
            "SELECT position, order_id, revision_before, revision_after, qty FROM job_audit"
            " WHERE job_id = %s ORDER BY position",
            (job_id,),
        ).fetchall()
    if job is None:
        raise UnknownJob(job_id)
    chunk_size, done = job
    if done not in (*range(0, len(lines), chunk_size), len(lines)):
        raise DamagedProgress(f"no chunk ends at checkpoint {done} of {len(lines)}")
    if audit != lines[:done]:
        strange = sorted({row[0] for row in set(audit) ^ set(lines[:done])})
        raise DamagedProgress(f"the audit contradicts the list at positions {strange}")
    return done


def resume_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Prove the progress, then advance it."""
    verify_progress(conn, job_id)
    return run_chunk(conn, job_id)
