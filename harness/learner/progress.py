"""The learner's progress: one small text file, `.lab/progress.toml` in the checkout.

    # Your progress in Interrupted, kept by the `lab` command.
    version = 1

    [lab03_chunk]
    points = 60
    max_points = 100
    hints = 2

A person may read it, edit it or delete it. Nothing in it is evidence: an instructor grades the code.
The file is replaced as a whole, under a lock, so two commands at once lose nothing. A file that
cannot be read is set aside under another name before a new one is written; a file of a newer kit is
left alone, and progress is then not recorded.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from harness.course import COURSE, ROOT, Lab
from harness.limits import PROGRESS_LOCK_WAIT_S

#: The folder for what belongs to the learner's checkout and to no commit.
HOME = ROOT / ".lab"
PATH = HOME / "progress.toml"
VERSION = 1
_HEAD = "# Your progress in Interrupted, kept by the `lab` command.\nversion = {}\n"


@dataclass(frozen=True)
class LabProgress:
    """What is remembered about one lab.

    `points` and `max_points` are of the last whole check, None before the first; `hints` is how many
    hints were shown; `worked` tells that `lab catch-up` put the worked file there.
    """

    points: int | None = None
    max_points: int | None = None
    hints: int = 0
    worked: bool = False

    @property
    def done(self) -> bool:
        """Tell whether the last whole check earned every point."""
        return self.points is not None and self.points == self.max_points

    @property
    def behind(self) -> bool:
        """Tell whether there is nothing left to do here: done, or filled in by the kit."""
        return self.done or self.worked


@dataclass(frozen=True)
class Progress:
    """The whole file. `trouble` is empty, or says why the file was not used, with a next step."""

    labs: Mapping[str, LabProgress] = field(default_factory=dict)
    trouble: str = ""
    newer: bool = False

    def of(self, lab: Lab) -> LabProgress:
        """Return what is remembered about a lab."""
        return self.labs.get(lab.folder, LabProgress())

    def first_unfinished(self) -> Lab | None:
        """Return the first lab with something left to do, or None."""
        return next((lab for lab in COURSE if not self.of(lab).behind), None)


class _Damaged(ValueError):
    """The file is not what `_text` writes; the text says where."""


def load(path: Path = PATH) -> Progress:
    """Read the progress. Never fails: what is wrong with the file is told in `trouble`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        version = data.pop("version", None)
        if isinstance(version, int) and version > VERSION:
            text = f"{_shown(path)} was written by a newer version of the kit: it is left as it is, and progress is not recorded. Update the kit, or move the file away."
            return Progress(trouble=text, newer=True)
        if version != VERSION:
            raise _Damaged(f"version is {version!r}, not {VERSION}")
        return Progress({name: _entry(name, value) for name, value in data.items()})
    except FileNotFoundError:
        return Progress()
    except (OSError, ValueError) as problem:
        text = f"{_shown(path)} cannot be read ({problem}): progress counts from zero. The next command that records something keeps this file under another name; repair it before that to keep your progress."
        return Progress(trouble=text)


def record(lab: Lab, path: Path = PATH, **changes: Any) -> Progress:
    """Change what is remembered about one lab, and return the progress as it is then.

    Args:
        changes: Fields of `LabProgress`.

    A file of a newer kit is not written, and neither is one in a place that cannot be written; the
    returned `trouble` says so. Progress is a convenience: without it every command still works.
    """
    try:
        return _record(lab, path, changes)
    except OSError as problem:
        text = f"{_shown(path)} cannot be written ({problem}): nothing was recorded."
        return replace(load(path), trouble=text)


def _record(lab: Lab, path: Path, changes: Mapping[str, Any]) -> Progress:
    from filelock import FileLock  # an eighth of a command's start, and needed only to write

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock"), timeout=PROGRESS_LOCK_WAIT_S):
        progress = load(path)
        if progress.newer:
            return progress
        kept = _set_aside(path) if progress.trouble else ""
        labs = {**progress.labs, lab.folder: replace(progress.of(lab), **changes)}
        _write(path, _text(labs))
    return Progress(labs, kept)


def forget(lab: Lab, path: Path = PATH) -> Progress:
    """Remember nothing about one lab any more, its hints included."""
    return record(lab, path, **asdict(LabProgress()))


def _entry(name: str, value: Any) -> LabProgress:
    if not isinstance(value, dict):
        raise _Damaged(f"{name} is no table")
    known = {f.name for f in fields(LabProgress)}
    if extra := set(value) - known:
        raise _Damaged(f"{name} has an unknown entry: {min(extra)}")
    for key, item in value.items():
        wanted = bool if key == "worked" else int
        if type(item) is not wanted or (wanted is int and item < 0):
            raise _Damaged(f"{name}.{key} is {item!r}")
    return LabProgress(**value)


def _text(labs: Mapping[str, LabProgress]) -> str:
    nothing = asdict(LabProgress())
    parts = [_HEAD.format(VERSION)]
    for name in sorted(labs):
        entry = {k: v for k, v in asdict(labs[name]).items() if v != nothing[k]}
        if entry:
            lines = [f"{k} = {'true' if v is True else v}\n" for k, v in entry.items()]
            parts.append(f"\n[{name}]\n" + "".join(lines))
    return "".join(parts)


def _set_aside(path: Path) -> str:
    number = 1
    while (kept := path.with_name(f"progress.damaged-{number}.toml")).exists():
        number += 1
    os.replace(path, kept)
    return (
        f"{_shown(path)} could not be read; it is kept as {_shown(kept)}, and a new one was begun."
    )


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
