"""All three writes of a chunk in one statement."""

from __future__ import annotations

import psycopg

from harness.contract import ChunkResult, Conflict, UnknownJob

# The job's row is locked by the first CTE, so a second worker waits inside this very statement. Its
# snapshot is older than the wait, which is harmless: the list never changes, the locked row is read
# as it is after the wait, and an order that somebody changed meanwhile is looked at again.
ADVANCE = """
    WITH job AS (
        SELECT job_id, tenant, chunk_size, next_index FROM jobs WHERE job_id = %(job_id)s FOR UPDATE
    ), chunk AS (
        SELECT i.* FROM job_items AS i JOIN job USING (job_id)
        WHERE i.position >= job.next_index AND i.position < job.next_index + job.chunk_size::bigint
    ), cancelled AS (
        UPDATE orders AS o
        SET state = 'cancelled', revision = o.revision + 1
        FROM chunk AS c, job
        WHERE (o.order_id, o.revision, o.qty) = (c.order_id, c.revision, c.qty)
          AND o.tenant = job.tenant AND o.state = 'pending'
        RETURNING c.position, o.order_id, c.revision, o.revision AS revision_after, o.qty
    ), audit AS (
        INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
        SELECT %(job_id)s, position, order_id, revision, revision_after, qty FROM cancelled
    ), checkpoint AS (
        UPDATE jobs SET next_index = job.next_index + (SELECT count(*) FROM chunk)
        FROM job
        WHERE jobs.job_id = job.job_id AND EXISTS (SELECT FROM chunk)
    )
    SELECT chunk.order_id, cancelled.order_id IS NOT NULL, job.next_index,
           (SELECT count(*) FROM job_items WHERE job_id = %(job_id)s)
    FROM job LEFT JOIN chunk ON true LEFT JOIN cancelled USING (position)
    ORDER BY chunk.position
"""


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk."""
    with conn.transaction():
        rows = conn.execute(ADVANCE, {"job_id": job_id}).fetchall()
        if not rows:
            raise UnknownJob(job_id)
        _, _, start, total = rows[0]
        if start == total:
            return ChunkResult((), total, True)
        unmatched = [order_id for order_id, matched, _, _ in rows if not matched]
        if unmatched:
            raise Conflict(f"not as approved: {unmatched}")
    end = start + len(rows)
    return ChunkResult(tuple(row[0] for row in rows), end, end == total)
