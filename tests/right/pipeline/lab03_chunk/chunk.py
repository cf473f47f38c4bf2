"""Everything is sent before the first answer is read; the transaction waits for the verdict."""

from __future__ import annotations

import psycopg

from harness.contract import ChunkResult, Conflict, UnknownJob

CANCEL = """
    UPDATE orders AS o SET state = 'cancelled', revision = o.revision + 1
    FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS a (order_id, revision, qty)
    WHERE o.order_id = a.order_id AND o.revision = a.revision AND o.qty = a.qty
      AND o.tenant = %s AND o.state = 'pending'
    RETURNING o.order_id, o.revision, o.qty
"""
AUDIT = """
    INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
    SELECT job_id, position, i.order_id, i.revision, o.revision, o.qty
    FROM job_items AS i JOIN orders AS o USING (order_id)
    WHERE job_id = %s AND position >= %s AND position < %s
"""


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk."""
    with conn.transaction():
        with conn.pipeline():
            job_cursor = conn.execute(
                "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s FOR UPDATE",
                (job_id,),
            )
            list_cursor = conn.execute(
                "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s ORDER BY position",
                (job_id,),
            )
            job, lines = job_cursor.fetchone(), list_cursor.fetchall()
        if job is None:
            raise UnknownJob(job_id)
        tenant, chunk_size, start = job
        chunk = lines[start : start + chunk_size]
        if not chunk:
            return ChunkResult((), len(lines), True)
        end = start + len(chunk)
        ids, revisions, quantities = (list(column) for column in zip(*chunk, strict=True))
        with conn.pipeline():
            cancelled = conn.execute(CANCEL, (ids, revisions, quantities, tenant))
            conn.execute(AUDIT, (job_id, start, end))
            conn.execute("UPDATE jobs SET next_index = %s WHERE job_id = %s", (end, job_id))
            matched = {row[0] for row in cancelled.fetchall()}
        if len(matched) < len(ids):
            raise Conflict(f"orders {sorted(set(ids) - matched)}")
    return ChunkResult(tuple(ids), end, end == len(lines))
