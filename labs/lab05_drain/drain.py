"""Lab 5: drain within bounds.

Chunk after chunk, each with its own commit, and never more than you were asked for. The lesson is in
README.md beside this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 5
"""

from __future__ import annotations

import psycopg

from harness.contract import DrainResult

from ..lab04_doubt.doubt import resume_chunk  # noqa: F401


def drain(conn: psycopg.Connection, job_id: str, max_chunks: int) -> DrainResult:
    """Advance the job by at most `max_chunks` chunks, and stop as soon as it is complete.

    Args:
        conn: A psycopg connection with autocommit on. Every chunk is committed before the next one
            begins (unless the caller has a transaction open around all of them).
        job_id: The job to advance. The call may be the first, or go on after a crash, or share the
            job with another worker.
        max_chunks: The number of chunk calls allowed, at least 1. It bounds calls, not time.

    Returns:
        DrainResult with the order IDs that this call processed, in ID order, the number of chunk
        calls it made, and whether the job is complete now.

    Raises:
        UnknownJob, Conflict, DamagedProgress, psycopg.Error: The first one that a chunk raises goes
            to the caller at once, as it is. Chunks committed before it stay committed.
    """
    # TODO: Run chunks within the bound. Know when to stop.
    # TODO: Which errors does it help to try again? Who could decide that?
    raise NotImplementedError("lab05: drain")
