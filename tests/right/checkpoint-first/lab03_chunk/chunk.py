"""The three records in the opposite order: the transaction makes the order meaningless."""

from __future__ import annotations

import psycopg

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders

# The UPDATE takes the row's lock as well as SELECT FOR UPDATE would.
CLAIM = """
    UPDATE jobs AS j
    SET next_index = least(j.next_index + j.chunk_size::bigint, list.total)
    FROM (SELECT count(*) AS total FROM job_items WHERE job_id = %(job_id)s) AS list
    WHERE j.job_id = %(job_id)s AND j.next_index < list.total
    RETURNING j.tenant, j.chunk_size, j.next_index, list.total
"""


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk."""
    with conn.transaction():
        claim = conn.execute(CLAIM, {"job_id": job_id}).fetchone()
        if claim is None:
            return _nothing_to_do(conn, job_id)
        tenant, chunk_size, end, total = claim
        start = (end - 1) // chunk_size * chunk_size
        rows = conn.execute(
            """
            INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
            SELECT job_id, position, order_id, revision, revision + 1, qty FROM job_items
            WHERE job_id = %s AND position >= %s AND position < %s
            RETURNING order_id, revision_before, qty
            """,
            (job_id, start, end),
        ).fetchall()
        cancel_orders(conn, tenant, [ApprovedOrder(*row) for row in rows])
    return ChunkResult(tuple(sorted(row[0] for row in rows)), end, end == total)


def _nothing_to_do(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    if conn.execute("SELECT FROM jobs WHERE job_id = %s", (job_id,)).rowcount == 0:
        raise UnknownJob(job_id)
    total = conn.execute("SELECT FROM job_items WHERE job_id = %s", (job_id,)).rowcount
    return ChunkResult((), total, True)
