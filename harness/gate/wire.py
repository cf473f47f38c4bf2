"""The PostgreSQL wire protocol, as far as a proxy must understand it.

A connection starts with *startup packets*: a length, a code, a body. The code asks for encryption,
asks to cancel another session's statement, or is a protocol version, and then the session begins.
From there on both sides send *messages*: one letter, a length that counts itself but not the letter,
a body. A letter means nothing without its direction: `C` is Close from the client and
CommandComplete from the server.

Bytes arrive in pieces of any size. `FrameReader` cuts them into frames: a short message is one
frame, a long one comes as several so that it never has to be kept whole, and a run of data rows is
one frame because nobody looks at them one by one.

This file knows bytes only. It opens no socket and keeps no session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.limits import FRAME_BYTES_MAX, FRAME_WHOLE_BYTES, STARTUP_BYTES_MAX

Direction = Literal["client", "server"]

CLIENT_MESSAGES: Mapping[str, str] = {
    "B": "Bind",
    "C": "Close",
    "D": "Describe",
    "E": "Execute",
    "F": "FunctionCall",
    "H": "Flush",
    "P": "Parse",
    "Q": "Query",
    "S": "Sync",
    "X": "Terminate",
    "c": "CopyDone",
    "d": "CopyData",
    "f": "CopyFail",
    "p": "PasswordMessage",
}
SERVER_MESSAGES: Mapping[str, str] = {
    "1": "ParseComplete",
    "2": "BindComplete",
    "3": "CloseComplete",
    "A": "NotificationResponse",
    "C": "CommandComplete",
    "D": "DataRow",
    "E": "ErrorResponse",
    "G": "CopyInResponse",
    "H": "CopyOutResponse",
    "I": "EmptyQueryResponse",
    "K": "BackendKeyData",
    "N": "NoticeResponse",
    "R": "Authentication",
    "S": "ParameterStatus",
    "T": "RowDescription",
    "V": "FunctionCallResponse",
    "W": "CopyBothResponse",
    "Z": "ReadyForQuery",
    "c": "CopyDone",
    "d": "CopyData",
    "n": "NoData",
    "s": "PortalSuspended",
    "t": "ParameterDescription",
    "v": "NegotiateProtocolVersion",
}
_NAMES = {"client": CLIENT_MESSAGES, "server": SERVER_MESSAGES}
#: Messages that come in runs: rows of a result, rows of a COPY.
_BULK = {"client": frozenset("d"), "server": frozenset("Dd")}

FLUSH = b"H\x00\x00\x00\x04"
SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102
#: The first byte of a TLS handshake: a client that starts encryption without asking first.
TLS_HANDSHAKE = 0x16


class BrokenStream(Exception):
    """The bytes are not the PostgreSQL protocol. The text says what stood where a length was due."""


def message_name(direction: Direction, letter: str) -> str:
    """Return the message's name in the PostgreSQL manual, or a placeholder for an unknown letter."""
    return _NAMES[direction].get(letter, f"unknown {letter!r}")


# --- frames ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Frame:
    """A message, a part of a long one, or a run of bulk messages.

    `raw` is what arrived, header included. `body` is the payload of a message that starts here (of
    a long one its first bytes) and empty otherwise. `count` is the number of messages.
    """

    letter: str
    raw: bytes
    body: bytes
    starts: bool = True
    ends: bool = True
    count: int = 1


class FrameReader:
    """Cut one direction's byte stream into frames. Work is linear in the bytes, however they arrive."""

    def __init__(self, direction: Direction) -> None:
        self._bulk = _BULK[direction]
        self._buffer = bytearray()
        self._letter = ""  # of the long message in progress
        self._left = 0  # bytes of it still to come

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes as they arrived and return the frames that they complete.

        Raises:
            BrokenStream: If a length is impossible.
        """
        frames: list[Frame] = []
        if self._left:
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            frames.append(Frame(self._letter, part, b"", starts=False, ends=not self._left))
        self._buffer += data
        position = 0
        with memoryview(self._buffer) as view:
            while (end := self._end_of(position)) is not None:
                frame = self._frame(view, position, end)
                frames.append(frame)
                position += len(frame.raw)
        del self._buffer[:position]
        return frames

    def _end_of(self, position: int) -> int | None:
        """Return where the message at `position` ends, or None when too little of it is here."""
        have = len(self._buffer) - position
        if have < 5:
            return None
        length = int.from_bytes(self._buffer[position + 1 : position + 5], "big")
        if not 4 <= length <= FRAME_BYTES_MAX:
            letter = chr(self._buffer[position])
            raise BrokenStream(f"a message {letter!r} claims {length} bytes")
        if have <= length and have < FRAME_WHOLE_BYTES:
            return None
        return position + 1 + length

    def _frame(self, view: memoryview, start: int, end: int) -> Frame:
        """Make the frame that starts at `start`; its message ends at `end`, here or still to come."""
        letter = chr(view[start])
        if end > len(view):
            raw = bytes(view[start:])
            self._letter, self._left = letter, end - len(view)
            return Frame(letter, raw, raw[5:], ends=False)
        if letter not in self._bulk:
            raw = bytes(view[start:end])
            return Frame(letter, raw, raw[5:])
        count, code = 1, view[start]
        while end + 5 <= len(view) and view[end] == code:
            following = end + 1 + int.from_bytes(view[end + 1 : end + 5], "big")
            if following > len(view) or following < end + 5:
                break
            end, count = following, count + 1
        return Frame(letter, bytes(view[start:end]), b"", count=count)


@dataclass(frozen=True, slots=True)
class StartupPacket:
    """One of the packets before the first message. `code` is a request code or a protocol version."""

    code: int
    raw: bytes


def startup_packet(data: bytes | bytearray) -> StartupPacket | None:
    """Return the startup packet at the beginning of `data`, or None when it is not complete.

    Raises:
        BrokenStream: If this is no startup packet.
    """
    if data and data[0] == TLS_HANDSHAKE:
        raise BrokenStream("a TLS handshake without an SSLRequest (sslnegotiation=direct)")
    if len(data) < 4:
        return None
    length = int.from_bytes(data[:4], "big")
    if not 8 <= length <= STARTUP_BYTES_MAX:
        raise BrokenStream(f"a startup packet claims {length} bytes")
    if len(data) < length:
        return None
    return StartupPacket(int.from_bytes(data[4:8], "big"), bytes(data[:length]))


# --- bodies ---------------------------------------------------------------------------------------


def cstring(body: bytes, start: int = 0, chars_max: int | None = None) -> tuple[str, int]:
    """Return the zero-terminated text at `start`, at most `chars_max` of it, and where the next begins."""
    end = body.find(b"\0", start)
    end = len(body) if end < 0 else end
    # A character has at most four bytes; decoding more of a long statement would be waste.
    stop = end if chars_max is None else min(end, start + 4 * chars_max)
    return body[start:stop].decode("utf-8", "replace")[:chars_max], end + 1


def fields(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse or NoticeResponse by letter; a cut one gives what is there."""
    found: dict[str, str] = {}
    position = 0
    while position < len(body) and body[position]:
        letter = chr(body[position])
        found[letter], position = cstring(body, position + 1)
    return found


def row_values(raw: bytes) -> list[tuple[str | None, ...]]:
    """Return the rows in a run of whole DataRow messages, every value in the server's text format."""
    rows: list[tuple[str | None, ...]] = []
    position = 0
    while position < len(raw):
        columns = int.from_bytes(raw[position + 5 : position + 7], "big")
        position += 7
        row: list[str | None] = []
        for _ in range(columns):
            length = int.from_bytes(raw[position : position + 4], "big", signed=True)
            position += 4
            row.append(None if length < 0 else raw[position : position + length].decode())
            position += max(length, 0)
        rows.append(tuple(row))
    return rows


def message(letter: str, body: bytes) -> bytes:
    """Build a message."""
    return letter.encode() + (len(body) + 4).to_bytes(4, "big") + body


def fatal(sqlstate: str, text: str) -> bytes:
    """Build the ErrorResponse with which a server refuses a connection."""
    parts = {"S": "FATAL", "V": "FATAL", "C": sqlstate, "M": text}
    body = b"".join(f"{letter}{value}\0".encode() for letter, value in parts.items())
    return message("E", body + b"\0")
