"""Lab 5: run chunk after chunk, within bounds.

Each chunk is its own commit, so a drain that is killed anywhere keeps every chunk that was
committed, and the next drain goes on from there. All it needs to know is in the database; the list
kept here is only the answer to this one call.
"""

from __future__ import annotations

import psycopg

from harness.contract import DrainResult

from ..lab04_doubt.doubt import resume_chunk


def drain(conn: psycopg.Connection, job_id: str, max_chunks: int) -> DrainResult:
    """Advance the job by at most `max_chunks` chunk calls; stop early when it is complete.

    Raises:
        ValueError: If `max_chunks` is below 1.
        UnknownJob, DamagedProgress, Conflict, psycopg.Error: At once, as the chunk raised them.
            Chunks committed before stay committed.
    """
    if max_chunks < 1:
        raise ValueError(f"max_chunks must be at least 1: {max_chunks}")
    processed: list[int] = []
    chunks = 0
    for _ in range(max_chunks):
        # No except: a conflict needs a new approval, damage needs a person, and after a lost
        # connection nobody here knows whether the last commit happened. None of them is cured by
        # calling again.
        result = resume_chunk(conn, job_id)
        chunks += 1
        processed.extend(result.processed)
        # An empty chunk may still mean complete: another worker may have done the rest.
        if result.complete:
            break
    return DrainResult(tuple(processed), chunks, result.complete)
