"""Order, audit, order, audit, and the checkpoint at the end."""

from __future__ import annotations

from harness.contract import ApprovedOrder, ChunkResult, Conflict, UnknownJob

from ..lab02_change.change import cancel_orders


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with conn.transaction():
        cursor = conn.cursor()
        cursor.execute("SELECT * FROM jobs WHERE job_id = %s FOR UPDATE", [job_id])
        job = cursor.fetchone()
        if not job:
            raise UnknownJob(job_id)
        _, tenant, chunk_size, start = job
        items = cursor.execute(
            "SELECT position, order_id, revision, qty FROM job_items WHERE job_id = %s"
            " ORDER BY position",
            [job_id],
        ).fetchall()
        chunk = items[start : start + chunk_size]
        conflicts = []
        for position, *approved in chunk:
            try:
                (change,) = cancel_orders(conn, tenant, [ApprovedOrder(*approved)])
            except Conflict as conflict:
                conflicts.append(str(conflict))
                continue
            cursor.execute(
                "INSERT INTO job_audit VALUES (%s, %s, %s, %s, %s, %s)",
                [
                    job_id,
                    position,
                    change.order_id,
                    change.revision_before,
                    change.revision_after,
                    change.qty,
                ],
            )
        if conflicts:
            # The savepoints only kept the transaction usable to find all of them: it ends here.
            raise Conflict("; ".join(conflicts))
        end = start + len(chunk)
        if chunk:
            cursor.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", [end, job_id])
    return ChunkResult(tuple(row[1] for row in chunk), end, end == len(items))
