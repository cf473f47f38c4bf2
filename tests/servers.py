"""Throwaway PostgreSQL servers of other versions, for tests of a given server (LAB_DATABASE_URL)."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from harness.postgres import embedded
from harness.postgres.system_user import find_system_user


@dataclass(frozen=True)
class Given:
    """A server on a loopback port with a superuser `root` and a plain `teacher` that may create."""

    port: int
    password: str

    def url(self, user: str = "teacher", database: str = "postgres") -> str:
        return f"postgresql://{user}:{self.password}@127.0.0.1:{self.port}/{database}"


def installed_servers() -> dict[str, Path]:
    """Return the program folders of servers found here, by version: the machine's, and the wheel's older one."""
    folders = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *Path("/opt/homebrew/opt").glob("postgresql@*/bin"),
    ]
    folders.append(embedded.find_programs().parents[1] / "pginstall" / "bin")
    found = {}
    for folder in folders:
        if (folder / "initdb").exists():
            text = subprocess.run(
                [folder / "initdb", "--version"], capture_output=True, text=True, check=True
            ).stdout
            found[text.split()[2].split(".")[0]] = folder
    return found


@contextmanager
def given_server(programs: Path) -> Iterator[Given]:
    """Run a server that accepts passwords only, on a free loopback port, until the context is left."""
    as_user = find_system_user().popen_arguments() if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="lab-given-", dir="/tmp"))
    password = secrets.token_hex(8)
    (folder / "password").write_text(password)
    if as_user:
        for path in (folder, folder / "password"):
            os.chown(path, as_user["user"], as_user["group"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    subprocess.run(
        [programs / "initdb", "-D", data, "-N", "-U", "root", "--auth=scram-sha-256",
         f"--pwfile={folder / 'password'}"],
        check=True, capture_output=True, cwd="/", **as_user,
    )  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(
        [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder,
         "-c", "fsync=off", "-c", "max_prepared_transactions=5"],
        stdout=log, stderr=log, cwd="/", **as_user,
    ) as server:  # fmt: skip
        try:
            yield _with_teacher(Given(port, password), data, server)
        finally:
            server.terminate()
            server.wait(20)
            shutil.rmtree(folder)


def _with_teacher(given: Given, data: Path, server: subprocess.Popen[bytes]) -> Given:
    from harness.waiting import wait_until

    def ready() -> bool:
        assert server.poll() is None, "the server ended"
        pid_file = data / "postmaster.pid"
        return pid_file.exists() and "ready" in pid_file.read_text()

    wait_until(ready, "the given server is ready", wait_s=30)
    with psycopg.connect(given.url("root"), autocommit=True) as connection:
        for name, rights in (("teacher", "CREATEDB CREATEROLE"), ("weak", "CREATEDB")):
            connection.execute(f"CREATE ROLE {name} LOGIN {rights} PASSWORD '{given.password}'")  # type: ignore[arg-type]
        connection.execute("CREATE DATABASE other OWNER teacher")
    return given
