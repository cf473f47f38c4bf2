"""Lab 3: one chunk is one transaction that binds three records.

The orders say what happened, the audit says what we did, the checkpoint says where to go on. Any two
of them committed apart can disagree for ever after a crash in between: work without a trace, a trace
of no work, or work that is skipped. Committed together they cannot.
"""

from __future__ import annotations

import psycopg

from harness.contract import ApprovedOrder, CancelledOrder, ChunkResult, DamagedProgress, UnknownJob

from ..lab02_change.change import cancel_orders

# The row lock is the answer to "which chunk is next, and who runs it". A second worker stops here
# until our transaction is over, then reads the checkpoint we left. Plain readers are not stopped.
LOCK_JOB = "SELECT tenant, chunk_size, next_index FROM jobs WHERE job_id = %s FOR UPDATE"

COUNT_LIST = "SELECT count(*) FROM job_items WHERE job_id = %s"

# The next chunk is a slice of the frozen list, by position. A slice of "orders still pending" would
# move under our feet whenever an order is added, deleted or cancelled.
NEXT_CHUNK = """
    SELECT order_id, revision, qty
    FROM job_items
    WHERE job_id = %s AND position >= %s
    ORDER BY position
    LIMIT %s
"""

RECORD_AUDIT = """
    INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
    SELECT %s, a.*
    FROM unnest(%s::int[], %s::bigint[], %s::int[], %s::int[], %s::int[]) AS a
"""

MOVE_CHECKPOINT = "UPDATE jobs SET next_index = %s WHERE job_id = %s"


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk: orders, audit and checkpoint together, or nothing.

    Raises:
        UnknownJob: If no job has this ID.
        Conflict: If an order of the chunk is no longer as approved. The whole chunk is undone.
        DamagedProgress: If the checkpoint lies past the end of the list.
    """
    with conn.transaction():
        job = conn.execute(LOCK_JOB, (job_id,)).fetchone()
        if job is None:
            raise UnknownJob(f"no job is registered as {job_id!r}")
        tenant, chunk_size, start = job
        (total,) = conn.execute(COUNT_LIST, (job_id,)).fetchone()
        if start > total:
            raise DamagedProgress(f"checkpoint {start} lies past the end of the list, {total}")
        if start == total:
            return ChunkResult((), total, True)

        rows = conn.execute(NEXT_CHUNK, (job_id, start, chunk_size)).fetchall()
        chunk = [ApprovedOrder(*row) for row in rows]
        # A Conflict passes straight through. Catching it here would commit the chunk without the
        # order that did not match, and the checkpoint would vouch for work that was never done.
        cancelled = cancel_orders(conn, tenant, chunk)
        _record_audit(conn, job_id, start, chunk, cancelled)
        end = start + len(chunk)
        conn.execute(MOVE_CHECKPOINT, (end, job_id))
    # Only here, after the block, is it committed. (Inside a caller's transaction the block was a
    # savepoint, and the caller's commit is still to come.)
    return ChunkResult(tuple(item.order_id for item in chunk), end, end == total)


def _record_audit(
    conn: psycopg.Connection,
    job_id: str,
    start: int,
    chunk: list[ApprovedOrder],
    cancelled: list[CancelledOrder],
) -> None:
    """Write one audit row a position, with the values the database returned for the change."""
    change_of = {change.order_id: change for change in cancelled}  # RETURNING keeps no order
    rows = []
    for position, item in enumerate(chunk, start):
        change = change_of[item.order_id]
        rows.append(
            (
                position,
                change.order_id,
                change.revision_before,
                change.revision_after,
                change.qty,
            )
        )
    columns = [list(column) for column in zip(*rows, strict=True)]
    conn.execute(RECORD_AUDIT, (job_id, *columns))
