"""The smallest explanation of a failure: transactions by number, and where the client died.

    T1 cancelled 1001, 1004 and committed; its audit was for T2; the client died between them.

A failed run holds all that is needed: which transaction committed what (the witness), where the client
was killed (the hold), and, from the clean run, what would have come next. Everything that has nothing
to do with the broken promise is left out. Pure: a run in, sentences out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.history import order_moves
from harness.records import POINT_ALIASES, Boundary, Change, Evidence, WireEvent
from harness.run import Run
from harness.scenario import Scenario

#: Wire log lines shown before the place where the client died, and after it.
LOG_BEFORE, LOG_AFTER = 9, 3
#: Messages of the wire that carry no story.
_QUIET = frozenset({
    "ParameterStatus", "BackendKeyData", "Bind", "Describe", "Close", "Flush", "ParseComplete",
    "BindComplete", "CloseComplete", "RowDescription", "DataRow", "NoData", "ParameterDescription",
})  # fmt: skip
#: Transactions told one by one; a story is read by a person.
TRANSACTIONS_SHOWN = 8
#: Rows named in one clause.
KEYS_SHOWN = 3
#: What a table's change is called in the sentence about what was still to come.
_NOUNS = {
    "orders": "orders", "audit": "audit", "checkpoint": "checkpoint",
    "jobs.insert": "job", "job_items.insert": "list",
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """One failure told: the sentence, the steps, the wire log around the place."""

    headline: str
    steps: tuple[str, ...]
    log: tuple[str, ...]


@dataclass(frozen=True)
class _Transaction:
    """One committed transaction, by its number in the run."""

    number: int
    changes: tuple[Change, ...]
    before_death: bool

    @property
    def points(self) -> tuple[str, ...]:
        """Return the points its changes stand for, in order."""
        names = (f"{c.table}.{c.operation}" for c in self.changes)
        return tuple(dict.fromkeys(POINT_ALIASES.get(name, name) for name in names))


def tell(run: Run, record: Sequence[Boundary] = ()) -> Story:
    """Tell a failed run.

    Args:
        record: The boundaries of a clean run of the same client: what would have come next.
    """
    all_told = _transactions(run)
    about = _about(run, all_told)
    steps = [
        f"T{t.number} {describe(run.scenario, t.changes)} and committed"
        for t in about
        if t.before_death
    ]
    where = _where(run)
    if where:
        steps.append(where)
    steps += [
        f"T{t.number}, of the client that resumed, {describe(run.scenario, t.changes)} and committed"
        for t in about
        if not t.before_death
    ]
    return Story(_headline(run, all_told, record), tuple(steps), _log(run))


def describe(scenario: Any, changes: Sequence[Change]) -> str:
    """Say what one transaction wrote: in the words of the batch where they fit, else by table."""
    clauses = []
    rest = list(changes)
    if isinstance(scenario, Scenario):
        cancelled = [m.order_id for m in order_moves(changes) if m.cancels]
        audited = [_row(c)["order_id"] for c in changes if _point(c) == "audit"]
        steps = [c for c in changes if _point(c) == "checkpoint" and c.old and c.new]
        if cancelled:
            clauses.append(f"cancelled {_few(cancelled)}")
            rest = [c for c in rest if c.table != "orders"]
        if audited:
            clauses.append(f"wrote the audit of {_few(audited)}")
        if steps:
            first, last = steps[0].old or {}, steps[-1].new or {}
            clauses.append(
                f"moved the checkpoint from {first['next_index']} to {last['next_index']}"
            )
        rest = [c for c in rest if _point(c) not in ("audit", "checkpoint")]
    for table, operation in dict.fromkeys((c.table, c.operation) for c in rest):
        rows = [c for c in rest if (c.table, c.operation) == (table, operation)]
        clauses.append(_by_table(table, operation, rows))
    return " and ".join(clauses) or "wrote nothing"


# --- the sentence -----------------------------------------------------------------------------------


def _headline(run: Run, told: Sequence[_Transaction], record: Sequence[Boundary]) -> str:
    """Say it in one sentence: what was committed, what was still to come, where the client died."""
    before = [t for t in told if t.before_death]
    died = "the client died" if run.kills else run.note or "the fault came"
    if not before:
        later = [t for t in told if not t.before_death]
        if not later:
            return f"{died} before anything was committed"
        return f"{died} before anything was committed; T{later[0].number} was the resumed client's"
    last = before[-1]
    text = f"T{last.number} {describe(run.scenario, last.changes)} and committed"
    rest = _still_to_come(last, len(before), record)
    if rest:
        return f"{text}; {rest}; {died} between them"
    again = [t for t in told if not t.before_death and _same_rows(t, before)]
    if again:
        twice = describe(run.scenario, again[0].changes)
        return f"{text}; {died}; then T{again[0].number}, of the resumed client, {twice} as well"
    return f"{text}; {died} after it"


def _still_to_come(last: _Transaction, count: int, record: Sequence[Boundary]) -> str:
    """Name what the clean run wrote in the transactions after this one, until the work repeats."""
    order = list(dict.fromkeys(xid for b in record for xid in b.committed))
    seen = set(last.points)
    clauses: list[str] = []
    for number, xid in enumerate(order[count:], count + 1):
        points = _record_points(record, xid)
        if set(points) & seen:
            break
        seen |= set(points)
        nouns = " and ".join(_NOUNS.get(point, point.partition(".")[0]) for point in points)
        verb = "" if clauses else "were " if len(points) > 1 else "was "
        clauses.append(f"its {nouns} {verb}in T{number}")
    return ", ".join(clauses)


def _record_points(record: Sequence[Boundary], xid: int) -> tuple[str, ...]:
    touches = [touch for b in record for touch in b.touches if touch.xid == xid]
    return tuple(dict.fromkeys(touch.points[0] for touch in touches))


def _same_rows(one: _Transaction, others: Sequence[_Transaction]) -> bool:
    rows = {(c.table, c.operation, _key(c)) for c in one.changes if _key(c) is not None}
    return any(rows & {(c.table, c.operation, _key(c)) for c in o.changes} for o in others)


# --- the steps --------------------------------------------------------------------------------------


def _transactions(run: Run) -> list[_Transaction]:
    """Number what was committed, in the order of the first change."""
    early = {c.xid for c in run.after_fault.changes} if run.after_fault else set()
    seen: Evidence | None = run.after_resume or run.after_fault
    changes = seen.changes if seen else ()
    if run.after_fault:  # what a server crash lost is in the first evidence alone
        known = {c.xid for c in changes}
        changes = (*(c for c in run.after_fault.changes if c.xid not in known), *changes)
    xids = dict.fromkeys(c.xid for c in changes)
    return [
        _Transaction(n, tuple(c for c in changes if c.xid == xid), xid in early)
        for n, xid in enumerate(xids, 1)
    ]


def _about(run: Run, told: Sequence[_Transaction]) -> list[_Transaction]:
    """Keep what the finding is about: the orders it names, or else the rows of the last commit before."""
    last = [t for t in told if t.before_death][-1:]
    ids = {i for finding in run.findings[:1] for i in finding.order_ids}
    about = [t for t in told if ids & {_row(c).get("order_id") for c in t.changes}]
    about = about or [t for t in told if last and _same_rows(t, last)] or list(told[:2])
    kept = {t.number: t for t in (*about, *last)}
    return [kept[number] for number in sorted(kept)][:TRANSACTIONS_SHOWN]


def _where(run: Run) -> str:
    texts = []
    for n, kill in enumerate(run.kills):
        if kill.hold is None:
            continue
        b = kill.hold.boundary
        who = "the client" if n == 0 else "the client that resumed"
        names = [p for p in b.points if POINT_ALIASES.get(p) is None]
        points = f" ({', '.join(names)})" if names else ""
        texts.append(
            f"{who} was killed at boundary {b.number}{points}, after {shorten(b.sql) or b.unit}"
            ", before it was told"
        )
    return "; ".join(texts) or run.note


def _log(run: Run) -> tuple[str, ...]:
    """Return the wire log around the place, each line with its time relative to the hold."""
    events = [e for e in run.events if e.message not in _QUIET]
    at = next((n for n, e in enumerate(events) if e.message == "hold"), None)
    if at is None:
        return ()
    around = events[max(0, at - LOG_BEFORE) : at + 1 + LOG_AFTER]
    return tuple(_line(event, events[at].at_s) for event in around)


def _line(event: WireEvent, zero_s: float) -> str:
    return f"{(event.at_s - zero_s) * 1000:+8.1f} ms  {event.who:<8}{event.message:<18}{shorten(event.text, 60)}".rstrip()


def shorten(sql: str, most: int = 70) -> str:
    """Return SQL on one line, cut."""
    text = " ".join(sql.split())
    return text if len(text) <= most else text[: most - 3] + "..."


# --- rows -------------------------------------------------------------------------------------------


def _row(change: Change) -> Mapping[str, Any]:
    return change.new or change.old or {}


def _point(change: Change) -> str:
    name = f"{change.table}.{change.operation}"
    return POINT_ALIASES.get(name, name)


def _key(change: Change) -> Any:
    """Return what most likely identifies the row: a column called id, or one that ends in it."""
    row = _row(change)
    names = [n for n in ("order_id", "id") if n in row] or sorted(
        n for n in row if n.endswith("id")
    )
    return row[names[0]] if names else None


def _by_table(table: str, operation: str, rows: Sequence[Change]) -> str:
    verbs = {"insert": "inserted into", "update": "updated", "delete": "deleted from"}
    keys = list(dict.fromkeys(_key(change) for change in rows if _key(change) is not None))
    shown = f" ({_few(keys)})" if keys else ""
    return f"{verbs.get(operation, operation)} {table}{shown}"


def _few(keys: Sequence[Any]) -> str:
    """Spell out the first keys: the finding has them all."""
    shown = ", ".join(map(str, keys[:KEYS_SHOWN]))
    return shown if len(keys) <= KEYS_SHOWN else f"{shown} and {len(keys) - KEYS_SHOWN} more"
