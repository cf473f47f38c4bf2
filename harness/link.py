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
import os
import socket
import struct
from typing import TYPE_CHECKING, cast

from harness import wire
from harness.limits import CLIENT_AHEAD_BYTES
from harness.records import Policy
from harness.session import Session
from harness.wire import BrokenStream, FrameReader, StartupPacket

if TYPE_CHECKING:
    from harness.proxy import Lane

#: Closing a socket with this option sends a reset: the other side sees its connection break.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Link:
    """One accepted connection. All methods run in the proxy's event loop."""

    def __init__(self, lane: Lane) -> None:
        self.session: Session | None = None
        self.client = _Side(self, "client")
        self.server = _Side(self, "server")
        self._lane = lane
        self._startup = bytearray()
        self._released = False  # let go by a policy: nothing reaches the client any more
        self._draining = False  # let go by half-close: the server still works on what was sent
        self._tasks: set[asyncio.Task[None]] = set()

    # --- startup ----------------------------------------------------------------------------------

    def client_bytes(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self.session is not None:
            self.session.client_sent(self.client.frames(data))
            self.flush()
        elif not self._tasks:
            self._startup += data
            while not self._tasks and (packet := wire.startup_packet(self._startup)):
                del self._startup[: len(packet.raw)]
                self._answer(packet)
        else:
            self._startup += data

    def _answer(self, packet: StartupPacket) -> None:
        """Answer a request for encryption; for anything else go to the server."""
        if packet.code in (wire.SSL_REQUEST, wire.GSSENC_REQUEST):
            self.client.write(b"N")
            return
        self.client.pause(True)
        task = self._lane.loop.create_task(self._open(packet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        if not self.client.open:
            self.server.abort()
            return
        if packet.code == wire.CANCEL_REQUEST:
            self._lane.note(0, "CancelRequest")
        else:
            self.session = self._lane.new_session(packet.code)
        self.server.write(packet.raw)
        data, self._startup = bytes(self._startup), bytearray()
        if self.session is not None and data:
            self.client_bytes(data)
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
        stuck = self._lane.holding or ahead or bool(self._tasks and self.session is None)
        self.client.pause(stuck or self.server.clogged)
        self.server.pause(self.client.clogged and not self._released)

    def broken(self, what: str) -> None:
        """End a connection that does not speak the protocol."""
        self._lane.note(self.session.number if self.session else 0, "broken stream", what)
        self.close()

    def side_lost(self, side: _Side) -> None:
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
        for task in self._tasks:
            task.cancel()
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


class _Side(asyncio.Protocol):
    """One socket: asyncio's callbacks on one side, plain verbs for the link on the other."""

    def __init__(self, link: Link, direction: wire.Direction) -> None:
        self.direction = direction
        self.open = False
        self.clogged = False  # it does not take what it is given as fast as it comes
        self.gone = asyncio.get_running_loop().create_future()
        self._link = link
        self._reader = FrameReader(direction)
        self._transport: asyncio.Transport | None = None
        self._paused = False

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the socket."""
        self._transport = cast(asyncio.Transport, transport)
        self.open = True
        self._link.pace()

    def data_received(self, data: bytes) -> None:
        """Hand the bytes to the link; a stream that is not the protocol ends it."""
        try:
            if self.direction == "client":
                self._link.client_bytes(data)
            else:
                self._link.server_bytes(data)
        except BrokenStream as error:
            self._link.broken(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the link that this side is over."""
        self.open = False
        if not self.gone.done():
            self.gone.set_result(None)
        self._link.side_lost(self)

    def pause_writing(self) -> None:
        """Stop the other side's reading until this socket takes bytes again."""
        self.clogged = True
        self._link.pace()

    def resume_writing(self) -> None:
        """Go on reading the other side."""
        self.clogged = False
        self._link.pace()

    # --- verbs ------------------------------------------------------------------------------------

    def frames(self, data: bytes) -> list[wire.Frame]:
        """Cut bytes into frames."""
        return self._reader.feed(data)

    def write(self, data: bytes) -> None:
        """Send bytes, unless the side is gone already."""
        if self._transport is not None and self.open:
            self._transport.write(data)

    def write_eof(self) -> None:
        """Shut the sending half once everything written is out."""
        if self._transport is not None and self.open:
            self._transport.write_eof()

    def pause(self, pause: bool) -> None:
        """Stop or continue reading."""
        if self._transport is None or not self.open or pause == self._paused:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def read_now(self) -> bytes:
        """Return bytes that have already arrived on the socket; empty when there are none."""
        if self._transport is None or not self.open:
            return b""
        try:
            return os.read(self._transport.get_extra_info("socket").fileno(), 1 << 16)
        except OSError:
            return b""

    def close(self) -> None:
        """Close after everything written is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and throw away what is not out yet."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Break the connection, so that the peer sees a reset and not an orderly end."""
        if self._transport is not None and self.open:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
