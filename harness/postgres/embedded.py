"""The embedded server: PostgreSQL 18 from a wheel, started by a small manager of our own.

Only the wheel's programs are used (`postgres`, `initdb`); its own starter trusts everybody, gives up
after ten seconds and stops the server in an exit handler, which a kill -9 skips.

A *home* is a folder with one database cluster and what is known about it:

    data/          the cluster                     password      of the superuser, for the harness only
    address        where the running keeper is    keeper.lock   held by the keeper (`keeper.py`) all its life

Beside the homes, `start.lock` lets one command at a time look for, start or sweep servers.

The shared home lies in the user's cache and is kept between commands. A private home belongs to one
harness that wants to crash its server. Root cannot run PostgreSQL, so for root everything lies in the
machine's cache and belongs to an unprivileged user that can reach it there.

The server has no TCP port at all; its sockets are in a folder that only its user can enter.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness import course, limits
from harness.postgres import keeper
from harness.postgres.cluster import (
    MAJOR,
    NEXT_STEP,
    SUPERUSER,
    advice,
    cache_folder,
    check_version,
    find_programs,
    make_cluster,
    reachable_programs,
)
from harness.postgres.server import DatabaseProblem
from harness.postgres.system_user import SystemUser, find_system_user
from harness.waiting import DeadlineExpired, wait_until

__all__ = ["SUPERUSER", "Embedded", "cache_folder", "find_programs", "open_embedded"]

_SETTINGS: tuple[str, ...] = (
    "listen_addresses=",
    "max_connections=100",
    "max_prepared_transactions=10",
    f"scram_iterations={limits.SCRAM_ITERATIONS}",
    "client_connection_check_interval=20ms",  # a dead client's running statement ends
    f"deadlock_timeout={limits.DEADLOCK_TIMEOUT_MS}ms",
    # Nothing here must survive a crash of the machine. A crash of the server alone loses only what
    # the kernel was never given, and synchronous_commit, which stays on, gives it everything.
    "fsync=off",
    "full_page_writes=off",
    # A commit without synchronous_commit waits this long in memory: a crash loses it for certain.
    "wal_writer_delay=10s",
    # The witness is written in it; loaded once here, a new session saves a millisecond.
    "shared_preload_libraries=plpgsql",
    # No background work that would compete with a run or change its timing.
    "autovacuum=off",
    "jit=off",
    "max_parallel_workers_per_gather=0",
    "log_timezone=UTC",
    "timezone=UTC",
    # Ordinary memory under our own name space, so that a full /dev/shm does no harm.
    "shared_buffers=32MB",
)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running embedded server that this process is registered as a user of."""

    home: Path
    sockets: str
    password: str = field(repr=False)
    _line: socket.socket = field(repr=False)

    def crash(self) -> None:
        """Stop the server as a crash would and start it again; afterwards it accepts connections.

        Raises:
            DatabaseProblem: If it did not come back.
        """
        self._line.settimeout(limits.SERVER_START_WAIT_S)
        self._line.sendall(b"crash\n")
        if self._line.recv(64) != b"ready\n":
            raise DatabaseProblem("the embedded server did not come back from its crash", NEXT_STEP)


@contextmanager
def open_embedded(
    *, private: bool = False, progress: Callable[[str], None] = lambda _: None
) -> Iterator[Embedded]:
    """Use the embedded server, started if it does not run; it may stop once this context is left.

    Args:
        private: Start one for this caller alone, in a new folder that is removed afterwards.
        progress: Called with a short text before each step that takes more than a moment.

    Raises:
        DatabaseProblem: If it cannot be started.
    """
    home = cache_folder() / (f"private-{secrets.token_hex(4)}" if private else f"pg{MAJOR}")
    try:
        home.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _starting():
            line = _attach(home) or _start(home, private, progress)
        sockets = json.loads((home / "address").read_text())["sockets"]
        password = (home / "password").read_text()
    except OSError as error:
        text = f"the embedded PostgreSQL cannot be used: {error}"
        raise DatabaseProblem(text, advice(text)) from error
    try:
        with line:
            yield Embedded(home, sockets, password, line)
    finally:
        if private:
            _wait_keeper_gone(home)
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _starting() -> Iterator[None]:
    """Hold the lock that lets one command at a time look for, start or sweep servers."""
    path = cache_folder() / "start.lock"
    with open(path, "ab") as lock:  # closing it lets go of the lock, and so does the kernel
        try:
            wait_until(lambda: _flock(lock), "no other command is starting a server",
                       wait_s=2 * limits.SERVER_START_WAIT_S)  # fmt: skip
        except DeadlineExpired as error:
            raise DatabaseProblem(str(error), f"End the command that holds {path}.") from error
        yield


def _flock(file: IO[bytes]) -> bool:
    """Take the lock on an open file if it is free; tell whether it was."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_home(home: Path, user: SystemUser | None) -> None:
    home.mkdir(mode=0o700, exist_ok=True)
    owner = user.user_id if user is not None else os.getuid()
    found = home.stat().st_uid
    if user is not None and found == 0:
        os.chown(home, user.user_id, user.group_id)
    elif found != owner:
        text = f"{home} belongs to user {found}, not to user {owner}"
        raise DatabaseProblem(text, f"Remove it, or set LAB_CACHE_DIR. {NEXT_STEP}")


def _attach(home: Path) -> socket.socket | None:
    """Register with the running keeper; None when there is none, or one that is about to end."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(limits.SERVER_STOP_WAIT_S)
    try:
        address = json.loads((home / "address").read_text())
        line.connect(f"{address['sockets']}/keeper")
        if line.recv(64) == b"ready\n":
            return line
    except (OSError, ValueError):
        pass  # no address, a stale one, or a keeper that closed its door
    line.close()
    return None


def _start(home: Path, private: bool, progress: Callable[[str], None]) -> socket.socket:
    """Start a keeper for `home`, with a new cluster if there is none or a damaged one."""
    user = find_system_user() if os.getuid() == 0 else None
    programs = reachable_programs(find_programs(), user)
    _remove_abandoned_homes()
    _make_home(home, user)
    _wait_keeper_gone(home)
    _remove_remains(home)
    if not (home / "data" / "PG_VERSION").exists() or not (home / "password").exists():
        make_cluster(home, programs, user, progress)
    check_version(home)
    progress("starting PostgreSQL")
    problem = _start_keeper(home, programs, user, private)
    if problem is not None and not _is_environment(problem):
        # The cluster is a cache that no live server uses: a new one is better than a repair.
        progress("the cached database cluster is damaged, making a new one")
        make_cluster(home, programs, user, progress)
        problem = _start_keeper(home, programs, user, private)
    if problem is not None:
        text = f"the embedded PostgreSQL did not start:\n{problem}"
        raise DatabaseProblem(text, advice(text))
    line = _attach(home)
    if line is None:
        raise DatabaseProblem("the embedded PostgreSQL stopped right after its start", NEXT_STEP)
    return line


def _start_keeper(home: Path, programs: Path, user: SystemUser | None, private: bool) -> str | None:
    """Start the keeper and wait for its report; return None, or what went wrong."""
    read_fd, write_fd = os.pipe()
    orders = keeper.Orders(
        home=str(home),
        postgres=str(programs / "postgres"),
        settings=_SETTINGS,
        report_fd=write_fd,
        user_id=user.user_id if user is not None else None,
        group_id=user.group_id if user is not None else None,
        linger_s=0.0 if private else limits.SERVER_LINGER_S,
        private=private,
    )
    with os.fdopen(read_fd) as report, subprocess.Popen(
        [sys.executable, "-m", "harness.postgres.keeper", orders.to_json()],
        cwd=course.ROOT, start_new_session=True, pass_fds=[write_fd],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        # This process ends at once; the keeper is its child, and outlives this process too.
        os.close(write_fd)
        line = report.readline()
        assert parent.stderr is not None
        problem: str = json.loads(line) if line else parent.stderr.read()
    return None if problem == "ready" else problem or "the keeper ended without a word"


def _wait_keeper_gone(home: Path) -> None:
    """Wait until no keeper holds the home: one without users is about to end by itself."""

    def free() -> bool:
        try:
            with open(home / "keeper.lock", "ab") as lock:
                return _flock(lock)
        except FileNotFoundError:
            return True  # a private home that its keeper has removed

    try:
        wait_until(free, "the previous keeper has ended", wait_s=2 * limits.SERVER_STOP_WAIT_S)
    except DeadlineExpired as error:
        text = f"a server in {home} neither answers nor ends"
        raise DatabaseProblem(text, "End the process that holds keeper.lock there.") from error


def _remove_remains(home: Path) -> None:
    """End a server whose keeper was killed, and remove what a killed keeper could not.

    A process ID in a file proves nothing, because the kernel uses numbers again: the process must be
    a postgres that was started on this very cluster.
    """
    import psutil  # only here: not every command starts a server

    with contextlib.suppress(OSError, ValueError):
        shutil.rmtree(json.loads((home / "address").read_text())["sockets"])
    (home / "address").unlink(missing_ok=True)
    pid_file = home / "data" / "postmaster.pid"
    try:
        process = psutil.Process(int(pid_file.read_text().split("\n", 1)[0]))
        if process.name() == "postgres" and str(home / "data") in process.cmdline():
            process.send_signal(signal.SIGQUIT)
            process.wait(limits.SERVER_STOP_WAIT_S)
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess, psutil.AccessDenied):
        pass
    except psutil.TimeoutExpired as error:
        text = f"an old PostgreSQL (process {error.pid}) in {home} does not end"
        raise DatabaseProblem(text, f"End it: kill -9 {error.pid}") from error
    pid_file.unlink(missing_ok=True)


def _remove_abandoned_homes() -> None:
    """Remove private homes whose harness and keeper were both killed; `start.lock` must be held."""
    for home in cache_folder().glob("private-*"):
        with contextlib.suppress(OSError), open(home / "keeper.lock", "ab") as lock:
            if _flock(lock):  # a living keeper has it
                _remove_remains(home)
                shutil.rmtree(home)


def _is_environment(problem: str) -> bool:
    """Tell whether the log blames the machine, where a new cluster would not help."""
    words = (
        "No space left",
        "could not bind",
        "shared memory",
        "Permission denied",
        "not permitted",
    )
    return any(word in problem for word in words)
