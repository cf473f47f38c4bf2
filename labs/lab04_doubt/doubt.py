"""Lab 4: doubt the progress.

A checkpoint is a claim; the audit is the proof. Resume only when the two agree. The lesson is in
README.md beside this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 4
"""

from __future__ import annotations

import psycopg

from harness.contract import ChunkResult, DamagedProgress, UnknownJob  # noqa: F401

from ..lab03_chunk.chunk import run_chunk  # noqa: F401


def verify_progress(conn: psycopg.Connection, job_id: str) -> int:
    """Prove the checkpoint from the audit, and return it. Change nothing.

    Args:
        conn: A psycopg connection with autocommit on, perhaps inside a transaction of the caller.
        job_id: The job to examine. Another worker may be advancing it while you look.

    Returns:
        `next_index`, once the audit is proven to equal the first `next_index` lines of the approved
        list: at each position the same order ID and qty, `revision_before` equal to the approved
        revision and `revision_after` one more.

    Raises:
        UnknownJob: If no job has this ID.
        DamagedProgress: If anything else is found: an audit row missing, one too many, one with a
            wrong value, a checkpoint in the middle of a chunk or past the end of the list. The text
            says what is wrong, and at which position. Nothing is repaired.
    """
    # TODO: Read checkpoint, list and audit as they were at one and the same moment.
    # TODO: Can this checkpoint be reached by whole chunks at all?
    # TODO: Compare position by position. Which rows would a plain JOIN not show you?
    raise NotImplementedError("lab04: verify_progress")


def resume_chunk(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Prove the progress, then run the next chunk.

    Args and return value are those of `run_chunk`.

    Raises:
        UnknownJob: If no job has this ID.
        DamagedProgress: If the progress cannot be proven. No order, audit row or checkpoint changes.
        Conflict: As `run_chunk` does.
    """
    # TODO: Could the progress change between your proof and your chunk?
    raise NotImplementedError("lab04: resume_chunk")
