"""Lab 6: a worker that another worker can take over from, at any moment.

    python -m solutions.lab06_takeover.worker --dsn DSN --job JOB [--max-chunks N] [--lock-timeout-ms MS]

It prints one JSON line a chunk, after the commit. Its exit status tells the caller what to do next:

    0 complete    10 more to do    2 usage    20 conflict    21 damaged progress    22 unknown job
    30 busy: another worker holds the job    31 connection lost: start again, the database knows

It keeps nothing that matters in memory. Whoever starts next reads the checkpoint, proves it from the
audit and goes on, whether this process ended well, was killed, or never learned if its last commit
happened.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence

import psycopg
from psycopg import errors

from harness.contract import ChunkResult, Conflict, DamagedProgress, UnknownJob

from ..lab04_doubt.doubt import resume_chunk

COMPLETE, MORE, USAGE, CONFLICT, DAMAGED, UNKNOWN, BUSY, LOST = 0, 10, 2, 20, 21, 22, 30, 31

#: Enough for most jobs in one go, and still an end: a worker that cannot stop cannot be replaced.
MAX_CHUNKS = 1_000
#: A healthy chunk takes milliseconds. Whoever holds the job longer than this is stuck or frozen.
LOCK_TIMEOUT_MS = 2_000
#: A server that does not answer within this time counts as not there.
CONNECT_TIMEOUT_S = 10
#: A deadlock or a serialization failure is over when our transaction is; more in a row is a pattern.
ATTEMPTS = 3


def main(argv: Sequence[str]) -> int:
    """Run the worker with the arguments `argv` (without the program's name); return its exit status."""
    options = parse(argv)
    # SIGTERM asks; it does not interrupt. The handler only takes a note, psycopg goes on with the
    # statement it is in, and the loop looks at the note between two chunks.
    asked_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
    try:
        conn = psycopg.connect(options.dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
    except psycopg.OperationalError as error:
        return stop(LOST, error)
    except psycopg.ProgrammingError as error:  # the DSN cannot be read
        return stop(USAGE, error)
    with conn:
        try:
            return work(conn, options, asked_to_stop)
        except Conflict as error:
            return stop(CONFLICT, error)
        except DamagedProgress as error:
            return stop(DAMAGED, error)
        except UnknownJob as error:
            return stop(UNKNOWN, error)
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as e:
            return stop(BUSY, e)
        except psycopg.Error as error:
            # If the reply to COMMIT was lost, the chunk may be in or not, and this exception looks
            # the same either way. So we claim neither: no line, no compensation, no second try. The
            # next start reads the checkpoint, which is the truth.
            if conn.closed:
                return stop(LOST, error)
            raise


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options. A usage error ends the program with status 2, as argparse does."""
    parser = argparse.ArgumentParser(prog="worker", description="Advance one job, chunk by chunk.")
    parser.add_argument("--dsn", required=True, help="where the database is")
    parser.add_argument("--job", required=True, help="the job to advance")
    parser.add_argument("--max-chunks", type=positive, default=MAX_CHUNKS)
    parser.add_argument("--lock-timeout-ms", type=positive, default=LOCK_TIMEOUT_MS)
    return parser.parse_args(argv)


def positive(text: str) -> int:
    """Read a number of at least 1. A lock timeout of 0 would mean "wait for ever" to PostgreSQL."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {text}")
    return number


def work(
    conn: psycopg.Connection, options: argparse.Namespace, asked_to_stop: threading.Event
) -> int:
    """Run chunks until the job is complete, the bound is reached or someone asked to stop."""
    # A frozen worker keeps its row lock for as long as it is frozen. Without a limit we would hang
    # behind it; with one we say "busy", and whoever started us decides.
    conn.execute("SELECT set_config('lock_timeout', %s, false)", (str(options.lock_timeout_ms),))
    for _ in range(options.max_chunks):
        if asked_to_stop.is_set():
            return MORE
        result = advance(conn, options.job)
        announce(result)
        if result.complete:
            return COMPLETE
    return MORE


def advance(conn: psycopg.Connection, job_id: str) -> ChunkResult:
    """Run the next chunk. A deadlock's or serialization's victim tries again in a new transaction.

    These two are the errors after which the server promises that nothing happened, and that the same
    transaction may succeed. It must be the whole transaction: what it had read is out of date.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return resume_chunk(conn, job_id)
        except (errors.DeadlockDetected, errors.SerializationFailure) as error:
            print(f"worker: trying again: {error}", file=sys.stderr)
    return resume_chunk(conn, job_id)


def announce(result: ChunkResult) -> None:
    """Print the chunk as one JSON line. It is committed by now, so the line is true."""
    line = {
        "processed": result.processed,
        "next_index": result.next_index,
        "complete": result.complete,
    }
    print(json.dumps(line), flush=True)  # a line in a buffer dies with the process


def stop(status: int, error: Exception) -> int:
    """Say why on stderr, where people look; stdout is for the program that reads the lines."""
    print(f"worker: {type(error).__name__}: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
