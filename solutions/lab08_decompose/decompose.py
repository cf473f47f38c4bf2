"""Lab 8, worked: write down every unit of work before any of them is started.

A parent's payload is a list that only its worker has read. If the worker dies in the middle of that
list, nobody can say what was left. So the list becomes rows first, and one mark on the parent says
"the rows are complete". The mark says nothing about success: it is the place to resume from.

One transaction holds the rows, the total and the mark. There is no moment at which a part of the
set is visible, so there is nothing to repair after a kill: either all of it is there, or none.
"""

from __future__ import annotations

import psycopg

from harness.contract import UnknownParent

# The server splits the list itself. The payload does not travel to Python and back, numbers keep
# every digit, a JSON null stays a JSON null, and 20,000 events are one statement.
#
# A malformed event is stored like any other and is terminal from the start. If it were dropped, the
# total would not match the list that was received, and nobody could ever say why.
#
# `on conflict` is for rows that an older program left behind without the mark: the mark decides, so
# the set is completed. It cannot hide a second set, because the unique key is what it relies on.
INSERT_CHILDREN = """
    INSERT INTO child_work (parent_id, sequence, event, skipped_at, outcome)
    SELECT p.parent_id, e.position - 1, e.event, CASE WHEN r.reason IS NOT NULL THEN now() END, r.reason
    FROM parent_work p
    CROSS JOIN LATERAL jsonb_array_elements(p.payload -> 'events') WITH ORDINALITY AS e (event, position)
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN jsonb_typeof(e.event) <> 'object' THEN 'the event is not an object'
            WHEN jsonb_typeof(e.event -> 'subject') IS DISTINCT FROM 'string'
                THEN 'the event has no subject that is a string'
            WHEN jsonb_typeof(e.event -> 'occurred_at') IS DISTINCT FROM 'string'
                THEN 'the event has no occurred_at that is a string'
        END AS reason
    ) AS r
    WHERE p.parent_id = %s
    ON CONFLICT (parent_id, sequence) DO NOTHING
"""

# Counted, not remembered: the total is the number of rows that are really there.
MARK_DECOMPOSED = """
    UPDATE parent_work p
    SET total = (SELECT count(*) FROM child_work c WHERE c.parent_id = p.parent_id),
        decomposed_at = now()
    WHERE p.parent_id = %s
"""

# A legacy parent may carry an earlier failure. That is history, so the new reason is added to it.
END_WITHOUT_CHILDREN = """
    UPDATE parent_work
    SET failed_at = coalesce(failed_at, now()),
        completed_at = now(),
        failure = concat_ws('; ', failure, 'the payload has no list of events')
    WHERE parent_id = %s
"""


def decompose(conn: psycopg.Connection, parent_id: str) -> int:
    """Make one child row of every event of the parent, once, and return how many children there are.

    A payload without a list of events ends the parent instead, and the answer is 0.

    Raises:
        UnknownParent: If no parent has this ID.
    """
    with conn.transaction():
        # The lock is what makes two at once safe. The second waits here, and what it reads when the
        # first is done is the new row, with the mark.
        parent = conn.execute(
            """
            SELECT decomposed_at IS NOT NULL OR completed_at IS NOT NULL,
                   coalesce(jsonb_typeof(payload -> 'events') = 'array', FALSE)
            FROM parent_work
            WHERE parent_id = %s
            FOR UPDATE
            """,
            (parent_id,),
        ).fetchone()
        if parent is None:
            raise UnknownParent(f"no parent {parent_id!r}")
        is_settled, has_events = parent
        if not is_settled and has_events:
            conn.execute(INSERT_CHILDREN, (parent_id,))
            # Last, and in the same transaction: no one may see the mark without all of the rows.
            conn.execute(MARK_DECOMPOSED, (parent_id,))
        elif not is_settled:
            conn.execute(END_WITHOUT_CHILDREN, (parent_id,))
        # From the rows again, not from `total`: that column is a projection, and it may be stale.
        (children,) = conn.execute(
            "SELECT count(*) FROM child_work WHERE parent_id = %s", (parent_id,)
        ).fetchone()
        return children
