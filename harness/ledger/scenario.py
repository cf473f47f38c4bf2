"""Ledgers: the parents and children a run of track B starts from, as plain data.

The story behind them is the course's: scanners at a festival's gates send one list of events, and
each event becomes an admission. A *parent* is such a list as one row of `parent_work`. Its *ledger*
are the rows of `child_work`. A scenario says what is there before any client starts: lists that
nobody has read yet, ledgers that are half done, claims that are an hour old, counters that lie.

    half_done = LedgerScenario((ledger(scans(10), ended=range(4), claimed={4: HOUR}),))

It is data only: `ledger_seeding.py` writes it, the judge compares with it. The same arguments always
make the same scenario; `seed` moves child IDs and subjects, never the meaning.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg

#: The parent of the lessons: Sunday night's list.
PARENT = "scans-sunday"
#: The subjects that are known here; events may name others.
SUBJECTS = tuple(f"ticket-{n:04}" for n in range(1, 9))
STRANGER = "ticket-9999"
#: The reasons that the contract names.
UNKNOWN_SUBJECT, INVALID_TIMESTAMP = "unknown local subject", "invalid timestamp"
#: A lease longer than any run, and so much older that it is over.
LEASE, LONG_AGO = timedelta(hours=1), timedelta(hours=2)

_FIRST_SCAN = datetime.fromisoformat("2026-09-19T18:02:11+02:00")
_FIRST_CHILD_ID = 501


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ends, or has ended: `state` is 'processed', 'failed' or 'skipped'."""

    state: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ChildSeed:
    """One row of `child_work` before the run. `claimed_ago` is the age of its claim, None without one."""

    child_id: int
    sequence: int
    event: Any
    ending: Ending | None = None
    attempts: int = 0
    claimed_ago: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ParentSeed:
    """One row of `parent_work` before the run, and its ledger if it is `decomposed`.

    `counters` are total, processed, failed and skipped, true or not. A `failure` comes with a
    `failed_at`. `has_payload` False means SQL NULL, which is not a JSON null.
    """

    parent_id: str
    payload: Any
    children: tuple[ChildSeed, ...] = ()
    decomposed: bool = False
    counters: tuple[int | None, int, int, int] = (None, 0, 0, 0)
    completed: bool = False
    failure: str | None = None
    has_payload: bool = True

    @property
    def listed(self) -> list[Any] | None:
        """Return the payload's list of events; None when it has none."""
        events = self.payload.get("events") if isinstance(self.payload, dict) else None
        return events if isinstance(events, list) else None

    @property
    def events(self) -> list[Any] | None:
        """Return the events that are the parent's children, now or once it is decomposed."""
        if self.decomposed:
            return [child.event for child in self.children]
        return self.listed

    def child(self, sequence: int) -> ChildSeed:
        """Return the child at this place; the parent must be decomposed."""
        return self.children[sequence]

    def ids(self, *sequences: int) -> tuple[int, ...]:
        """Return the child IDs at these places, or of all children, in sequence order."""
        wanted = sequences or range(len(self.children))
        return tuple(self.children[n].child_id for n in wanted)


@dataclass(frozen=True, slots=True)
class LedgerScenario:
    """What is there before a run. It can write itself, so it is a seeder for `Workshop.scene`.

    `limit` and `lease` are what the activities of the sweep hand to the labs.
    """

    parents: tuple[ParentSeed, ...]
    subjects: tuple[str, ...] = SUBJECTS
    limit: int = 10
    lease: timedelta = field(default=LEASE)
    seed: int = 0

    def __call__(self, connection: psycopg.Connection[Any]) -> None:
        """Write the scenario into clean tables."""
        from harness.ledger.seeding import seed_ledger

        seed_ledger(connection, self)

    @property
    def parent(self) -> ParentSeed:
        """Return the first parent: the only one, in most scenarios."""
        return self.parents[0]


# --- events -----------------------------------------------------------------------------------------


def scan(number: int = 0, **changed: Any) -> dict[str, Any]:
    """Return a well-formed event of a known subject; keywords replace or add values."""
    at = (_FIRST_SCAN + timedelta(seconds=7 * number)).isoformat()
    return {"subject": SUBJECTS[number % len(SUBJECTS)], "occurred_at": at, **changed}


def scans(count: int) -> list[Any]:
    """Return `count` good events."""
    return [scan(n) for n in range(count)]


def mixed_scans(count: int, seed: int = 0) -> list[Any]:
    """Return `count` events of every kind: good, of strangers, with impossible times, malformed."""
    return [_mixed(n, (n + seed) % 23) for n in range(count)]


def _mixed(number: int, kind: int) -> Any:
    event: Any = scan(number)
    if kind in (3, 12):
        event["subject"] = STRANGER
    elif kind in (5, 19):
        event["occurred_at"] = "2026-02-30T18:00:00+02:00"
    elif kind == 8:
        event["occurred_at"] = 1_789_840_000
    elif kind == 15:
        event = None
    return event


def is_well_formed(event: Any) -> bool:
    """Tell whether an event is an object with a subject and an occurred_at that are strings."""
    return isinstance(event, dict) and all(
        isinstance(event.get(key), str) for key in ("subject", "occurred_at")
    )


def moment(text: str) -> datetime | None:
    """Return the moment that an ISO 8601 text with an offset names, else None."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def ending_of(event: Any, subjects: Iterable[str] = SUBJECTS) -> Ending:
    """Return how an event must end: the contract's rules for `decompose` and `process`."""
    if not is_well_formed(event):
        return Ending("skipped", "malformed")  # the contract leaves the words free
    if event["subject"] not in subjects:
        return Ending("skipped", UNKNOWN_SUBJECT)
    if moment(event["occurred_at"]) is None:
        return Ending("failed", INVALID_TIMESTAMP)
    return Ending("processed")


# --- parents ----------------------------------------------------------------------------------------


def unread(
    events: Sequence[Any], parent_id: str = PARENT, *, failure: str | None = None
) -> ParentSeed:
    """Return a parent that nobody has decomposed; with a `failure` it is a legacy one."""
    return ParentSeed(parent_id, {"events": list(events)}, failure=failure)


def odd_payload(
    payload: Any, parent_id: str = PARENT, *, has_payload: bool = True, failure: str | None = None
) -> ParentSeed:
    """Return a parent with any payload at all, not decomposed."""
    return ParentSeed(parent_id, payload, has_payload=has_payload, failure=failure)


def ledger(
    events: Sequence[Any],
    parent_id: str = PARENT,
    *,
    ended: Iterable[int] | Mapping[int, Ending] = (),
    claimed: Mapping[int, timedelta] | None = None,
    counters: tuple[int | None, int, int, int] | None = None,
    completed: bool = False,
    failure: str | None = None,
    payload: Any = None,
    first_id: int = _FIRST_CHILD_ID,
    seed: int = 0,
) -> ParentSeed:
    """Return a decomposed parent.

    Args:
        ended: Places that have ended, as their events must end or as the mapping says; malformed
            events have ended in any case.
        claimed: Places with a claim, and how old it is.
        counters: Total, processed, failed, skipped as the parent has them; default: a total, and zeros.
        payload: The payload as it is now; default: the list that the ledger was made of.
        first_id: The lowest child ID. IDs, and with them the places in the table, do not follow the
            sequences: a claim that leans on their order shows.
    """
    ids = list(range(first_id, first_id + len(events)))
    random.Random(f"ledger {seed}").shuffle(ids)
    ends = dict(ended) if isinstance(ended, Mapping) else {n: ending_of(events[n]) for n in ended}
    ends |= {n: ending_of(event) for n, event in enumerate(events) if not is_well_formed(event)}
    ages = dict(claimed or {})
    children = tuple(
        ChildSeed(
            ids[n], n, event, ends.get(n), attempts=int(n in ages), claimed_ago=ages.get(n)
        )
        for n, event in enumerate(events)
    )  # fmt: skip
    return ParentSeed(
        parent_id,
        {"events": list(events)} if payload is None else payload,
        children,
        decomposed=True,
        counters=counters or (len(events), 0, 0, 0),
        completed=completed,
        failure=failure,
    )


def one(parent: ParentSeed, **options: Any) -> LedgerScenario:
    """Return the scenario of one parent."""
    return LedgerScenario((parent,), **options)
