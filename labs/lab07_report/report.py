"""Lab 7: report honestly.

What the job committed then, and what the orders are now, are two questions. Answer both. This lab
has a second file to fill in, reconcile.sql. The lesson is in README.md beside this file, the tables
are in ../schema.sql.

Check your work with:  uv run lab check 7
"""

from __future__ import annotations

import psycopg

from harness.contract import DamagedProgress, Report, UnknownJob  # noqa: F401


def report(conn: psycopg.Connection, job_id: str) -> Report:
    """Describe the job as it is at one moment. Change nothing.

    Args:
        conn: A psycopg connection with autocommit on, perhaps inside a transaction of the caller.
        job_id: The job to describe. Workers and other people may be writing while you read.

    Returns:
        Report, whose fields are tuples of order IDs in ID order. `approved` is the whole list. It
        splits into `committed`, the first `next_index` lines, and `unprocessed`, the rest.
        `committed` splits into
        `matching`: the order is as the job left it, in tenant, state 'cancelled', revision (the
        audit's `revision_after`) and qty;
        `drifted`: an order with this ID exists, and something about it is different;
        `missing`: there is no order with this ID, whatever else looks like it.

    Raises:
        UnknownJob: If no job has this ID.
        DamagedProgress: If checkpoint or audit contradict the approved list, by the rules of lab 4.
    """
    # TODO: Read all of it in a single SELECT. What could two of them disagree about?
    # TODO: Doubt the progress before you report it.
    # TODO: Sort the IDs into their groups.
    raise NotImplementedError("lab07: report")
