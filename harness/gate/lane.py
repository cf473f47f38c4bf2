"""The listener of one client process: one count of boundaries, one armed stop, one hold.

All connections of the process come through its lane. The lane is the gatekeeper of their sessions:
it numbers the boundaries in the order in which the server finished them, and when one of them is the
armed stop it *holds*: the answer stays here and no session of the lane advances, until the harness
releases or cuts. Without a hold, sessions do not wait for one another (one may wait for the other's
lock).

Public methods are called from the harness's thread; everything else runs in the proxy's loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from harness.gate.link import Link
from harness.gate.session import Rows, Session
from harness.gate.stops import checked, is_reached
from harness.limits import ASK_WAIT_S, HOLD_WAIT_S, POLL_S, WIRE_LOG_LINES
from harness.records import Boundary, Hold, Policy, Stop, Unit, WireEvent
from harness.waiting import DeadlineExpired

if TYPE_CHECKING:
    from harness.proxy import Proxy


class ProxyError(RuntimeError):
    """The proxy was used in a state that does not allow it, or broke. Never the learner's doing."""


class Lane:
    """The listener of one client process. Public methods are for the harness's thread."""

    host = "127.0.0.1"

    def __init__(self, proxy: Proxy, stop: Stop | None, delay_s: float) -> None:
        self.loop, self.upstream = proxy.loop, proxy.upstream
        self._proxy = proxy
        self._stop = checked(stop)
        self._delay_s = delay_s
        self._hold: Hold | None = None
        self._held = threading.Event()  # set while _hold is
        self._holder: Session | None = None
        self._boundaries: list[Boundary] = []
        self._undecided: list[tuple[Session, Boundary]] = []  # finished while another was held
        self._events: deque[WireEvent] = deque(maxlen=WIRE_LOG_LINES)
        self._sessions: list[Session] = []
        self._links: list[Link] = []
        self._delays: dict[Session, bool] = {}  # sessions whose unit waits; True when it waited
        self._server: asyncio.Server | None = None
        self.port: int = proxy.run(self._listen())

    # --- for the harness --------------------------------------------------------------------------

    def wait_hold(
        self, wait_s: float = HOLD_WAIT_S, alive: Callable[[], bool] | None = None
    ) -> Hold | None:
        """Wait until the client stands at the armed stop.

        Args:
            wait_s: Seconds until the wait is given up.
            alive: Tells whether the client process still runs.

        Returns:
            The hold, or None when the client ended without reaching the stop.

        Raises:
            DeadlineExpired: If neither happened in time.
            ProxyError: If the proxy broke.
        """
        deadline = time.monotonic() + wait_s
        while not self._held.wait(POLL_S):
            if self._proxy.failure:
                raise ProxyError(self._proxy.failure)
            if alive is not None and not alive():
                break
            if time.monotonic() >= deadline:
                raise DeadlineExpired(f"after {wait_s:g} s the client has not reached {self._stop}")
        return self._hold

    def release(self, next_stop: Stop | None = None) -> None:
        """Let the held answer through, or forward the held unit, and go on with `next_stop` armed.

        A stop's `nth` and number count from the lane's start, not from here.

        Raises:
            ProxyError: If the lane holds nobody.
        """
        self._proxy.run(self._release(checked(next_stop)))

    def cut(self, policy: Policy = Policy.ABORT) -> None:
        """Let go of the server as the policy says, and break the client's connections.

        With a client that lives on this is the lost request or the lost reply. Afterwards nothing is
        held or armed. With `abort` the server's sockets are closed when this returns.
        """
        self._proxy.run(self._cut(policy))

    def ask(self, sql: str) -> Rows:
        """Run the harness's own query on the client's own session; the client sees nothing of it.

        The first session that is open is asked. It must be idle and outside a transaction.

        Raises:
            ProxyError: If there is no such session, it is not idle, or the server refused the query.
        """
        return self._proxy.run(self._ask(sql))

    def close(self) -> None:
        """End the listener and every connection, also those left open. Closing twice is allowed."""
        if not self.loop.is_closed() and self._server is not None:
            self._proxy.run(self._close())
        self._proxy.forget(self)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Return the boundaries so far, in order of completion."""
        return tuple(self._boundaries)

    @property
    def events(self) -> tuple[WireEvent, ...]:
        """Return the wire log, oldest line first."""
        return tuple(self._events.copy())

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """Return the server processes of all sessions so far, in order."""
        return tuple(session.backend_pid for session in self._sessions if session.backend_pid)

    @property
    def open_sessions(self) -> int:
        """Return how many sessions the client has open."""
        return sum(link.session is not None and link.client.open for link in self._links.copy())

    @property
    def idle(self) -> bool:
        """Tell whether the client is connected and its session waits outside a transaction."""
        return any(
            link.session and link.client.open and link.session.idle for link in self._links.copy()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for the sessions: the gatekeeper ---------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Tell whether a session of this lane is held."""
        return self._holder is not None

    @property
    def next_number(self) -> int:
        """Return the number that the next boundary gets."""
        return len(self._boundaries) + 1

    def admit(self, session: Session, unit: Unit, sql: str) -> bool:
        """Tell whether a unit may be forwarded; hold it if a `before` stop says so."""
        stop = self._stop
        if stop is not None and stop.before and stop.boundary == self.next_number:
            self._begin_hold(session, Boundary(self.next_number, session.number, unit, sql), True)
            return False
        if not self._delay_s or self._delays.pop(session, False):
            return True
        if session not in self._delays:
            self._delays[session] = False
            self.loop.call_later(self._delay_s, self._delay_over, session)
        return False

    def finished(self, session: Session, boundary: Boundary) -> bool:
        """Take note of a boundary; tell whether its answer may go through."""
        self._boundaries.append(boundary)
        if self.holding:
            self._undecided.append((session, boundary))
            return False
        if is_reached(self._stop, self._boundaries, boundary):
            self._begin_hold(session, boundary, False)
            return False
        return True

    def committed(self, xid: int) -> bool | None:
        """Ask the server; a question that fails leaves the transaction open and is logged."""
        try:
            status = self._proxy.xact_status(xid)
        except Exception as error:  # the server may be down, and the caller's connection with it
            self.note(0, "pg_xact_status failed", f"{xid}: {error}")
            return None
        return None if status == "in progress" else status == "committed"

    def log(self, session: Session, who: str, message: str, text: str = "") -> None:
        """Write one line of the wire log."""
        self._events.append(WireEvent(time.monotonic(), session.number, who, message, text))

    # --- for the links ----------------------------------------------------------------------------

    def note(self, session: int, message: str, text: str = "") -> None:
        """Write one line of the harness's own into the wire log."""
        self._events.append(WireEvent(time.monotonic(), session, "harness", message, text))

    def new_session(self, version: int) -> Session:
        """Count a session; cancel requests never get here."""
        session = Session(len(self._sessions) + 1, self)
        self._sessions.append(session)
        self.log(session, "client", "StartupMessage", f"{version >> 16}.{version & 0xFFFF}")
        return session

    def forget(self, link: Link) -> None:
        """Drop a link whose sockets are both closed."""
        if link in self._links:
            self._links.remove(link)

    def break_off(self) -> None:
        """Close every connection now; the proxy is broken."""
        for link in self._links.copy():
            link.close()

    # --- in the loop ------------------------------------------------------------------------------

    async def _listen(self) -> int:
        def accept() -> asyncio.Protocol:
            link = Link(self)
            self._links.append(link)
            return link.client

        self._server = await self.loop.create_server(accept, self.host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def _begin_hold(self, session: Session, boundary: Boundary, before: bool) -> None:
        self._holder = session
        self._hold = Hold(boundary, session.backend_pid, before)
        self.note(
            session.number, "hold", f"{'before ' if before else ''}boundary {boundary.number}"
        )
        for link in self._links:
            link.pace()
        self._held.set()

    def _end_hold(self) -> Session | None:
        holder, self._holder, self._hold = self._holder, None, None
        self._held.clear()
        return holder

    async def _release(self, next_stop: Stop | None) -> None:
        if self._hold is None or self._holder is None:
            raise ProxyError("release: the lane holds nobody")
        before, holder = self._hold.before, self._end_hold()
        assert holder is not None
        self._stop = next_stop
        self.note(holder.number, "release")
        if not before:
            holder.let_through()
        # Units of other sessions that the server finished meanwhile are decided now, in their order.
        undecided, self._undecided = self._undecided, []
        for session, boundary in undecided:
            if self.holding:
                self._undecided.append((session, boundary))
            elif is_reached(self._stop, self._boundaries, boundary):
                self._begin_hold(session, boundary, False)
            else:
                session.let_through()
        holder.advance()  # first, so that a unit held before its number still gets that number
        for link in self._links.copy():
            if link.session is not None:
                link.session.advance()
            link.flush()
            link.pace()

    async def _cut(self, policy: Policy) -> None:
        self.note(0, "cut", policy.value)
        self._end_hold()
        self._stop = None
        self._undecided.clear()
        links = self._links.copy()
        for link in links:
            link.cut(policy)
        await self._gone(links, servers=policy is Policy.ABORT)

    async def _ask(self, sql: str) -> Rows:
        link = next((link for link in self._links if link.session and link.client.open), None)
        if link is None or link.session is None:
            raise ProxyError("ask: the client has no open session")
        if self.holding or not link.session.idle:
            state = (
                "held" if self.holding else f"in state {link.session.status or 'startup'}, or busy"
            )
            raise ProxyError(f"ask: session {link.session.number} is not idle: it is {state}")
        answer: asyncio.Future[tuple[Rows, dict[str, str]]] = self.loop.create_future()
        link.session.ask(sql, lambda rows, error: answer.set_result((rows, error)))
        link.flush()
        try:
            rows, error = await asyncio.wait_for(answer, ASK_WAIT_S)
        except TimeoutError:
            raise DeadlineExpired(f"after {ASK_WAIT_S:g} s no answer to {sql!r}") from None
        if error:
            raise ProxyError(f"ask: {sql!r} was refused: {error.get('C')} {error.get('M')}")
        return rows

    async def _close(self) -> None:
        server, self._server = self._server, None
        assert server is not None
        server.close()
        self._end_hold()
        links = self._links.copy()
        for link in links:
            link.close()
        await self._gone(links, servers=True)

    async def _gone(self, links: list[Link], *, servers: bool) -> None:
        """Wait until the sockets are closed; both were told to close at once."""
        for link in links:
            if link.client.open:
                await link.client.gone
            if servers and link.server.open:
                await link.server.gone

    def _delay_over(self, session: Session) -> None:
        self._delays[session] = True
        session.advance()
        for link in self._links.copy():
            link.flush()
