"""One chunk between BEGIN and COMMIT."""

from __future__ import annotations

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders, unit


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with unit(conn, "run_chunk"):
        job = conn.execute("SELECT * FROM jobs WHERE job_id = %s FOR UPDATE", (job_id,)).fetchone()
        if job is None:
            raise UnknownJob(job_id)
        _, tenant, size, start = job
        total = conn.execute("SELECT FROM job_items WHERE job_id = %s", (job_id,)).rowcount
        items = conn.execute(
            "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s"
            " ORDER BY position LIMIT %s OFFSET %s",  # the list is frozen, so OFFSET is safe here
            (job_id, size, start),
        ).fetchall()
        if not items:
            return ChunkResult((), total, True)
        cancel_orders(conn, tenant, [ApprovedOrder(*item) for item in items])
        end = start + len(items)
        conn.execute(
            """
            INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
            SELECT job_id, position, order_id, i.revision, o.revision, o.qty
            FROM job_items AS i JOIN orders AS o USING (order_id)
            WHERE job_id = %s AND position >= %s AND position < %s
            """,
            (job_id, start, end),
        )
        conn.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", (end, job_id))
    return ChunkResult(tuple(item[0] for item in items), end, end == total)
