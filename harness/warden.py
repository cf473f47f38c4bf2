"""The warden: a small process that is the parent of one client, and nothing else.

A client must end when it is told to, with everything it ever started, and its end must be proven. Only
a parent can do that without a race: its child's PID cannot be used again before it has waited for it.
So every client gets a parent of its own, forked from the fork server a moment before. The warden

* starts the client in a session and process group of its own, in an empty private folder, with a clean
  environment and no descriptor but its own;
* measures the client's whole tree every `CLIENT_WATCH_S` and ends it when it breaks a limit;
* drains its output, so that a chatty client never blocks, and keeps it within the output limit;
* kills, freezes and thaws the tree when the harness says so;
* inherits every orphan of the tree (it is a subreaper), so a double fork is no way out. When `wait`
  answers ECHILD, nothing that the client ever started is alive;
* does all of that also when the harness disappears: the control socket's end is an order to kill.

On its control socket it says the client's PID, reads one line of JSON with the client's plan, then one
line an order (kill, freeze, thaw, terminate, output). It answers every order but kill with one line,
writes a last line when the client has ended for whatever reason, and ends itself.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import socket
import tempfile
import time
import traceback
from collections import deque
from typing import Any, NoReturn

from harness import birth, limits, processes


def keep(control: socket.socket, calls_fd: int, folder: str) -> NoReturn:
    """Be the warden of one client from its birth to its end, then end this process.

    Must be called in a fresh fork without threads. `folder` is where the private folder is made,
    `calls_fd` the client's end of the call socket.
    """
    code = 1
    try:
        Warden(control, calls_fd, tempfile.mkdtemp(dir=folder)).run()
        code = 0
    except BaseException:
        # The harness sees the socket's end and calls the client lost; the reason goes to its stderr.
        traceback.print_exc()
    finally:
        os._exit(code)


class Warden:
    """One client's parent: its loop, and what it knows of the client."""

    def __init__(self, control: socket.socket, calls_fd: int, cwd: str) -> None:
        self._control = control
        self._cwd = cwd
        self._orders = b""
        self._harness_gone = False
        self._kill = False
        self._limit: str | None = None
        self._status: int | None = None
        self._recent: deque[str] = deque(maxlen=limits.CLIENT_OUTPUT_LINES)
        processes.adopt_orphans()
        self._child_ended = processes.child_signal()[0]
        newborn = birth.bear_client(cwd, calls_fd)
        self.pid = newborn.pid
        self._streams = [_Stream(newborn.stdout_fd), _Stream(newborn.stderr_fd)]
        self._say({"pid": self.pid, "warden": os.getpid()})
        self._limits = self._hand_over_plan(newborn.plan_fd)
        self._wall_end = time.monotonic() + self._limits.get("wall_s", 0)
        self._watch_at = time.monotonic() + limits.CLIENT_WATCH_S

    def _hand_over_plan(self, plan_fd: int) -> dict[str, Any]:
        """Wait for the plan, pass it on to the client, and return the limits in it."""
        while b"\n" not in self._orders:
            if not self._hear():
                return {}  # no plan was ever needed
        plan, _, self._orders = self._orders.partition(b"\n")
        try:
            with open(plan_fd, "wb") as file:
                file.write(plan)
        except BrokenPipeError:
            pass  # it was killed before it was born; how it ended is told in the end
        caps: dict[str, Any] = json.loads(plan)["limits"]
        return caps

    def run(self) -> None:
        """Serve until the client has ended, by itself or by order; leave nothing of it."""
        self._obey_all()
        while not self._over():
            for fd in self._wait(self._watch_at - time.monotonic()):
                if fd == self._control.fileno():
                    self._hear()
            self._obey_all()
            self._drain()
            self._watch()
        self._end_everything()
        shutil.rmtree(self._cwd, ignore_errors=True)
        if self._harness_gone:
            return
        self._drain()
        self._watch_output()
        self._say({"ended": self._end(), **self._output(rest=True)})

    # --- the loop -----------------------------------------------------------------------------------

    def _over(self) -> bool:
        return self._harness_gone or self._kill or self._limit is not None or self._leader_ended()

    def _wait(self, wait_s: float) -> list[int]:
        """Sleep until an order, output or a dead child, at most `wait_s`; return what is ready."""
        watched = [self._control.fileno(), self._child_ended]
        watched += [stream.fd for stream in self._streams if stream.open]
        ready, _, _ = select.select(watched, [], [], max(wait_s, 0))
        if self._child_ended in ready:
            os.read(self._child_ended, 4096)
        return ready

    def _leader_ended(self) -> bool:
        """Tell whether the client's first process is dead; it stays a zombie, which keeps its PID.

        Orphans that died are waited for on the way.
        """
        if not hasattr(os, "waitid"):  # macOS before Python 3.13; it has no adopted orphans either
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else self._status
            return pid != 0
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid == self.pid:
                return True
            os.waitpid(dead.si_pid, 0)
        return False

    def _hear(self) -> bool:
        """Take in what the harness has said; False when it is gone."""
        try:
            data = self._control.recv(1 << 16)
        except ConnectionError:
            data = b""
        self._harness_gone = not data
        self._orders += data
        return not self._harness_gone

    def _obey_all(self) -> None:
        *orders, self._orders = self._orders.split(b"\n")
        for order in orders:
            self._obey(order.decode())

    def _obey(self, order: str) -> None:
        if order == "kill":
            self._kill = True  # the answer is the last line
            return
        if order == "freeze":
            self._freeze()
        elif order == "thaw":
            self._signal_tree(signal.SIGCONT)
        elif order == "terminate":
            os.kill(self.pid, signal.SIGTERM)  # not waited for yet, so the PID is the client's
        self._drain()
        self._say(self._output())

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._harness_gone = True

    # --- signals ------------------------------------------------------------------------------------

    def _signal_tree(self, number: signal.Signals) -> list[int]:
        processes.signal_group(self.pid, number)
        below = processes.descendants(os.getpid())
        processes.signal_each(below, number)
        return below

    def _freeze(self) -> None:
        """Stop every process of the tree; return when the kernel says that they stand still."""
        deadline = time.monotonic() + limits.KILL_WAIT_S
        while time.monotonic() < deadline:
            below = self._signal_tree(signal.SIGSTOP)
            if all(processes.at_rest(pid) for pid in below):
                return
            time.sleep(limits.POLL_S)

    def _end_everything(self) -> None:
        """Kill until `wait` says that no descendant is left; the group dies in one stroke."""
        processes.signal_group(self.pid, signal.SIGKILL)
        while not self._nobody_left():
            # The group usually dies within a millisecond or two. Whoever lives longer left it.
            if not select.select([self._child_ended], [], [], 0.002)[0]:
                processes.signal_each(processes.descendants(os.getpid()), signal.SIGKILL)
            else:
                os.read(self._child_ended, 4096)

    def _nobody_left(self) -> bool:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self.pid:
                    self._status = status
        except ChildProcessError:
            return True

    # --- limits -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """End the client for what it uses. Freezing stops its clocks, but never this one."""
        now = time.monotonic()
        if now >= self._wall_end:
            self._limit = "wall"
        self._watch_output()
        if self._limit is not None or now < self._watch_at:
            return
        self._watch_at = now + limits.CLIENT_WATCH_S
        below = processes.descendants(os.getpid())
        if len(below) > self._limits["processes"]:
            self._limit = "processes"
            return
        used = processes.usage(below)
        dead = resource.getrusage(resource.RUSAGE_CHILDREN)
        if used.memory_bytes > self._limits["memory_bytes"]:
            self._limit = "memory"
        elif used.cpu_s + dead.ru_utime + dead.ru_stime > self._limits["cpu_s"]:
            self._limit = "cpu"

    def _watch_output(self) -> None:
        if (
            self._limit is None
            and sum(s.byte_count for s in self._streams) > self._limits["output_bytes"]
        ):
            self._limit = "output"

    # --- what the client said -----------------------------------------------------------------------

    def _drain(self) -> None:
        # An endless writer could keep this loop busy: one round reads a few pipes full at most.
        for stream in self._streams:
            for _ in range(16):
                lines = stream.read()
                if lines is None:
                    break
                self._recent.extend(line[: limits.CLIENT_LINE_CHARS] for line in lines)

    def _output(self, *, rest: bool = False) -> dict[str, Any]:
        """Return the new lines of each stream and the last lines of both; at the end also half lines."""
        if rest:
            for stream in self._streams:
                self._recent.extend(line[: limits.CLIENT_LINE_CHARS] for line in stream.finish())
        out, err = self._streams
        return {"out": out.take(), "err": err.take(), "recent": list(self._recent)}

    def _end(self) -> dict[str, Any]:
        assert self._status is not None, "the leader was waited for"
        if self._limit is not None:
            return {"kind": "limit", "limit": self._limit}
        code = os.waitstatus_to_exitcode(self._status)
        if code == -signal.SIGXCPU:
            return {"kind": "limit", "limit": "cpu"}
        return (
            {"kind": "exited", "code": code} if code >= 0 else {"kind": "signaled", "signal": -code}
        )


class _Stream:
    """One of the client's two output pipes, cut into lines."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.open = True
        self.byte_count = 0
        self._half = b""
        self._new: list[str] = []

    def read(self) -> list[str] | None:
        """Return the lines that one read completed, or None when nothing is there to be read."""
        if not self.open:
            return None
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return None
        if not data:
            self.open = False
            return None
        self.byte_count += len(data)
        *whole, self._half = (self._half + data).split(b"\n")
        return self._keep(whole)

    def finish(self) -> list[str]:
        """Return the line that was never completed, if any."""
        half, self._half = self._half, b""
        return self._keep([half] if half else [])

    def take(self) -> list[str]:
        """Return the lines since the last time."""
        new, self._new = self._new, []
        return new

    def _keep(self, raw: list[bytes]) -> list[str]:
        lines = [line.rstrip(b"\r").decode("utf-8", "backslashreplace") for line in raw]
        self._new += lines
        return lines
