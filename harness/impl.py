"""Whose code runs: `--impl labs`, `--impl solutions`, or a path to a submission."""

from __future__ import annotations

from pathlib import Path

from harness.course import COURSE, LABS, SOLUTIONS


class UnknownImpl(ValueError):
    """The implementation cannot be found; the text says what was looked for."""


def find_impl(name: str) -> Path:
    """Return the folder that holds the `labNN_*` folders.

    Args:
        name: `labs`, `solutions`, or a path to a folder with at least one lab folder in it.

    Raises:
        UnknownImpl: If there is no such folder, or no lab folder is in it.
    """
    known = {"labs": LABS, "solutions": SOLUTIONS}
    path = known.get(name) or Path(name).expanduser().resolve()
    if not path.is_dir():
        raise UnknownImpl(
            f"{name!r} is no implementation: use labs, solutions, or the path of a folder"
        )
    if not any((path / lab.folder).is_dir() for lab in COURSE):
        raise UnknownImpl(f"{name!r} holds no lab folder such as {COURSE[0].folder}/")
    return path
