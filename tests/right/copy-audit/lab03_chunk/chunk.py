"""The audit arrives by COPY."""

from __future__ import annotations

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with conn.transaction(), conn.cursor() as cursor:
        job = cursor.execute(
            "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s FOR UPDATE",
            (job_id,),
        ).fetchone()
        if job is None:
            raise UnknownJob(job_id)
        tenant, chunk_size, start = job
        lines = cursor.execute(
            "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s AND position >= %s"
            " ORDER BY position",
            (job_id, start),
        ).fetchall()
        chunk, rest = lines[:chunk_size], lines[chunk_size:]
        if not chunk:
            return ChunkResult((), start, True)
        changes = {
            change.order_id: change
            for change in cancel_orders(conn, tenant, [ApprovedOrder(*line) for line in chunk])
        }
        columns = "job_id, position, order_id, revision_before, revision_after, qty"
        with cursor.copy(f"COPY job_audit ({columns}) FROM STDIN") as copy:
            for position, (order_id, _, _) in enumerate(chunk, start):
                c = changes[order_id]
                copy.write_row(
                    (job_id, position, order_id, c.revision_before, c.revision_after, c.qty)
                )
        end = start + len(chunk)
        cursor.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", (end, job_id))
    return ChunkResult(tuple(line[0] for line in chunk), end, not rest)
