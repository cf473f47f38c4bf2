"""Lab 8, worked: write down every unit of work before any of them is started.

A parent's payload is a list that only its worker has read. If the worker dies in the middle of that
list, nobody can say what was left. So the list becomes rows first, and one mark on the parent says
"the rows are complete". The mark says nothing about success: it is the place to resume from.

One transaction holds the rows, the total and the mark. There is no moment at which a part of the
set is visible, so there is nothing to repair after a kill: either all of it is there, or none.
"""

from __future__ import annotations

from psycopg import Connection

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
    insert into child_work (parent_id, sequence, event, skipped_at, outcome)
    select p.parent_id, e.position - 1, e.event, case when r.reason is not null then now() end, r.reason
    from parent_work p
    cross join lateral jsonb_array_elements(p.payload -> 'events') with ordinality as e (event, position)
    cross join lateral (
        select case
            when jsonb_typeof(e.event) <> 'object' then 'the event is not an object'
            when jsonb_typeof(e.event -> 'subject') is distinct from 'string'
                then 'the event has no subject that is a string'
            when jsonb_typeof(e.event -> 'occurred_at') is distinct from 'string'
                then 'the event has no occurred_at that is a string'
        end as reason
    ) as r
    where p.parent_id = %s
    on conflict (parent_id, sequence) do nothing
"""

# Counted, not remembered: the total is the number of rows that are really there.
MARK_DECOMPOSED = """
    update parent_work p
    set total = (select count(*) from child_work c where c.parent_id = p.parent_id),
        decomposed_at = now()
    where p.parent_id = %s
"""

# A legacy parent may carry an earlier failure. That is history, so the new reason is added to it.
END_WITHOUT_CHILDREN = """
    update parent_work
    set failed_at = coalesce(failed_at, now()),
        completed_at = now(),
        failure = concat_ws('; ', failure, 'the payload has no list of events')
    where parent_id = %s
"""


def decompose(conn: Connection, parent_id: str) -> int:
    """Make one child row of every event of the parent, once, and return how many children there are."""
    with conn.transaction():
        # The lock is what makes two at once safe. The second waits here, and what it reads when the
        # first is done is the new row, with the mark.
        parent = conn.execute(
            """
            select decomposed_at is not null or completed_at is not null,
                   coalesce(jsonb_typeof(payload -> 'events') = 'array', false)
            from parent_work
            where parent_id = %s
            for update
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
            "select count(*) from child_work where parent_id = %s", (parent_id,)
        ).fetchone()
        return children
