"""The gate of one connection: forward one unit, wait for the server to finish it, decide, go on.

A killed client is, to the server, the prefix of the messages that it sent. This state machine makes
every prefix that matters reachable. A client may send a whole pipeline in one go; the gate lets
through one *unit* (Query, Execute, Sync, CopyDone, FunctionCall) and what precedes it, and keeps the
rest until the server has finished that unit. Then the unit's answer is *withheld* until the
gatekeeper says go on: that is the boundary.

Three things keep it in step with the server:

* The server answers an Execute only when asked to, so a Flush is added. A Sync is never added: it
  would end the implicit transaction.
* After an error in the extended protocol the server skips everything up to Sync and answers none of
  it, so the gate stands open until then. The Execute that the error belongs to counts as a boundary
  whether the error overtook it or not, so that numbers do not depend on timing.
* In COPY IN the client streams. Both ends of the stream are boundaries: the server is ready to take
  the data, and CopyDone (or CopyFail, or the server's own error) was carried out.

Bytes come in through `client_sent` and `server_sent` and go out through the lists `to_client` and
`to_server`, which the owner of the sockets empties. Nothing here waits or opens a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from harness.gate import announcement, wire
from harness.gate.statements import Statements
from harness.gate.transactions import Transactions
from harness.gate.wire import Frame
from harness.limits import ANSWER_KEPT_BYTES, SQL_TEXT_MAX
from harness.records import Boundary, Unit

Rows = list[tuple[str | None, ...]]

_UNITS = {"Q": Unit.QUERY, "E": Unit.EXECUTE, "S": Unit.SYNC, "F": Unit.FUNCTION_CALL}
_EXTENDED = frozenset("PBDCE")
#: The server messages that finish a unit. `G` finishes one by handing the word to the client.
_FINISH_EXECUTE = frozenset("CIsEG")
_FINISH_COPY = frozenset("CE")
_FINISH_READY = frozenset("ZG")


class Gatekeeper(Protocol):
    """Who decides when a session goes on: the lane."""

    @property
    def holding(self) -> bool:
        """Tell whether some session of the lane is held, so that none may advance."""

    @property
    def next_number(self) -> int:
        """Return the number that the next boundary gets."""

    def admit(self, session: Session, unit: Unit, sql: str) -> bool:
        """Tell whether a unit that has arrived may be forwarded now."""

    def finished(self, session: Session, boundary: Boundary) -> bool:
        """Take note of a boundary; tell whether its answer may go through now."""

    def committed(self, xid: int) -> bool | None:
        """Tell whether a transaction is committed: True, False when over without it, None while open."""

    def log(self, session: Session, who: str, message: str, text: str = "") -> None:
        """Write one line of the wire log."""


@dataclass(slots=True)
class _Pending:
    """The unit that the server works on."""

    unit: Unit
    sql: str
    finish: frozenset[str]
    error: str = ""
    tags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Question:
    """The harness's own query in progress; `done` takes the rows, or an error's fields."""

    done: Callable[[Rows, dict[str, str]], None]
    rows: Rows = field(default_factory=list)
    error: dict[str, str] = field(default_factory=dict)


class Session:
    """One client connection after its startup packet, as messages. See the module's text."""

    def __init__(self, number: int, gatekeeper: Gatekeeper) -> None:
        self.number = number
        self.backend_pid = 0
        self.status = ""  # the last ReadyForQuery byte; empty until the session is ready
        self.waiting = False  # a boundary was reached and its answer is withheld
        self.terminated = False  # the client said goodbye
        self.queue: deque[Frame] = deque()
        self.queued_bytes = 0
        self.to_client: list[bytes] = []
        self.to_server: list[bytes] = []
        self._gatekeeper = gatekeeper
        self._pending: _Pending | None = None
        self._question: _Question | None = None
        self._withheld: list[bytes] = []
        self._withheld_bytes = 0
        self._transparent = False  # replication: nothing to gate
        self._midway = False  # the last message forwarded is a long one, its end is still to come
        self._unsynced = False  # extended messages were forwarded and no Sync yet
        self._skipping = False  # the server skips everything up to Sync
        self._early_error = ""  # an error that came while no unit was at work
        self._copy: _Pending | None = None  # COPY IN is open; what will be pending at its end
        self._statements = Statements()
        self._transactions = Transactions(gatekeeper.committed)

    @property
    def idle(self) -> bool:
        """Tell whether the session is between transactions, with nothing under way in either direction."""
        busy = self._pending or self._question or self.queue or self.waiting or self._unsynced
        return self.status == "I" and not busy and not self._transparent

    @property
    def at_work(self) -> bool:
        """Tell whether the server has something to do without any more help from the client."""
        return (self._pending is not None or bool(self.queue)) and not self._midway

    # --- from the client --------------------------------------------------------------------------

    def client_sent(self, frames: list[Frame]) -> None:
        """Take what the client sent; forward what the gate allows."""
        self.queue.extend(frames)
        self.queued_bytes += sum(len(frame.raw) for frame in frames)
        self.advance()

    def advance(self) -> None:
        """Forward queued messages until one has to wait."""
        while self.queue and not self.waiting and not self._gatekeeper.holding:
            frame = self.queue[0]
            if frame.starts and not self._may_forward(frame):
                return
            self.queue.popleft()
            self.queued_bytes -= len(frame.raw)
            self._forward(frame)

    def let_through(self) -> None:
        """Give the client the withheld answer and go on. The session must be waiting or idle."""
        self.waiting = False
        self.to_client.extend(self._withheld)
        self._withheld.clear()
        self._withheld_bytes = 0

    def drain(self, frames: list[Frame]) -> None:
        """Take the last that the client sent; what is not whole at the end is dropped."""
        self.queue.extend(frames)
        while self.queue and not self.queue[-1].ends:
            self.queue.pop()
        if self.waiting:
            self.let_through()
        self.advance()

    def _may_forward(self, frame: Frame) -> bool:
        if self._transparent or not self.status:
            return True
        if self._pending is not None or self._question is not None:
            # A Query may stand behind an error that it does not know of; then only Sync gets an answer.
            return self._skipping
        unit = self._unit(frame)
        return unit is None or self._gatekeeper.admit(self, unit, self._sql(frame))

    def _unit(self, frame: Frame) -> Unit | None:
        """Return what the message makes the server do, in the state that the session is in."""
        if self._skipping:
            counts = frame.letter == "S" or (frame.letter == "E" and self._early_error)
            return _UNITS[frame.letter] if counts else None
        if self._copy is not None:
            return Unit.COPY_DONE if frame.letter in "cf" else None
        return _UNITS.get(frame.letter)

    def _sql(self, frame: Frame) -> str:
        """Return the SQL text that a client message is about."""
        if frame.letter in "cf" and self._copy is not None:
            return self._copy.sql
        return self._statements.sql(frame)

    def _forward(self, frame: Frame) -> None:
        self.to_server.append(frame.raw)
        self._midway = not frame.ends
        if self._transparent or not self.status:
            if frame.starts:
                self._log("client", frame)
            return
        unit = self._unit(frame) if frame.starts and self._pending is None else None
        if frame.starts:
            self._log("client", frame, self._sql(frame))
            self._statements.remember(frame)
            self._unsynced |= frame.letter in _EXTENDED
            self.terminated |= frame.letter == "X"
        if unit is not None:
            self._begin(unit, frame)
        if frame.ends and self._pending is not None and self._unsynced:
            self.to_server.append(wire.FLUSH)
        if unit is Unit.EXECUTE and self._pending is not None and self._pending.error:
            self._finish("E")

    def _begin(self, unit: Unit, frame: Frame) -> None:
        """Make the forwarded message the pending unit."""
        if unit is Unit.COPY_DONE and self._copy is not None:
            self._pending, self._copy = self._copy, None
            return
        finish = _FINISH_EXECUTE if unit is Unit.EXECUTE else _FINISH_READY
        self._pending = _Pending(unit, self._sql(frame), finish, self._early_error)
        self._early_error = ""
        if unit is Unit.SYNC:
            self._unsynced = self._skipping = False

    # --- from the server --------------------------------------------------------------------------

    def server_sent(self, frames: list[Frame]) -> None:
        """Take what the server sent: pass it, withhold it, or recognise a boundary in it."""
        for frame in frames:
            if self._transparent:
                self.to_client.append(frame.raw)
            elif self._question is not None:
                self._hear(self._question, frame)
            else:
                self._receive(frame)
        self.advance()

    def _receive(self, frame: Frame) -> None:
        text = ""
        if frame.starts:
            match frame.letter:
                case "N" if announcement.SQLSTATE.encode() in frame.body and self._announced(frame):
                    return
                case "E":
                    text = self._failed(frame)
                case "C":
                    text = wire.cstring(frame.body)[0]
                    if self._pending is not None:
                        self._pending.tags.append(text)
                case "K":
                    self.backend_pid = int.from_bytes(frame.body[:4], "big")
                case "Z":
                    text = self.status = frame.body[:1].decode()
                    self._unsynced = self._skipping = False
                    self._copy = None
                case "W":
                    self._transparent = True
            self._log("server", frame, text)
        self._keep(frame)
        if frame.ends and self._pending is not None and frame.letter in self._pending.finish:
            self._finish(frame.letter)

    def _keep(self, frame: Frame) -> None:
        """Withhold the message while a unit is at work or its boundary undecided, else pass it."""
        if (self._pending is None and not self.waiting) or self._transparent:
            self.to_client.append(frame.raw)
            return
        if self._withheld_bytes > ANSWER_KEPT_BYTES and not self.waiting:
            # Too long to keep. Nothing in it ends the unit: that message is the one in hand or later.
            self.let_through()
        self._withheld.append(frame.raw)
        self._withheld_bytes += len(frame.raw)

    def _announced(self, frame: Frame) -> bool:
        """Take the witness's word out of the stream; tell whether it was the witness's."""
        notice = wire.fields(frame.body)
        if not announcement.is_genuine(notice):
            return False
        touch = announcement.touch(notice)
        if touch is not None:
            self._transactions.add(touch)
            self._gatekeeper.log(self, "server", "touch", f"{touch.point} {touch.rows} rows")
        return True

    def _failed(self, frame: Frame) -> str:
        """Note an error; return it as text for the log."""
        error = wire.fields(frame.body)
        code = error.get("C", "?")
        if self._pending is None and self._copy is not None:
            # The stream is over, whatever the client still sends of it.
            self._pending, self._copy = self._copy, None
        if self._pending is not None:
            self._pending.error = code
        else:
            self._early_error = code if self._unsynced else ""
        self._skipping = self._unsynced
        return f"{code} {error.get('M', '')}"[:SQL_TEXT_MAX]

    # --- the boundary -----------------------------------------------------------------------------

    def _finish(self, letter: str) -> None:
        """Turn the pending unit into a boundary; `letter` is the server message that finished it."""
        pending, self._pending = self._pending, None
        assert pending is not None
        if letter == "G":
            finish = _FINISH_COPY if self._unsynced else _FINISH_READY
            self._copy = _Pending(Unit.COPY_DONE, pending.sql, finish)
        status = self.status if letter == "Z" else ""
        touches, committed = self._transactions.settle(pending.tags, status, bool(pending.error))
        boundary = Boundary(
            number=self._gatekeeper.next_number,
            session=self.number,
            unit=pending.unit,
            sql=pending.sql,
            tag="; ".join(pending.tags),
            status=status,
            touches=touches,
            committed=committed,
            error=pending.error,
        )
        self.waiting = True
        if self._gatekeeper.finished(self, boundary):
            self.let_through()

    # --- the harness's own question ---------------------------------------------------------------

    def ask(self, sql: str, done: Callable[[Rows, dict[str, str]], None]) -> None:
        """Send a Query of the harness; the client sees nothing of it. The session must be idle.

        A simple Query drops the unnamed prepared statement, so a client that keeps one across
        round trips would notice; no common driver does.
        """
        assert self.idle
        self._question = _Question(done)
        self._gatekeeper.log(self, "harness", "Query", sql[:SQL_TEXT_MAX])
        self.to_server.append(wire.message("Q", sql.encode() + b"\0"))

    def _hear(self, question: _Question, frame: Frame) -> None:
        match frame.letter:
            case "D" if frame.starts and frame.ends:
                question.rows += wire.row_values(frame.raw)
            case "E" if frame.starts:
                question.error = wire.fields(frame.body)
            case "A" | "S":
                self.to_client.append(frame.raw)
            case "Z":
                self._question = None
                question.done(question.rows, question.error)

    def _log(self, who: str, frame: Frame, text: str = "") -> None:
        name = wire.message_name("client" if who == "client" else "server", frame.letter)
        if frame.count > 1:
            text = f"x{frame.count}"
        self._gatekeeper.log(self, who, name, text)
