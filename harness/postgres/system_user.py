"""The unprivileged user that PostgreSQL runs as when the harness is root.

PostgreSQL refuses to run as root. No sudo or su is needed to become somebody else: a child process
takes the other identity before it executes the program.
"""

from __future__ import annotations

import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.postgres.server import DatabaseProblem

_OWN_NAME = "interrupted-labs"
_FALLBACK_NAME = "nobody"


@dataclass(frozen=True, slots=True)
class SystemUser:
    """A user by name and numbers."""

    name: str
    user_id: int
    group_id: int

    def popen_arguments(self) -> dict[str, Any]:
        """Return the arguments with which `subprocess` starts a child as this user."""
        return {"user": self.user_id, "group": self.group_id, "extra_groups": []}

    def can_run(self, program: Path) -> bool:
        """Tell by trying whether this user can reach and run `program --version`."""
        try:
            done = subprocess.run(
                [str(program), "--version"], capture_output=True, cwd="/", **self.popen_arguments()
            )
        except PermissionError:
            return False
        return done.returncode == 0


def find_system_user() -> SystemUser:
    """Return our own system user, made if it is missing; `nobody` where it cannot be made.

    Raises:
        DatabaseProblem: If this root may not become another user at all (some containers).
    """
    user = _look_up(_OWN_NAME) or _create() or _look_up(_FALLBACK_NAME)
    if user is None:
        raise DatabaseProblem("root has no unprivileged user to run PostgreSQL as", _NEXT_STEP)
    try:
        subprocess.run(["/bin/sh", "-c", ":"], cwd="/", check=True, **user.popen_arguments())
    except (OSError, subprocess.SubprocessError) as error:
        text = f"this root may not become user {user.name}, and PostgreSQL does not run as root: {error}"
        raise DatabaseProblem(text, _NEXT_STEP) from error
    return user


def _look_up(name: str) -> SystemUser | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return SystemUser(name, entry.pw_uid, entry.pw_gid) if entry.pw_uid != 0 else None


def _create() -> SystemUser | None:
    useradd = shutil.which("useradd", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if useradd is None:
        return None
    # Its status is not asked for: another command may have created the user at the same moment.
    subprocess.run(
        [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent",
         "--shell", "/usr/sbin/nologin", _OWN_NAME],
        capture_output=True, check=False,
    )  # fmt: skip
    return _look_up(_OWN_NAME)


_NEXT_STEP = "Run as a plain user, or set LAB_DATABASE_URL to a PostgreSQL of yours."
