"""Recursion instead of a loop, and a result of its own type."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..lab04_doubt.doubt import resume_chunk


@dataclass
class Drained:
    """What was done."""

    processed: list[int] = field(default_factory=list)
    chunks: int = 0
    complete: bool = False


def drain(conn, job_id, max_chunks):
    """Run at most max_chunks chunks."""
    drained = Drained()
    while not drained.complete and drained.chunks < max_chunks:
        result = resume_chunk(conn, job_id)
        drained.processed += result.processed
        drained.chunks += bool(result.processed)
        drained.complete = result.complete
    return drained
