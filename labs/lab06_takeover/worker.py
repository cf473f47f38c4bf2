"""Lab 6: take over.

A program that advances one job, and that another one may take over from at any moment. The lesson is
in README.md beside this file, the tables are in ../schema.sql.

Run it with:           uv run python -m labs.lab06_takeover.worker --dsn DSN --job JOB
Check your work with:  uv run lab check 6
"""

from __future__ import annotations

import argparse  # noqa: F401  (the standard library's way to read arguments)
import sys
from collections.abc import Sequence

from ..lab04_doubt.doubt import resume_chunk  # noqa: F401

# The exit status tells whoever started the worker what to do next.
COMPLETE = 0  # the job is done
USAGE = 2  # the arguments make no sense (argparse exits with this by itself)
MORE = 10  # all is well, there is more to do
CONFLICT = 20  # an order is not as approved any more
DAMAGED = 21  # the progress cannot be proven
UNKNOWN = 22  # no such job
BUSY = 30  # someone else holds the job (or an order) longer than the lock timeout
LOST = 31  # no connection, or it broke


def main(argv: Sequence[str]) -> int:
    """Advance one job chunk by chunk, and return the exit status.

    Args:
        argv: The arguments without the program's name:
            --dsn DSN               where the database is (required)
            --job JOB               the job to advance (required)
            --max-chunks N          at most this many chunk calls
            --lock-timeout-ms MS    how long to wait for a lock before the job counts as busy

    After each chunk is committed, one line is printed to stdout and flushed: a JSON object with
    `processed` (order IDs), `next_index` and `complete`. When the job is found complete, a line
    is allowed and not required. Nothing else goes to stdout; stderr is free.

    Returns:
        One of the constants above:
        COMPLETE when the list is done; MORE when `--max-chunks` is used up or SIGTERM came. SIGTERM
        lets the running chunk finish. BUSY when a lock was not free within the timeout, so that a
        frozen holder makes us busy and never hung. LOST when connecting fails or the connection
        breaks, also when the answer to COMMIT is lost: then a printed line must still be true, and
        what really happened is for the next start to read. A transaction that the server ended as
        the victim of a deadlock (40P01) or a serialization failure (40001) is tried again as a
        whole, a few times, or ends as BUSY.
    """
    # TODO: Read the arguments, and connect with autocommit on. What if there is no server?
    # TODO: SIGTERM may come at any moment. When may the program act on it?
    # TODO: How do you keep from waiting for ever behind a worker that is frozen?
    # TODO: Run a chunk; print its line, and only if it is true.
    # TODO: Turn each error into its exit status.
    # TODO: The connection broke during COMMIT. What do you know?
    raise NotImplementedError("lab06: main")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
