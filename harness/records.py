"""The frozen values that travel between stages.

Vocabulary (the glossary in `harness/README.md` has all of it):

* A *unit* is the smallest thing a client can make the server do: Query, Execute, Sync, CopyDone,
  FunctionCall. A *boundary* is the moment after a unit was carried out and before its answer is let
  through. Boundaries are counted from 1 over one client's life.
* A *point* is a boundary with a meaning: `orders`, `audit`, `checkpoint`, `commit`, or in general
  `table.operation`.
* A *touch* is one statement's effect on one table, as the witness announced it.

Values only: nothing here opens a socket, reads a clock or asks a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from signal import Signals
from typing import Any

#: The short names of track A's points, for `table.operation`.
POINT_ALIASES: Mapping[str, str] = {
    "orders.update": "orders",
    "job_audit.insert": "audit",
    "jobs.update": "checkpoint",
}
COMMIT_POINT = "commit"


class Verdict(StrEnum):
    """How one check ended. Only `FAIL` is the learner's doing."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"  # an earlier lab is missing
    VOID = "void"  # the fault did not land
    ERROR = "error"  # harness or environment


class Policy(StrEnum):
    """How the proxy lets go of a connection; it decides what the server still does."""

    ABORT = "abort"  # what was queued is thrown away
    HALF_CLOSE = "half-close"  # the server still reads everything that was sent
    LEAVE_OPEN = "leave-open"  # the server never learns: a zombie that holds its locks


# --- the wire -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the server listens. A `host` that starts with a slash is a Unix socket's directory."""

    host: str
    port: int


class Unit(StrEnum):
    """The kinds of client messages that make the server do something."""

    QUERY = "Query"
    EXECUTE = "Execute"
    SYNC = "Sync"
    COPY_DONE = "CopyDone"
    FUNCTION_CALL = "FunctionCall"


@dataclass(frozen=True, slots=True)
class Touch:
    """Rows of one table changed by one statement, in transaction `xid` (the top-level one)."""

    table: str
    operation: str  # insert, update, delete, truncate
    rows: int
    xid: int

    @property
    def point(self) -> str:
        """Return the point's general name, `table.operation`."""
        return f"{self.table}.{self.operation}"

    @property
    def points(self) -> tuple[str, ...]:
        """Return every name of the point: the alias first, if it has one."""
        alias = POINT_ALIASES.get(self.point)
        return (alias, self.point) if alias else (self.point,)


@dataclass(frozen=True, slots=True)
class Boundary:
    """One unit that the server has finished; its answer may or may not have been let through.

    `committed` holds the transactions with touches that became durable at this boundary, as
    `pg_xact_status` told. `status` is the ReadyForQuery byte (I idle, T in a transaction, E failed)
    or empty when the unit had none. `error` is an SQLSTATE or empty.
    """

    number: int
    session: int
    unit: Unit
    sql: str
    tag: str = ""
    status: str = ""
    touches: tuple[Touch, ...] = ()
    committed: tuple[int, ...] = ()
    error: str = ""

    @property
    def points(self) -> tuple[str, ...]:
        """Return every name this boundary answers to: aliases, general names, `commit`."""
        names = dict.fromkeys(name for touch in self.touches for name in touch.points)
        return (*names, COMMIT_POINT) if self.committed else tuple(names)


@dataclass(frozen=True, slots=True)
class Stop:
    """Where to hold a client: at a boundary number, or at the nth time a point is reached.

    With `before`, the client is held when the boundary's unit has arrived at the proxy but has not
    been forwarded; that needs a number, because what a unit will do is known only afterwards.
    """

    boundary: int | None = None
    point: str | None = None
    nth: int = 1
    before: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A client that stands still at a boundary.

    `backend_pid` is the server process of the held session. With `before`, `boundary` describes the
    unit that waits: it has a number and SQL, and nothing has happened yet.
    """

    boundary: Boundary
    backend_pid: int
    before: bool = False


@dataclass(frozen=True, slots=True)
class WireEvent:
    """One line of the wire log. `at_s` is the monotonic clock; `who` is client, server or harness."""

    at_s: float
    session: int
    who: str
    message: str
    text: str = ""


# --- the client -----------------------------------------------------------------------------------


class EndKind(StrEnum):
    """How a client process ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    LIMIT = "limit"  # the harness ended it for breaking a limit
    LOST = "lost"  # its keeper was killed: it is gone, and nobody saw how it ended


@dataclass(frozen=True, slots=True)
class ClientExit:
    """How one client process ended, and the last lines it printed."""

    pid: int
    kind: EndKind
    code: int | None = None  # exit status, for EXITED
    signal: int | None = None  # for SIGNALED
    limit: str | None = None  # wall, cpu, memory, processes, output: for LIMIT
    output: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say how it ended in a few words: `exit 1`, `SIGKILL`, `limit: wall`."""
        if self.kind is EndKind.LIMIT:
            return f"limit: {self.limit}"
        if self.signal is not None:
            return Signals(self.signal).name
        return f"exit {self.code}"

    @property
    def killed(self) -> bool:
        """Tell whether SIGKILL ended it and no limit was the reason."""
        return self.kind is EndKind.SIGNALED and self.signal == 9


@dataclass(frozen=True, slots=True)
class Seen:
    """An object that the learner's code returned, by value: the name of its type and its attributes."""

    type_name: str
    fields: Mapping[str, Any]

    def __repr__(self) -> str:
        """Show the object as the learner would write it."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.fields.items())
        return f"{self.type_name}({shown})"

    def __getattr__(self, name: str) -> Any:
        """Answer `seen.order_id` as the learner's object did."""
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """What the client's own connection said right after a call."""

    autocommit: bool
    transaction: str  # psycopg's name: IDLE, INTRANS, INERROR, ACTIVE, UNKNOWN
    closed: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """A call that returned. `value` is built of None, bool, int, float, str, list, dict and `Seen`."""

    value: Any
    connection: ConnectionState
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """A call that raised. `type_name` is the class's name; `bases` the names of all its bases.

    `traceback` holds only the learner's frames, as lines. `phase` is 'import' when the file could
    not even be loaded, 'lookup' when the function is missing, 'connect' when the client could not
    connect, 'result' when the value cannot travel, 'protocol' when the client spoiled its answer
    channel (it is ended then), else 'call'.
    """

    type_name: str
    bases: tuple[str, ...]
    text: str
    sqlstate: str | None
    traceback: tuple[str, ...]
    phase: str = "call"
    connection: ConnectionState | None = None
    output: tuple[str, ...] = ()

    def is_a(self, name: str) -> bool:
        """Tell whether the error is of the class called `name`, or of one derived from it."""
        return name == self.type_name or name in self.bases


@dataclass(frozen=True, slots=True)
class Died:
    """A call whose process ended before it answered."""

    exit: ClientExit


CallResult = Returned | Raised | Died


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL and its proof: where the client was held, how it died, which sessions it left.

    `landed` is True when the process died by SIGKILL while it was held there and its server sessions
    are gone (with `leave-open` they stay, on purpose). Otherwise `void_reason` says what was missed.
    """

    fault: str
    hold: Hold | None
    exit: ClientExit | None
    policy: Policy
    landed: bool
    void_reason: str = ""


# --- the evidence ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OrderRow:
    """One row of `orders`."""

    order_id: int
    tenant: str
    qty: int
    state: str
    revision: int


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row of `jobs`."""

    job_id: str
    tenant: str
    chunk_size: int
    next_index: int


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One row of `job_items`."""

    job_id: str
    position: int
    order_id: int
    revision: int
    qty: int


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of `job_audit`."""

    job_id: str
    position: int
    order_id: int
    revision_before: int
    revision_after: int
    qty: int


@dataclass(frozen=True, slots=True)
class ParentRow:
    """One row of `parent_work`."""

    parent_id: str
    payload: Any
    total: int | None
    processed: int
    failed: int
    skipped: int
    decomposed_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class ChildRow:
    """One row of `child_work`."""

    child_id: int
    parent_id: str
    sequence: int
    event: Any
    processing_started_at: datetime | None
    attempts: int
    processed_at: datetime | None
    failed_at: datetime | None
    skipped_at: datetime | None
    outcome: str | None

    @property
    def state(self) -> str:
        """Return 'processed', 'failed', 'skipped' or 'pending'; several joined by '+' when wrong."""
        marks = [n for n in ("processed", "failed", "skipped") if getattr(self, f"{n}_at")]
        return "+".join(marks) or "pending"


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One row of `event_effects`."""

    effect_id: int
    parent_id: str
    sequence: int
    subject: str
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One committed row change, as the witness recorded it.

    `old` and `new` are the row as a mapping, None where there is none. `synchronous_commit` is the
    setting in force when the change was made.
    """

    seq: int
    xid: int
    backend_pid: int
    table: str
    operation: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    synchronous_commit: str = "on"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One server session of the learner's role, from pg_stat_activity, with its locks."""

    pid: int
    state: str
    wait_event_type: str
    query: str
    advisory_locks: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that one fresh connection read, in one snapshot, when the client was gone (or at rest)."""

    orders: tuple[OrderRow, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    items: tuple[ItemRow, ...] = ()
    audit: tuple[AuditRow, ...] = ()
    parents: tuple[ParentRow, ...] = ()
    children: tuple[ChildRow, ...] = ()
    subjects: tuple[str, ...] = ()
    effects: tuple[EffectRow, ...] = ()
    changes: tuple[Change, ...] = ()
    sessions: tuple[SessionRow, ...] = ()
    violations: tuple[str, ...] = ()  # what a user's own check returned, a line a row

    def job(self, job_id: str) -> JobRow | None:
        """Return the job's row, or None."""
        return next((row for row in self.jobs if row.job_id == job_id), None)

    def order(self, order_id: int) -> OrderRow | None:
        """Return the order's row, or None."""
        return next((row for row in self.orders if row.order_id == order_id), None)


# --- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise, in words: values, not counts.

    `did` is what the harness did, `expected` and `seen` name order IDs or positions, `cause` is the
    likely mistake, `read` where the lesson explains it.
    """

    promise: str
    did: str
    expected: str
    seen: str
    cause: str = ""
    read: str = ""
    order_ids: tuple[int, ...] = field(default=())
