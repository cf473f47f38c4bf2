"""The database finds the race; we only begin again."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders

ATTEMPTS = 20


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk."""
    if conn.info.transaction_status != TransactionStatus.IDLE:
        # Inside a transaction of the caller its isolation level is given, and so is the right to
        # try again. The row's lock does the same there.
        with conn.transaction():
            conn.execute("SELECT FROM jobs WHERE job_id = %s FOR UPDATE", (job_id,))
            return _chunk(conn, job_id)
    for attempt in range(ATTEMPTS):
        try:
            with conn.transaction():
                conn.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                return _chunk(conn, job_id)
        except (errors.SerializationFailure, errors.DeadlockDetected):
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


def _chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    job = conn.execute(
        "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s", (job_id,)
    ).fetchone()
    if job is None:
        raise UnknownJob(job_id)
    tenant, chunk_size, start = job
    lines = conn.execute(
        "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s ORDER BY position",
        (job_id,),
    ).fetchall()
    chunk = [ApprovedOrder(*line) for line in lines[start : start + chunk_size]]
    if not chunk:
        return ChunkResult((), len(lines), True)
    end = start + len(chunk)
    # The shared row first: whoever is second fails here, before it can meet a false conflict.
    conn.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", (end, job_id))
    for change in cancel_orders(conn, tenant, chunk):
        conn.execute(
            "INSERT INTO job_audit SELECT job_id, position, order_id, %s, %s, %s FROM job_items"
            " WHERE job_id = %s AND order_id = %s",
            (change.revision_before, change.revision_after, change.qty, job_id, change.order_id),
        )
    return ChunkResult(tuple(item.order_id for item in chunk), end, end == len(lines))
