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

On its control socket it reads `bear`, which brings the client's end of the call socket, and says the
client's PID. It reads the plan, then orders (kill, freeze, thaw, terminate, output), all one line each.
It answers every order but kill with a line, and says last how the client has ended. Then it is ready
to bear another client: what it knows of the last one is forgotten with it.
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

from harness import limits
from harness.process import birth, processes


def keep(control: socket.socket, folder: str) -> NoReturn:
    """Be the warden of one client after another until the harness is gone, then end this process.

    Must be called in a fresh fork without threads. `folder` is where the private folders are made.
    """
    code = 1
    try:
        processes.adopt_orphans()
        child_ended = processes.child_signal()[0]
        harness = _Harness(control)
        while (calls_fd := harness.wait_bear()) is not None:
            Warden(harness, child_ended, calls_fd, tempfile.mkdtemp(dir=folder)).run()
        code = 0
    except BaseException:
        # The harness sees the socket's end and calls the client lost; the reason goes to its stderr.
        traceback.print_exc()
    finally:
        os._exit(code)


class _Harness:
    """The harness as the warden sees it: lines in, lines out, and whether it is still there."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._bytes = b""
        self._fds: list[int] = []
        self.gone = False

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._control.fileno()

    def hear(self) -> None:
        """Take in what has come; waits if nothing has."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
        except ConnectionError:
            data, fds = b"", []
        self.gone = not data
        self._bytes += data
        self._fds += fds

    def next_line(self) -> bytes | None:
        """Return the next whole line that has come, or None."""
        line, end, rest = self._bytes.partition(b"\n")
        if not end:
            return None
        self._bytes = rest
        return line

    def wait_line(self) -> bytes | None:
        """Wait for the next line; None when the harness is gone."""
        while (line := self.next_line()) is None and not self.gone:
            self.hear()
        return line

    def wait_bear(self) -> int | None:
        """Wait for the order to bear and return the descriptor that came with it.

        Orders before it were for a client that had ended by the time they came.
        """
        while (line := self.wait_line()) != b"bear":
            if line is None:
                return None
        return self._fds.pop(0)

    def say(self, message: dict[str, Any]) -> None:
        """Send one line, unless the harness is gone."""
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.gone = True


class Warden:
    """One client's life: the loop that serves it, and what is known of it."""

    def __init__(self, harness: _Harness, child_ended: int, calls_fd: int, cwd: str) -> None:
        self._harness = harness
        self._child_ended = child_ended
        self._cwd = cwd
        self._kill = False
        self._limit: str | None = None
        self._status: int | None = None
        self._recent: deque[str] = deque(maxlen=limits.CLIENT_OUTPUT_LINES)
        self._cpu_before_s = _cpu_of_the_dead()
        newborn = birth.bear_client(cwd, calls_fd)
        self.pid = newborn.pid
        self._streams = [_Stream(newborn.stdout_fd), _Stream(newborn.stderr_fd)]
        harness.say({"pid": self.pid, "warden": os.getpid()})
        self._limits = self._hand_over_plan(newborn.plan_fd)
        self._wall_end = time.monotonic() + self._limits.get("wall_s", 0)
        self._watch_at = time.monotonic() + limits.CLIENT_WATCH_S

    def _hand_over_plan(self, plan_fd: int) -> dict[str, Any]:
        """Wait for the plan, pass it on to the client, and return the limits in it."""
        plan = self._harness.wait_line()
        try:
            with open(plan_fd, "wb") as file:
                file.write(plan or b"")
        except BrokenPipeError:
            pass  # it was killed before it had a plan; how it ended is told in the end
        if plan is None:
            return {}  # none was ever needed
        caps: dict[str, Any] = json.loads(plan)["limits"]
        return caps

    def run(self) -> None:
        """Serve until the client has ended, by itself or by order; leave nothing of it."""
        while not self._over():
            if self._harness.fileno() in self._wait(self._watch_at - time.monotonic()):
                self._harness.hear()
            self._drain()
            self._watch()
        self._end_everything()
        shutil.rmtree(self._cwd, ignore_errors=True)
        if not self._harness.gone:
            self._drain()
            self._watch_output()
            self._harness.say({"ended": self._end(), **self._output(rest=True)})
        for stream in self._streams:
            os.close(stream.fd)

    # --- the loop -----------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Obey what was ordered, and tell whether the client's life is over."""
        while not self._kill and (order := self._harness.next_line()) is not None:
            self._obey(order.decode())
        return self._harness.gone or self._kill or self._limit is not None or self._leader_ended()

    def _wait(self, wait_s: float) -> list[int]:
        """Sleep until an order, output or a dead child, at most `wait_s`; return what is ready."""
        watched = [self._harness.fileno(), self._child_ended]
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
        self._harness.say(self._output())

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
            time.sleep(limits.POLL_S)  # between two questions to the kernel; decides nothing

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
        dead_cpu_s = _cpu_of_the_dead() - self._cpu_before_s
        if used.memory_bytes > self._limits["memory_bytes"]:
            self._limit = "memory"
        elif used.cpu_s + dead_cpu_s > self._limits["cpu_s"]:
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


def _cpu_of_the_dead() -> float:
    """Return the CPU time of every descendant that was waited for, in seconds."""
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    return dead.ru_utime + dead.ru_stime
