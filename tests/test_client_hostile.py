"""Whatever a submission does, the harness gets a value, and nothing of the client is left.

Every test's fixture counts processes and descriptors afterwards. A process that tries to get away
writes its PID into the submission's folder, where the test looks for it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from client_kit import Kit, fork_server_pid, gone, open_kit, warm

from harness import limits
from harness.client import ClientHost
from harness.course import ROOT
from harness.database import Laboratory
from harness.process import processes
from harness.records import Died, EndKind, Raised, Returned
from harness.waiting import wait_until

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="only Linux gives these guarantees")

#: Starts a process that leaves its parent's session, group and family, and writes down its PID.
ESCAPE = """
import os, pathlib, signal, time
def escape(name, work=lambda: time.sleep(60)):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except OSError:
                    pass
            pathlib.Path(FOLDER, name).write_text(str(os.getpid()))
            work()
        os._exit(0)
    while not (path := pathlib.Path(FOLDER, name)).exists() or not path.read_text():
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def host() -> Iterator[ClientHost]:
    with ClientHost(shut_in=False) as running:
        warm(running)
        yield running


@pytest.fixture
def kit(host: ClientHost, laboratory: Laboratory, tmp_path: Path) -> Iterator[Kit]:
    with open_kit(host, laboratory, tmp_path) as lent:
        yield lent


def escaping(kit: Kit, body: str) -> str:
    """Return a lab 3 that can call `escape`."""
    return f"FOLDER = {str(kit.folder)!r}\n{ESCAPE}\ndef run_chunk(conn):\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )


def escaped(kit: Kit, name: str = "escaped") -> int:
    """Return the PID that an escaped process wrote down."""
    return int((kit.folder / name).read_text())


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "limit", "caps"),
    [
        ("while True: pass", "wall", {"wall_s": 0.4}),
        ("import time; time.sleep(60)", "wall", {"wall_s": 0.4}),
        ("conn.execute('select pg_sleep(60)')", "wall", {"wall_s": 0.4}),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "wall", {"wall_s": 0.4}),
        ("while True: pass", "cpu", {"cpu_s": 0.3}),
        ("import subprocess\nwhile True: subprocess.run(['sh', '-c', 'i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done'])", "cpu", {"cpu_s": 0.5}),
        ("hog = []\nwhile True:\n try: hog.append(b'x' * 1000000)\n except MemoryError: pass", "memory", {"memory_bytes": 200 << 20}),
        ("import os\nwhile True:\n try: os.fork()\n except OSError: pass", "processes", {}),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "output", {}),
        ("while True: print('y' * 70)", "output", {}),
        ("import sys\nwhile True: sys.stderr.write('z')", "output", {"output_bytes": 1 << 16}),
    ],
    ids=["loop", "sleep", "in the server", "stops itself", "loop, cpu", "children's cpu", "memory", "fork bomb", "bytes", "lines", "stderr"],
)  # fmt: skip
def test_a_broken_limit_ends_the_client_and_is_named(
    kit: Kit, body: str, limit: str, caps: dict[str, float]
) -> None:
    source = "def run_chunk(conn):\n" + textwrap.indent(body, "    ")
    result = kit.run(source, **caps)
    assert isinstance(result, Died), result
    assert (result.exit.kind, result.exit.limit) == (EndKind.LIMIT, limit)
    assert not result.exit.killed


def test_a_huge_allocation_is_an_error_in_the_learners_line(kit: Kit) -> None:
    result = kit.run("def run_chunk(conn): return bytearray(1 << 40)")
    assert isinstance(result, Raised)
    assert result.type_name == "MemoryError"


def test_a_foreign_program_may_reserve_address_space_but_not_use_memory(kit: Kit) -> None:
    code = "import mmap; m = mmap.mmap(-1, 8 << 30); print('ok')"
    assert kit.command(sys.executable, "-c", code).wait().code == 0
    ended = kit.command(
        sys.executable, "-c", "x = []\nwhile True: x.append('y' * 1000000)", memory_bytes=100 << 20
    ).wait()
    assert ended.limit == "memory"


def test_freezing_does_not_move_the_wall(kit: Kit) -> None:
    client = kit.calls("def run_chunk(conn): return 5", wall_s=0.5)
    client.freeze()
    started = time.monotonic()
    assert client.wait().limit == "wall"
    assert time.monotonic() - started < 2


def test_the_last_lines_before_a_limit_are_kept(kit: Kit) -> None:
    client = kit.program("def main(argv):\n print('before')\n while True: pass\n", wall_s=0.5)
    assert client.wait().output == ("before",)


# --- getting away ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "close", "exit", "wall"])
def test_a_daemon_does_not_outlive_its_client(kit: Kit, end: str) -> None:
    """
    Scenario:
    * The client forks twice, calls setsid in between, and ignores every signal.
    * Then it is killed, closed, ended by the wall, or ends by itself.

    Outcome:
    * The daemon is gone as soon as the harness knows that the client has ended.
    """
    source = escaping(kit, "escape('escaped')\nreturn 1")
    if end == "exit":
        source = source.replace("return 1", "os._exit(3)")
    client = kit.calls(source, wall_s=1.0 if end == "wall" else 30)
    client.call(3, "run_chunk")
    result = client.result()
    if end == "exit":
        assert isinstance(result, Died)
        assert result.exit.code == 3
    elif end == "wall":
        assert client.wait().limit == "wall"
    else:
        getattr(client, end)()
    assert gone(escaped(kit))


def test_a_daemon_is_frozen_with_its_client(kit: Kit) -> None:
    client = kit.calls(escaping(kit, "escape('escaped')"))
    client.call(3, "run_chunk")
    assert isinstance(client.result(), Returned)
    client.freeze()
    assert psutil.Process(escaped(kit)).status() == psutil.STATUS_STOPPED
    client.thaw()
    wait_until(
        lambda: psutil.Process(escaped(kit)).status() != psutil.STATUS_STOPPED,
        "the daemon goes on",
        wait_s=limits.KILL_WAIT_S,
    )


def test_daemons_of_daemons_that_fork_all_the_time_are_all_ended(kit: Kit) -> None:
    bomb = """
        def bomb():
            while True:
                try:
                    if os.fork() == 0:
                        os.setsid()
                except OSError:
                    pass
        escape('escaped', bomb)
        while True: pass
    """
    result = kit.run(escaping(kit, bomb))
    assert isinstance(result, Died)
    assert result.exit.limit == "processes"
    assert gone(escaped(kit))


def test_a_chain_of_forks_that_never_stands_still_is_caught(kit: Kit) -> None:
    chain = """
        def chain():
            while True:
                if os.fork():
                    os._exit(0)
        escape('escaped', chain)
    """
    client = kit.calls(escaping(kit, chain))
    client.call(3, "run_chunk")
    assert isinstance(client.result(), Returned)
    assert client.kill().killed


def test_a_program_that_ignores_sigterm_is_still_killed(kit: Kit) -> None:
    client = kit.program("""
        import signal, time
        def main(argv):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ready")
            while True:
                time.sleep(1)
    """)
    kit.wait_told(client)
    client.terminate()
    assert client.running()
    assert client.kill().killed


# --- spoiling the talk ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "os.write(3, b'garbage\\n')",
        "os.write(3, b'\\xff\\xfe\\x00\\n')",
        "os.write(3, b'[' * 100000 + b'\\n')",
        "os.write(3, b'[' * 100000 + b']' * 100000 + b'\\n')",
        "os.write(3, b'9' * 10000 + b'\\n')",
        "os.write(3, b'{}\\n')",
        "os.write(3, b'null\\n')",
        'os.write(3, b\'{"id": 1, "connection": null, "returned": {"x": 1}}\\n\')',
        'os.write(3, b\'{"id": 1, "connection": 5, "returned": 1}\\n\')',
        'os.write(3, b\'{"id": 1, "connection": null, "raised": {"type_name": 1}}\\n\')',
        'os.write(3, b\'{"id": 2, "connection": null, "returned": 1}\\n\')',
        "os.write(3, b'half a line'); time.sleep(0.1)",
        "while True: os.write(3, b'x' * 65536)",
        "for fd in range(1, 100):\n     if os.path.exists(f'/proc/self/fd/{fd}'): os.write(fd, b'garbage\\n')",
        "os.closerange(0, 100)",
        "os.closerange(0, 100); time.sleep(60)",
        "os.closerange(3, 100); os.open('/dev/null', os.O_RDWR); os.open('/dev/null', os.O_RDWR)",
        "os.dup2(1, 3)",
    ],
)
def test_spoiled_answers_are_a_protocol_error_or_a_death(kit: Kit, body: str) -> None:
    result = kit.run(f"import os, time\ndef run_chunk(conn):\n    {body}\n", wall_s=3)
    if isinstance(result, Raised):
        assert (result.phase, result.type_name) == ("protocol", "ProtocolError")
        assert result.text
    else:
        assert isinstance(result, Died), result
    assert not kit.clients[-1].running()


def test_an_endless_line_costs_no_memory(kit: Kit) -> None:
    before = psutil.Process().memory_info().rss
    result = kit.run("import os\ndef run_chunk(conn):\n while True: os.write(3, b'x' * 65536)\n")
    assert isinstance(result, Raised)
    assert "longer than" in result.text
    assert psutil.Process().memory_info().rss - before < 64 << 20


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.dumps = json.loads = None\njson.JSONEncoder.encode = None\ndef run_chunk(conn): return 5",
        "import psycopg\npsycopg.connect = psycopg.Connection.execute = None\ndef run_chunk(conn): return 5",
        "import builtins\nbuiltins.isinstance = builtins.len = lambda *a: 1/0\ndef run_chunk(conn): return 5",
        "import sys\nsys.stdout = sys.stderr = None\ndef run_chunk(conn): return 5",
        "import sys\nsys.stdout.close()\ndef run_chunk(conn): return 5",
        "import sys\nsys.modules.clear()\ndef run_chunk(conn): return 5",
        "import harness.process.values\nharness.values.encode = None\ndef run_chunk(conn): return 5",
        "import atexit\natexit.register(lambda: 1/0)\ndef run_chunk(conn): return 5",
        "class Bad:\n def __del__(self): raise ValueError\ndef run_chunk(conn): Bad(); return 5",
        "import gc, sys\ngc.disable()\nsys.setrecursionlimit(50)\ndef run_chunk(conn): return 5",
        "def run_chunk(conn): conn.close(); return 5",
        "def run_chunk(conn): conn.__class__ = type('X', (type(conn),), {'info': None}); return 5",
        "class E(BaseException):\n def __str__(self): raise ValueError\ndef run_chunk(conn): raise E",
        "class E(Exception):\n sqlstate = property(lambda s: 1/0)\ndef run_chunk(conn): raise E",
        "class E(Exception):\n def __str__(self): return 'x' * (50 << 20)\ndef run_chunk(conn): raise E",
        "def run_chunk(conn): return run_chunk(conn)",
        "class M(type):\n def __getattribute__(s, n): raise ValueError\nclass X(metaclass=M): pass\ndef run_chunk(conn): return X()",
        "class X:\n def __getattribute__(s, n): raise ValueError\ndef run_chunk(conn): return X()",
        "class X(dict):\n def items(s):\n  while True: yield 1, 2\ndef run_chunk(conn): return X()",
        "class X(list):\n def __iter__(s):\n  while True: yield 1\ndef run_chunk(conn): return X()",
    ],
)  # fmt: skip
def test_meddling_with_its_own_process_ends_as_a_value(kit: Kit, source: str) -> None:
    result = kit.run(source, wall_s=15)
    assert isinstance(result, (Returned, Raised, Died))
    if isinstance(result, Died):
        assert result.exit.limit is None, "it answered or ended, it did not hang"


# --- against the kit's own processes --------------------------------------------------------------


def test_a_client_that_kills_its_warden_is_lost_and_gone(kit: Kit) -> None:
    result = kit.run(escaping(kit, "escape('escaped')\nos.kill(os.getppid(), 9)\ntime.sleep(60)"))
    assert isinstance(result, Died)
    assert result.exit.kind is EndKind.LOST
    assert not result.exit.killed
    wait_until(lambda: gone(escaped(kit)), "the fork server ends it", wait_s=limits.KILL_WAIT_S)


def test_a_client_that_stops_its_warden_is_ended_all_the_same(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KILL_WAIT_S", 0.5)
    client = kit.calls("import os\ndef run_chunk(conn): os.kill(os.getppid(), 19); return 5")
    client.call(3, "run_chunk")
    client.kill()
    wait_until(lambda: gone(client.pid), "the kernel ends it", wait_s=5)


def test_a_host_whose_fork_server_was_killed_starts_another(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    with ClientHost() as host:
        warm(host)
        kit = Kit(host, laboratory, tmp_path)
        for _ in range(5):
            os.kill(fork_server_pid(host), signal.SIGKILL)
            result = kit.run("def run_chunk(conn): return 5")
            assert isinstance(result, Returned), result
        for client in kit.clients:
            client.close()


# --- when the harness itself is killed ------------------------------------------------------------

HARNESS = """
import json, sys
from pathlib import Path
from harness.client import ClientHost
impl, dsn = Path(sys.argv[1]), sys.argv[2]
host = ClientHost(shut_in=False).__enter__()
client = host.start_calls(impl, dsn)
client.call(3, "run_chunk")
client.result()
server = host._server._process.pid
print(json.dumps([client.pid, server]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_harness(kit: Kit, number: signal.Signals) -> None:
    """
    Scenario:
    * A harness has a client, and the client has a daemon.
    * The harness is killed, without a chance to clean up.

    Outcome:
    * Client, daemon, warden, fork server and the clients' folder are gone.
    """
    kit.write(escaping(kit, "escape('escaped')\nreturn os.getcwd()"))
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(kit.folder), kit.dsn],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as harness:
        assert harness.stdout is not None
        client, server = json.loads(harness.stdout.readline())
        folder = Path(os.readlink(f"/proc/{client}/cwd"))
        everyone = [client, server, escaped(kit), *processes.descendants(server)]
        assert folder.is_dir()
        harness.send_signal(number)
    wait_until(
        lambda: all(gone(pid) for pid in everyone), "all are gone", wait_s=limits.KILL_WAIT_S
    )
    wait_until(lambda: not folder.parent.exists(), "the folder is gone", wait_s=limits.KILL_WAIT_S)
