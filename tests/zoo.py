"""The zoo: answers known to be wrong and answers known to be right, to test the checks themselves.

A check that has never refused anything proves nothing, and one that refuses a right answer in an
unusual style is worse than none. So each folder in `tests/wrong/` holds one realistic mistake in
otherwise right code, and each in `tests/right/` a whole style. An answer is what differs from the
worked answers in `solutions/`: whole files (`lab03_chunk/chunk.py` in the answer's folder), or edits
in its `answer.toml`, which name a piece of a worked file that occurs there exactly once:

    [[edit]]
    file = "lab03_chunk/chunk.py"
    old = '''...'''
    new = '''...'''

    for answer in wrong_answers():
        materialise(answer, tmp_path / answer.name)   # a folder to use as --impl
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.course import SOLUTIONS

HERE = Path(__file__).resolve().parent

#: The promises of both tracks, as the design names them, and what every function owes its caller.
PROMISES = frozenset(
    {
        "frozen", "same request", "approved version", "bound", "in order", "doubted", "bounded",
        "one at a time", "honest report",
        "enumerated", "one live claim", "one-way", "parent failure is not child completion",
        "the ledger wins",
        "hygiene",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrong:
    """One mistake. It must lose points in lab `lab`, and the message must name `promise`.

    `fault` is what it takes to see it: 'none' for calls and prepared rows alone, else the fault.
    `caught_by` is the check of that lab that says so: one of perhaps several that fail.
    `files` maps each overridden file, relative to the implementation's folder, to its text.
    """

    name: str
    mistake: str
    lab: int
    promise: str
    fault: str
    caught_by: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Right:
    """One style in which everything is right. `files` is as in `Wrong`."""

    name: str
    style: str
    files: Mapping[str, str]


def wrong_answers() -> list[Wrong]:
    """Return the wrong answers by name."""
    return [
        Wrong(name=f.name, files=files, **{"caught_by": "", **entry})
        for f, entry, files in _read(HERE / "wrong")
    ]


def right_answers() -> list[Right]:
    """Return the right answers by name. The worked answers themselves are not among them."""
    return [Right(name=f.name, files=files, **entry) for f, entry, files in _read(HERE / "right")]


def materialise(answer: Wrong | Right, destination: Path) -> Path:
    """Lay the worked answers with the answer's files on top into `destination`, and return it.

    The folder may exist; it becomes an implementation for `--impl`.
    """
    ignore = shutil.ignore_patterns("__pycache__", "README.md")
    shutil.copytree(SOLUTIONS, destination, ignore=ignore, dirs_exist_ok=True)
    for path, text in answer.files.items():
        (destination / path).write_text(text, encoding="utf-8")
    return destination


def _read(root: Path) -> list[tuple[Path, dict[str, Any], dict[str, str]]]:
    """Return every answer under `root`: its folder, its catalogue entry, and its files."""
    answers = []
    for catalogue in sorted(root.glob("*/answer.toml")):
        folder = catalogue.parent
        entry = tomllib.loads(catalogue.read_text(encoding="utf-8"))
        files = {
            str(path.relative_to(folder)): path.read_text(encoding="utf-8")
            for path in sorted(folder.glob("lab*/*.*"))
        }
        for edit in entry.pop("edit", []):
            files[edit["file"]] = _edited(folder.name, files, **edit)
        answers.append((folder, entry, files))
    return answers


def _edited(name: str, files: Mapping[str, str], file: str, old: str, new: str) -> str:
    """Return the file with one piece replaced. Another edit of the same file may have come before."""
    text = files.get(file) or (SOLUTIONS / file).read_text(encoding="utf-8")
    found = text.count(old)
    assert found == 1, f"{name}: this piece of {file} occurs {found} times, not once:\n{old}"
    return text.replace(old, new)
