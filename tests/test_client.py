"""A client is a real process, called by name, answering by value, ended when it is told to."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from client_kit import (
    Kit,
    assert_only_newborns_are_left,
    descriptors_in_use,
    gone,
    open_kit,
    warm,
)

from harness import limits
from harness.client import ClientHost
from harness.contract import ApprovedOrder, Outcome
from harness.database import Laboratory
from harness.process import processes
from harness.records import ClientExit, ConnectionState, Died, EndKind, Raised, Returned, Seen
from harness.waiting import DeadlineExpired, wait_until

MODES = ["fork", "spawn"] if sys.platform != "darwin" else ["spawn"]


@pytest.fixture(scope="module", params=MODES)
def host(request: pytest.FixtureRequest) -> Iterator[ClientHost]:
    with ClientHost(spawn=request.param == "spawn") as running:
        warm(running)
        yield running


@pytest.fixture
def kit(host: ClientHost, laboratory: Laboratory, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(host, laboratory, tmp_path) as lent:
        yield lent


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_runs_on_a_connection_of_its_own_process(kit: Kit) -> None:
    client = kit.calls("""
        import os
        def run_chunk(conn, job_id):
            backend = conn.execute("select pg_backend_pid()").fetchone()[0]
            return {"pid": os.getpid(), "backend": backend, "job": job_id, "auto": conn.autocommit}
    """)
    client.call(3, "run_chunk", "job-7")
    result = client.result()
    assert isinstance(result, Returned)
    assert result.value == {
        "pid": client.pid,
        "backend": kit.laboratory.learner_sessions()[0].pid,
        "job": "job-7",
        "auto": True,
    }
    assert result.connection == ConnectionState(True, "IDLE", False)


def test_arguments_and_results_keep_the_contracts_values(kit: Kit) -> None:
    client = kit.calls("""
        from harness.contract import ApprovedOrder, ChunkResult, Outcome
        def run_chunk(conn, items, lease, outcome=None):
            assert items == (ApprovedOrder(7, 1, 2),) and type(items) is tuple, items
            assert lease.total_seconds() == 300 and outcome == Outcome("failed", "late")
            return ChunkResult((7,), 1, True)
    """)
    order = ApprovedOrder(7, 1, 2)
    outcome = Outcome("failed", "late")
    client.call(3, "run_chunk", (order,), timedelta(minutes=5), outcome=outcome)
    result = client.result()
    assert isinstance(result, Returned), result
    assert result.value == Seen(
        "ChunkResult", {"processed": [7], "next_index": 1, "complete": True}
    )
    assert result.value.next_index == 1


def test_a_client_answers_many_calls_and_keeps_its_state(kit: Kit) -> None:
    client = kit.calls("""
        count = 0
        def run_chunk(conn):
            global count
            count += 1
            if count == 2:
                raise ValueError("the second")
            return count
    """)
    kinds = []
    for _ in range(3):
        client.call(3, "run_chunk")
        kinds.append(type(client.result()))
    assert kinds == [Returned, Raised, Returned]


def test_five_thousand_orders_go_in_and_come_back(kit: Kit) -> None:
    orders = [ApprovedOrder(n, 1, 2) for n in range(5000)]
    result = kit.run("def run_chunk(conn, orders): return tuple(orders)", orders)
    assert isinstance(result, Returned)
    assert [order.order_id for order in result.value] == list(range(5000))


def test_printed_lines_come_with_the_result_and_not_into_the_answer(kit: Kit) -> None:
    result = kit.run("""
        import sys
        def run_chunk(conn):
            print('{"id": 1, "returned": 99}')
            print("to stderr", file=sys.stderr)
            for n in range(100):
                print("line", n)
            return 5
    """)
    assert isinstance(result, Returned)
    assert result.value == 5
    assert len(result.output) == limits.CLIENT_OUTPUT_LINES
    assert "line 99" in result.output


def test_an_open_transaction_shows_in_the_connections_state(kit: Kit) -> None:
    result = kit.run("def run_chunk(conn): conn.execute('begin'); conn.execute('select 1')")
    assert isinstance(result, Returned)
    assert result.connection.transaction == "INTRANS"


def test_answered_tells_without_waiting(kit: Kit) -> None:
    client = kit.calls("""
        def run_chunk(conn):
            conn.execute("select pg_advisory_lock(4711)")
    """)
    with kit.laboratory.connect() as rival:
        rival.execute("select pg_advisory_lock(4711)")
        client.call(3, "run_chunk")
        with pytest.raises(DeadlineExpired, match="the client answers"):
            client.result(wait_s=0.05)
        assert not client.answered()
        rival.execute("select pg_advisory_unlock(4711)")
        wait_until(client.answered, "it answers", wait_s=limits.HOLD_WAIT_S)
    assert isinstance(client.result(), Returned)


# --- what the learner's file is -------------------------------------------------------------------


def test_labs_import_one_another_relatively(kit: Kit) -> None:
    kit.write("def cancel_orders(conn): return 'own lab 2'", "lab02_change/change.py")
    result = kit.run("""
        from ..lab02_change.change import cancel_orders
        def run_chunk(conn): return cancel_orders(conn)
    """)
    assert isinstance(result, Returned)
    assert result.value == "own lab 2"


def test_a_submissions_own_folders_never_shadow_the_kit(kit: Kit) -> None:
    kit.write("raise SystemExit('shadowed')", "harness/contract.py")
    kit.write("", "harness/__init__.py")
    kit.write("raise SystemExit('shadowed')", "psycopg/__init__.py")
    result = kit.run("""
        from harness.contract import ChunkResult
        import psycopg
        def run_chunk(conn): return ChunkResult((), 0, bool(psycopg.pq.version()))
    """)
    assert isinstance(result, Returned), result


def test_the_checkouts_solutions_cannot_be_imported(kit: Kit) -> None:
    result = kit.run("import solutions.lab03_chunk.chunk\ndef run_chunk(conn): pass")
    assert isinstance(result, Raised)
    assert result.is_a("ModuleNotFoundError")


def test_the_source_of_now_runs_even_beside_bytecode_of_the_same_second(kit: Kit) -> None:
    for number in (1, 2):
        result = kit.run(f"def run_chunk(conn): return {number}")
        assert isinstance(result, Returned)
        assert result.value == number
        os.utime(kit.folder / "lab03_chunk" / "chunk.py", (1e9, 1e9))
        # As if the learner had run it: Python trusts this bytecode for a file of that time and size.
        command = [sys.executable, "-m", "compileall", "-q", str(kit.folder)]
        kit.command(*command).wait()
    assert list(kit.folder.rglob("*.pyc"))


def test_a_client_writes_nothing_into_the_submission(kit: Kit) -> None:
    kit.run("def run_chunk(conn): open('note', 'w').write('x')")
    assert [str(p.relative_to(kit.folder)) for p in kit.folder.rglob("*") if p.is_file()] == [
        "lab03_chunk/chunk.py"
    ]


# --- errors ---------------------------------------------------------------------------------------


def test_a_contract_error_keeps_its_name_its_text_and_the_learners_frames(kit: Kit) -> None:
    result = kit.run("""
        from harness.contract import Conflict
        def run_chunk(conn):
            with conn.transaction():
                deeper()
        def deeper():
            raise Conflict("order 7 is gone")
    """)
    assert isinstance(result, Raised)
    assert (result.type_name, result.text, result.phase) == ("Conflict", "order 7 is gone", "call")
    assert result.bases == ("Exception", "BaseException")
    assert result.traceback == (
        'File "lab03_chunk/chunk.py", line 5, in run_chunk',
        "    deeper()",
        'File "lab03_chunk/chunk.py", line 7, in deeper',
        '    raise Conflict("order 7 is gone")',
    )
    assert result.connection == ConnectionState(True, "IDLE", False)


def test_a_database_error_brings_its_sqlstate(kit: Kit) -> None:
    result = kit.run("def run_chunk(conn): conn.execute('select 1/0')")
    assert isinstance(result, Raised)
    assert result.sqlstate == "22012"
    assert result.is_a("DivisionByZero")
    assert result.is_a("DatabaseError")


def test_an_error_shows_the_error_that_led_to_it(kit: Kit) -> None:
    result = kit.run("""
        def run_chunk(conn):
            try:
                conn.execute('select 1/0')
            except Exception as error:
                raise ValueError("mine") from error
    """)
    assert isinstance(result, Raised)
    assert any("DivisionByZero" in line for line in result.traceback)
    assert "which led to:" in result.traceback


@pytest.mark.parametrize(
    ("source", "phase", "type_name", "words"),
    [
        ("def run_chunk(conn)\n    pass\n", "import", "SyntaxError", "expected ':'"),
        ("import lab02_nothing\n", "import", "ModuleNotFoundError", "lab02_nothing"),
        ("from ..lab02_change.change import x\n", "import", "ModuleNotFoundError", "lab02_change"),
        ("import sys; sys.exit(0)\n", "import", "SystemExit", "0"),
        ("x = 1\n", "lookup", "LookupError", "run_chunk()"),
        ("run_chunk = 5\n", "lookup", "LookupError", "int"),
        ("def run_chunk(): pass\n", "call", "TypeError", "positional"),
        ("def run_chunk(conn): raise NotImplementedError('lab 3')\n", "call", "NotImplementedError", "lab 3"),
        ("def run_chunk(conn): raise SystemExit(0)\n", "call", "SystemExit", "0"),
        ("def run_chunk(conn): raise KeyboardInterrupt\n", "call", "KeyboardInterrupt", ""),
        ("def run_chunk(conn):\n x = []\n x.append(x)\n return x\n", "result", "BadValue", "contains itself"),
        ("def run_chunk(conn): return 'x' * (100 << 20)\n", "result", "BadValue", "larger"),
        ("def run_chunk(conn): return '\\0' * (2 << 20)\n", "result", "BadValue", "larger"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_where_it_happened(
    kit: Kit, source: str, phase: str, type_name: str, words: str
) -> None:
    result = kit.run(source)
    assert isinstance(result, Raised)
    assert (result.phase, result.type_name) == (phase, type_name)
    assert words in result.text


def test_a_syntax_error_shows_file_line_and_caret(kit: Kit) -> None:
    result = kit.run("x = 1\nif x = 2:\n    pass\n")
    assert isinstance(result, Raised)
    assert result.traceback[0] == 'File "lab03_chunk/chunk.py", line 2'
    assert any("^" in line for line in result.traceback)
    assert str(kit.folder) not in "".join(result.traceback) + result.text


def test_a_missing_file_is_a_sentence(kit: Kit) -> None:
    client = kit.calls("")
    client.call(4, "resume_chunk", "job-7")
    result = client.result()
    assert isinstance(result, Raised)
    assert (result.phase, result.text) == (
        "import",
        "lab04_doubt/doubt.py is missing: lab 4 is answered in that file, in a submission/",
    )


def test_a_failed_connect_is_told_at_the_first_call(kit: Kit) -> None:
    client = kit.host.start_calls(kit.write(""), "host=/nowhere user=x dbname=x")
    client.call(3, "run_chunk")
    result = client.result()
    client.close()
    assert isinstance(result, Raised)
    assert (result.phase, result.connection) == ("connect", None)
    assert result.is_a("OperationalError")


# --- how it ends ----------------------------------------------------------------------------------

HANGING = """
    import os, sys
    def run_chunk(conn, how=None):
        if how:
            exec(how)
        conn.execute("begin")
        conn.execute("select pg_sleep(60)")
"""


def test_a_kill_is_proven_by_the_signal_and_leaves_no_session(kit: Kit) -> None:
    client = kit.calls(HANGING)
    client.call(3, "run_chunk")
    wait_until(lambda: any(s.wait_event_type == "Timeout" for s in kit.laboratory.learner_sessions()), "it sleeps in the server", wait_s=10)  # fmt: skip
    backends = [s.pid for s in kit.laboratory.learner_sessions()]
    ended = client.kill()
    assert ended == ClientExit(client.pid, EndKind.SIGNALED, signal=9)
    assert ended.killed
    assert gone(client.pid)
    kit.laboratory.wait_backends_gone(backends)
    assert client.result() == Died(ended)
    assert client.kill() == ended


@pytest.mark.parametrize(
    ("how", "kind", "code", "number"),
    [
        ("os._exit(0)", EndKind.EXITED, 0, None),
        ("os._exit(7)", EndKind.EXITED, 7, None),
        ("os.abort()", EndKind.SIGNALED, None, signal.SIGABRT),
        ("os.kill(os.getpid(), 15)", EndKind.SIGNALED, None, signal.SIGTERM),
        ("os.kill(os.getpid(), 11)", EndKind.SIGNALED, None, signal.SIGSEGV),
    ],
)
def test_a_process_that_ends_in_a_call_is_died(
    kit: Kit, how: str, kind: EndKind, code: int | None, number: int | None
) -> None:
    client = kit.calls(HANGING)
    client.call(3, "run_chunk", how)
    result = client.result()
    assert isinstance(result, Died)
    assert (result.exit.kind, result.exit.code, result.exit.signal) == (kind, code, number)
    assert not result.exit.killed
    assert not client.running()
    client.call(3, "run_chunk")
    assert client.result() == result


def test_a_kill_takes_the_grandchild_that_holds_the_socket(kit: Kit) -> None:
    """
    Scenario:
    * The client forks, as `multiprocessing` does; the grandchild inherits the database socket.
    * The client is killed.

    Outcome:
    * The grandchild is gone too, so the server sees the connection end.
    """
    client = kit.calls("""
        import os, time
        def run_chunk(conn):
            pid = os.fork()
            if pid == 0:
                while True:
                    time.sleep(10)
            return pid
    """)
    client.call(3, "run_chunk")
    result = client.result()
    assert isinstance(result, Returned)
    backends = [s.pid for s in kit.laboratory.learner_sessions()]
    assert client.kill().killed
    assert gone(result.value)
    kit.laboratory.wait_backends_gone(backends)


def test_freeze_stops_the_process_and_thaw_lets_it_go_on(kit: Kit) -> None:
    client = kit.calls("def run_chunk(conn): return 5")
    client.call(3, "run_chunk")
    assert isinstance(client.result(), Returned)
    client.freeze()
    assert psutil.Process(client.pid).status() == psutil.STATUS_STOPPED
    assert client.running()
    client.call(3, "run_chunk")
    with pytest.raises(DeadlineExpired):
        client.result(wait_s=0.1)
    client.thaw()
    assert isinstance(client.result(), Returned)


def test_a_frozen_client_can_be_killed_and_closed(kit: Kit) -> None:
    for end in ("kill", "close"):
        client = kit.calls("def run_chunk(conn): return 5")
        client.freeze()
        getattr(client, end)()
        assert gone(client.pid)
        client.close()


def test_another_thread_may_kill_a_client_that_is_waited_for(kit: Kit) -> None:
    client = kit.calls(HANGING)
    client.call(3, "run_chunk")
    killer = threading.Timer(0.1, client.kill)
    killer.start()
    result = client.result()
    killer.join()
    assert isinstance(result, Died)
    assert result.exit.killed


def test_two_clients_of_one_host_run_at_the_same_time(kit: Kit) -> None:
    first = kit.calls("""
        def run_chunk(conn, key, wait_for):
            conn.execute("select pg_advisory_lock(%s)", (key,))
            sql = "select count(*) from pg_locks where locktype = 'advisory' and objid = %s and granted"
            while conn.execute(sql, (wait_for,)).fetchone()[0] == 0:
                pass
            return key
    """)
    second = kit.host.start_calls(kit.folder, kit.dsn)
    first.call(3, "run_chunk", 1, 2)
    second.call(3, "run_chunk", 2, 1)
    results = [first.result(), second.result()]
    second.close()
    assert [getattr(result, "value", result) for result in results] == [1, 2]


# --- programs and commands ------------------------------------------------------------------------

WORKER = """
    import json, os, signal, sys, time
    def main(argv):
        stopping = []
        signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
        print(json.dumps({"argv": argv, "cwd": os.getcwd(), "pid": os.getpid()}))
        print("a warning", file=sys.stderr)
        while not stopping:
            time.sleep(0.01)
        return 10
"""


def test_a_programs_lines_are_read_while_it_runs_and_sigterm_reaches_its_handler(kit: Kit) -> None:
    client = kit.program(WORKER, "--job", "job 7")
    (line,) = kit.wait_told(client)
    assert '"argv": ["--job", "job 7"]' in line
    assert f'"pid": {client.pid}' in line
    assert client.errors() == ("a warning",)
    client.terminate()
    ended = client.wait()
    assert (ended.kind, ended.code) == (EndKind.EXITED, 10)
    assert set(ended.output) == {line, "a warning"}
    assert client.lines() == (line,)


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("return 0", 0, ""),
        ("return None", 0, ""),
        ("return 31", 31, ""),
        ("sys.exit('usage')", 1, "usage"),
        ("raise SystemExit(2)", 2, ""),
        ("raise ValueError('no')", 1, "ValueError: no"),
        ("argparse.ArgumentParser().parse_args(['--no'])", 2, "unrecognized"),
    ],
)
def test_a_programs_exit_status_is_the_interpreters(
    kit: Kit, body: str, code: int, error: str
) -> None:
    client = kit.program(f"import sys, argparse\ndef main(argv): {body}\n")
    ended = client.wait()
    assert (ended.kind, ended.code) == (EndKind.EXITED, code)
    assert error in "\n".join(client.errors())
    assert client.lines() == ()


def test_any_command_runs_with_a_clean_environment(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    client = kit.command("sh", "-c", "env; pwd; ls /proc/self/fd", env={"DSN": "given"})
    assert client.wait().code == 0
    lines = client.lines()
    assert "DSN=given" in lines
    assert str(kit.folder) in lines
    assert "secret" not in "".join(lines)
    if processes.LINUX:  # 3 is the folder that ls reads
        assert lines[-4:] == ("0", "1", "2", "3")


def test_a_commands_half_line_is_kept_at_the_end(kit: Kit) -> None:
    client = kit.command("printf", "one\\ntwo")
    client.wait()
    assert client.lines() == ("one", "two")


def test_a_command_that_is_not_there_ends_as_in_a_shell(kit: Kit) -> None:
    client = kit.command("no-such-program-here")
    assert client.wait().code == 127
    assert "no-such-program-here" in client.errors()[0]


def test_a_secret_of_the_harness_is_not_in_the_clients_world(
    laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DATABASE_URL", "a-secret-url")
    with ClientHost() as host:
        warm(host)
        with open_kit(host, laboratory, tmp_path) as kit:
            result = kit.run("""
                import os
                def run_chunk(conn):
                    return str(dict(os.environ)) + open("/proc/self/environ").read()
            """)
    assert isinstance(result, Returned), result
    assert "a-secret-url" not in result.value


# --- the host -------------------------------------------------------------------------------------


def test_200_clients_come_and_go_and_leave_nothing(kit: Kit, host: ClientHost) -> None:
    kit.write("def run_chunk(conn): return 5")
    rounds = 200 if not host.spawn else 5
    before = descriptors_in_use(host)
    for _ in range(rounds):
        client = kit.host.start_calls(kit.folder, kit.dsn)
        client.call(3, "run_chunk")
        assert isinstance(client.result(), Returned)
        assert client.kill().killed
        client.close()
    assert descriptors_in_use(host) == before
    assert_only_newborns_are_left(host)


def test_a_host_that_closes_ends_its_clients(laboratory: Laboratory, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if processes.LINUX else 0
    with ClientHost() as host:
        kit = Kit(host, laboratory, tmp_path)
        client = kit.calls("def run_chunk(conn): return 5")
        server = host._server
        assert server is not None
        pids = [server._process.pid, *processes.descendants(server._process.pid)]
    assert all(gone(pid) for pid in [*pids, client.pid])
    assert not client.running()
    if processes.LINUX:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_host_says_so(tmp_path: Path) -> None:
    host = ClientHost()
    with pytest.raises(Exception, match="with statement"):
        host.start_command(["true"], env={}, cwd=tmp_path)


def test_a_client_that_waits_for_its_plan_has_no_connection(kit: Kit) -> None:
    kit.laboratory.clear()
    assert kit.host._newborn
    assert kit.laboratory.learner_sessions() == []
