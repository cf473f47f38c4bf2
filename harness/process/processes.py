"""What the kernel knows about a client's processes, and what can be asked of it.

Three of Linux's services make a client's end provable. A *subreaper* inherits every orphan below it,
so a process that forks twice and calls setsid is still a descendant. A *parent-death signal* ends a
process when its parent does. And `wait` that answers ECHILD says that no descendant is left. macOS
has none of the first two: there the process group and psutil's tree are all that is known.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil

from harness import limits

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a set of processes uses: resident memory, and CPU time with that of their dead children."""

    memory_bytes: int
    cpu_s: float


def adopt_orphans() -> None:
    """Make this process the subreaper of everything below it."""
    if LINUX and _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process when its parent ends; `parent_pid` is the one it was born to."""
    if LINUX:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)  # it ended before the kernel was asked


def child_signal() -> tuple[int, int]:
    """Return a pipe whose first descriptor becomes readable whenever a child of this process ends."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading, writing


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`, parents first. Some may be gone or new by the time you look."""
    if not _CHILDREN_FILE:
        try:
            return [process.pid for process in psutil.Process(pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
    found: list[int] = []
    queue = [pid]
    while queue:
        children = _children(queue.pop())
        found += children
        queue += children
    return found


def signal_each(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to every process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def signal_group(leader_pid: int, number: signal.Signals) -> None:
    """Send a signal to the group that `leader_pid` leads; the caller knows that nobody reaped it."""
    try:
        os.killpg(leader_pid, number)
    except (ProcessLookupError, PermissionError):
        # macOS answers EPERM when only zombies are left in the group.
        pass


def usage(pids: Sequence[int]) -> Usage:
    """Return what the living among `pids` use together."""
    memory_bytes, cpu_s = 0, 0.0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                memory_bytes += process.memory_info().rss
                cpu_s += sum(process.cpu_times()[:4])  # user, system, and the same of its children
        except psutil.Error:
            continue
    return Usage(memory_bytes, cpu_s)


def at_rest(pid: int) -> bool:
    """Tell whether the process is stopped, dead or gone."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def restrict(cpu_s: float, address_bytes: int | None) -> None:
    """Put the kernel's own limits on this process, as a net below the keeper's.

    RLIMIT_NPROC is missing on purpose: it does not bind root, and for anyone else it counts every
    process of the user, so an editor and a browser would break a lab.
    """
    cpu = math.ceil(cpu_s) + limits.CLIENT_CPU_SLACK_S
    caps = [
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.CLIENT_FILE_BYTES),
        (resource.RLIMIT_NOFILE, limits.CLIENT_FILES),
    ]
    if address_bytes is not None and LINUX:  # macOS maps gigabytes into every process
        caps.append((resource.RLIMIT_AS, address_bytes))
    for what, wanted in caps:
        _, hard = resource.getrlimit(what)
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(what, (allowed, allowed))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


#: The kernel's own list of children, which costs as much as the tree and not as much as the machine.
_CHILDREN_FILE = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
