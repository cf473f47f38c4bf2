"""executemany for the audit."""

from __future__ import annotations

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with conn.transaction(), conn.cursor() as cursor:
        cursor.execute(
            "SELECT tenant, chunk_size, next_index,"
            " (SELECT count(*) FROM job_items i WHERE i.job_id = j.job_id)"
            " FROM jobs j WHERE job_id = %s FOR UPDATE OF j",
            (job_id,),
        )
        job = cursor.fetchone()
        if job is None:
            raise UnknownJob(job_id)
        tenant, chunk_size, start, total = job
        if start >= total:
            return ChunkResult((), total, True)
        cursor.execute(
            "SELECT order_id, revision, qty FROM job_items"
            " WHERE job_id = %s AND position BETWEEN %s AND %s ORDER BY position",
            (job_id, start, start + chunk_size - 1),
        )
        chunk = [ApprovedOrder(*row) for row in cursor]
        changes = sorted(cancel_orders(conn, tenant, chunk), key=lambda change: change.order_id)
        cursor.executemany(
            "INSERT INTO job_audit VALUES (%s, %s, %s, %s, %s, %s)",
            [
                (job_id, n, c.order_id, c.revision_before, c.revision_after, c.qty)
                for n, c in enumerate(changes, start)
            ],
        )
        end = start + len(chunk)
        cursor.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", (end, job_id))
    return ChunkResult(tuple(item.order_id for item in chunk), end, end == total)
