"""Proof and chunk in two transactions, each sound by itself."""

from __future__ import annotations

import psycopg

from harness.contract import ChunkResult, DamagedProgress, UnknownJob

from ..lab03_chunk.chunk import run_chunk

# Two EXCEPTs find what one side has and the other lacks, whatever column differs.
COMPARE = """
    WITH job AS (SELECT * FROM jobs WHERE job_id = %(job_id)s),
    approved AS (
        SELECT position, order_id, revision AS before, revision + 1 AS after, qty
        FROM job_items WHERE job_id = %(job_id)s AND position < (SELECT next_index FROM job)
    ), audited AS (
        SELECT position, order_id, revision_before, revision_after, qty
        FROM job_audit WHERE job_id = %(job_id)s
    ), difference AS (
        (SELECT 'lacks', approved.* FROM approved EXCEPT ALL SELECT 'lacks', audited.* FROM audited)
        UNION ALL
        (SELECT 'has', audited.* FROM audited EXCEPT ALL SELECT 'has', approved.* FROM approved)
    )
    SELECT next_index, chunk_size, (SELECT count(*) FROM job_items WHERE job_id = %(job_id)s),
           (SELECT array_agg(d::text) FROM difference AS d)
    FROM job
"""


def verify_progress(conn: psycopg.Connection, job_id: str) -> int:
    """Return the checkpoint once the audit proves it."""
    row = conn.execute(COMPARE, {"job_id": job_id}).fetchone()
    if not row:
        raise UnknownJob(job_id)
    next_index, chunk_size, total, difference = row
    reachable = next_index == total or (next_index < total and next_index % chunk_size == 0)
    if difference or not reachable:
        raise DamagedProgress(f"checkpoint {next_index} of {total}: the audit {difference}")
    return next_index


def resume_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Prove the progress, then advance it."""
    verify_progress(conn, job_id)
    return run_chunk(conn, job_id)
