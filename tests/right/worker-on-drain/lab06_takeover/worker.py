"""One drain of one chunk a turn."""

from __future__ import annotations

import argparse
import json
import signal
import sys

import psycopg
from psycopg import errors

from harness.contract import Conflict, DamagedProgress, UnknownJob

from ..lab04_doubt.doubt import verify_progress
from ..lab05_drain.drain import drain


class Worker:
    """One run of the program."""

    def __init__(self, options):
        self.options = options
        self.asked_to_stop = False
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_):
        """Stop after this chunk."""
        self.asked_to_stop = True

    def run(self):
        """Return the exit status."""
        statuses = {
            Conflict: 20,
            DamagedProgress: 21,
            UnknownJob: 22,
            errors.LockNotAvailable: 30,
            errors.SerializationFailure: 30,
            errors.DeadlockDetected: 30,
            psycopg.OperationalError: 31,
        }
        try:
            return self.work()
        except tuple(statuses) as error:
            print(repr(error), file=sys.stderr)
            status = next(statuses[cls] for cls in type(error).__mro__ if cls in statuses)
        if status == 31:
            self.look()
        return status

    def work(self):
        """Drain one chunk after the other."""
        timeout = f"-c lock_timeout={self.options.lock_timeout_ms}"
        with psycopg.connect(self.options.dsn, options=timeout) as conn:
            conn.autocommit = True
            left = self.options.max_chunks
            while left > 0 and not self.asked_to_stop:
                # drain nests in this transaction; until it ends, nobody else moves the checkpoint.
                with conn.transaction():
                    result = drain(conn, self.options.job, 1)
                    next_index = verify_progress(conn, self.options.job)
                print(
                    json.dumps(
                        {
                            "processed": list(result.processed),
                            "next_index": next_index,
                            "complete": result.complete,
                        }
                    ),
                    flush=True,
                )
                if result.complete:
                    return 0
                left -= 1
            return 10

    def look(self):
        """Tell the operator, on stderr, how far the job has got; nothing depends on it."""
        try:
            with psycopg.connect(self.options.dsn, autocommit=True, connect_timeout=3) as conn:
                print("checkpoint now:", verify_progress(conn, self.options.job), file=sys.stderr)
        except Exception as error:
            print("and it cannot be read:", error, file=sys.stderr)


def main(argv=None):
    """Run the worker."""
    parser = argparse.ArgumentParser()
    for name in ("dsn", "job"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--max-chunks", type=int, default=1000)
    parser.add_argument("--lock-timeout-ms", type=int, default=3000)
    return Worker(parser.parse_args(argv)).run()


if __name__ == "__main__":
    raise SystemExit(main())
