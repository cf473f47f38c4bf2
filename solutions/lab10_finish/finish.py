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

import psycopg

from harness.contract import Outcome

from ..lab09_claim.claim import claim

STATES = ("processed", "failed", "skipped")

# The guard is the three IS NULL. A second worker that arrives while the first is between this
# statement and its COMMIT waits for the row, then checks the guard again on the new row, and finds
# that it lost.
END_CHILD = """
    UPDATE child_work
    SET processed_at = CASE WHEN %(state)s = 'processed' THEN clock_timestamp() END,
        failed_at = CASE WHEN %(state)s = 'failed' THEN clock_timestamp() END,
        skipped_at = CASE WHEN %(state)s = 'skipped' THEN clock_timestamp() END,
        outcome = %(reason)s
    WHERE child_id = %(child_id)s
      AND processed_at IS NULL
      AND failed_at IS NULL
      AND skipped_at IS NULL
    RETURNING parent_id, sequence, event
"""

INSERT_EFFECT = """
    INSERT INTO event_effects (parent_id, sequence, subject, occurred_at)
    VALUES (%s, %s, %s, %s)
"""


def finish(conn: psycopg.Connection, child_id: int, outcome: Outcome) -> bool:
    """End the child with this outcome, with its effect if it is processed.

    Returns:
        True if this call was the one that ended it; False if it had ended before or does not exist.

    Raises:
        ValueError: If the outcome has another state than the three. Nothing is changed.
    """
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


def process(conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta) -> list[int]:
    """Claim up to `limit` children, decide and end each, and return those that this call ended.

    Every child has its own transaction. A worker that is killed at the tenth keeps the nine before
    it, and a child that raises an unexpected error takes no other down with it.
    """
    ended = []
    for child in claim(conn, parent_id, limit, lease):
        if finish(conn, child.child_id, decide(conn, child.event)):
            ended.append(child.child_id)
    return ended


def decide(conn: psycopg.Connection, event: dict[str, Any]) -> Outcome:
    """Judge an event that decomposition found well-formed: the subject first, then the time."""
    known = conn.execute("SELECT 1 FROM subjects WHERE subject = %s", (event["subject"],))
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
