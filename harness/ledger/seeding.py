"""Write a ledger scenario into a clean database.

As with `seeding.py`, what the harness writes is not evidence: the witness is silent meanwhile. Ages
become times by the database's clock, which is the clock that leases run by.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from harness.ledger.scenario import LONG_AGO, moment

if TYPE_CHECKING:
    from harness.ledger.scenario import ChildSeed, LedgerScenario, ParentSeed

#: What has happened before a run is a day old: older than any lease, so no clock can take it for news.
PAST = timedelta(days=1)


def seed_ledger(connection: psycopg.Connection[Any], scenario: LedgerScenario) -> None:
    """Write `scenario` in one transaction; the lab tables must be empty before."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL witness.quiet = 'on'")
        row = cursor.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        now: datetime = row[0]
        _copy(cursor, "subjects", "subject", ((subject,) for subject in scenario.subjects))
        _copy(cursor, "parent_work", _PARENT, (_parent(p, now - PAST) for p in scenario.parents))
        _copy(cursor, "child_work", _CHILD, _children(scenario, now))
        _copy(cursor, "event_effects", _EFFECT, _effects(scenario))
        cursor.execute(
            "SELECT setval('child_work_child_id_seq', max(child_id) + 1, false) FROM child_work"
        )


def age_claims(connection: psycopg.Connection[Any], by: timedelta = LONG_AGO) -> None:
    """Let time pass for every claim: move its start into the past, by the database's clock.

    A row that a client has locked keeps its claim as it is. `connection` is the owner's, so the
    judge takes nothing of this for a client's doing.
    """
    connection.execute(
        """
        UPDATE child_work SET processing_started_at = processing_started_at - %s
        WHERE child_id IN (SELECT child_id FROM child_work
                           WHERE processing_started_at IS NOT NULL FOR UPDATE SKIP LOCKED)
        """,
        (by,),
    )


_PARENT = (
    "parent_id, payload, total, processed, failed, skipped, decomposed_at, completed_at, failed_at,"
    " failure"
)
_CHILD = (
    "child_id, parent_id, sequence, event, processing_started_at, attempts, processed_at, failed_at,"
    " skipped_at, outcome"
)
_EFFECT = "parent_id, sequence, subject, occurred_at"


def _parent(parent: ParentSeed, past: datetime) -> tuple[Any, ...]:
    return (
        parent.parent_id,
        Jsonb(parent.payload) if parent.has_payload else None,
        *parent.counters,
        past if parent.decomposed else None,
        past if parent.completed else None,
        past if parent.failure is not None else None,
        parent.failure,
    )


def _children(scenario: LedgerScenario, now: datetime) -> Iterator[tuple[Any, ...]]:
    """Yield the rows in ID order, which is no order of sequences."""
    rows = [(child, parent) for parent in scenario.parents for child in parent.children]
    for child, parent in sorted(rows, key=lambda row: row[0].child_id):
        yield (
            child.child_id,
            parent.parent_id,
            child.sequence,
            Jsonb(child.event),
            *_past(child, now),
        )


def _past(child: ChildSeed, now: datetime) -> tuple[Any, ...]:
    """Return claim, attempts, the three marks and the reason."""
    claimed_at = now - child.claimed_ago if child.claimed_ago is not None else None
    if child.ending is None:
        return (claimed_at, child.attempts, None, None, None, None)
    marks = [
        now - PAST if child.ending.state == state else None
        for state in ("processed", "failed", "skipped")
    ]
    return (claimed_at, child.attempts, *marks, child.ending.reason)


def _effects(scenario: LedgerScenario) -> Iterator[tuple[Any, ...]]:
    for parent in scenario.parents:
        for child in parent.children:
            if child.ending is not None and child.ending.state == "processed":
                at = moment(child.event["occurred_at"])
                yield (parent.parent_id, child.sequence, child.event["subject"], at)


def _copy(
    cursor: psycopg.Cursor[Any], table: str, columns: str, rows: Iterator[tuple[Any, ...]]
) -> None:
    """Insert rows with COPY; table and columns are the kit's own words, never input."""
    with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
