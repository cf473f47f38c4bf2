"""A result class with the same attributes, and lists in it."""

from __future__ import annotations

from types import SimpleNamespace

from harness.contract import ApprovedOrder, UnknownJob

from ..lab02_change.change import cancel_orders


class NoSuchJob(UnknownJob):
    """Nobody registered it."""


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    with conn.transaction():
        job = conn.execute(
            "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s FOR UPDATE",
            (job_id,),
        ).fetchone()
        if job is None:
            raise NoSuchJob(job_id)
        tenant, chunk_size, start = job
        lines = conn.execute(
            "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s ORDER BY position",
            (job_id,),
        ).fetchall()
        chunk = [ApprovedOrder(*line) for line in lines[start:][:chunk_size]]
        for change in cancel_orders(conn, tenant, chunk):
            conn.execute(
                "INSERT INTO job_audit (job_id, position, order_id, revision_before,"
                " revision_after, qty) VALUES (%s, %s, %s, %s, %s, %s)",
                (job_id, [line[0] for line in lines].index(change.order_id), *change),
            )
            # The checkpoint may move in steps: only its first and last value are ever seen.
            conn.execute("UPDATE jobs SET next_index = next_index + 1 WHERE job_id = %s", (job_id,))
    end = start + len(chunk)
    return SimpleNamespace(
        processed=[item.order_id for item in chunk], next_index=end, complete=end == len(lines)
    )
