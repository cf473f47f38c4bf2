"""Steps: a story's moments, each with what it changed on the board.

A page steps forward and back through a story. Each step says in words what happened, and which cells
of the board, rows of the audit and checkpoint it changed, so that everything on the page moves together.

What a committed transaction changed is known exactly, from the witness. What an open one changed,
nobody else can see; the server announced only how many rows. When it is committed later, the witness
tells which they were. When it is rolled back, the board marks the next orders of the list, as many as
were announced. Each look of a fresh connection then puts the board right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.history import order_moves
from harness.records import Boundary, Change, Evidence, OrderRow, Touch
from harness.report.board import order_states, row_state, touched_orders
from harness.report.moments import Committed, Ended, Happened, Looked, Moment, Worked
from harness.scenario import Scenario

_LOCKS = re.compile(r"\bFOR\s+(NO\s+KEY\s+)?UPDATE\b|\bFOR\s+(KEY\s+)?SHARE\b|advisory_(xact_)?lock|^\s*LOCK\b", re.I)  # fmt: skip
_ROLLBACK_TO = re.compile(r"^\s*ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO\s+(?:SAVEPOINT\s+)?(\S+?);?\s*$", re.I)  # fmt: skip
_SAVEPOINT = re.compile(r"^\s*SAVEPOINT\s+(\S+?);?\s*$", re.I)

#: A run of neighbouring cells with one state: first position, how many, state, transaction number.
Cells = tuple[int, int, str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `cells` and `audit` are what changed; `checkpoint` is (committed, written or None)."""

    kind: str  # start, boundary, commit, fault, end, look
    words: str
    who: int | None = None
    boundary: Boundary | None = None
    told: bool = True
    at_s: float | None = None
    cells: tuple[Cells, ...] = ()
    audit: tuple[Cells, ...] = ()
    checkpoint: tuple[int, int | None] = (0, None)
    transaction: int = 0  # its number among the committed ones; 0 for one that is not
    status: str = "I"  # of the client's session: I idle, T in a transaction, E failed
    locks: bool = False
    touched: tuple[int, ...] = ()
    look: str = ""


def steps_of(
    scenario: Scenario, moments: Sequence[Moment], known: Evidence | None = None
) -> list[Step]:
    """Turn moments into steps, the first of which is the clean start.

    Args:
        known: Evidence that is newer than every look among the moments, for what it says of commits.
    """
    return _Walk(scenario, moments, known).steps()


@dataclass(slots=True)
class _Write:
    """One change of an open transaction: what it will be once it is committed."""

    table: str  # orders, audit, checkpoint
    place: int  # a position; for the checkpoint its new value
    becomes: str


@dataclass(slots=True)
class _Session:
    """One server session, as far as the wire tells."""

    status: str = "I"
    locks: bool = False
    xid: int = 0
    writes: list[_Write] = field(default_factory=list)
    savepoints: list[tuple[str, int]] = field(default_factory=list)


class _Walk:
    """Plays the moments on a board."""

    def __init__(
        self, scenario: Scenario, moments: Sequence[Moment], known: Evidence | None
    ) -> None:
        self.scenario = scenario
        self.moments = moments
        self.place = {order_id: n for n, order_id in enumerate(scenario.approved_ids)}
        done = scenario.next_index
        total = len(scenario.approval)
        #: What is committed, and what is shown: an open transaction's changes lie over the former.
        self.orders = ["c" if n < done else "p" for n in range(total)]
        self.audit = ["c" if n < done else "p" for n in range(total)]
        self.shown = {"orders": list(self.orders), "audit": list(self.audit)}
        self.checkpoint: tuple[int, int | None] = (done, None)
        self.sessions: dict[tuple[int, int], _Session] = {}
        self.changed: dict[str, dict[int, tuple[str, int]]] = {"orders": {}, "audit": {}}
        looks = [m.evidence for m in moments if isinstance(m, Looked)]
        if known is not None:
            looks.append(known)
        self.changes = _all_changes(looks)
        self.edited = _edited(scenario, looks)
        self.numbers = {xid: n for n, xid in enumerate(self.changes, 1)}
        self.by_table: dict[tuple[int, str], list[Change]] = {}
        for xid, changes in self.changes.items():
            for change in changes:
                table = f"{change.table}.{change.operation}"
                self.by_table.setdefault((xid, table), []).append(change)
        self.taken: dict[tuple[int, str], int] = {}

    def steps(self) -> list[Step]:
        """Return the steps."""
        steps = [Step("start", _start_words(self.scenario), checkpoint=self.checkpoint,
                      cells=tuple(_runs({n: (s, 0) for n, s in enumerate(self.orders)})),
                      audit=tuple(_runs({n: (s, 0) for n, s in enumerate(self.audit)})))]  # fmt: skip
        for moment in self.moments:
            for changed in self.changed.values():
                changed.clear()
            steps.append(self._step(moment))
        return steps

    def _step(self, moment: Moment) -> Step:
        match moment:
            case Worked():
                return self._worked(moment)
            case Committed(who, xid):
                return self._committed(who, xid)
            case Ended(who, words, fault, stay):
                if not stay:
                    for (other, _), session in self.sessions.items():
                        if other == who:
                            self._roll_back(session)
                return self._made("fault" if fault else "end", words, who=who)
            case Happened(words, fault):
                return self._made("fault" if fault else "end", words)
            case Looked(name, words, evidence, over):
                if over:
                    for session in self.sessions.values():
                        self._roll_back(session)
                return self._looked(name, words, evidence)

    def _made(self, kind: str, words: str, **more: Any) -> Step:
        cells, audit = (tuple(_runs(self.changed[table])) for table in ("orders", "audit"))
        return Step(
            kind, words, cells=cells, audit=audit, checkpoint=self.checkpoint, **more
        )  # fmt: skip

    # --- the wire ---------------------------------------------------------------------------------

    def _worked(self, moment: Worked) -> Step:
        b = moment.boundary
        session = self.sessions.setdefault((moment.who, b.session), _Session())
        for touch in b.touches:
            session.xid = touch.xid
            for write in self._writes(touch):
                session.writes.append(write)
                self._show(write, "w", 0)
        self._savepoints(session, b)
        number = 0
        for xid in b.committed:
            number = self.numbers.get(xid, 0)
            self._commit(session, xid)
        if b.status:
            session.status = b.status
            if b.status == "I":
                self._roll_back(session)  # what was committed is no longer among its writes
        elif b.touches and not b.committed:
            session.status = "T"
        session.locks = session.status != "I" and (
            session.locks or bool(b.touches) or bool(_LOCKS.search(b.sql))
        )
        open_number = self.numbers.get(session.xid, 0) if session.status != "I" else 0
        return self._made(
            "boundary", _boundary_words(b, number, moment.told), who=moment.who, boundary=b,
            told=moment.told, at_s=moment.at_s, transaction=number or open_number,
            status=session.status, locks=session.locks,
        )  # fmt: skip

    def _savepoints(self, session: _Session, b: Boundary) -> None:
        if made := _SAVEPOINT.match(b.sql):
            session.savepoints.append((made[1], len(session.writes)))
        elif back := _ROLLBACK_TO.match(b.sql):
            at = [size for name, size in session.savepoints if name == back[1]]
            if at:
                self._undo(session, at[-1])

    def _writes(self, touch: Touch) -> list[_Write]:
        """Return what a touch changed: exactly where the witness knows, else the next of the list."""
        table = f"{touch.table}.{touch.operation}"
        known = self.by_table.get((touch.xid, table), [])
        start = self.taken.get((touch.xid, table), 0)
        self.taken[touch.xid, table] = start + touch.rows
        if self.changes.get(touch.xid):
            return [w for c in known[start : start + touch.rows] if (w := self._write(c))]
        if table == "orders.update":
            return [_Write("orders", n, "c") for n in self._next("orders", touch.rows)]
        if table == "job_audit.insert":
            return [_Write("audit", n, "c") for n in self._next("audit", touch.rows)]
        if table == "jobs.update":
            step = min(self.checkpoint[0] + self.scenario.chunk_size, len(self.orders))
            return [_Write("checkpoint", step, "c")]
        return []

    def _next(self, table: str, rows: int) -> Iterable[int]:
        states = enumerate(self.shown[table])
        free = (n for n, state in states if state in "pr" and n not in self.edited)
        return [n for n, _ in zip(free, range(rows), strict=False)]

    def _write(self, change: Change) -> _Write | None:
        new = change.new
        if change.table == "orders":
            place = self.place.get(int((new or change.old or {})["order_id"]))
            if place is None:
                return None
            item = self.scenario.approval[place]
            row = OrderRow(**new) if new else None
            return _Write(
                "orders", place, row_state(row, self.scenario.tenant, item.revision, item.qty)
            )
        if new is None or new.get("job_id") != self.scenario.job_id:
            return None
        if change.table == "job_audit" and int(new["position"]) in range(len(self.audit)):
            place = int(new["position"])
            right = self.place.get(int(new["order_id"])) == place
            return _Write("audit", place, "c" if right else "d")
        if change.table == "jobs":
            return _Write("checkpoint", int(new["next_index"]), "c")
        return None

    # --- transactions -----------------------------------------------------------------------------

    def _commit(self, session: _Session, xid: int) -> None:
        number = self.numbers.get(xid, 0)
        writes = [w for c in self.changes.get(xid, ()) if (w := self._write(c))] or session.writes
        for write in writes:
            self._settle(write, number)
        session.writes, session.savepoints = [], []

    def _settle(self, write: _Write, number: int) -> None:
        if write.table == "checkpoint":
            self.checkpoint = (write.place, None)
            return
        base = self.orders if write.table == "orders" else self.audit
        base[write.place] = write.becomes
        self._show(write, write.becomes, number)

    def _committed(self, who: int, xid: int) -> Step:
        number = self.numbers.get(xid, 0)
        self._commit(_Session(), xid)
        words = f"T{number} is committed, with everything in it"
        return self._made("commit", words, who=who, transaction=number)

    def _roll_back(self, session: _Session) -> None:
        self._undo(session, 0)
        session.status, session.locks, session.xid = "I", False, 0
        session.savepoints.clear()

    def _undo(self, session: _Session, size: int) -> None:
        gone = session.writes[size:]
        del session.writes[size:]
        for write in gone:
            if write.table == "checkpoint":
                self.checkpoint = (self.checkpoint[0], None)
                continue
            base = (self.orders if write.table == "orders" else self.audit)[write.place]
            self._show(write, "r" if base == "p" else base, 0)

    def _show(self, write: _Write, state: str, number: int) -> None:
        if write.table == "checkpoint":
            self.checkpoint = (self.checkpoint[0], write.place)
            return
        if self.shown[write.table][write.place] != state:
            self.shown[write.table][write.place] = state
            self.changed[write.table][write.place] = (state, number)

    # --- a look -----------------------------------------------------------------------------------

    def _looked(self, name: str, words: str, evidence: Evidence) -> Step:
        """Put the board right: only what a fresh connection reads is true."""
        ids = self.scenario.approved_ids
        gone = [ids[n] for n, state in enumerate(self.shown["orders"]) if state == "r"]
        states: list[str] = [str(s) for s in order_states(self.scenario, evidence, gone)]
        by_order = {m.order_id: self.numbers.get(m.xid, 0) for m in order_moves(evidence.changes)}
        for n, state in enumerate(states):
            self.orders[n] = "p" if state == "r" else state
            # An open transaction's change stays marked, until it is seen to be committed.
            if self.shown["orders"][n] != "w" or state not in "pr":
                self._show(_Write("orders", n, state), state, by_order.get(ids[n], 0))
        self._audited(evidence)
        job = evidence.job(self.scenario.job_id)
        self.checkpoint = (job.next_index if job else 0, self.checkpoint[1])
        touched = touched_orders(self.scenario, evidence)
        return self._made("look", words, touched=touched, look=name)

    def _audited(self, evidence: Evidence) -> None:
        rows = {r.position: r.order_id for r in evidence.audit if r.job_id == self.scenario.job_id}
        xids = {
            int(c.new["position"]): self.numbers.get(c.xid, 0)
            for c in evidence.changes
            if c.table == "job_audit" and c.new and c.new["job_id"] == self.scenario.job_id
        }
        for n, order_id in enumerate(self.scenario.approved_ids):
            right = rows.get(n) == order_id
            base = "c" if right else "d" if n in rows else "p"
            self.audit[n] = base
            now = self.shown["audit"][n]
            if base != "p" or now not in "wr":
                self._show(_Write("audit", n, base), base, xids.get(n, 0))


def _edited(scenario: Scenario, looks: Sequence[Evidence]) -> frozenset[int]:
    """Return the positions whose orders somebody else edited: a client that is right does not match them."""
    if not looks:
        return frozenset()
    ours = {m.order_id for m in order_moves(looks[-1].changes)}
    states = order_states(scenario, looks[-1])
    return frozenset(
        n
        for n, (order_id, state) in enumerate(zip(scenario.approved_ids, states, strict=True))
        if state in "dm" and order_id not in ours
    )


def _all_changes(looks: Sequence[Evidence]) -> Mapping[int, list[Change]]:
    """Return every change that any look found, by transaction, each once, in order."""
    found = {c.seq: c for look in looks for c in look.changes}
    by_xid: dict[int, list[Change]] = {}
    for seq in sorted(found):
        by_xid.setdefault(found[seq].xid, []).append(found[seq])
    return by_xid


def _runs(changed: Mapping[int, tuple[str, int]]) -> Iterable[Cells]:
    """Join neighbours of the same state and transaction."""
    start, size, value = -1, 0, ("", 0)
    for place in sorted(changed):
        if size and place == start + size and changed[place] == value:
            size += 1
            continue
        if size:
            yield (start, size, *value)
        start, size, value = place, 1, changed[place]
    if size:
        yield (start, size, *value)


# --- words ------------------------------------------------------------------------------------------


def _start_words(scenario: Scenario) -> str:
    total, done = len(scenario.approval), scenario.next_index
    text = f"{total} approved orders, {scenario.chunk_size} a chunk"
    return f"{text}; {done} are done already" if done else f"{text}; nothing is done yet"


def _boundary_words(b: Boundary, number: int, told: bool) -> str:
    if b.committed:
        text = f"T{number} is committed on the server" if number else "committed on the server"
        return (
            f"{text}, and the client is told" if told else f"{text}; the client has not been told"
        )
    if b.error:
        return f"the server refuses: error {b.error}"
    if b.touches:
        what = ", ".join(
            f"{t.rows} {'row' if t.rows == 1 else 'rows'} of {t.table}" for t in b.touches
        )
        return f"{_verb(b.touches[0])} {what}; nobody else sees it yet"
    word = b.tag.partition(" ")[0]
    if _ROLLBACK_TO.match(b.sql):
        return "rolls back to the savepoint"
    plain = {"BEGIN": "opens a transaction", "COMMIT": "ends the transaction", "ROLLBACK": "rolls back",
             "SAVEPOINT": "sets a savepoint", "RELEASE": "keeps what was done since the savepoint"}  # fmt: skip
    if word in plain:
        return plain[word]
    if b.unit == "Sync":
        return "syncs: the server says it is ready"
    if _LOCKS.search(b.sql):
        return "reads, and locks what it reads"
    return "reads" if word == "SELECT" else f"sends {b.unit}"


def _verb(touch: Touch) -> str:
    return {"insert": "inserts", "update": "changes", "delete": "deletes"}.get(
        touch.operation, "empties"
    )
