"""Lab 8: decompose before dispatch.

A parent's payload is a list that only its worker has read. Here it becomes rows, so that everybody
can read what there is to do. The lesson is in README.md beside this file, the tables are in
../schema.sql.

Check your work with:  uv run lab check 8
"""

from __future__ import annotations

import psycopg

from harness.contract import UnknownParent  # noqa: F401  (you will need it)


def decompose(conn: psycopg.Connection, parent_id: str) -> int:
    """Make one durable child row of every event of a parent, once.

    The events are the list under `events` in the parent's payload. The first has sequence 0. An event
    is well-formed when it is an object whose `subject` and `occurred_at` are both strings. Any other
    event is stored as well, and is marked skipped at once with a reason as its outcome.

    Afterwards all children are committed, and `total` and `decomposed_at` of the parent are set. A
    parent that has its mark already is left as it is, also when two callers arrive at the same time.

    A payload without a list of events ends the parent: `failed_at`, `completed_at` and `failure` are
    set, there are no children, and `decomposed_at` stays NULL. Repeating it changes nothing.

    Args:
        conn: An autocommit connection. Inside an open transaction this call nests in it.
        parent_id: A row of `parent_work`. It may carry a failure from an earlier run.

    Returns:
        How many children the parent has now; 0 for a parent that was ended.

    Raises:
        UnknownParent: No parent has this ID.
    """
    # TODO: In one transaction, read the parent ... and what if two callers read it at once?
    # TODO: Make a row of every event, also of those that nobody can process.
    # TODO: Set `total` and `decomposed_at`. When, so that nobody sees the mark without the rows?
    # TODO: What if there is no list of events?
    raise NotImplementedError("lab08: decompose")
