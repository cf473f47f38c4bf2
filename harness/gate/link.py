"""The two sockets of one client connection, and the session between them.

The client's side begins with startup packets, which are answered here: encryption is refused, a
cancel request is carried to the server on a connection of its own and is never a session, and a
startup message opens the server's side and the session. From then on bytes go
socket → frames → session → socket.

Reading stops whenever going on would mean keeping bytes: while the lane holds, while the other side
does not take what it is given, or when a client runs far ahead of its gate. How a link lets go of
the server is a `Policy`, because it decides what the server still does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harness.gate import wire
from harness.gate.session import Session
from harness.gate.side import Side
from harness.gate.wire import BrokenStream, StartupPacket
from harness.limits import CLIENT_AHEAD_BYTES
from harness.records import Policy

if TYPE_CHECKING:
    from harness.gate.lane import Lane


class Link:
    """One accepted connection. All methods run in the proxy's event loop."""

    def __init__(self, lane: Lane) -> None:
        self.session: Session | None = None
        self.client = Side(self, "client")
        self.server = Side(self, "server")
        self._lane = lane
        self._startup = bytearray()
        self._released = False  # let go by a policy: nothing reaches the client any more
        self._draining = False  # let go by half-close: the server still works on what was sent
        self._opening: asyncio.Task[None] | None = None  # the way to the server, once it is needed

    # --- startup ----------------------------------------------------------------------------------

    def client_bytes(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self.session is not None:
            self.session.client_sent(self.client.frames(data))
            self.flush()
            return
        self._startup += data
        while self._opening is None and (packet := wire.startup_packet(self._startup)):
            del self._startup[: len(packet.raw)]
            if packet.code in (wire.SSL_REQUEST, wire.GSSENC_REQUEST):
                self.client.write(b"N")
            else:
                self._opening = self._lane.loop.create_task(self._open(packet))
                # An unexpected error comes out again here, where the loop notices it.
                self._opening.add_done_callback(lambda task: task.cancelled() or task.result())
                self.pace()

    async def _open(self, packet: StartupPacket) -> None:
        """Open the server's side and hand it the packet."""
        upstream, loop = self._lane.upstream, self._lane.loop
        try:
            if upstream.host.startswith("/"):
                path = f"{upstream.host}/.s.PGSQL.{upstream.port}"
                await loop.create_unix_connection(lambda: self.server, path)
            else:
                await loop.create_connection(lambda: self.server, upstream.host, upstream.port)
        except OSError as error:
            self._lane.note(0, "cannot reach the server", str(error))
            self.client.write(wire.fatal("08001", f"the lab's server is not reachable: {error}"))
            self.client.close()
            return
        if self._released or not self.client.open:
            self.server.abort()
            return
        if packet.code == wire.CANCEL_REQUEST:
            self._lane.note(0, "CancelRequest")
        else:
            self.session = self._lane.new_session(packet.code)
        self.server.write(packet.raw)
        if self.session is not None and self._startup:
            self.client_bytes(bytes(self._startup))  # sent ahead, right behind the startup message
        self.pace()

    # --- traffic ----------------------------------------------------------------------------------

    def server_bytes(self, data: bytes) -> None:
        """Take bytes from the server."""
        if self.session is None or (self._released and not self._draining):
            return
        self.session.server_sent(self.server.frames(data))
        self.flush()

    def flush(self) -> None:
        """Write what the session let out, then set the pace of reading."""
        session = self.session
        if session is None or (self._released and not self._draining):
            return
        if session.to_server:
            self.server.write(b"".join(session.to_server))
            session.to_server.clear()
        if session.to_client and not self._draining:
            self.client.write(b"".join(session.to_client))
        session.to_client.clear()
        if self._draining and not session.at_work:
            self._draining = False
            self.server.write_eof()
        if not self.server.open and not session.waiting:
            self.client.close()
        self.pace()

    def pace(self) -> None:
        """Read each side only while its bytes can go on, or at least need not be kept for long."""
        ahead = self.session is not None and self.session.queued_bytes > CLIENT_AHEAD_BYTES
        opening = self._opening is not None and not self.server.open
        stuck = self._lane.holding or ahead or opening
        self.client.pause(stuck or self.server.clogged)
        self.server.pause(self.client.clogged and not self._released)

    def broken(self, what: str) -> None:
        """End a connection that does not speak the protocol."""
        self._lane.note(self.session.number if self.session else 0, "broken stream", what)
        self.close()

    def side_lost(self, side: Side) -> None:
        """One side ended by itself: end the other as the server or the client would have."""
        if self._released:
            pass
        elif side is self.client:
            # What was queued is thrown away, unless the client had said goodbye properly.
            if self.session is not None and self.session.terminated:
                self.server.close()
            else:
                self.server.abort()
        elif self.session is None:
            self.client.close()
        else:
            self.flush()
        if not self.client.open and not self.server.open:
            self._lane.forget(self)

    # --- the end ----------------------------------------------------------------------------------

    def cut(self, policy: Policy) -> None:
        """Let go of the server as the policy says and break the client's connection."""
        if self._released:
            return
        self._released = True
        match policy:
            case Policy.ABORT:
                self.server.abort()
            case Policy.HALF_CLOSE:
                self._drain()
            case Policy.LEAVE_OPEN:
                pass
        self.client.reset()
        self.pace()

    def close(self) -> None:
        """End both sides, also a server side that was left open."""
        self._released, self._draining = True, False
        if self._opening is not None:
            self._opening.cancel()
        self.server.abort()
        self.client.reset()

    def _drain(self) -> None:
        """Let the server read all whole messages that the client had sent, and only then the end.

        They go through the gate as before, because a busy server that looks for a dead client
        (`client_connection_check_interval`) takes an early end of the stream for one.
        """
        session = self.session
        if session is None:
            self.server.abort()
            return
        frames: list[wire.Frame] = []
        try:
            while data := self.client.read_now():
                frames += self.client.frames(data)
        except BrokenStream as error:
            self._lane.note(session.number, "broken stream", str(error))
        self._draining = True
        session.drain(frames)
        self.flush()
