"""Lab 10, worked: end a unit of work once, together with its effect.

A child is open, or it is processed, failed or skipped. It leaves "open" one time and never comes
back. The UPDATE that moves it names the state it must come from; zero rows changed means somebody
else was first, and the loser leaves nothing behind.

The effect is a row in the same database, so it can share the transaction of the mark: both are
there, or neither. An effect in another system cannot share it. A worker that dies between that
effect and this mark leaves an outcome that nobody knows; the ledger shows such a child, and does
not decide it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

from harness.contract import Outcome

from ..lab09_claim.claim import claim

STATES = ("processed", "failed", "skipped")

# The guard is the three IS NULL. A second worker that arrives while the first is between this
# statement and its COMMIT waits for the row, then checks the guard again on the new row, and finds
# that it lost.
END_CHILD = """
    update child_work
    set processed_at = case when %(state)s = 'processed' then clock_timestamp() end,
        failed_at = case when %(state)s = 'failed' then clock_timestamp() end,
        skipped_at = case when %(state)s = 'skipped' then clock_timestamp() end,
        outcome = %(reason)s
    where child_id = %(child_id)s
      and processed_at is null
      and failed_at is null
      and skipped_at is null
    returning parent_id, sequence, event
"""

INSERT_EFFECT = """
    insert into event_effects (parent_id, sequence, subject, occurred_at)
    values (%s, %s, %s, %s)
"""


def finish(conn: Connection, child_id: int, outcome: Outcome) -> bool:
    """End the child with this outcome and tell whether this call was the one that did it."""
    if outcome.state not in STATES:
        raise ValueError(f"state is {outcome.state!r}, not one of {', '.join(STATES)}")
    reason = None if outcome.state == "processed" else outcome.reason
    with conn.transaction():
        ended = conn.execute(
            END_CHILD, {"child_id": child_id, "state": outcome.state, "reason": reason}
        ).fetchone()
        if ended is None:
            return False  # ended before, or no such child: not ours to do, and no effect either
        if outcome.state == "processed":
            parent_id, sequence, event = ended
            moment = parse_moment(event["occurred_at"])
            conn.execute(INSERT_EFFECT, (parent_id, sequence, event["subject"], moment))
    return True  # after the block: by now the commit has been answered


def process(conn: Connection, parent_id: str, limit: int, lease: timedelta) -> list[int]:
    """Claim up to `limit` children, decide and end each, and return those that this call ended.

    Every child has its own transaction. A worker that is killed at the tenth keeps the nine before
    it, and a child that raises an unexpected error takes no other down with it.
    """
    ended = []
    for child in claim(conn, parent_id, limit, lease):
        if finish(conn, child.child_id, decide(conn, child.event)):
            ended.append(child.child_id)
    return ended


def decide(conn: Connection, event: dict[str, Any]) -> Outcome:
    """Judge an event that decomposition found well-formed: the subject first, then the time."""
    known = conn.execute("select 1 from subjects where subject = %s", (event["subject"],))
    if known.fetchone() is None:
        return Outcome("skipped", "unknown local subject")
    try:
        parse_moment(event["occurred_at"])
    except ValueError:
        return Outcome("failed", "invalid timestamp")
    return Outcome("processed")


def parse_moment(text: str) -> datetime:
    """Return the moment an ISO 8601 text names, or raise ValueError.

    One parser both decides and writes, so that they cannot disagree. PostgreSQL's own is no ISO 8601
    parser: it also takes 'tomorrow'. A time without an offset is no moment, so it does not pass.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"no offset in {text!r}")
    return moment
