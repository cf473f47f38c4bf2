"""The keeper: a small process that owns one embedded PostgreSQL server.

Commands of the kit come and go, some by kill -9; the server must outlive a finished command a little
(the next one finds it warm) and must not outlive the last one for long. So nobody who *uses* the
server owns it. Its keeper does, and a user holds one connection to the keeper's socket. The kernel
closes that connection however the user ends, which is the whole protocol of leaving. A keeper without
users lingers, stops the server, removes what it made, and ends.

What the keeper promises, and how:

* One keeper a home: it holds a lock on `keeper.lock` all its life; the kernel releases it.
* The server never outlives its keeper: on Linux the kernel sends the server SIGQUIT when the keeper
  dies. Elsewhere, after a kill -9 of the keeper, the next start ends the orphan (`embedded.py`).
* A user that was answered `ready` has a running server until it lets go.

Words on the socket: the keeper says `ready` to a new user; a user may say `crash`, which stops the
server without clean-up and starts it again, answered by `ready`. On its report pipe the keeper writes
one line (a JSON text), `ready` or what went wrong.

It runs as `python -m harness.postgres.keeper ORDERS` (JSON, made by `embedded.py`), imports the standard library
only, and drops root's rights before it touches anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from harness.limits import (
    POLL_S,
    SERVER_FIRST_USER_WAIT_S,
    SERVER_LINGER_S,
    SERVER_START_WAIT_S,
    SERVER_STOP_WAIT_S,
    SOCKET_PATH_BYTES,
)

#: The number in the name of the server's Unix socket; every server has a directory of its own.
PORT = 5432
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Orders:
    """What a keeper is told: whose server, from which files, with which settings."""

    home: str
    postgres: str
    settings: tuple[str, ...]  # name=value
    report_fd: int
    user_id: int | None = None  # root's keeper becomes this user
    group_id: int | None = None
    linger_s: float = SERVER_LINGER_S
    private: bool = False  # the home is removed at the end

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Orders:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "settings": tuple(values["settings"])})


class StartFailed(Exception):
    """The server did not come up; the text is the end of its log."""


def main(argv: list[str]) -> int:
    """Keep one server until nobody uses it; return 0, or 1 when it could not be started.

    The keeper goes on as a grandchild of whoever ordered it, so that it leaves no zombie there.
    """
    if os.fork() > 0:
        os._exit(0)
    orders = Orders.from_json(argv[0])
    os.chdir("/")
    lock = _lock_home(Path(orders.home))
    _drop_rights(orders)
    report = os.fdopen(orders.report_fd, "w", encoding="utf-8")
    keeper = Keeper(orders)
    try:
        keeper.start()
        _report(report, "ready")
        keeper.serve()
    except (StartFailed, OSError) as error:
        _report(report, str(error))
        return 1
    finally:
        keeper.stop()
        os.close(lock)  # last: who waits for this lock may start the next server at once
    return 0


class Keeper:
    """One server, its sockets, and the users that are connected."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._home = Path(orders.home)
        self._data = self._home / "data"
        self._sockets = Path(tempfile.mkdtemp(prefix="lab-", dir=_short_directory()))
        self._server: subprocess.Popen[bytes] | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._users: set[socket.socket] = set()
        self._ending = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)

    def start(self) -> None:
        """Start the server, listen for users, and only then publish where to find both."""
        (self._data / "server.log").write_bytes(b"")
        self._server_start()
        self._listener.bind(str(self._sockets / "keeper"))
        self._listener.listen(128)
        self._listener.setblocking(False)
        address = {"pid": os.getpid(), "sockets": str(self._sockets)}
        draft = self._home / "address.new"
        draft.write_text(json.dumps(address))
        draft.replace(self._home / "address")

    def serve(self) -> None:
        """Answer users until the linger time has passed without any, or the server died."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            # The user that ordered this server is on its way and gets time to arrive.
            alone_since, patience_s = time.monotonic(), SERVER_FIRST_USER_WAIT_S
            while not self._ending and self._server_runs():
                if self._users:
                    alone_since, patience_s = time.monotonic(), self._orders.linger_s
                elif time.monotonic() - alone_since >= patience_s:
                    return
                # The short timeout bounds how late a linger or a dead server is noticed.
                for key, _ in selector.select(timeout=0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    self._hear(key.fileobj, selector)

    def stop(self) -> None:
        """End the server, gently first, and remove what this keeper made; users see their end.

        The address goes first, so that a new user waits for the next keeper instead.
        """
        (self._home / "address").unlink(missing_ok=True)
        self._listener.close()
        for user in self._users:
            user.close()
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self._server is not None and self._server_runs():
                self._server.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._server.wait(SERVER_STOP_WAIT_S)
        shutil.rmtree(self._sockets, ignore_errors=True)
        if self._orders.private:
            shutil.rmtree(self._home, ignore_errors=True)

    def _hear(self, speaker: socket.socket, selector: selectors.BaseSelector) -> None:
        if speaker is self._listener:
            user, _ = self._listener.accept()
            self._users.add(user)
            selector.register(user, selectors.EVENT_READ)
            user.sendall(b"ready\n")
            return
        try:
            words = speaker.recv(64)
            if words == b"crash\n":
                self._crash()
                speaker.sendall(b"ready\n")
                return
        except ConnectionError:
            words = b""
        if not words:
            selector.unregister(speaker)
            self._users.discard(speaker)
            speaker.close()

    def _crash(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(SERVER_STOP_WAIT_S)
        self._server_start()

    def _server_start(self) -> None:
        settings = [part for setting in self._orders.settings for part in ("-c", setting)]
        command = [self._orders.postgres, "-D", str(self._data), "-k", str(self._sockets)]
        libc = ctypes.CDLL(None)  # loaded here: after the fork only the call itself is left to do
        with (self._data / "server.log").open("ab") as log:
            self._server = subprocess.Popen(
                [*command, "-p", str(PORT), *settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self._data, process_group=0, preexec_fn=lambda: _die_with_parent(libc),
            )  # fmt: skip
        deadline = time.monotonic() + SERVER_START_WAIT_S
        while not self._server_ready():
            if self._ending or not self._server_runs() or time.monotonic() >= deadline:
                raise StartFailed(self._log_end())
            time.sleep(POLL_S)  # between two looks at the server; decides nothing

    def _server_ready(self) -> bool:
        """Read the status line of `postmaster.pid`, as pg_ctl does; needs no password."""
        assert self._server is not None
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self._server.pid) and lines[7].strip() == "ready"

    def _server_runs(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def _log_end(self) -> str:
        return (self._data / "server.log").read_text(errors="replace")[-2000:]

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        self._ending = True


def _report(report: TextIO, text: str) -> None:
    """Tell the user that waits for the server, if it still lives; only the first report counts."""
    if not report.closed:
        with contextlib.suppress(OSError), report:
            report.write(json.dumps(text) + "\n")


def _lock_home(home: Path) -> int:
    lock = os.open(home / "keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _drop_rights(orders: Orders) -> None:
    """Become the unprivileged user: PostgreSQL refuses to run as root, and so should its keeper."""
    if orders.user_id is not None and orders.group_id is not None:
        os.setgroups([])
        os.setgid(orders.group_id)
        os.setuid(orders.user_id)


def _die_with_parent(libc: ctypes.CDLL) -> None:
    """In the child, before postgres is loaded: ask Linux for SIGQUIT when the keeper dies."""
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGQUIT))


def _short_directory() -> str:
    """Return where temporary folders go, unless a Unix socket's path in there could be too long."""
    usual = tempfile.gettempdir()
    room = SOCKET_PATH_BYTES - len("/lab-12345678/.s.PGSQL.5432.lock")
    fits = len(os.fsencode(usual)) <= room and usual.isascii() and not set(usual) & set(", \"'")
    return usual if fits and os.access(usual, os.W_OK) else "/tmp"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
