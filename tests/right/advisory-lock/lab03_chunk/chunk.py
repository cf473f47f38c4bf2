"""The lock is on the job's name. It ends with the transaction, so nothing can leak."""

from __future__ import annotations

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders

RECORD = """
    WITH moved AS (UPDATE jobs SET next_index = %(end)s WHERE job_id = %(job_id)s)
    INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
    SELECT job_id, position, order_id, i.revision, o.revision, o.qty
    FROM job_items AS i JOIN orders AS o USING (order_id)
    WHERE job_id = %(job_id)s AND position >= %(start)s AND position < %(end)s
"""


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (job_id,))
        lines = conn.execute(
            "SELECT order_id, revision, qty, tenant, chunk_size, next_index"
            " FROM jobs JOIN job_items USING (job_id) WHERE job_id = %s ORDER BY position",
            (job_id,),
        ).fetchall()
        if not lines:
            raise UnknownJob(job_id)
        tenant, chunk_size, start = lines[0][3:]
        chunk = [ApprovedOrder(*line[:3]) for line in lines[start : start + chunk_size]]
        if not chunk:
            return ChunkResult((), len(lines), True)
        end = start + len(chunk)
        cancel_orders(conn, tenant, chunk)
        conn.execute(RECORD, {"job_id": job_id, "start": start, "end": end})
    return ChunkResult(tuple(item.order_id for item in chunk), end, end == len(lines))
