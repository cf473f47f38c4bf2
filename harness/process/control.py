"""The harness's end of a warden's socket: orders out, news in. See `warden.py` for the other end."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from harness import limits
from harness.records import EndKind
from harness.waiting import DeadlineExpired

#: How long a thread sleeps at most before it looks again: another thread may have read its news.
_LOOK_AGAIN_S = 0.05


class Control:
    """Orders to one warden, and what it has said so far."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.RLock()
        self._half = b""
        self.pid = 0
        self._warden_pid = 0
        self._end: dict[str, Any] | None = None
        self._asked = 0
        self._replies = 0
        self.out: list[str] = []
        self.err: list[str] = []
        self.recent_lines: tuple[str, ...] = ()
        end.setblocking(False)

    def send_plan(self, plan: dict[str, Any]) -> None:
        """Tell the client what to be."""
        self._socket.settimeout(limits.KILL_WAIT_S)
        try:
            self._socket.sendall(json.dumps(plan).encode() + b"\n")
        except OSError:
            pass  # the warden is gone: the client counts as lost
        finally:
            self._socket.setblocking(False)

    def wait_born(self) -> bool:
        """Wait until the client exists and `pid` is known; False when its warden died before."""
        self._wait_until(lambda: self.pid != 0, "a client is born", limits.FORK_SERVER_START_WAIT_S)
        return self._end is None

    def order(self, name: str) -> None:
        """Send an order; a warden whose client has ended takes none, it may have another one by now."""
        with self._lock:
            if self._end is None:
                try:
                    self._socket.send(name.encode() + b"\n")
                except OSError:
                    pass  # the warden is gone, which is read next

    def ask(self, name: str) -> None:
        """Send an order and wait until it was carried out, or the client has ended."""
        with self._lock:
            self._asked += 1
            number = self._asked
            self.order(name)
        self._wait_until(
            lambda: self._replies >= number,
            f"the order {name!r} is carried out",
            2 * limits.KILL_WAIT_S,
        )

    def recent(self) -> tuple[str, ...]:
        """Return the last lines that the client has printed until now."""
        self.ask("output")
        return self.recent_lines

    def end(self) -> dict[str, Any] | None:
        """Return how the client ended, as fields of `ClientExit`, or None while it has not."""
        self._take_in()
        return self._end

    def wait(self, wait_s: float, fds: Sequence[int]) -> None:
        """Sleep until there is news or something to read on `fds`, or `wait_s` is over."""
        try:
            select.select([self._socket.fileno(), *fds], [], [], min(wait_s, _LOOK_AGAIN_S))
        except (OSError, ValueError):
            pass  # another thread closed it: the caller looks again

    def kill_warden(self) -> None:
        """Kill the warden; its socket then ends, and the client is known to be lost."""
        with self._lock:
            if self._end is None and self._warden_pid:
                os.kill(self._warden_pid, signal.SIGKILL)

    def give_back(self) -> socket.socket | None:
        """Return the socket of a warden whose client has ended, to bear another; None if it is gone."""
        assert self._end is not None, "the client has ended"
        return None if self._end["kind"] is EndKind.LOST else self._socket

    def close(self) -> None:
        """Close the socket, which a warden that is still there takes as an order to kill."""
        self._socket.close()

    def _wait_until(self, fact: Any, what: str, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            self._take_in()
            if fact() or self._end is not None:
                return
            if time.monotonic() >= deadline:
                raise DeadlineExpired(f"after {wait_s:g} s still not true: {what}")
            self.wait(deadline - time.monotonic(), ())

    def _take_in(self) -> None:
        """Read all that is there, without waiting."""
        with self._lock:
            while self._end is None:
                try:
                    data = self._socket.recv(1 << 16)
                except BlockingIOError:
                    return
                except OSError:
                    data = b""
                if not data:
                    self._end = {"kind": EndKind.LOST}
                    return
                *lines, self._half = (self._half + data).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "pid" in message:
            self.pid, self._warden_pid = message["pid"], message["warden"]
            return
        self.out += message["out"]
        self.err += message["err"]
        self.recent_lines = tuple(message["recent"])
        if "ended" in message:
            end = message["ended"]
            self._end = {**end, "kind": EndKind(end["kind"])}
        else:
            self._replies += 1
