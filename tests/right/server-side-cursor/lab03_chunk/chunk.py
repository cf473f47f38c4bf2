"""DECLARE, MOVE and FETCH instead of a range of positions."""

from __future__ import annotations

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with conn.transaction():
        job = conn.execute(
            "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s FOR UPDATE",
            (job_id,),
        ).fetchone()
        if job is None:
            raise UnknownJob(job_id)
        tenant, chunk_size, start = job
        with conn.cursor("the_list", scrollable=True) as lines:
            lines.itersize = 7
            lines.execute(
                "SELECT position, order_id, revision, qty FROM job_items WHERE job_id = %s"
                " ORDER BY position",
                (job_id,),
            )
            if start:
                lines.scroll(start)
            chunk = lines.fetchmany(chunk_size)
            more = lines.fetchone() is not None
        if not chunk:
            return ChunkResult((), start, True)
        for change in cancel_orders(conn, tenant, [ApprovedOrder(*line[1:]) for line in chunk]):
            conn.execute(
                "INSERT INTO job_audit VALUES (%s,"
                " (SELECT position FROM job_items WHERE job_id = %s AND order_id = %s),"
                " %s, %s, %s, %s)",
                (
                    job_id,
                    job_id,
                    change.order_id,
                    change.order_id,
                    change.revision_before,
                    change.revision_after,
                    change.qty,
                ),
            )
        end = chunk[-1][0] + 1
        conn.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", (end, job_id))
    return ChunkResult(tuple(line[1] for line in chunk), end, not more)
