"""Hold a client at a boundary, release it, cut it: what the client, its rivals and the server see."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from harness.database import Laboratory
from harness.limits import BACKEND_GONE_WAIT_S
from harness.proxy import Lane, Proxy, ProxyError
from harness.records import Policy, Stop, Unit
from harness.waiting import DeadlineExpired, wait_until

Connection = psycopg.Connection[Any]
UPDATE = "update orders set state = 'cancelled', revision = revision + 1 where order_id = %s"


@pytest.fixture(scope="module")
def proxy(laboratory: Laboratory) -> Iterator[Proxy]:
    """One proxy before the laboratory's server."""
    with Proxy(laboratory.server.upstream, laboratory.xact_status) as running:
        yield running


@pytest.fixture
def lab(clean: Laboratory) -> Laboratory:
    """A laboratory with three pending orders and a job over them."""
    clean.control.execute("insert into orders select n, 'T', 5 from generate_series(1, 3) n")
    clean.control.execute("insert into jobs values ('J', 'T', 2)")
    return clean


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for clients that are to stand still."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@contextmanager
def connected(lab: Laboratory, lane: Lane) -> Iterator[Connection]:
    """Connect as the learner through the lane."""
    with psycopg.connect(lab.learner_dsn(lane.host, lane.port), autocommit=True) as conn:
        yield conn


def chunk(conn: Connection, order_id: int = 1) -> None:
    """Do what a chunk does, with its three records in one transaction."""
    with conn.transaction():
        conn.execute(UPDATE, (order_id,))
        conn.execute("insert into job_audit values ('J', %s, %s, 1, 2, 5)", (order_id, order_id))
        conn.execute("update jobs set next_index = next_index + 1")


def one_chunk(lab: Laboratory, lane: Lane) -> None:
    """Connect, do one chunk, go."""
    with connected(lab, lane) as conn:
        chunk(conn)


def state(lab: Laboratory) -> tuple[int, int, int]:
    """Return what everybody can see: cancelled orders, audit rows, the checkpoint."""
    row = lab.control.execute("""
        select (select count(*) from orders where state = 'cancelled'),
               (select count(*) from job_audit), (select max(next_index) from jobs)
    """).fetchone()
    assert row is not None
    return row


def gone(lab: Laboratory, lane: Lane) -> None:
    """Wait until the server processes of the lane are gone."""
    lab.wait_backends_gone(lane.backend_pids, wait_s=BACKEND_GONE_WAIT_S)


def waits_for_lock(lab: Laboratory) -> bool:
    """Tell whether a learner's session waits for a lock."""
    return any(session.wait_event_type == "Lock" for session in lab.learner_sessions())


# --- hold and release -----------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["orders", "job_audit.insert", "checkpoint", "commit"])
def test_a_client_is_held_at_a_point(
    point: str, lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """The unit is done and the client does not know; after the release it goes on to its end."""
    with proxy.lane(stop=Stop(point=point)) as lane:
        client = threads.submit(one_chunk, lab, lane)
        hold = lane.wait_hold()
        assert hold is not None
        assert point in hold.boundary.points
        assert hold.boundary == lane.boundaries[-1]
        assert (hold.backend_pid,) == lane.backend_pids
        assert state(lab) == ((1, 1, 1) if point == "commit" else (0, 0, 0))
        assert lab.xact_status(int(lab_xid(lane))) == (
            "committed" if point == "commit" else "in progress"
        )
        assert not client.done()
        lane.release()
        client.result(10)
        assert state(lab) == (1, 1, 1)


def lab_xid(lane: Lane) -> int:
    """Return the transaction that the lane's touches belong to."""
    (xid,) = {touch.xid for boundary in lane.boundaries for touch in boundary.touches}
    return xid


def test_every_number_can_be_held_and_none_is_passed(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """Armed anew at each release, a lane walks its client from boundary to boundary."""
    with proxy.lane(stop=Stop(boundary=1)) as lane:
        client = threads.submit(one_chunk, lab, lane)
        walked = []
        while (hold := lane.wait_hold(alive=lambda: not client.done())) is not None:
            assert len(lane.boundaries) == hold.boundary.number
            walked.append(hold.boundary)
            lane.release(Stop(boundary=hold.boundary.number + 1))
        client.result(0)
        assert tuple(walked) == lane.boundaries
        assert [b.unit for b in walked[:3]] == [Unit.QUERY, Unit.EXECUTE, Unit.SYNC]
        assert len(walked) == 7


def test_the_nth_time_counts_from_the_start_of_the_lane(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """`kill@audit#3` is the third audit of the client's life, on whichever connection."""

    def client() -> None:
        for order_id in (1, 2, 3):
            with connected(lab, lane) as conn:
                chunk(conn, order_id)

    with proxy.lane(stop=Stop(point="audit", nth=2)) as lane:
        running = threads.submit(client)
        second = lane.wait_hold()
        assert second is not None
        assert second.boundary.session == 2
        lane.release(Stop(point="audit", nth=3))
        third = lane.wait_hold()
        assert third is not None
        assert third.boundary.session == 3
        assert state(lab) == (2, 2, 2)
        lane.release()
        running.result(10)
        assert len(lane.backend_pids) == 3


def test_before_holds_a_unit_that_has_not_been_forwarded(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """Before boundary 6 the COMMIT stands at the proxy; released with the same number it is held after."""
    with proxy.lane(stop=Stop(boundary=7, before=True)) as lane:
        client = threads.submit(one_chunk, lab, lane)
        hold = lane.wait_hold()
        assert hold is not None
        assert hold.before
        assert (hold.boundary.number, hold.boundary.sql) == (7, "COMMIT")
        assert len(lane.boundaries) == 6
        lane.release(Stop(boundary=7))
        after = lane.wait_hold()
        assert after is not None
        assert (after.before, after.boundary.tag) == (False, "COMMIT")
        assert state(lab) == (1, 1, 1)
        lane.release()
        client.result(10)


def all_sorts(conn: Connection) -> None:
    """Errors in pipelines, in COPY and alone; prepared statements; a cursor."""
    with suppress(psycopg.errors.DivisionByZero), conn.pipeline():
        for statement in ("update orders set qty = 6", "select 1/0", "select 2"):
            conn.execute(statement)
    with suppress(psycopg.errors.SyntaxError), conn.pipeline():
        for statement in ("select 1", "selct", "select 2"):
            conn.execute(statement)
    copy = conn.cursor().copy("copy orders from stdin")
    with suppress(psycopg.errors.InvalidTextRepresentation), copy as stream:
        stream.write("nonsense\n")
    for order_id in (1, 2):
        conn.execute(UPDATE, (order_id,), prepare=True)
    with conn.transaction():
        conn.execute("declare c cursor for select order_id from orders for update")
        conn.execute("fetch 1 from c")
        conn.cursor().executemany(UPDATE, [(1,), (2,)])


def test_numbers_before_and_after_a_unit_agree(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """What is held before boundary N is what boundary N was in the recorded run, for every N."""

    def run(lane: Lane) -> None:
        with connected(lab, lane) as conn:
            all_sorts(conn)

    with proxy.lane() as lane:
        run(lane)
        recorded = [(b.number, b.unit, b.sql) for b in lane.boundaries]
    assert len(recorded) == 20
    for number, unit, text in recorded:
        with proxy.lane(stop=Stop(boundary=number, before=True)) as lane:
            client = threads.submit(run, lane)
            hold = lane.wait_hold()
            assert hold is not None
            assert (hold.boundary.number, hold.boundary.unit) == (number, unit)
            assert hold.boundary.sql == text
            assert len(lane.boundaries) == number - 1
            lane.cut()
            assert isinstance(client.exception(10), psycopg.OperationalError)
            gone(lab, lane)


def test_a_client_that_never_gets_there_is_not_held(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """The harness learns that the fault did not land: the client ended first, or time was up."""
    with proxy.lane(stop=Stop(point="commit", nth=9)) as lane:
        client = threads.submit(one_chunk, lab, lane)
        assert lane.wait_hold(alive=lambda: not client.done()) is None
        with pytest.raises(DeadlineExpired, match="nth=9"):
            lane.wait_hold(0.01)
        with pytest.raises(ProxyError, match="holds nobody"):
            lane.release()


@pytest.mark.parametrize(
    "stop",
    [
        Stop(),
        Stop(boundary=1, point="commit"),
        Stop(point="commit", before=True),
        Stop(boundary=0),
        Stop(point="commit", nth=0),
    ],
)
def test_a_stop_that_means_nothing_is_refused(stop: Stop, proxy: Proxy) -> None:
    """It would never fire, and the fault would look as if the client had escaped it."""
    with pytest.raises(ValueError, match=r"stop|counted"):
        proxy.lane(stop=stop)


# --- several connections --------------------------------------------------------------------------


def test_while_one_session_is_held_no_other_of_its_lane_advances(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """A second connection's statement waits at the proxy; another lane's goes through."""
    with ExitStack() as stack:
        lane = stack.enter_context(proxy.lane(stop=Stop(point="orders")))
        other = stack.enter_context(proxy.lane())
        first, second = (stack.enter_context(connected(lab, lane)) for _ in range(2))
        held = threads.submit(first.execute, UPDATE, (1,))
        hold = lane.wait_hold()
        assert hold is not None
        count = len(lane.boundaries)
        waiting = threads.submit(second.execute, "select 1")
        with connected(lab, other) as conn:
            conn.execute("select 1")
        assert len(lane.boundaries) == count
        assert not waiting.done()
        lane.release()
        assert held.result(10).rowcount == 1
        assert waiting.result(10).rowcount == 1


def test_two_connections_of_a_client_are_not_serialised(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """One waits for a lock of the other; the other's commit must get through to free it."""
    with proxy.lane() as lane, connected(lab, lane) as first, connected(lab, lane) as second:
        first.execute("begin")
        first.execute(UPDATE, (1,))
        blocked = threads.submit(second.execute, UPDATE, (1,))
        wait_until(lambda: waits_for_lock(lab), "the second waits", wait_s=10)
        first.execute("commit")
        assert blocked.result(10).rowcount == 1
        # The server frees the lock before it answers COMMIT, so either may be seen first.
        assert sorted(b.session for b in lane.boundaries if b.committed) == [1, 2]


def test_a_unit_that_ends_during_a_hold_is_decided_at_the_release(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """While one session is held, a rival frees the other's lock: its boundary can be held next."""
    with ExitStack() as stack:
        lane = stack.enter_context(proxy.lane(stop=Stop(point="orders")))
        first, second = (stack.enter_context(connected(lab, lane)) for _ in range(2))
        rival = stack.enter_context(lab.connect())
        rival.execute("begin")
        rival.execute("select 1 from orders where order_id = 2 for update")
        blocked = threads.submit(second.execute, UPDATE, (2,))
        wait_until(lambda: waits_for_lock(lab), "the second waits", wait_s=10)
        held = threads.submit(first.execute, UPDATE, (1,))
        hold = lane.wait_hold()
        assert hold is not None
        assert (hold.boundary.number, hold.boundary.session) == (1, 1)
        rival.execute("rollback")
        wait_until(lambda: len(lane.boundaries) == 2, "the second's unit is done", wait_s=10)
        assert lane.boundaries[1].points[0] == "orders"
        lane.release(Stop(boundary=2))
        again = lane.wait_hold()
        assert again is not None
        assert again.boundary == lane.boundaries[1]
        assert not blocked.done()
        lane.release()
        assert [held.result(10).rowcount, blocked.result(10).rowcount] == [1, 1]


# --- kill, lost request, lost reply ----------------------------------------------------------------

CLIENT = """
import sys, psycopg
with psycopg.connect(sys.argv[1], autocommit=True) as conn, conn.transaction():
    conn.execute("update orders set state = 'cancelled' where order_id = %s", (1,))
    conn.execute("insert into job_audit values ('J', 0, 1, 1, 2, 5)")
    conn.execute("update jobs set next_index = 1")
"""


@pytest.mark.parametrize("point", ["orders", "audit", "checkpoint", "commit"])
def test_a_client_killed_at_a_point_leaves_all_or_nothing(
    point: str, lab: Laboratory, proxy: Proxy
) -> None:
    """A real process, a real SIGKILL, and a truth that is the same every time."""
    with proxy.lane(stop=Stop(point=point)) as lane:
        command = [sys.executable, "-c", CLIENT, lab.learner_dsn(lane.host, lane.port)]
        with subprocess.Popen(command) as client:
            hold = lane.wait_hold(alive=lambda: client.poll() is None)
            assert hold is not None
            client.kill()
            assert client.wait() == -9
            lane.cut()
        gone(lab, lane)
        assert state(lab) == ((1, 1, 1) if point == "commit" else (0, 0, 0))
        assert lane.open_sessions == 0


@pytest.mark.parametrize("round_", range(50))
def test_lost_request_and_lost_reply_look_the_same(
    round_: int, lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """
    Scenario:
    * The connection is cut before COMMIT reaches the server, and once after it was carried out.

    Outcome:
    * The living client gets the same error; in the database the truth is opposite.
    """
    seen = []
    for stop in (Stop(boundary=7, before=True), Stop(boundary=7)):
        with proxy.lane(stop=stop) as lane:
            client = threads.submit(one_chunk, lab, lane)
            hold = lane.wait_hold()
            assert hold is not None
            assert hold.boundary.sql == "COMMIT"
            lane.cut()
            error = client.exception(10)
            gone(lab, lane)
        assert isinstance(error, psycopg.OperationalError)
        seen.append((type(error), error.sqlstate, str(error), state(lab)))
    request, reply = seen
    assert request[:3] == reply[:3]
    assert (request[3], reply[3]) == ((0, 0, 0), (1, 1, 1))


# --- policies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "committed"), [(Policy.ABORT, False), (Policy.HALF_CLOSE, True)], ids=str
)
@pytest.mark.parametrize("round_", range(10))
def test_a_commit_queued_behind_a_busy_statement(
    policy: Policy,
    committed: bool,
    round_: int,
    lab: Laboratory,
    proxy: Proxy,
    threads: ThreadPoolExecutor,
) -> None:
    """
    Scenario:
    * A client has sent a statement that waits for a lock, and COMMIT right behind it.
    * The proxy lets go, and then the lock is freed.

    Outcome:
    * With `abort` the COMMIT was thrown away; with `half-close` the server still reads it.
    """

    def client(conn: Connection) -> None:
        with conn.pipeline():
            conn.execute("begin")
            conn.execute(UPDATE, (1,))
            conn.execute("select pg_advisory_xact_lock(42)")
            conn.execute("commit")

    with proxy.lane() as lane, connected(lab, lane) as conn:
        with lab.control.transaction():
            lab.control.execute("select pg_advisory_xact_lock(42)")
            running = threads.submit(client, conn)
            wait_until(lambda: waits_for_lock(lab), "the client waits", wait_s=10)
            lane.cut(policy)
            assert isinstance(running.exception(10), psycopg.OperationalError)
            if policy is Policy.ABORT:
                gone(lab, lane)
        gone(lab, lane)
        assert state(lab)[0] == int(committed)
        assert [b.tag for b in lane.boundaries if b.committed] == ["COMMIT"] * committed


@pytest.mark.parametrize("policy", [Policy.ABORT, Policy.HALF_CLOSE])
def test_a_held_transaction_is_rolled_back(
    policy: Policy, lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """Nothing was queued, so the server reads the end of the stream and rolls back."""
    with proxy.lane(stop=Stop(point="checkpoint")) as lane:
        client = threads.submit(one_chunk, lab, lane)
        assert lane.wait_hold() is not None
        lane.cut(policy)
        assert isinstance(client.exception(10), psycopg.OperationalError)
        gone(lab, lane)
        assert state(lab) == (0, 0, 0)


def test_leave_open_leaves_a_zombie_that_holds_its_locks(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """The client is gone and the server does not know; only closing the lane ends the session."""
    with proxy.lane(stop=Stop(point="orders")) as lane:
        client = threads.submit(one_chunk, lab, lane)
        assert lane.wait_hold() is not None
        lane.cut(Policy.LEAVE_OPEN)
        assert isinstance(client.exception(10), psycopg.OperationalError)
        assert lane.open_sessions == 0
        lab.control.execute("set lock_timeout = '30ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lab.control.execute(UPDATE, (1,))
        lab.control.execute("reset lock_timeout")
        lane.close()
        gone(lab, lane)
        assert lab.control.execute(UPDATE, (1,)).rowcount == 1


# --- ends that nobody asked for ---------------------------------------------------------------------


def test_a_client_that_dies_by_itself_takes_its_busy_session_along(
    lab: Laboratory, proxy: Proxy
) -> None:
    """The proxy sees the end although a statement is under way, and the server is told."""
    with lab.control.transaction(), proxy.lane() as lane:
        lab.control.execute("select 1 from orders for update")
        command = [sys.executable, "-c", CLIENT, lab.learner_dsn(lane.host, lane.port)]
        with subprocess.Popen(command) as client:
            wait_until(lambda: waits_for_lock(lab), "the client waits", wait_s=10)
            client.kill()
        gone(lab, lane)
        wait_until(lambda: lane.open_sessions == 0, "the proxy knows", wait_s=1)


def test_a_session_terminated_while_held_still_gives_its_answer(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """The withheld answer comes first, the bad news with the next statement."""
    with proxy.lane(stop=Stop(point="orders")) as lane, connected(lab, lane) as conn:
        running = threads.submit(conn.execute, UPDATE, (1,))
        hold = lane.wait_hold()
        assert hold is not None
        lab.control.execute("select pg_terminate_backend(%s)", (hold.backend_pid,))
        gone(lab, lane)
        lane.release()
        # Execute's answer is through; the Sync behind it finds the session ended.
        with pytest.raises(psycopg.OperationalError):
            running.result(10)
        assert [b.tag for b in lane.boundaries] == ["UPDATE 1"]
        assert "ErrorResponse" in [event.message for event in lane.events]


def test_closing_the_proxy_ends_everything(lab: Laboratory, threads: ThreadPoolExecutor) -> None:
    """Also a client that is held, and twice does no harm."""
    with Proxy(lab.server.upstream, lab.xact_status) as proxy:
        lane = proxy.lane(stop=Stop(point="orders"))
        client = threads.submit(one_chunk, lab, lane)
        assert lane.wait_hold() is not None
    proxy.close()
    lane.close()
    assert isinstance(client.exception(10), psycopg.OperationalError)
    gone(lab, lane)
    with pytest.raises(ProxyError, match="closed"):
        lane.cut()


# --- the harness's own question ---------------------------------------------------------------------


def test_ask_reads_the_clients_own_session(lab: Laboratory, proxy: Proxy) -> None:
    """The answer is about that session, and the client notices nothing of it."""
    with proxy.lane() as lane, connected(lab, lane) as conn:
        notices: list[object] = []
        conn.add_notice_handler(notices.append)
        conn.execute("set lock_timeout = '7s'")
        assert lane.ask("show lock_timeout") == [("7s",)]
        assert lane.ask("select 1, null union all select 2, 'b' order by 1") == [
            ("1", None),
            ("2", "b"),
        ]
        with pytest.raises(ProxyError, match="42601"):
            lane.ask("selct")
        assert conn.execute("select 3").fetchone() == (3,)
        assert not notices
        assert len(lane.boundaries) == 2


def test_ask_refuses_a_session_that_is_not_idle(
    lab: Laboratory, proxy: Proxy, threads: ThreadPoolExecutor
) -> None:
    """The error says why: no session, in a transaction, held."""
    with proxy.lane(stop=Stop(point="orders")) as lane:
        with pytest.raises(ProxyError, match="no open session"):
            lane.ask("select 1")
        with connected(lab, lane) as conn:
            conn.execute("begin")
            with pytest.raises(ProxyError, match="state T"):
                lane.ask("select 1")
            running: Future[object] = threads.submit(conn.execute, UPDATE, (1,))
            assert lane.wait_hold() is not None
            with pytest.raises(ProxyError, match="held"):
                lane.ask("select 1")
            lane.release()
            running.result(10)


# --- notices ----------------------------------------------------------------------------------------


def test_the_client_sees_its_own_notices_and_never_the_witness(
    lab: Laboratory, proxy: Proxy
) -> None:
    """An imitation is the learner's own message: the client sees it, and it is no touch."""
    imitation = """do $$ begin
        raise info 'lab' using errcode = 'LB001', schema = 'lab', table = 'orders',
            constraint = 'update:9', detail = '3';
        raise info 'lab' using errcode = 'LB001';
    end $$"""
    with proxy.lane() as lane, connected(lab, lane) as conn:
        seen: list[str] = []
        conn.add_notice_handler(
            lambda notice: seen.append(f"{notice.sqlstate} {notice.message_primary}")
        )
        conn.execute("set client_min_messages = 'error'")
        conn.execute(UPDATE, (1,))
        conn.execute("set client_min_messages = 'notice'")
        conn.execute(f"do $$ begin {UPDATE % 2}; raise notice 'mine'; end $$")
        conn.execute(imitation)
        assert seen == ["00000 mine", "LB001 lab", "LB001 lab"]
        assert [b.points[0] for b in lane.boundaries if b.touches] == ["orders", "orders"]
        assert lane.boundaries[-1].points == ()


def test_a_delay_slows_every_unit(lab: Laboratory, proxy: Proxy) -> None:
    """A slow network: seven units at 20 ms each cannot take less than 140 ms."""
    with proxy.lane(delay_s=0.02) as lane:
        began = time.monotonic()
        one_chunk(lab, lane)
        assert time.monotonic() - began >= 7 * 0.02
        assert state(lab) == (1, 1, 1)


def test_a_question_that_the_server_cannot_answer_is_no_commit(lab: Laboratory) -> None:
    """The harness's own connection may be broken, as after a crash; the log says so."""

    def broken(xid: int) -> str:
        raise psycopg.OperationalError("the connection is closed")

    with Proxy(lab.server.upstream, broken) as proxy, proxy.lane() as lane:
        one_chunk(lab, lane)
        assert [b.points for b in lane.boundaries if b.committed] == []
        assert "pg_xact_status failed" in [event.message for event in lane.events]


def test_an_error_inside_the_proxy_is_never_swallowed(lab: Laboratory, proxy: Proxy) -> None:
    """A proxy that broke would report fiction, so whatever is asked of it next fails."""
    with Proxy(lab.server.upstream, lab.xact_status) as broken:
        lane = broken.lane(stop=Stop(point="commit"))
        lane.finished = None  # type: ignore[method-assign,assignment]
        with pytest.raises(psycopg.OperationalError):
            one_chunk(lab, lane)
        with pytest.raises(ProxyError, match="NoneType"):
            lane.wait_hold()
        broken.failure = ""
