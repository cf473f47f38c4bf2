"""The corners of the protocol: startup, cancel, fragments, raw messages, 100 MB, floods."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
import pytest

from harness.database import Laboratory
from harness.gate import wire
from harness.gate.wire import message
from harness.limits import BACKEND_GONE_WAIT_S, CLIENT_AHEAD_BYTES
from harness.proxy import Lane, Proxy
from harness.records import Stop, Upstream
from harness.waiting import wait_until

Connection = psycopg.Connection[Any]
UPDATE = "update orders set state = 'cancelled', revision = revision + 1 where order_id = "


@pytest.fixture(scope="module")
def proxy(laboratory: Laboratory) -> Iterator[Proxy]:
    """One proxy before the laboratory's server."""
    with Proxy(laboratory.server.upstream, laboratory.xact_status) as running:
        yield running


@pytest.fixture
def lab(clean: Laboratory) -> Laboratory:
    """A laboratory with three pending orders."""
    clean.control.execute("insert into orders select n, 'T', 5 from generate_series(1, 3) n")
    return clean


@pytest.fixture
def lane(proxy: Proxy, lab: Laboratory) -> Iterator[Lane]:
    """A lane without a stop."""
    with proxy.lane() as opened:
        yield opened


@contextmanager
def connected(lab: Laboratory, lane: Lane, **options: str) -> Iterator[Connection]:
    """Connect as the learner through the lane, with some of libpq's options changed."""
    dsn = lab.learner_dsn(lane.host, lane.port)
    with psycopg.connect(dsn, autocommit=True, **options) as conn:  # type: ignore[arg-type]
        yield conn


def messages(lane: Lane, who: str) -> list[str]:
    """Return the names of one party's messages in the wire log."""
    return [event.message for event in lane.events if event.who == who]


# --- startup --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"sslmode": "prefer", "gssencmode": "disable"},
        {"sslmode": "allow", "gssencmode": "prefer"},
        {"sslmode": "prefer", "gssencmode": "prefer"},
        {"require_auth": "scram-sha-256"},
        {"min_protocol_version": "3.0", "max_protocol_version": "3.0"},
        {"min_protocol_version": "3.2", "max_protocol_version": "3.2"},
        {"max_protocol_version": "latest"},
    ],
    ids=str,
)
def test_a_client_may_ask_for_what_it_likes(
    options: dict[str, str], lab: Laboratory, lane: Lane
) -> None:
    """Encryption is refused, every protocol version and SCRAM pass through to the server."""
    newest = options.get("max_protocol_version") in ("3.2", "latest")
    if newest and lab.server.version < 180000:
        pytest.skip("protocol 3.2 came with PostgreSQL 18")
    with connected(lab, lane, **options) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
        started = [e.text for e in lane.events if e.message == "StartupMessage"]
        assert started == (["3.2"] if newest else ["3.0"])
        assert lane.backend_pids == (conn.info.backend_pid,)
        assert lane.open_sessions == 1
    wait_until(lambda: lane.open_sessions == 0, "the session is over", wait_s=5)


def test_a_client_that_insists_on_encryption_is_told_no(lab: Laboratory, lane: Lane) -> None:
    """libpq's own text says that the server does not support it."""
    dsn = lab.learner_dsn(lane.host, lane.port)
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(dsn, sslmode="require")


def test_several_requests_may_come_before_the_startup_message(lab: Laboratory, lane: Lane) -> None:
    """Each is answered N, also when they arrive byte by byte."""
    requests = [struct.pack("!II", 8, code) for code in (wire.GSSENC_REQUEST, wire.SSL_REQUEST)]
    with socket.create_connection((lane.host, lane.port)) as raw:
        for byte in b"".join(requests * 2):
            raw.send(bytes([byte]))
        assert raw.recv(4, socket.MSG_WAITALL) == b"NNNN"
        raw.send(struct.pack("!II", 14, 196608) + b"user\0")
        raw.send(b"\0")
        assert raw.recv(1) in (b"R", b"E")  # the server is asked, and answers


def test_direct_tls_and_nonsense_are_closed_with_a_line_in_the_log(lane: Lane) -> None:
    """Nobody waits for an answer that cannot come."""
    for data, said in (
        (b"\x16\x03\x01\x00\xa5", "TLS handshake"),
        (b"GET / HTTP/1.1\r\n", "claims"),
    ):
        with socket.create_connection((lane.host, lane.port)) as raw:
            raw.send(data)
            assert ended(raw)
        assert said in lane.events[-1].text
    assert lane.open_sessions == 0


def ended(raw: socket.socket) -> bool:
    """Tell whether the peer ends the connection, orderly or not."""
    raw.settimeout(5)
    try:
        return raw.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_that_never_speaks_is_harmless(lab: Laboratory, lane: Lane) -> None:
    """Others work beside it, and closing the lane ends it."""
    with socket.create_connection((lane.host, lane.port)) as silent:
        with connected(lab, lane) as conn:
            conn.execute("select 1")
        lane.close()
        assert ended(silent)


def test_a_server_that_cannot_be_reached_is_named(lab: Laboratory) -> None:
    """The client gets an error in the protocol, not a closed door."""
    nowhere = Upstream("/nonexistent", 5432)
    with Proxy(nowhere, lab.xact_status) as proxy, proxy.lane() as lane:
        dsn = lab.learner_dsn(lane.host, lane.port)
        with pytest.raises(psycopg.OperationalError, match="server is not reachable"):
            psycopg.connect(dsn)


# --- cancel ---------------------------------------------------------------------------------------


# In a process of its own: libpq's old PQcancel blocks, and psycopg keeps the interpreter's lock in it.
CANCEL = """
import sys, threading, psycopg
dsn, way, version, sslmode = sys.argv[1:]
conn = psycopg.connect(dsn, autocommit=True, max_protocol_version=version, sslmode=sslmode)
threading.Thread(target=lambda: (sys.stdin.readline(), getattr(conn, way)())).start()
try:
    conn.execute("select pg_sleep(30)")
except psycopg.errors.QueryCanceled:
    conn.execute("select 1")
    conn.close()
"""


@pytest.mark.parametrize("version", ["3.0", "latest"])
@pytest.mark.parametrize("way", ["cancel", "cancel_safe"])
@pytest.mark.parametrize("sslmode", ["disable", "prefer"])
def test_cancel_reaches_the_server_and_is_no_session(
    way: str, version: str, sslmode: str, lab: Laboratory, lane: Lane
) -> None:
    """It has its own connection and no answer; keys of protocol 3.2 are longer."""
    if version != "3.0" and lab.server.version < 180000:
        pytest.skip("protocol 3.2 came with PostgreSQL 18")
    dsn = lab.learner_dsn(lane.host, lane.port)
    command = [sys.executable, "-c", CANCEL, dsn, way, version, sslmode]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as client:

        def sleeping() -> bool:
            return any("pg_sleep" in s.query for s in lab.learner_sessions() if s.state == "active")

        wait_until(sleeping, "the statement runs", wait_s=5)
        client.communicate(b"now\n", timeout=10)
    assert client.returncode == 0
    assert units(lane) == ["Query 57014", "Query SELECT 1"]
    assert len(lane.backend_pids) == 1
    assert "CancelRequest" in messages(lane, "harness")


# --- fragments ------------------------------------------------------------------------------------


class Slicer:
    """A relay that passes every byte on alone, in both directions."""

    def __init__(self, dial: Callable[[], socket.socket], listen: socket.socket) -> None:
        self._dial, self._listen = dial, listen
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                near, far = self._listen.accept()[0], self._dial()
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()
        except OSError:
            return

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        if target.family != socket.AF_UNIX:
            target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := source.recv(1 << 16):
                for byte in data:
                    target.send(bytes([byte]))
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()


def dialer(upstream: Upstream) -> Callable[[], socket.socket]:
    """Return how to connect to the server."""

    def dial() -> socket.socket:
        if not upstream.host.startswith("/"):
            return socket.create_connection((upstream.host, upstream.port))
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(f"{upstream.host}/.s.PGSQL.{upstream.port}")
        return dialled

    return dial


def everything(conn: Connection) -> None:
    """Do something of each kind."""
    notices: list[str] = []
    conn.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    conn.execute(f"do $$ begin {UPDATE} 1; raise notice 'mine'; end $$")
    with conn.transaction():
        conn.execute(UPDATE + "%s", (2,))
    with conn.pipeline():
        for order_id in (1, 2, 3):
            conn.execute(UPDATE + "%s", (order_id,))
    with conn.cursor().copy("copy orders from stdin") as copy:
        copy.write_row((9, "T", 5, "pending", 1))
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1/%s", (0,))
    assert conn.execute("select sum(n) from generate_series(1, 100) n").fetchone() == (5050,)
    assert len(conn.execute("select * from generate_series(1, 200)").fetchall()) == 200
    assert notices == ["mine"]


def test_frames_split_at_every_byte_change_nothing(lab: Laboratory, lane: Lane) -> None:
    """Client to proxy and server to proxy: one byte at a time gives the same boundaries."""
    with connected(lab, lane) as conn:
        everything(conn)
    lab.control.execute("delete from orders where order_id = 9")
    with (
        socket.create_server(("127.0.0.1", 0)) as behind,
        socket.create_server(("127.0.0.1", 0)) as before,
    ):
        Slicer(dialer(lab.server.upstream), behind)
        sliced_upstream = Upstream("127.0.0.1", behind.getsockname()[1])
        with Proxy(sliced_upstream, lab.xact_status) as proxy, proxy.lane() as sliced:
            Slicer(lambda: socket.create_connection((sliced.host, sliced.port)), before)
            dsn = lab.learner_dsn("127.0.0.1", before.getsockname()[1])
            with psycopg.connect(dsn, autocommit=True) as conn:
                everything(conn)

            def shape(boundaries: Any) -> list[tuple[object, ...]]:
                return [(b.number, b.unit, b.sql, b.tag, b.status, b.points) for b in boundaries]

            assert shape(sliced.boundaries) == shape(lane.boundaries)
            assert len(sliced.boundaries) > 10


# --- raw messages ---------------------------------------------------------------------------------


class RawClient:
    """A logged-in connection whose socket speaks in messages from here on."""

    def __init__(self, conn: Connection) -> None:
        self._fd = os.dup(conn.pgconn.socket)
        os.set_blocking(self._fd, True)
        self._reader = wire.FrameReader("server")
        self._frames: list[wire.Frame] = []

    def send(self, *parts: bytes) -> None:
        """Send messages in one piece."""
        os.write(self._fd, b"".join(parts))

    def until(self, letter: str) -> str:
        """Read up to a message and return all letters so far."""
        letters = ""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                letters += frame.letter * frame.count
                if frame.letter == letter:
                    return letters
            data = os.read(self._fd, 1 << 16)
            if not data:
                raise EOFError(f"the connection ended in good order after {letters!r}")
            self._frames += self._reader.feed(data)

    def close(self) -> None:
        """Close the socket's copy."""
        os.close(self._fd)


@pytest.fixture
def raw(lab: Laboratory, lane: Lane) -> Iterator[RawClient]:
    """A raw client on the lane."""
    with connected(lab, lane) as conn:
        client = RawClient(conn)
        try:
            yield client
        finally:
            client.close()
            conn.close()


def parse(sql: str, name: str = "") -> bytes:
    """Build a Parse."""
    return message("P", f"{name}\0{sql}\0".encode() + b"\0\0")


def bind(portal: str = "", statement: str = "") -> bytes:
    """Build a Bind without parameters."""
    return message("B", f"{portal}\0{statement}\0".encode() + b"\0" * 6)


def execute(portal: str = "", rows_max: int = 0) -> bytes:
    """Build an Execute."""
    return message("E", portal.encode() + b"\0" + struct.pack("!i", rows_max))


def query(sql: str) -> bytes:
    """Build a Query."""
    return message("Q", sql.encode() + b"\0")


SYNC = message("S", b"")


def units(lane: Lane) -> list[str]:
    """Return the boundaries as unit, tag and error."""
    return [" ".join(filter(None, (b.unit, b.tag, b.error))) for b in lane.boundaries]


def test_the_injected_flush_is_not_answered_twice(raw: RawClient, lane: Lane) -> None:
    """A client that flushes itself, and one that does not, read the same messages."""
    work = (parse("select 1"), bind(), execute())
    raw.send(*work, wire.FLUSH, SYNC)
    assert raw.until("Z") == "12DCZ"
    raw.send(*work, SYNC)
    assert raw.until("Z") == "12DCZ"
    assert units(lane) == ["Execute SELECT 1", "Sync"] * 2


def test_a_suspended_portal_is_a_boundary_each_time(raw: RawClient, lane: Lane) -> None:
    """Execute with a row limit: three boundaries for three portions, with the portal's SQL."""
    raw.send(parse("select generate_series(1, 5)", "s"), bind("p", "s"))
    raw.send(execute("p", 2), execute("p", 2), execute("p", 2), SYNC)
    assert raw.until("Z") == "12DDsDDsDCZ"
    assert units(lane) == ["Execute", "Execute", "Execute SELECT 1", "Sync"]
    assert {b.sql for b in lane.boundaries[:3]} == {"select generate_series(1, 5)"}


def test_function_call(raw: RawClient, lane: Lane) -> None:
    """The old fast path: oid 1598 is random(), without arguments."""
    raw.send(message("F", struct.pack("!IHHH", 1598, 0, 0, 0)))
    assert raw.until("Z") == "VZ"
    assert units(lane) == ["FunctionCall"]


@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "error first"])
def test_an_error_counts_the_same_whether_it_overtakes_its_execute_or_not(
    together: bool, raw: RawClient, lane: Lane
) -> None:
    """The first Execute behind the error is a boundary, what is skipped is not, Sync is."""
    rest = (bind(), execute(), parse("select 2"), bind(), execute(), SYNC)
    if together:
        raw.send(parse("selct"), *rest)
    else:
        raw.send(parse("selct"), wire.FLUSH)
        assert raw.until("E") == "E"
        raw.send(*rest)
    raw.until("Z")
    raw.send(parse("select 1"), bind(), execute(), SYNC)
    assert raw.until("Z") == "12DCZ"
    assert units(lane) == ["Execute 42601", "Sync", "Execute SELECT 1", "Sync"]


@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "error first"])
def test_an_error_without_an_execute_belongs_to_the_sync(
    together: bool, raw: RawClient, lane: Lane
) -> None:
    """Prepare alone: Parse and Sync."""
    raw.send(parse("selct"), *([SYNC] if together else [wire.FLUSH]))
    if not together:
        assert raw.until("E") == "E"
        raw.send(SYNC)
    raw.until("Z")
    assert units(lane) == ["Sync 42601"]


def test_a_query_behind_an_unsynced_error_is_skipped_by_the_server(
    raw: RawClient, lane: Lane
) -> None:
    """The gate does not wait for its answer for ever."""
    raw.send(parse("selct"), query("select 1"), SYNC)
    assert raw.until("Z") == "EZ"
    raw.send(query("select 1"))
    assert raw.until("Z") == "TDCZ"


@pytest.mark.parametrize("sync_first", [True, False], ids=["as libpq does", "sync last"])
def test_copy_in_by_the_extended_protocol(
    sync_first: bool, raw: RawClient, lane: Lane, lab: Laboratory
) -> None:
    """A Sync that arrives while data is expected is no unit: the server ignores it."""
    early = (SYNC,) if sync_first else ()
    raw.send(parse("copy orders from stdin"), bind(), execute(), *early)
    assert raw.until("G") == "12G"
    raw.send(message("d", b"8\tT\t5\tpending\t1\n"), message("c", b""), SYNC)
    assert raw.until("Z") == "CZ"
    assert units(lane) == ["Execute", "CopyDone COPY 1", "Sync"]
    assert [b.points for b in lane.boundaries] == [(), ("orders.insert",), ("commit",)]


def test_a_copy_that_the_server_ends_is_one_boundary_whenever_the_client_notices(
    raw: RawClient, lane: Lane
) -> None:
    """The error comes before CopyDone is sent; the late CopyDone is ignored."""
    raw.send(query("copy orders from stdin"))
    raw.until("G")
    raw.send(message("d", b"nonsense\n"))
    assert raw.until("Z") == "EZ"
    raw.send(message("d", b"more\n"), message("c", b""), query("select 1"))
    assert raw.until("Z") == "TDCZ"
    assert units(lane) == ["Query", "CopyDone 22P02", "Query SELECT 1"]


def test_two_copies_in_one_query(raw: RawClient, lane: Lane) -> None:
    """Each stream has two ends."""
    raw.send(query("copy orders from stdin; copy orders from stdin"))
    for order_id in (7, 8):
        raw.until("G")
        raw.send(message("d", b"%d\tT\t5\tpending\t1\n" % order_id), message("c", b""))
    raw.until("Z")
    assert units(lane) == ["Query", "CopyDone COPY 1", "CopyDone COPY 1"]
    assert [b.points for b in lane.boundaries] == [
        (),
        ("orders.insert",),
        ("orders.insert", "commit"),
    ]


def test_a_broken_length_ends_the_connection(raw: RawClient, lane: Lane) -> None:
    """A stream that lost its place is cut, with a line in the log."""
    raw.send(b"Q\xff\xff\xff\xff")
    wait_until(lambda: lane.open_sessions == 0, "the session is cut", wait_s=5)
    assert ("broken stream", "a message 'Q' claims 4294967295 bytes") in [
        (event.message, event.text) for event in lane.events
    ]


def test_a_truncated_message_is_never_completed(
    raw: RawClient, lane: Lane, lab: Laboratory
) -> None:
    """A client that dies in the middle of a statement has not sent it."""
    raw.send(query(UPDATE + "1" + " " * 200_000)[:-1])
    raw.close()
    raw._fd = os.open(os.devnull, os.O_RDONLY)  # for the fixture's own close
    assert not lane.boundaries


# --- the wire log ---------------------------------------------------------------------------------


def test_the_log_has_a_line_a_message_and_counts_rows(lab: Laboratory, lane: Lane) -> None:
    """SQL is cut to a line's width; a thousand rows are not a thousand lines."""
    with connected(lab, lane) as conn:
        conn.execute("select generate_series(1, 1000), 'é'" + " " * 1000).fetchall()
    sql = next(event for event in lane.events if event.message == "Query").text
    assert len(sql) == 300
    rows = [event.text for event in lane.events if event.message == "DataRow"]
    assert sum(int(text[1:] or 1) for text in rows) == 1000
    assert len(rows) < 10
    assert [m for m in messages(lane, "server") if m != "DataRow"][-3:] == [
        "RowDescription",
        "CommandComplete",
        "ReadyForQuery",
    ]
    wait_until(lambda: messages(lane, "client")[-1] == "Terminate", "the goodbye", wait_s=5)


# --- much -----------------------------------------------------------------------------------------

MUCH = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    big = "x" * 100_000_000
    assert conn.execute("select length(%s)", (big,)).fetchone() == (100_000_000,)
    assert len(conn.execute("select repeat('x', 100000000)").fetchone()[0]) == 100_000_000
    assert conn.execute(f"select length('{big}')").fetchone() == (100_000_000,)
    conn.execute("create temp table big (t text)")
    with conn.cursor().copy("copy big from stdin") as copy:
        for _ in range(100):
            copy.write(("y" * 999 + "\\n") * 1000)
    del big
    rows = 0
    with conn.cursor().copy("copy big to stdout") as copy:
        for chunk in copy:
            rows += 1
    assert rows == 100_000
    assert len(conn.execute("select t from big").fetchall()) == 100_000
    conn.execute("do $$ begin raise notice '%', repeat('n', 20000000); end $$")
"""


@pytest.mark.slow
def test_100_mb_pass_in_every_direction_and_none_is_kept(lab: Laboratory, lane: Lane) -> None:
    """As a parameter, a value, a statement, a copy each way, many rows; the proxy stays small."""
    me = psutil.Process()
    before = peak = me.memory_info().rss
    command = [sys.executable, "-c", MUCH, lab.learner_dsn(lane.host, lane.port)]
    with subprocess.Popen(command) as client:
        while client.poll() is None:
            peak = max(peak, me.memory_info().rss)
            select.select([], [], [], 0.005)  # the sampling rate; nothing waits for it
    assert client.returncode == 0
    assert peak - before < 32 << 20
    assert len(lane.boundaries) == 10


def test_a_cut_is_a_reset_and_not_an_end(lab: Laboratory, proxy: Proxy) -> None:
    """A living client sees its connection break, as when the network or the server fails."""
    with proxy.lane(stop=Stop(boundary=1)) as lane, connected(lab, lane) as conn:
        raw = RawClient(conn)
        raw.send(query("select 1"))
        assert lane.wait_hold() is not None
        lane.cut()
        with pytest.raises(ConnectionResetError):
            raw.until("Z")
        raw.close()


def test_a_flood_while_held_is_not_read(lab: Laboratory, proxy: Proxy) -> None:
    """
    Scenario:
    * A client is held, and sends as much as the sockets take.

    Outcome:
    * The bytes stay in the kernel; the proxy keeps at most what it had read before.
    """
    with proxy.lane(stop=Stop(boundary=1)) as lane, connected(lab, lane) as conn:
        raw = RawClient(conn)
        raw.send(query("select 1"))
        assert lane.wait_hold() is not None
        os.set_blocking(raw._fd, False)
        flood, sent = query("select 2") * 5000, 0
        # A proxy that reads on takes all of it; one that does not lets the kernel's buffers fill up.
        while sent < 64 << 20 and select.select([], [raw._fd], [], 0.3)[1]:
            sent += os.write(raw._fd, flood)
        assert sent < 64 << 20
        assert lane._sessions[0].queued_bytes <= 2 * CLIENT_AHEAD_BYTES
        lane.cut()
        raw.close()
        lab.wait_backends_gone(lane.backend_pids, wait_s=BACKEND_GONE_WAIT_S)
        assert len(lane.boundaries) == 1
