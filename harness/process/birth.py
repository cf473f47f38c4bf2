"""How a client is born: from the warden's fork to its first instruction.

Between the two lies everything that must not leak from the kit into a client: descriptors, signal
handlers, environment variables, the current folder. A client is born before anybody knows what for (the
fork costs more than the rest), and waits for its plan on a pipe. What runs then depends on the plan's
`mode`:

* `calls` and `program` run `harness.process.child`, right in the fork (psycopg is imported already) or, with
  `spawn`, in a fresh interpreter.
* `command` becomes any program, in any language.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from harness import limits
from harness.course import ROOT
from harness.process import processes

#: The descriptor that a client in call mode talks to the harness on, after 0, 1 and 2.
CALLS_FD = 3
#: Where the plan is read from; closed before anything of the learner's runs.
PLAN_FD = 4
#: In spawn mode the plan reaches the fresh interpreter in this variable.
PLAN_VARIABLE = "INTERRUPTED_PLAN"


@dataclass(frozen=True, slots=True)
class Newborn:
    """A client without a plan: where to write the plan to, and where its output can be read."""

    pid: int
    plan_fd: int
    stdout_fd: int
    stderr_fd: int


def bear_client(cwd: str, calls_fd: int) -> Newborn:
    """Fork a client that waits for its plan, in the folder `cwd`; `calls_fd` becomes its own."""
    stdout_fd, stdout = os.pipe()
    stderr_fd, stderr = os.pipe()
    plan, plan_fd = os.pipe()
    theirs = [os.open(os.devnull, os.O_RDONLY), stdout, stderr, calls_fd, plan]
    warden_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_client(cwd, theirs, warden_pid)
    for fd in theirs:
        os.close(fd)
    return Newborn(pid, plan_fd, stdout_fd, stderr_fd)


def _be_client(cwd: str, fds: list[int], warden_pid: int) -> NoReturn:
    code = 126
    try:
        os.setsid()
        processes.die_with_parent(warden_pid)
        _take_descriptors(fds)
        _reset_signals()
        _follow(_read_plan(), cwd)
        code = 0
    except FileNotFoundError as error:
        os.write(2, f"no such program or folder: {error.filename}\n".encode())
        code = 127
    except BaseException as error:
        os.write(2, f"the client could not be started: {error!r}\n".encode())
    finally:
        os._exit(code)


def _take_descriptors(fds: list[int]) -> None:
    """Make `fds` the descriptors 0, 1, ...; close every other one."""
    # First out of the way, so that no dup2 overwrites one that is still needed.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, len(fds)) for fd in fds]
    for target, fd in enumerate(moved):
        os.dup2(fd, target, inheritable=target <= 2)
    os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _read_plan() -> dict[str, Any]:
    with open(PLAN_FD, "rb") as file:
        plan: dict[str, Any] = json.loads(file.read())
    if plan["mode"] != "calls":
        os.close(CALLS_FD)
    return plan


def _follow(plan: dict[str, Any], cwd: str) -> None:
    # No ~/.pgpass and no shared /tmp, unless the plan says so.
    os.environ.clear()
    os.environ.update({"HOME": cwd, "TMPDIR": cwd, **plan["env"]})
    os.chdir(plan["cwd"] if plan["mode"] == "command" else cwd)
    caps = plan["limits"]
    # A runtime with a garbage collector of its own (Java, Go, Node) reserves far more address space
    # than it uses, so a foreign command has only the limit on resident memory.
    address_bytes = caps["memory_bytes"] + limits.CLIENT_ADDRESS_SLACK_BYTES
    processes.restrict(caps["cpu_s"], None if plan["mode"] == "command" else address_bytes)
    _run(plan)


def _run(plan: dict[str, Any]) -> None:
    if plan["mode"] == "command":
        signal.signal(
            signal.SIGPIPE, signal.SIG_DFL
        )  # Python ignores both; a program expects neither
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        program = plan["command"][0]
        try:
            os.execvp(program, plan["command"])
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such program", program) from None
    if plan["spawn"]:
        if plan["mode"] == "calls":
            os.set_inheritable(CALLS_FD, True)
        os.environ[PLAN_VARIABLE] = json.dumps(plan)
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "harness.process.child"])
    from harness.process import child  # the fork server has imported it

    child.run(plan)
