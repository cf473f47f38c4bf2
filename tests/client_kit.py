"""What the client tests share: small submissions written on the spot, and a count of what is left."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness import limits
from harness.client import Client, ClientHost, ClientLimits
from harness.database import Laboratory
from harness.process import processes
from harness.records import CallResult
from harness.waiting import wait_until


@dataclass
class Kit:
    """A host, a way to the database, and a folder for submissions."""

    host: ClientHost
    laboratory: Laboratory
    folder: Path
    clients: list[Client] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        """Return the learner's way to the server, without a proxy."""
        upstream = self.laboratory.server.upstream
        return self.laboratory.learner_dsn(upstream.host, upstream.port)

    def write(self, source: str, path: str = "lab03_chunk/chunk.py") -> Path:
        """Write one file of a submission and return the submission's folder."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
        return self.folder

    def calls(self, source: str, **caps: Any) -> Client:
        """Start a client that answers calls on this lab 3."""
        return self._add(
            self.host.start_calls(self.write(source), self.dsn, limits=ClientLimits(**caps))
        )

    def run(self, source: str, *args: Any, **caps: Any) -> CallResult:
        """Return what one call of `run_chunk` in this lab 3 came to."""
        client = self.calls(source, **caps)
        client.call(3, "run_chunk", *args)
        return client.result()

    def program(self, source: str, *argv: str, **caps: Any) -> Client:
        """Start this lab 6 as a program."""
        impl = self.write(source, "lab06_takeover/worker.py")
        return self._add(self.host.start_program(impl, 6, argv, limits=ClientLimits(**caps)))

    def command(self, *command: str, env: dict[str, str] | None = None, **caps: Any) -> Client:
        """Start any program in the submission's folder."""
        return self._add(
            self.host.start_command(
                command, env=env or {}, cwd=self.folder, limits=ClientLimits(**caps)
            )
        )

    def _add(self, client: Client) -> Client:
        self.clients.append(client)
        return client

    def wait_told(self, client: Client, count: int = 1) -> list[str]:
        """Wait until the client has printed `count` lines, and return all of them."""
        return list(
            wait_until(
                lambda: len(lines := client.lines()) >= count and lines,
                f"{count} lines are printed",
                wait_s=limits.HOLD_WAIT_S,
                dump=lambda: str(client.errors()),
            )
        )


@contextmanager
def open_kit(host: ClientHost, laboratory: Laboratory, folder: Path) -> Iterator[Kit]:
    """Lend a kit, close its clients, and demand that nothing of them is left."""
    kit = Kit(host, laboratory, folder / "a submission")
    kit.folder.mkdir()
    descriptors = descriptors_in_use(host)
    yield kit
    for client in kit.clients:
        client.close()
    assert_only_newborns_are_left(host)
    assert descriptors_in_use(host) == descriptors


def descriptors_in_use(host: ClientHost) -> int:
    """Count this process's descriptors, less the two of each client without a plan."""
    listed = os.listdir("/proc/self/fd") if processes.LINUX else []
    return len(listed) - 2 * len(host._newborn)


def warm(host: ClientHost) -> None:
    """Start and end clients, so that the host holds what it will hold from now on."""
    clients = [host.start_command(["true"], env={}, cwd=Path("/")) for _ in range(2)]
    for client in clients:
        client.close()


def assert_only_newborns_are_left(host: ClientHost) -> None:
    """Demand that below the fork server are the clients without a plan and their wardens, no more."""
    server = fork_server_pid(host)
    wait_until(
        lambda: len(processes.descendants(server)) == 2 * len(host._newborn),
        "no process of a closed client is left",
        wait_s=limits.KILL_WAIT_S,
        dump=lambda: str([psutil.Process(p) for p in processes.descendants(server)]),
    )


def fork_server_pid(host: ClientHost) -> int:
    """Return the PID of the host's fork server."""
    assert host._server is not None
    return host._server._process.pid


def gone(pid: int) -> bool:
    """Tell whether no process has this PID, or only a zombie that nobody has waited for yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
