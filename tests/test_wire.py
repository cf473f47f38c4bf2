"""The wire protocol's bytes: frames, startup packets, notices; no socket is opened here."""

from __future__ import annotations

import struct

import pytest

from harness.gate import announcement, wire
from harness.gate.wire import BrokenStream, Direction, FrameReader, message
from harness.limits import FRAME_BYTES_MAX, FRAME_WHOLE_BYTES
from harness.records import Touch

ROW = message("D", struct.pack("!hi1si", 2, 1, b"7", -1))
CONVERSATION = (
    message("1", b"")
    + message("T", b"\0\0")
    + ROW * 5
    + message("N", b"SNOTICE\0C00000\0\0")
    + ROW
    + message("C", b"SELECT 6\0")
    + message("Z", b"I")
)


def in_pieces(data: bytes, size: int, direction: Direction = "server") -> list[wire.Frame]:
    """Feed a reader `size` bytes at a time and return all frames."""
    reader = FrameReader(direction)
    return [
        frame
        for start in range(0, len(data), size)
        for frame in reader.feed(data[start : start + size])
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 19, 1000])
def test_the_same_messages_come_out_however_the_bytes_arrive(size: int) -> None:
    """Letters, counts and bytes agree with the whole, for every way to cut it."""
    frames = in_pieces(CONVERSATION, size)
    assert b"".join(frame.raw for frame in frames) == CONVERSATION
    letters = "".join(frame.letter * frame.count for frame in frames)
    assert letters == "1TDDDDDNDCZ"
    assert all(frame.starts and frame.ends for frame in frames)


def test_rows_in_a_run_are_one_frame() -> None:
    """Nobody looks at rows one by one, so a run of them costs one frame."""
    counts = [frame.count for frame in in_pieces(CONVERSATION, 1000) if frame.letter == "D"]
    assert counts == [5, 1]


@pytest.mark.parametrize("size", [1 << 10, 70_000, 1 << 18])
def test_a_long_message_streams_and_is_never_kept_whole(size: int) -> None:
    """Of 5 MB the reader hands on each piece as it comes; only the beginning has a body."""
    long = message("Q", b"select 1" * 600_000 + b"\0")
    frames = in_pieces(long + message("S", b""), size, "client")
    parts, last = frames[:-1], frames[-1]
    assert b"".join(frame.raw for frame in parts) == long
    assert [frame.starts for frame in parts] == [True] + [False] * (len(parts) - 1)
    assert [frame.ends for frame in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[0].body.startswith(b"select 1")
    assert max(len(frame.raw) for frame in parts) <= max(size, FRAME_WHOLE_BYTES + size)
    assert (last.letter, last.starts, last.ends) == ("S", True, True)


def test_a_long_row_ends_a_run_of_short_ones() -> None:
    """A row that is not whole yet does not join the run before it."""
    long = message("D", b"\0\1" + b"x" * (FRAME_WHOLE_BYTES * 3))
    frames = in_pieces(ROW * 2 + long + ROW, FRAME_WHOLE_BYTES * 2)
    assert [(frame.count, frame.starts, frame.ends) for frame in frames] == [
        (2, True, True),
        (1, True, False),
        (1, False, True),
        (1, True, True),
    ]


@pytest.mark.parametrize("length", [0, 3, FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_an_impossible_length_is_a_broken_stream(length: int) -> None:
    """A stream that lost its place is not read on."""
    with pytest.raises(BrokenStream, match=f"'Q' claims {length} bytes"):
        FrameReader("client").feed(b"Q" + struct.pack("!I", length))


def test_a_letter_means_nothing_without_its_direction() -> None:
    """Seven letters are used by both sides for different messages."""
    assert wire.message_name("client", "C") == "Close"
    assert wire.message_name("server", "C") == "CommandComplete"
    assert wire.message_name("server", "?") == "unknown '?'"


# --- startup --------------------------------------------------------------------------------------


def test_startup_packets_are_taken_one_by_one() -> None:
    """A request for encryption and a startup message may arrive in one piece, or byte by byte."""
    request = struct.pack("!II", 8, wire.SSL_REQUEST)
    startup = struct.pack("!II", 14, 196610) + b"user\0\0"
    for end in range(len(request)):
        assert wire.startup_packet((request + startup)[:end]) is None
    first = wire.startup_packet(request + startup)
    assert first == wire.StartupPacket(wire.SSL_REQUEST, request)
    assert wire.startup_packet(startup) == wire.StartupPacket(196610, startup)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes.fromhex("160301") + b"\0" * 20, "TLS handshake"),
        (b"GET / HTTP/1.1\r\n", "claims 1195725856 bytes"),
        (struct.pack("!II", 4, 196608), "claims 4 bytes"),
    ],
    ids=["direct tls", "http", "too short"],
)
def test_something_else_is_no_startup_packet(data: bytes, said: str) -> None:
    """The error says what came instead."""
    with pytest.raises(BrokenStream, match=said):
        wire.startup_packet(data)


# --- bodies ---------------------------------------------------------------------------------------


def test_text_is_cut_by_characters() -> None:
    """A long statement is shown by its beginning, whatever its characters weigh."""
    assert wire.cstring("añ€😀z\0".encode(), 0, 4) == ("añ€😀", 12)
    assert wire.cstring(b"name\0rest\0", 5) == ("rest", 10)
    assert wire.cstring(b"no end", 3) == ("end", 7)


def test_rows_are_read_by_value() -> None:
    """NULL and text are told apart."""
    assert wire.row_values(ROW * 2) == [("7", None)] * 2


ANNOUNCED = {
    "V": "INFO",
    "C": "LB001",
    "s": "lab",
    "t": "orders",
    "n": "update:10",
    "D": "739",
    "W": 'PL/pgSQL function witness.announce(text,text,bigint) line 3 at RAISE\nSQL statement "x"',
}


def notice(**changed: str) -> dict[str, str]:
    """Return the fields of an announcement with some changed, through bytes."""
    body = b"".join(f"{k}{v}\0".encode() for k, v in (ANNOUNCED | changed).items())
    return wire.fields(body + b"\0")


def test_the_witness_announces_a_touch() -> None:
    """Table, operation, rows and transaction are read from fields, never from text."""
    assert announcement.is_genuine(notice())
    assert announcement.touch(notice()) == Touch("orders", "update", 10, 739)


@pytest.mark.parametrize(
    "context",
    [
        "PL/pgSQL-Funktion witness.announce(text,text,bigint) Zeile 3 bei RAISE",
        "fonction PL/pgSQL witness.announce(text,text,bigint), ligne 3, à RAISE",
        "在RAISE的第3行的PL/pgSQL函数witness.announce(text,text,bigint)",
    ],
)
def test_the_witness_is_recognised_in_the_servers_language(context: str) -> None:
    """The context is translated; the function's name is not."""
    assert announcement.is_genuine(notice(W=context))


@pytest.mark.parametrize(
    "changed",
    [
        {"W": "PL/pgSQL function pg_temp_3.witness(text) line 1 at RAISE"},
        {"W": "PL/pgSQL function pg_temp_3.witness.announce() line 1 at RAISE"},
        {"C": "LB002"},
        {"V": "NOTICE"},
        {"W": "PL/pgSQL function inline_code_block line 1 at RAISE"},
        {"W": 'PL/pgSQL function pg_temp_3."x witness.announce("() line 1 at RAISE'},
        {
            "W": "PL/pgSQL function pg_temp_3.announce() line 1 at RAISE\nfunction witness.on_update()"
        },
        {"W": ""},
    ],
)
def test_an_imitation_is_no_announcement(changed: dict[str, str]) -> None:
    """Only a function of the witness's schema can be the innermost line of the context."""
    assert not announcement.is_genuine(notice(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"n": "update:0"},
        {"n": "update"},
        {"n": "update:many"},
        {"n": "update:١"},
        {"n": "vacuum:1"},
        {"D": ""},
        {"D": "-4"},
        {"D": "9" * 20},
        {"t": ""},
    ],
)
def test_a_malformed_announcement_is_no_touch(changed: dict[str, str]) -> None:
    """No field can make the proxy fall over."""
    assert announcement.touch(notice(**changed)) is None


def test_a_cut_notice_gives_the_fields_that_are_there() -> None:
    """A field without an end, and an empty body, are read as far as they go."""
    assert wire.fields(b"VINFO\0CLB0") == {"V": "INFO", "C": "LB0"}
    assert wire.fields(b"") == {}
