"""Looks like a race, and is none: READ COMMITTED, a guarded checkpoint, and its row count."""

from __future__ import annotations

import psycopg

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders


class Overtaken(Exception):
    """Another worker moved the checkpoint after we had read it."""


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk."""
    while True:  # each round that is lost is a chunk that somebody else has committed
        try:
            with conn.transaction():
                return _try_chunk(conn, job_id)
        except Overtaken:
            continue


def _try_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    job = conn.execute(
        "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s", (job_id,)
    ).fetchone()
    if job is None:
        raise UnknownJob(job_id)
    tenant, chunk_size, start = job
    total = conn.execute("SELECT FROM job_items WHERE job_id = %s", (job_id,)).rowcount
    if start >= total:
        return ChunkResult((), total, True)
    end = min(start + chunk_size, total)
    # Guarded, and before the orders: a worker that is too late waits here for the other's commit,
    # then matches nothing. After the orders it would already have met a conflict that is none.
    moved = conn.execute(
        "UPDATE jobs SET next_index = %s WHERE job_id = %s AND next_index = %s",
        (end, job_id, start),
    ).rowcount
    if not moved:
        raise Overtaken
    rows = conn.execute(
        "SELECT position, order_id, revision, qty FROM job_items"
        " WHERE job_id = %s AND position >= %s AND position < %s ORDER BY position",
        (job_id, start, end),
    ).fetchall()
    changes = cancel_orders(conn, tenant, [ApprovedOrder(*row[1:]) for row in rows])
    place = {row[1]: row[0] for row in rows}
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO job_audit VALUES (%s, %s, %s, %s, %s, %s)",
            [
                (job_id, place[c.order_id], c.order_id, c.revision_before, c.revision_after, c.qty)
                for c in changes
            ],
        )
    return ChunkResult(tuple(row[1] for row in rows), end, end == total)
