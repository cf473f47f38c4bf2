"""The fork server: a process that has imported psycopg and does nothing but fork.

A fresh interpreter with psycopg takes 160 to 300 ms, a fork under one. The price of forking is that a
child inherits everything its parent has, so this parent has next to nothing: no thread, no connection,
no learner's code, no secret in its environment. It starts before the harness starts any of those.

The harness sends one byte with a descriptor, the control socket of a new warden. The fork server forks
the warden (`warden.py`), which forks the clients. When its own socket ends, it waits for the wardens, removes the folder that held the clients'
private folders, and ends. If a warden was killed, its orphans arrive here and are killed.

It runs as `python -m harness.process.forkserver SOCKET_FD WARM`, started by `ClientHost`.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from datetime import UTC, datetime, timedelta

from harness.process import child, processes, warden

#: Modules that psycopg imports at the first connect or query: paid once here, not in each client.
WARM_MODULES = ("psycopg", "psycopg.rows", "psycopg.pq", "zoneinfo", "encodings.idna", "selectors", "uuid",
                "ipaddress", "decimal", "ctypes", "linecache", "traceback", "argparse", "json")  # fmt: skip


def main(argv: list[str]) -> int:
    """Serve until the harness closes the socket."""
    control = socket.socket(fileno=int(argv[1]))
    control.set_inheritable(False)
    if argv[2] == "warm":
        _warm_up()
    processes.adopt_orphans()
    folder = tempfile.mkdtemp(prefix="interrupted-clients-")
    try:
        _serve(control, folder)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the harness is gone already
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _warm_up() -> None:
    for name in WARM_MODULES:
        __import__(name)
    child.isolate()
    import psycopg

    assert psycopg.pq.version() > 0, "psycopg is imported and its libpq is loaded"
    _exercise()
    gc.collect()
    gc.freeze()  # a collection in a child must not touch, and so copy, every inherited page


def _exercise() -> None:
    """Do once what every client does first, so that what is set up lazily is set up before the fork.

    The connection is refused: nobody listens on this port of the loopback, and none stays open.
    """
    import psycopg
    from psycopg.adapt import PyFormat, Transformer

    try:
        psycopg.connect("postgresql://nobody:x@127.0.0.1:1/none?connect_timeout=1", autocommit=True)
    except psycopg.OperationalError:
        pass
    values = [1, 1 << 40, "text", True, 1.5, [1, 2], ["a"], timedelta(1), datetime.now(UTC)]
    Transformer().dump_sequence(values, [PyFormat.AUTO] * len(values))


def _serve(control: socket.socket, folder: str) -> None:
    wardens: set[int] = set()
    signals = processes.child_signal()
    control.sendall(f"ready {folder}".encode())
    while True:
        ready, _, _ = select.select([control.fileno(), signals[0]], [], [])
        if signals[0] in ready:
            os.read(signals[0], 4096)
            _reap(wardens)
        if control.fileno() not in ready:
            continue
        order, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not order:
            break
        if (pid := os.fork()) == 0:
            _be_warden(control, signals, fds, folder)
        wardens.add(pid)
        for fd in fds:
            os.close(fd)
    _outlive(wardens)


def _be_warden(
    control: socket.socket, signals: tuple[int, int], fds: list[int], folder: str
) -> None:
    signal.set_wakeup_fd(-1)
    for fd in (control.detach(), *signals):
        os.close(fd)
    warden.keep(socket.socket(fileno=fds[0]), folder)


def _reap(wardens: set[int], options: int = os.WNOHANG) -> None:
    """Wait for children that have ended; when a warden did not end well, kill what it left."""
    try:
        while (ended := os.waitpid(-1, options))[0] != 0:
            pid, status = ended
            if pid in wardens:
                wardens.discard(pid)
                if status != 0:
                    _kill_orphans(wardens)
    except ChildProcessError:
        wardens.clear()


def _kill_orphans(wardens: set[int]) -> None:
    below = set(processes.descendants(os.getpid()))
    for pid in wardens:
        below -= {pid, *processes.descendants(pid)}
    processes.signal_each(below, signal.SIGKILL)


def _outlive(wardens: set[int]) -> None:
    """Stay until every warden is gone: each sees its own socket end, and kills its client."""
    while wardens:
        _reap(wardens, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
