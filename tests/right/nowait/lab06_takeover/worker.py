"""Busy is known at once: NOWAIT on the job's row, and a lock timeout for the orders."""

from __future__ import annotations

import argparse
import json
import signal
import sys

import psycopg

from harness.contract import Conflict, DamagedProgress, UnknownJob

from ..lab03_chunk.chunk import run_chunk
from ..lab04_doubt.doubt import verify_progress

stopping = False


def on_sigterm(signum, frame):
    """Remember to stop."""
    global stopping
    stopping = True


def main(argv):
    """Run the worker."""
    global stopping
    stopping = False
    signal.signal(signal.SIGTERM, on_sigterm)
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--max-chunks", type=int, default=10**6)
    parser.add_argument("--lock-timeout-ms", type=int, default=1000)
    args = parser.parse_args(argv)
    if args.max_chunks < 1 or args.lock_timeout_ms < 1:
        parser.error("numbers start at 1")
    try:
        with psycopg.connect(args.dsn, autocommit=True) as conn:
            return run(conn, args)
    except Conflict as error:
        print(error, file=sys.stderr)
        return 20
    except DamagedProgress as error:
        print(error, file=sys.stderr)
        return 21
    except UnknownJob as error:
        print(error, file=sys.stderr)
        return 22
    except psycopg.OperationalError as error:
        print(error, file=sys.stderr)
        # 55P03, 40P01 and 40001 say that somebody else is there; the rest says that nobody is.
        return 30 if error.sqlstate in ("55P03", "40P01", "40001") else 31


def run(conn, args):
    """Advance the job until something says stop."""
    conn.execute(f"SET lock_timeout = '{args.lock_timeout_ms}ms'")
    for _ in range(args.max_chunks):
        if stopping:
            break
        with conn.transaction():
            conn.execute("SELECT FROM jobs WHERE job_id = %s FOR UPDATE NOWAIT", (args.job,))
            verify_progress(conn, args.job)
            result = run_chunk(conn, args.job)
        if result.processed:
            sys.stdout.write(json.dumps(vars(result)) + "\n")
            sys.stdout.flush()
        if result.complete:
            return 0
    return 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
