"""The learner's code as a real process: start, call, kill, freeze, thaw, how it ended.

    with ClientHost() as host:
        client = host.start_calls(impl, dsn)
        client.call(3, "run_chunk", "job-7")      # sends, does not wait
        print(client.result())                     # Returned, Raised or Died
        print(client.kill())                       # ClientExit: signaled, 9

A *host* owns one fork server. A *client* is a process with its own PID, session and process group; its
parent is a *warden* (`warden.py`), which enforces the limits, does the killing, and knows how it ended.
The harness holds two sockets for a client: one to the warden, one to the client itself for its calls.

What a client says is checked and never trusted: it may break its own answer, which is then a `Raised`
with phase 'protocol', but not the harness. What a warden says is the kit's own word.

A host may be used by several threads; so may a client, where one waits and another kills.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import limits
from harness.course import ROOT
from harness.process.answers import Answers
from harness.process.control import Control
from harness.records import CallResult, ClientExit, Died
from harness.waiting import DeadlineExpired

#: What a client may know of the harness's environment: nothing that names a database or holds a secret.
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SYSTEMROOT")
#: A foreign program's tool chain (a Go or Node version manager, say) lives in the user's home.
COMMAND_ENVIRONMENT = (*ENVIRONMENT, "HOME", "USER", "LOGNAME", "SHELL")
#: Clients that wait for a plan. A run with a fault uses two, one after the other.
_NEWBORN_MAX = 2


class ClientTrouble(Exception):
    """The harness itself could not run a client; never the learner's doing."""


@dataclass(frozen=True)
class ClientLimits:
    """What one client may use, all its processes together. The defaults are in `limits.py`."""

    wall_s: float = limits.CLIENT_WALL_S
    cpu_s: float = limits.CLIENT_CPU_S
    memory_bytes: int = limits.CLIENT_MEMORY_BYTES
    processes: int = limits.CLIENT_PROCESSES
    output_bytes: int = limits.CLIENT_OUTPUT_BYTES


class ClientHost:
    """Starts clients. A context manager: its end is the end of every client it started.

    Args:
        spawn: Start a fresh interpreter for each client; always so where fork is not safe (macOS:
            libpq's GSS library aborts in a forked child).
        shut_in: Keep clients from the kit's secrets, from writing outside their own folder and from
            signals to others, where the kernel can (`process/sandbox.py`). Commands are not shut in:
            they are the user's own programs.
    """

    def __init__(self, *, spawn: bool = False, shut_in: bool = True) -> None:
        self.spawn = spawn or sys.platform == "darwin"
        self._shut_in = shut_in
        self._forbidden: list[str] = []
        self._lock = threading.Lock()
        self._server: _ForkServer | None = None
        self._clients: set[Client] = set()
        self._newborn: list[tuple[Control, Answers]] = []

    def __enter__(self) -> ClientHost:
        self._server = _ForkServer(warm=not self.spawn)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def keep_from(self, folders: Sequence[str]) -> None:
        """Let no client that is started from now on read these folders."""
        self._forbidden += [folder for folder in folders if folder not in self._forbidden]

    def close(self) -> None:
        """End every client and the fork server; leave no process, folder or descriptor."""
        server, self._server = self._server, None
        for client in list(self._clients):
            client.close()
        for control, answers in self._newborn:
            control.close()
            answers.close()
        self._newborn.clear()
        if server is not None:
            server.close()

    def start_calls(
        self, impl: Path, dsn: str, *, limits: ClientLimits = ClientLimits()
    ) -> Client:  # fmt: skip
        """Start a client that connects to `dsn` and then answers calls on the code in `impl`.

        Returns as soon as the process exists; whether it could connect shows in the first result.
        """
        plan = {"mode": "calls", "impl": str(impl.resolve()), "dsn": dsn}
        return self._start(plan, _environment(ENVIRONMENT, _PYTHON), limits)

    def start_program(
        self, impl: Path, lab: int, argv: Sequence[str], *, limits: ClientLimits = ClientLimits()
    ) -> Client:
        """Start the program of a lab: ``sys.exit(main(argv))`` of its module, output captured."""
        plan = {"mode": "program", "impl": str(impl.resolve()), "lab": lab, "argv": list(argv)}
        return self._start(plan, _environment(ENVIRONMENT, _PYTHON), limits)

    def start_command(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        limits: ClientLimits = ClientLimits(),
    ) -> Client:
        """Start any program in any language, in the folder `cwd`, with `env` over a clean environment.

        A program that is not there ends with exit status 127, as in a shell.
        """
        plan = {"mode": "command", "command": list(command), "cwd": str(cwd.resolve())}
        return self._start(plan, _environment(COMMAND_ENVIRONMENT, env), limits)

    def _start(self, plan: dict[str, Any], env: dict[str, str], caps: ClientLimits) -> Client:
        with self._lock:
            control, answers = self._take_newborn()
            if not self._newborn and not self._clients:
                # One more warden, so that the next client is born while this one works.
                self._newborn.append(self._bear())
            plan |= {"env": env, "limits": asdict(caps), "spawn": self.spawn}
            plan |= {"shut_in": self._shut_in, "forbidden": self._forbidden}
            control.send_plan(plan)
            client = Client(self, control, answers, caps)
            self._clients.add(client)
        return client

    def _take_newborn(self) -> tuple[Control, Answers]:
        """Return a client without a plan that is alive; one that waited may have been killed."""
        for _ in range(1 + _NEWBORN_MAX):
            control, answers = self._newborn.pop(0) if self._newborn else self._bear()
            try:
                if control.wait_born():
                    return control, answers
            except DeadlineExpired:
                self._restart_server()  # it was stopped
            control.close()
            answers.close()
        raise ClientTrouble("several clients in a row were killed before they began")

    def _bear(self, warden: socket.socket | None = None) -> tuple[Control, Answers]:
        """Have a client without a plan born, by a warden whose last client ended or by a new one."""
        warden = warden or self._fork_warden()
        calls, clients_end = socket.socketpair()
        with clients_end:
            try:
                socket.send_fds(warden, [b"bear\n"], [clients_end.fileno()])
            except OSError:
                pass  # the warden was killed, which `wait_born` will see
        return Control(warden), Answers(calls)

    def _fork_warden(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._fork(theirs)
        except BaseException:
            ours.close()
            raise
        return ours

    def _take_back(self, client: Client, control: Control) -> None:
        """Let the warden of a client that has ended bear the next one, unless enough are waiting."""
        with self._lock:
            self._clients.discard(client)
            warden = control.give_back()
            if warden is not None and self._server and len(self._newborn) < _NEWBORN_MAX:
                self._newborn.append(self._bear(warden))
            else:
                control.close()

    def _fork(self, wardens_end: socket.socket) -> None:
        """Ask the fork server for a warden; start another server where a client has killed it."""
        if self._server is None:
            raise ClientTrouble("the client host is not open: use it in a with statement")
        try:
            self._server.fork(wardens_end)
        except OSError:
            self._restart_server()
            self._server.fork(wardens_end)

    def _restart_server(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = _ForkServer(warm=not self.spawn)


class Client:
    """One client process. Made by a `ClientHost`; a context manager that closes it."""

    def __init__(
        self, host: ClientHost, control: Control, answers: Answers, caps: ClientLimits
    ) -> None:
        self._host = host
        self._control = control
        self._answers = answers
        self._lock = threading.RLock()
        self._exit: ClientExit | None = None
        #: The warden ends it at the wall; this net is for a warden that cannot.
        self._overdue = time.monotonic() + caps.wall_s + limits.KILL_WAIT_S
        self.pid = control.pid

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- calls --------------------------------------------------------------------------------------

    def call(self, lab: int, function: str, *args: Any, **kwargs: Any) -> None:
        """Send one call; the answer of the call before must have been taken with `result`.

        The function gets the client's connection first, then the arguments. A client that has ended
        takes the call in silence: `result` tells.
        """
        self._answers.send(lab, function, args, kwargs)

    def call_inside(
        self, lab: int, function: str, *args: Any, around: tuple[str, str] | None = None
    ) -> None:
        """Send one call that is made inside an outer transaction, which is then rolled back.

        Otherwise as `call`. A function that keeps to the contract nests in it: nothing of it remains.
        With `around`, two statements, the outer transaction runs the first before the call and the
        second after it, also when the call raised, and is committed.
        """
        self._answers.send(lab, function, args, {}, inside=around or True)

    def result(self, wait_s: float | None = None) -> CallResult:
        """Wait for the answer of the last call and return it; Died when the process ended instead.

        By default the wait is as long as the client may live.

        Raises:
            DeadlineExpired: If there is no answer after `wait_s` seconds.
        """
        deadline = self._deadline(wait_s)
        while not self.answered() and self._running():
            if self._answers.broken:
                return self._give_up()
            self._wait_for_news(deadline, wait_s, "the client answers", self._answers.fileno())
        if not self.answered():
            self._answers.abandon()
            return Died(self.wait())
        result = self._answers.take(self._control.recent())
        if self._answers.broken:
            self.kill()
        return result

    def answered(self) -> bool:
        """Tell whether `result` would return an answer at once. Never waits."""
        return self._answers.complete()

    def _give_up(self) -> CallResult:
        """End a client that cannot answer any more; it is usually ending by itself already."""
        self._answers.abandon()
        try:
            return Died(self.wait(limits.CLIENT_CLOSING_WAIT_S))
        except DeadlineExpired:
            self.kill()
            return self._answers.refusal(self._control.recent())

    # --- life and death -----------------------------------------------------------------------------

    def running(self) -> bool:
        """Tell whether the process is alive, which a frozen one is. Never waits."""
        return self._running()

    def kill(self) -> ClientExit:
        """End the whole group and every other descendant by SIGKILL; return how the client ended.

        Nothing of it is left afterwards. `ClientExit.killed` is the proof that it was this signal: a
        client that had ended before keeps its own end.
        """
        if self._running():
            self._control.order("kill")
        try:
            return self.wait(limits.KILL_WAIT_S)
        except DeadlineExpired:
            return self._abandon()

    def freeze(self) -> None:
        """Stop every process of the client; they stand still when this returns."""
        self._ask("freeze")

    def thaw(self) -> None:
        """Let a frozen client go on."""
        self._ask("thaw")

    def terminate(self) -> None:
        """Send SIGTERM to the client's first process; a program may handle it."""
        self._ask("terminate")

    def wait(self, wait_s: float | None = None) -> ClientExit:
        """Wait until the client has ended, by itself or by a limit, and return how.

        Raises:
            DeadlineExpired: If it is still running after `wait_s` seconds.
        """
        deadline = self._deadline(wait_s)
        while self._running():
            self._wait_for_news(deadline, wait_s, "the client ends")
        assert self._exit is not None
        return self._exit

    def close(self) -> None:
        """End the client whatever state it is in, and leave nothing of it. May be repeated."""
        if self._running():
            self.kill()
        self._answers.close()

    # --- output -------------------------------------------------------------------------------------

    def lines(self) -> tuple[str, ...]:
        """Return the lines of standard output so far: whole lines, and at the end also half a one."""
        self._ask("output")
        return tuple(self._control.out)

    def errors(self) -> tuple[str, ...]:
        """Return the lines of standard error so far."""
        self._ask("output")
        return tuple(self._control.err)

    # --- waiting ------------------------------------------------------------------------------------

    def _running(self) -> bool:
        """Take in what the warden has said; it says last how the client ended."""
        with self._lock:
            if self._exit is None and (end := self._control.end()) is not None:
                recent = self._control.recent_lines
                self._exit = ClientExit(pid=self.pid, output=recent, **end)
                self._host._take_back(self, self._control)
            return self._exit is None

    def _ask(self, order: str) -> None:
        """Give an order and wait until it is done; a client that has ended needs none."""
        if self._running():
            self._control.ask(order)

    def _deadline(self, wait_s: float | None) -> float:
        return self._overdue if wait_s is None else time.monotonic() + wait_s

    def _wait_for_news(
        self, deadline: float, wait_s: float | None, fact: str, *fds: int
    ) -> None:  # fmt: skip
        """Sleep until a socket has something; what it means is for the caller to ask."""
        left = deadline - time.monotonic()
        if left > 0:
            self._control.wait(left, fds)
        elif wait_s is not None:
            raise DeadlineExpired(f"after {wait_s:g} s still not true: {fact} (pid {self.pid})")
        else:
            self._abandon()

    def _abandon(self) -> ClientExit:
        """End a client whose warden does not obey, by killing the warden.

        The kernel then kills the client (it dies with its parent), and the fork server the rest.
        """
        self._control.kill_warden()
        while self._running():
            self._control.wait(limits.KILL_WAIT_S, ())
        assert self._exit is not None
        return self._exit


class _ForkServer:
    """The harness's end of the fork server."""

    def __init__(self, *, warm: bool) -> None:
        self._socket, theirs = socket.socketpair()
        self._ready = False
        self._folder = ""
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "harness.process.forkserver",
                    str(fd),
                    "warm" if warm else "cold",
                ],
                cwd=ROOT,
                env=_environment(ENVIRONMENT, _PYTHON),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd],
                start_new_session=True,  # Ctrl-C is for the harness, which then closes it
            )

    def fork(self, wardens_end: socket.socket) -> None:
        """Ask for one warden, which gets this socket."""
        self._wait_ready()
        socket.send_fds(self._socket, [b"w"], [wardens_end.fileno()])

    def _wait_ready(self) -> None:
        if self._ready:
            return
        self._socket.settimeout(limits.FORK_SERVER_START_WAIT_S)
        ready, _, folder = self._socket.recv(4096).decode().partition(" ")
        if ready != "ready":
            raise ClientTrouble(
                f"the fork server ended with status {self._process.wait()} before it was ready: "
                "its standard error tells why"
            )
        self._socket.settimeout(None)
        self._folder = folder
        self._ready = True

    def close(self) -> None:
        """Tell it to end, and wait: it ends when the last warden has."""
        self._socket.close()
        try:
            self._process.wait(limits.KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._folder:  # where a client has killed it
            shutil.rmtree(self._folder, ignore_errors=True)


#: Python clients: text is UTF-8, sets have the same order in every run, no stale bytecode.
_PYTHON = {"PYTHONUTF8": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def _environment(allowed: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in allowed if name in os.environ}, **given}
