"""commit() and rollback() of the driver, where the caller has no transaction open."""

from __future__ import annotations

from psycopg.pq import TransactionStatus

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    if conn.info.transaction_status != TransactionStatus.IDLE:
        with conn.transaction():
            return chunk_of(conn, job_id)
    conn.autocommit = False
    try:
        result = chunk_of(conn, job_id)
        conn.commit()
    except BaseException:
        if not conn.closed:
            conn.rollback()
        raise
    finally:
        if not conn.closed:
            conn.autocommit = True
    return result


def chunk_of(conn, job_id):
    """Make the three writes in the transaction that is open."""
    job = conn.execute(
        "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s FOR NO KEY UPDATE",
        (job_id,),
    ).fetchone()
    if job is None:
        raise UnknownJob(job_id)
    tenant, chunk_size, start = job
    total = conn.execute(
        "SELECT max(position) + 1 FROM job_items WHERE job_id = %s", (job_id,)
    ).fetchone()[0]
    chunk = conn.execute(
        "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s AND position >= %s"
        " ORDER BY position FETCH FIRST %s ROWS ONLY",
        (job_id, start, chunk_size),
    ).fetchall()
    if chunk:
        conn.execute(
            "INSERT INTO job_audit SELECT job_id, position, order_id, revision, revision + 1, qty"
            " FROM job_items WHERE job_id = %s AND position >= %s ORDER BY position LIMIT %s",
            (job_id, start, chunk_size),
        )
        cancel_orders(conn, tenant, [ApprovedOrder(*line) for line in chunk])
        conn.execute(
            "UPDATE jobs SET next_index = next_index + %s WHERE job_id = %s", (len(chunk), job_id)
        )
    end = start + len(chunk)
    return ChunkResult(tuple(line[0] for line in chunk), end, end == total)
