"""Lab 3: bind three records.

The orders, the audit and the checkpoint: after a crash at any moment, all three tell the same story
or none has begun it. The lesson is in README.md beside this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 3
"""

from __future__ import annotations

import psycopg

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob  # noqa: F401

from ..lab02_change.change import cancel_orders  # noqa: F401


def run_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Advance the job by its next chunk, all of it or nothing.

    Args:
        conn: A psycopg connection with autocommit on, perhaps inside a transaction of the caller.
        job_id: A job that was registered with `register_job`.

    The next chunk is the `chunk_size` lines of `job_items` from position `next_index` on; the last
    chunk may be shorter. In one transaction its orders are cancelled, `job_audit` gets one row for
    each position (`order_id`, `revision_before`, `revision_after`, `qty` as the database returned
    them), and `jobs.next_index` moves to the position after the chunk.

    Workers may call this for the same job at the same time. Each chunk is run by one of them.

    Returns:
        ChunkResult with the order IDs of the chunk in ID order, the new `next_index`, and whether
        that is the end of the list. If the job was complete already: `((), total, True)`, where
        `total` is the length of the list.

    Raises:
        UnknownJob: If no job has this ID.
        Conflict: If any order of the chunk is not as approved. Nothing of the chunk remains: the
            orders before it, the audit and the checkpoint are as they were.
    """
    # TODO: Open the transaction that everything below belongs to.
    # TODO: Find out which chunk is next, so that no one else can find out the same.
    # TODO: Read that chunk from the frozen list.
    # TODO: Cancel its orders, write the audit, move the checkpoint.
    # TODO: From which line on is it true that the chunk was committed?
    raise NotImplementedError("lab03: run_chunk")
