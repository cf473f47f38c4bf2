"""One socket of a link: asyncio's callbacks on one side, plain verbs for the link on the other."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING, cast

from harness.gate import wire
from harness.gate.wire import BrokenStream, FrameReader

if TYPE_CHECKING:
    from harness.gate.link import Link

#: Closing a socket with this option sends a reset: the other side sees its connection break.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Side(asyncio.Protocol):
    """The client's or the server's socket. A side that is not open takes every verb and does nothing."""

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
