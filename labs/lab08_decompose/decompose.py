"""Lab 8: Decompose before dispatch.

The lesson is in README.md beside this file. The tables are in labs/schema.sql.
"""

from __future__ import annotations

from psycopg import Connection


def decompose(conn: Connection, parent_id: str) -> int:
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
    # TODO
    raise NotImplementedError("lab08: decompose is still to be written")
