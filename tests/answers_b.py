"""What track B's functions must do, as plain checks in this process.

The graded checks run client processes and judge them from outside. These run the kit's own answers
here, which is quick and enough to prove that right answers work and that wrong ones are wrong in the
way their catalogue says. Three families, by lab:

* `PLAIN`: calls and prepared rows, nothing goes wrong.
* `CUT`: the connection ends at the nth boundary of a call, for every n; then a new one goes on.
* `RIVAL`: a second worker runs at the nth boundary of the first, until it is done or blocked, for
  every n.

A boundary is here the moment before or after a statement. Before matters, because a COMMIT may lie
between a statement and the next.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from harness.contract import Outcome, ParentStep, Totals, UnknownParent
from harness.course import COURSE
from harness.database import Laboratory
from harness.waiting import wait_until

LONG, NONE = timedelta(hours=1), timedelta(0)
#: A call with more boundaries than this goes round in circles; the longest honest one has 3,000.
BOUNDARIES_ALL_MAX = 6_000
#: Cuts and rivals are tried at each of the first so many boundaries.
BOUNDARIES_MAX = 60
#: Nothing here waits for a lock that anybody holds on purpose.
LOCK_TIMEOUT_MS = 300
RIVAL_WAIT_S = 10.0

GOOD = {"subject": "gate-1", "occurred_at": "2026-06-20T18:00:00Z"}
STRANGER = {"subject": "gate-9", "occurred_at": "2026-06-20T18:00:00Z"}
BAD_TIME = {"subject": "gate-1", "occurred_at": "2026-02-30T18:00:00Z"}
MALFORMED: list[Any] = [
    None, 7, "text", [], [GOOD], {}, {"subject": "gate-1"}, {"occurred_at": GOOD["occurred_at"]},
    GOOD | {"subject": None}, GOOD | {"subject": 5}, GOOD | {"occurred_at": 5},
    GOOD | {"occurred_at": None}, GOOD | {"occurred_at": {"at": 1}}, GOOD | {"subject": ["gate-1"]},
]  # fmt: skip
NO_LIST: list[Any] = [None, [], [GOOD], "events", 7, {}, {"events": None}, {"events": {"0": GOOD}},
                      {"events": "[]"}, {"event": [GOOD]}]  # fmt: skip


class Cut(BaseException):
    """The connection was ended on purpose, so no `except Exception` of an answer may hide it."""


class WatchedCursor(psycopg.Cursor[Any]):
    """A cursor that tells its connection before and after every statement."""

    def execute(self, *args: Any, **kwargs: Any) -> WatchedCursor:
        self.connection.at_boundary()  # type: ignore[attr-defined]
        super().execute(*args, **kwargs)
        self.connection.at_boundary()  # type: ignore[attr-defined]
        return self

    def executemany(self, *args: Any, **kwargs: Any) -> None:
        self.connection.at_boundary()  # type: ignore[attr-defined]
        super().executemany(*args, **kwargs)
        self.connection.at_boundary()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Kit:
    """The functions of one answer, the learner's way in, and the owner's way to look."""

    functions: dict[str, Callable[..., Any]]
    laboratory: Laboratory
    dsn: str

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Call a function on a connection of its own, and check how it left that."""

        def call(*args: Any, **settings: Any) -> Any:
            with self.session(**settings) as conn, unchanged(conn):
                return self.functions[name](conn, *args)

        return call

    @contextmanager
    def session(self, watch: Callable[[int], None] | None = None) -> Iterator[psycopg.Connection]:
        """Open a learner's connection; `watch` is called with the number of each boundary."""
        numbers = itertools.count(1)

        def at_boundary() -> None:
            number = next(numbers)
            assert number < BOUNDARIES_ALL_MAX, "the call goes round in circles"
            if watch is not None:
                watch(number)

        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
            conn.execute("SET timezone = 'Asia/Kathmandu'")  # nobody may lean on UTC
            conn.cursor_factory = WatchedCursor
            conn.at_boundary = at_boundary  # type: ignore[attr-defined]
            yield conn

    def rows(self, query: str, *args: Any) -> list[tuple[Any, ...]]:
        """Run a query as the owner and return its rows, if it has any."""
        cursor = self.laboratory.control.execute(query, args)
        return cursor.fetchall() if cursor.description else []

    def parent(self, parent_id: str, payload: Any, **columns: str) -> None:
        """Add a parent; each further column is an SQL expression."""
        names = "".join(f", {name}" for name in columns)
        values = "".join(f", {value}" for value in columns.values())
        query = f"INSERT INTO parent_work (parent_id, payload{names}) VALUES (%s, %s{values})"
        self.rows(query, parent_id, Jsonb(payload))

    def ledger(self, parent_id: str, *events: Any) -> list[int]:
        """Add a decomposed parent with open children, and return their IDs in sequence order.

        The rows are stored last sequence first, so that their IDs and places do not follow it.
        """
        self.parent(parent_id, {"events": events}, total=str(len(events)), decomposed_at="now()")
        for sequence in reversed(range(len(events))):
            self.rows(
                "INSERT INTO child_work (parent_id, sequence, event) VALUES (%s, %s, %s)",
                parent_id, sequence, Jsonb(events[sequence]),
            )  # fmt: skip
        query = "SELECT child_id FROM child_work WHERE parent_id = %s ORDER BY sequence"
        return [child_id for (child_id,) in self.rows(query, parent_id)]

    def ends(self, parent_id: str) -> list[str]:
        """Return the children's states in sequence order, each as the marks that are set."""
        return [
            "+".join(mark for mark in marks if mark) or "open"
            for marks in self.rows(
                "SELECT CASE WHEN processed_at IS NOT NULL THEN 'processed' END,"
                " CASE WHEN failed_at IS NOT NULL THEN 'failed' END,"
                " CASE WHEN skipped_at IS NOT NULL THEN 'skipped' END"
                " FROM child_work WHERE parent_id = %s ORDER BY sequence",
                parent_id,
            )
        ]

    def effects(self, parent_id: str) -> list[int]:
        """Return the sequences that have an effect, one entry an effect."""
        query = "SELECT sequence FROM event_effects WHERE parent_id = %s ORDER BY sequence"
        return [sequence for (sequence,) in self.rows(query, parent_id)]

    def one(self, parent_id: str, column: str) -> Any:
        """Return one expression over the parent's row."""
        return self.rows(f"SELECT {column} FROM parent_work WHERE parent_id = %s", parent_id)[0][0]

    def everything(self) -> list[Any]:
        """Return all rows of the ledger's tables."""
        return [self.rows(f"SELECT * FROM {table} ORDER BY 1") for table in (
            "parent_work", "child_work", "event_effects")]  # fmt: skip


def load(folder: Path, laboratory: Laboratory) -> Kit:
    """Import an answer's labs 8 to 12 under a package name of their own, and add the subjects."""
    package = types.ModuleType(f"answer_{folder.name.replace('-', '_')}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    functions: dict[str, Callable[..., Any]] = {}
    for lab in COURSE[7:]:
        module = importlib.import_module(f"{package.__name__}.{lab.folder}.{lab.module}")
        functions |= {name: getattr(module, name) for name in lab.functions}
    upstream = laboratory.server.upstream
    kit = Kit(functions, laboratory, laboratory.learner_dsn(upstream.host, upstream.port))
    reset(kit)
    return kit


def reset(kit: Kit) -> None:
    """Empty the tables, except for three subjects."""
    kit.rows("DELETE FROM event_effects")
    kit.rows("DELETE FROM child_work")
    kit.rows("DELETE FROM parent_work")
    kit.rows("DELETE FROM subjects")
    kit.rows("INSERT INTO subjects VALUES ('gate-1'), ('gate-2'), ('gate-3')")


@contextmanager
def unchanged(conn: psycopg.Connection) -> Iterator[None]:
    """Fail unless the connection is left as it was: mode, transaction, settings, session locks."""
    before = _state(conn)
    yield
    assert _state(conn) == before


def _state(conn: psycopg.Connection) -> tuple[Any, ...]:
    status = conn.info.transaction_status
    with psycopg.Cursor(conn) as cursor:
        settings = cursor.execute(
            "SELECT name, setting FROM pg_settings WHERE context = 'user' ORDER BY name"
        ).fetchall()
        locks = cursor.execute(
            "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchall()
    return conn.autocommit, status, settings, locks


# --- cuts and rivals --------------------------------------------------------------------------------


def cut_at_every_boundary(
    kit: Kit, setup: Callable[[], None], name: str, *args: Any
) -> Iterator[int]:
    """Call `name` again and again, ended at boundary 1, 2, ...; yield each time it was ended."""
    for boundary in range(1, BOUNDARIES_MAX):
        reset(kit)
        setup()
        with kit.session(lambda number, last=boundary: _cut(conn, number == last)) as conn:
            pid = conn.info.backend_pid
            try:
                kit.functions[name](conn, *args)
            except Cut:
                kit.laboratory.wait_backends_gone([pid])
            else:
                return
        yield boundary


def _cut(conn: psycopg.Connection, now: bool) -> None:
    if now:
        conn.close()
        raise Cut


def rival_at_every_boundary(
    kit: Kit, setup: Callable[[], None], first: Callable[..., Any], rival: Callable[..., Any]
) -> Iterator[tuple[Any, Any]]:
    """Run `rival(conn)` in the middle of `first(conn)`, at boundary 1, 2, ...; yield both results."""
    for boundary in range(1, BOUNDARIES_MAX):
        reset(kit)
        setup()
        results: list[Any] = []
        with kit.session() as other:
            thread = threading.Thread(target=lambda o=other, r=results: r.append(_result(rival, o)))

            def start_rival(
                number: int, last: int = boundary, t: threading.Thread = thread
            ) -> None:
                if number == last:
                    t.start()
                    wait_until(lambda: not t.is_alive() or _blocked(kit, other.info.backend_pid),
                               "the rival is done or blocked", wait_s=RIVAL_WAIT_S)  # fmt: skip

            with kit.session(start_rival) as conn:
                mine = _result(first, conn)
            if thread.ident is None:
                return
            thread.join()
        yield mine, results[0]


def _result(call: Callable[..., Any], conn: psycopg.Connection) -> Any:
    try:
        return call(conn)
    except Exception as error:
        return error


def _blocked(kit: Kit, pid: int) -> bool:
    return kit.rows("SELECT cardinality(pg_blocking_pids(%s)) > 0", pid) == [(True,)]


# --- lab 8 --------------------------------------------------------------------------------------------


def decompose_plain(kit: Kit) -> None:
    """Every event a row, malformed ones with a reason; once; bad payloads end the parent."""
    events = [GOOD, *MALFORMED, GOOD, GOOD | {"subject": ""}, GOOD | {"deep": {"a": [None, 1.5]}}]
    kit.parent("p", {"events": events, "other": 1})
    assert kit.decompose("p") == len(events)
    query = "SELECT sequence, event, outcome FROM child_work WHERE parent_id = %s ORDER BY sequence"
    stored = kit.rows(query, "p")
    assert [row[:2] for row in stored] == list(enumerate(events))
    assert kit.ends("p") == ["skipped" if event in MALFORMED else "open" for event in events]
    assert all(bool(outcome) is (event in MALFORMED) for _, event, outcome in stored)
    assert kit.one("p", "total") == len(events)
    assert kit.one("p", "decomposed_at IS NOT NULL AND completed_at IS NULL")
    kit.rows("UPDATE parent_work SET total = 99, failed_at = now(), failure = 'timeout',"
             " payload = jsonb_insert(payload, '{events, -1}', '5', true)")  # fmt: skip
    before = kit.everything()
    assert kit.decompose("p") == len(events)
    assert kit.everything() == before
    for number, payload in enumerate(NO_LIST):
        kit.parent(f"bad-{number}", payload)
        assert kit.decompose(f"bad-{number}") == 0
        assert kit.one(f"bad-{number}", "failed_at IS NOT NULL AND completed_at IS NOT NULL"
                       " AND failure <> '' AND decomposed_at IS NULL")  # fmt: skip
        before = kit.everything()
        assert kit.decompose(f"bad-{number}") == 0
        assert kit.everything() == before
    kit.rows("INSERT INTO parent_work (parent_id) VALUES ('no payload')")
    assert kit.decompose("no payload") == 0
    kit.parent("empty", {"events": []})
    assert kit.decompose("empty") == 0
    assert kit.one("empty", "total = 0 AND decomposed_at IS NOT NULL AND failed_at IS NULL")
    kit.parent("legacy", {"events": [GOOD]}, failed_at="now()", failure="'timeout'")
    assert kit.decompose("legacy") == 1
    assert kit.one("legacy", "failed_at IS NOT NULL AND failure = 'timeout'")
    kit.parent("many", {"events": [GOOD, None] * 500})
    assert kit.decompose("many") == 1000
    with pytest.raises(UnknownParent):
        kit.decompose("nobody")
    kit.parent("nested", {"events": [GOOD]})
    rolls_back(kit, "decompose", "nested")


def rolls_back(kit: Kit, name: str, *args: Any) -> Any:
    """Call a function inside a transaction that is rolled back: nothing may remain of it."""
    before = kit.everything()
    with kit.session() as conn, conn.transaction():
        with unchanged(conn):
            result = kit.functions[name](conn, *args)
        raise psycopg.Rollback
    assert kit.everything() == before
    return result


def decompose_cut(kit: Kit) -> None:
    """Either the mark and all rows are there, or nothing is; a new call makes the set."""
    events = [GOOD, None] * 65  # more than one batch of a hundred
    cuts = cut_at_every_boundary(kit, lambda: kit.parent("p", {"events": events}), "decompose", "p")
    for _ in itertools.islice(cuts, 12):  # a loop over single rows has the same few kinds of gaps
        whole = kit.one("p", "decomposed_at IS NOT NULL")
        assert len(kit.ends("p")) == (len(events) if whole else 0)
        assert kit.decompose("p") == len(events)
        assert len(kit.ends("p")) == len(events) == kit.one("p", "total")


def decompose_rival(kit: Kit) -> None:
    """Two at once make one set, and both say how large it is."""
    decompose = kit.functions["decompose"]
    events = [GOOD, None, GOOD]
    for results in rival_at_every_boundary(
        kit, lambda: kit.parent("p", {"events": events}),
        lambda conn: decompose(conn, "p"), lambda conn: decompose(conn, "p"),
    ):  # fmt: skip
        assert results == (3, 3)
        assert kit.ends("p") == ["open", "skipped", "open"]


# --- lab 9 --------------------------------------------------------------------------------------------


def sequences(children: Any) -> list[int]:
    """Return the sequences in the order of the result."""
    return [child.sequence for child in children]


def claim_plain(kit: Kit) -> None:
    """Lowest sequences first, within the limit, open and free ones only; a lease ends."""
    ids = kit.ledger("p", *[GOOD | {"n": n} for n in range(9)])
    kit.ledger("q", GOOD)
    kit.rows("UPDATE child_work SET failed_at = now() WHERE child_id = %s", ids[1])
    kit.rows("UPDATE child_work SET skipped_at = now() WHERE child_id = %s", ids[2])
    kit.rows("UPDATE child_work SET processed_at = now() WHERE child_id = %s", ids[3])
    (start,) = kit.rows("SELECT clock_timestamp()")[0]
    first = kit.claim("p", 3, LONG)
    assert [(c.child_id, c.sequence, c.event["n"], c.attempts) for c in first] == [
        (ids[0], 0, 0, 1), (ids[4], 4, 4, 1), (ids[5], 5, 5, 1)]  # fmt: skip
    stamps = kit.rows("SELECT processing_started_at BETWEEN %s AND clock_timestamp() FROM child_work"
                      " WHERE processing_started_at IS NOT NULL", start)  # fmt: skip
    assert stamps == [(True,)] * 3
    age = "UPDATE child_work SET processing_started_at = processing_started_at - %s::interval WHERE child_id = %s"
    kit.rows(age, timedelta(hours=2), ids[4])
    assert [(c.sequence, c.attempts) for c in kit.claim("p", 2, timedelta(hours=1))] == [
        (4, 2),
        (6, 1),
    ]
    assert sequences(kit.claim("p", 9, timedelta(hours=1))) == [7, 8]
    assert kit.claim("p", 9, timedelta(days=1)) == []
    kit.rows(age, timedelta(minutes=10), ids[7])
    assert kit.claim("p", 9, timedelta(minutes=30)) == []
    again = kit.claim("p", 9, timedelta(minutes=9))
    assert [(c.sequence, c.attempts) for c in again] == [(7, 2)]
    assert kit.claim("p", 9, timedelta(minutes=9)) == []
    assert sequences(kit.claim("p", 9, NONE)) == [0, 4, 5, 6, 7, 8]
    assert kit.claim("nobody", 9, NONE) == []
    kit.parent("stored in order", {"events": [GOOD] * 30})
    kit.decompose("stored in order")
    assert sequences(kit.claim("stored in order", 4, LONG)) == [0, 1, 2, 3]
    kit.ledger("null", None)
    assert [child.event for child in rolls_back(kit, "claim", "null", 1, LONG)] == [None]
    assert [child.attempts for child in kit.claim("null", 1, LONG)] == [1]


def claim_rival(kit: Kit) -> None:
    """Two at once never claim the same row, and a row that is locked is passed over, not waited for."""
    claim = kit.functions["claim"]
    for mine, others in rival_at_every_boundary(
        kit, lambda: kit.ledger("p", *[GOOD] * 6),
        lambda conn: claim(conn, "p", 3, LONG), lambda conn: claim(conn, "p", 3, LONG),
    ):  # fmt: skip
        assert len(mine) == len(others) == 3
        assert set(sequences(mine)).isdisjoint(sequences(others))
    reset(kit)
    kit.ledger("p", *[GOOD] * 4)
    with kit.laboratory.connect() as holder, holder.transaction():
        holder.execute("SELECT FROM child_work WHERE sequence IN (0, 2) FOR UPDATE")
        assert sequences(kit.claim("p", 3, LONG)) == [1, 3]


# --- lab 10 -------------------------------------------------------------------------------------------

STATES = ("processed", "failed", "skipped")


def finish_plain(kit: Kit) -> None:
    """A child ends once, with its effect or its reason; `process` judges subject, then time."""
    for first, second in itertools.product(STATES, STATES):
        reset(kit)
        (child_id,) = kit.ledger("p", GOOD | {"occurred_at": "2026-06-20T20:00:00+02:00"})
        assert kit.finish(child_id, Outcome(first, "one")) is True
        before = kit.everything()
        assert kit.finish(child_id, Outcome(second, "two")) is False
        assert kit.everything() == before
        assert kit.ends("p") == [first]
        assert kit.effects("p") == ([0] if first == "processed" else [])
        outcome = None if first == "processed" else "one"
        assert kit.rows("SELECT outcome FROM child_work") == [(outcome,)]
        assert kit.finish(child_id + 1, Outcome(first)) is False
    assert kit.everything() == before
    (child_id,) = kit.ledger("q", GOOD)
    for state in ("done", "", "Processed"):
        with pytest.raises(ValueError):  # noqa: PT011  (any text will do)
            kit.finish(child_id, Outcome(state))
    assert kit.ends("q") == ["open"]
    assert rolls_back(kit, "finish", child_id, Outcome("processed")) is True
    process_plain(kit)


def process_plain(kit: Kit) -> None:
    """Each event ends as its subject and its time say, and bad ones stop nobody."""
    moments = [
        "2026-06-20T18:00:00+05:30",
        "2024-02-29T23:59:59.5-03:00",
        "2026-06-20T18:00:00+00:00",
    ]
    good = [GOOD, GOOD, *[GOOD | {"occurred_at": moment} for moment in moments]]
    bad = [
        "",
        "soon",
        "tomorrow",
        "2026-13-01T00:00:00Z",
        "2026-02-30T18:00:00Z",
        "2025-02-29T00:00:00+01:00",
    ]
    failed = [GOOD | {"occurred_at": moment} for moment in bad]
    skipped = [
        STRANGER,
        STRANGER | {"occurred_at": "soon"},
        GOOD | {"subject": ""},
        GOOD | {"subject": "Gate-1"},
    ]
    ids = kit.ledger("r", *failed, *skipped, *good)
    assert kit.process("r", 4, LONG) == ids[:4]
    assert sorted(kit.process("r", 99, LONG)) == sorted(ids[4:])
    assert kit.ends("r") == ["failed"] * len(failed) + ["skipped"] * len(skipped) + [
        "processed"
    ] * len(good)
    outcomes = [
        o
        for (o,) in kit.rows(
            "SELECT outcome FROM child_work WHERE parent_id = 'r' ORDER BY sequence"
        )
    ]
    assert outcomes == ["invalid timestamp"] * len(failed) + ["unknown local subject"] * len(
        skipped
    ) + [None] * len(good)
    effects = kit.rows(
        "SELECT sequence, subject, occurred_at FROM event_effects WHERE parent_id = 'r' ORDER BY 1"
    )
    start = len(failed) + len(skipped)
    assert [row[:2] for row in effects] == [(start + n, "gate-1") for n in range(len(good))]
    for (_, _, stored), event in zip(effects, good, strict=True):
        assert kit.rows("SELECT %s = %s::timestamptz", stored, event["occurred_at"]) == [(True,)]
    assert kit.process("r", 9, NONE) == []
    assert kit.process("nobody", 9, NONE) == []


def finish_cut(kit: Kit) -> None:
    """Mark and effect are never apart, and what was ended before the cut stays ended."""
    ended = attempts = 0
    events = [GOOD, STRANGER, GOOD, BAD_TIME, GOOD]
    for _ in cut_at_every_boundary(kit, lambda: kit.ledger("p", *events), "process", "p", 9, LONG):
        ends = kit.ends("p")
        assert kit.effects("p") == [n for n, end in enumerate(ends) if end == "processed"]
        ended = len(events) - ends.count("open")
        (attempts,) = kit.rows("SELECT sum(attempts) FROM child_work")[0]
        kit.process("p", 9, NONE)
        assert kit.ends("p") == ["processed", "skipped", "processed", "failed", "processed"]
        assert kit.effects("p") == [0, 2, 4]
    assert ended >= len(events) - 1
    assert attempts == len(events)


def finish_rival(kit: Kit) -> None:
    """Two that work on the same children end each once; one of them says so. A lock ends no child."""
    process = kit.functions["process"]
    for mine, others in rival_at_every_boundary(
        kit, lambda: kit.ledger("p", GOOD, STRANGER, GOOD),
        lambda conn: process(conn, "p", 9, LONG), lambda conn: process(conn, "p", 9, NONE),
    ):  # fmt: skip
        assert kit.ends("p") == ["processed", "skipped", "processed"]
        assert kit.effects("p") == [0, 2]
        if isinstance(mine, list) and isinstance(others, list):
            assert len(mine) + len(others) == len({*mine, *others}) == 3
    reset(kit)
    kit.ledger("p", GOOD, GOOD)
    with kit.laboratory.connect() as holder, holder.transaction():
        holder.execute("LOCK TABLE event_effects IN EXCLUSIVE MODE")
        with kit.session() as conn:
            _result(lambda c: process(c, "p", 9, LONG), conn)
    assert kit.ends("p") == ["open", "open"]


# --- lab 11 -------------------------------------------------------------------------------------------


def resume_plain(kit: Kit) -> None:
    """Parents go on from what their rows say, whatever happened to an earlier run of them."""
    failed = {"failed_at": "now() - interval '1 day'", "failure": "'timeout'"}
    kit.parent("new", {"events": [GOOD, GOOD, STRANGER, None, GOOD]})
    kit.parent("legacy", {"events": [GOOD, BAD_TIME]}, **failed)
    kit.parent(
        "done", {"events": [GOOD]}, total="1", decomposed_at="now()", completed_at="now()", **failed
    )
    kit.parent("bad", {"events": 5})
    kit.parent("empty", {"events": []})
    ids = kit.ledger("half", *[GOOD] * 4)
    kit.rows("UPDATE parent_work SET failed_at = now() - interval '1 day', failure = 'timeout',"
             " payload = '{\"events\": []}', processed = 4 WHERE parent_id = 'half'")  # fmt: skip
    for child_id in ids[:2]:
        kit.rows(
            "UPDATE child_work SET skipped_at = now(), outcome = 'x' WHERE child_id = %s", child_id
        )
    (last,) = kit.ledger("all ended", GOOD)
    kit.rows("UPDATE child_work SET failed_at = now(), outcome = 'x' WHERE child_id = %s", last)
    steps = {(step.parent_id, step.action) for step in kit.resumable()}
    assert steps == {("new", "decompose"), ("legacy", "decompose"), ("bad", "decompose"),
                     ("empty", "decompose"), ("half", "dispatch"), ("all ended", "dispatch")}  # fmt: skip
    history = kit.rows(
        "SELECT parent_id, failed_at, failure FROM parent_work WHERE failed_at IS NOT NULL ORDER BY 1"
    )
    for parent_id in ("new", "legacy", "bad", "empty", "half", "all ended"):
        kit.run_parent(parent_id, 2, LONG)
        assert kit.one(parent_id, "completed_at IS NOT NULL")
    assert kit.ends("new") == ["processed", "processed", "skipped", "skipped", "processed"]
    assert kit.ends("legacy") == ["processed", "failed"]
    assert kit.ends("half") == ["skipped", "skipped", "processed", "processed"]
    assert kit.effects("half") == [2, 3]
    assert [child_id for (child_id,) in kit.rows(
        "SELECT child_id FROM child_work WHERE parent_id = 'half' ORDER BY sequence")] == ids  # fmt: skip
    assert kit.rows("SELECT parent_id, failed_at, failure FROM parent_work"
                    " WHERE failed_at IS NOT NULL AND parent_id <> 'bad' ORDER BY 1") == history  # fmt: skip
    assert kit.resumable() == []
    with pytest.raises(UnknownParent):
        kit.run_parent("nobody", 2, LONG)
    leaves_live_claims(kit)


def leaves_live_claims(kit: Kit) -> None:
    """A child under another worker's live claim is left to it, and keeps its parent incomplete."""
    ids = kit.ledger("shared", *[GOOD] * 4)
    kit.rows(
        "UPDATE child_work SET processing_started_at = now(), attempts = 1 WHERE child_id = %s",
        ids[1],
    )
    kit.rows("UPDATE parent_work SET total = 3 WHERE parent_id = 'shared'")
    kit.run_parent("shared", 2, LONG)
    assert kit.ends("shared") == ["processed", "open", "processed", "processed"]
    assert kit.rows("SELECT attempts FROM child_work WHERE child_id = %s", ids[1]) == [(1,)]
    assert kit.one("shared", "completed_at IS NULL")
    assert kit.resumable() == [ParentStep("shared", "dispatch")]
    kit.run_parent("shared", 2, NONE)
    assert kit.one("shared", "completed_at IS NOT NULL")


def resume_cut(kit: Kit) -> None:
    """Wherever a run is cut, the next one finishes the parent, and every effect is there once."""
    events = [GOOD, STRANGER, GOOD, None, GOOD]
    for _ in cut_at_every_boundary(
        kit, lambda: kit.parent("p", {"events": events}), "run_parent", "p", 2, LONG
    ):
        if kit.one("p", "completed_at IS NOT NULL"):
            assert "open" not in kit.ends("p")
        else:
            assert [step.parent_id for step in kit.resumable()] == ["p"]
            kit.run_parent("p", 2, NONE)
        assert kit.ends("p") == ["processed", "skipped", "processed", "skipped", "processed"]
        assert kit.effects("p") == [0, 2, 4]
        assert kit.one("p", "completed_at IS NOT NULL")


# --- lab 12 -------------------------------------------------------------------------------------------


def reconcile_plain(kit: Kit) -> None:
    """The rows are counted and win; a dry run only tells; no ledger, no change."""
    ids = kit.ledger("three", GOOD, GOOD, GOOD)
    for child_id, state in zip(ids, STATES, strict=True):
        kit.rows(f"UPDATE child_work SET {state}_at = now() WHERE child_id = %s", child_id)
    kit.rows("UPDATE parent_work SET total = 99, processed = 1, failed = 2, failure = 'timeout'")
    repaired(kit, "three", Totals(99, 1, 2, 0, False), Totals(3, 1, 1, 1, True))
    assert kit.one("three", "failure") == "timeout"
    kit.ledger("premature", GOOD)
    kit.rows("UPDATE parent_work SET completed_at = now() WHERE parent_id = 'premature'")
    repaired(kit, "premature", Totals(1, 0, 0, 0, True), Totals(1, 0, 0, 0, False))
    (child_id,) = kit.ledger("missing", GOOD)
    kit.rows("UPDATE child_work SET skipped_at = now() WHERE child_id = %s", child_id)
    kit.rows("UPDATE parent_work SET skipped = 1 WHERE parent_id = 'missing'")
    repaired(kit, "missing", Totals(1, 0, 0, 1, False), Totals(1, 0, 0, 1, True))
    kit.ledger("empty")
    repaired(kit, "empty", Totals(0, 0, 0, 0, False), Totals(0, 0, 0, 0, True))
    kit.parent("new", {"events": [GOOD]}, processed="7", completed_at="now()")
    before = kit.everything()
    for dry_run in (True, False):
        result = kit.reconcile("new", dry_run)
        assert (result.before, result.after, result.changed) == (
            Totals(None, 7, 0, 0, True), Totals(None, 7, 0, 0, True), False)  # fmt: skip
        with pytest.raises(UnknownParent):
            kit.reconcile("nobody", dry_run)
    assert kit.everything() == before


def repaired(kit: Kit, parent_id: str, before: Totals, after: Totals) -> None:
    """A dry run, a rolled-back repair, the repair, and a second one that finds nothing to do."""
    expected = (before, after, True)
    rows = kit.everything()
    result = kit.reconcile(parent_id)
    assert (result.before, result.after, result.changed) == expected
    with kit.session() as conn:
        conn.execute("BEGIN READ ONLY")
        result = kit.functions["reconcile"](conn, parent_id, True)
        conn.execute("COMMIT")
    assert (result.before, result.after, result.changed) == expected
    with kit.laboratory.connect() as holder, holder.transaction():
        holder.execute("SELECT FROM parent_work WHERE parent_id = %s FOR UPDATE", (parent_id,))
        assert kit.reconcile(parent_id, True).changed
    assert rolls_back(kit, "reconcile", parent_id, False).changed
    assert kit.everything() == rows
    result = kit.reconcile(parent_id, False)
    assert (result.before, result.after, result.changed) == expected
    result = kit.reconcile(parent_id, False)
    assert (result.before, result.after, result.changed) == (after, after, False)
    assert kit.everything()[1:] == rows[1:]


def reconcile_rival(kit: Kit) -> None:
    """While a worker ends the last child and completes the parent, no stamp is lost and sums are sound."""

    def last_child_ends(conn: psycopg.Connection) -> None:
        conn.execute("UPDATE child_work SET processed_at = now() WHERE skipped_at IS NULL")
        conn.execute("UPDATE parent_work SET completed_at = now() WHERE completed_at IS NULL")

    def setup() -> None:
        ids = kit.ledger("p", GOOD, GOOD)
        kit.rows("UPDATE child_work SET skipped_at = now() WHERE child_id = %s", ids[0])

    reconcile = kit.functions["reconcile"]
    for result, _ in rival_at_every_boundary(
        kit, setup, lambda conn: reconcile(conn, "p", False), last_child_ends
    ):
        sums = result.after.processed + result.after.failed + result.after.skipped
        assert result.after.complete == (sums == result.after.total)
        assert kit.one("p", "completed_at IS NOT NULL")


Check = Callable[[Kit], None]
PLAIN: dict[int, Check] = {
    8: decompose_plain,
    9: claim_plain,
    10: finish_plain,
    11: resume_plain,
    12: reconcile_plain,
}
CUT: dict[int, Check] = {8: decompose_cut, 10: finish_cut, 11: resume_cut}
RIVAL: dict[int, Check] = {
    8: decompose_rival,
    9: claim_rival,
    10: finish_rival,
    12: reconcile_rival,
}
