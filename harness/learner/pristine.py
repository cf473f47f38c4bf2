"""The files to fill in, as they were before anyone touched them, and copies before they are replaced.

`lab reset` needs the pristine file. Git cannot give it: a downloaded archive has none, and learners
commit their work. So the kit carries a second copy of every file to fill in, as package data under
`harness/learner/stubs/`, with the ending `.stub` so that nothing imports, lints or checks it. A test holds the
two equal. After a change to a file in labs/:

    uv run python -m harness.learner.pristine
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

from harness.course import COURSE, LABS, ROOT, SOLUTIONS, Lab
from harness.learner.progress import HOME

STUBS = Path(__file__).resolve().parent / "stubs"
BACKUPS = HOME / "backup"
_ENDING = ".stub"


def files_of(lab: Lab) -> tuple[str, ...]:
    """Return the files a learner fills in, relative to labs/: the lab's module first."""
    names = [f"{lab.folder}/{p.name[: -len(_ENDING)]}" for p in (STUBS / lab.folder).glob(f"*{_ENDING}")]  # fmt: skip
    return tuple(sorted(names, key=lambda name: (name != lab.file, name)))


def untouched(lab: Lab) -> bool:
    """Tell whether every file of the lab is still as the kit ships it (a missing one is not)."""
    return all(_read(LABS / name) == stub_text(name) for name in files_of(lab))


def is_worked(lab: Lab) -> bool:
    """Tell whether every file of the lab equals the worked one."""
    return all(_read(LABS / name) == _read(SOLUTIONS / name) for name in files_of(lab))


def stub_text(name: str) -> str:
    """Return the pristine text of a file, named as in `files_of`."""
    return (STUBS / f"{name}{_ENDING}").read_text(encoding="utf-8")


def restore(lab: Lab) -> None:
    """Put the pristine files back. The caller has made a backup."""
    for name in files_of(lab):
        _write(LABS / name, stub_text(name))


def copy_worked(lab: Lab) -> None:
    """Put the worked files in place of the learner's. The caller has made a backup."""
    for name in files_of(lab):
        _write(LABS / name, (SOLUTIONS / name).read_text(encoding="utf-8"))


def back_up(lab: Lab) -> Path | None:
    """Copy the learner's files of a lab to a new folder and return it; None when there are none."""
    present = [name for name in files_of(lab) if (LABS / name).is_file()]
    if not present:
        return None
    folder = _new_folder()
    for name in present:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(LABS / name, target)
    return folder


def _new_folder() -> Path:
    """Make a folder named after the moment; a second one in the same second gets a number."""
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        folder = BACKUPS / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise OSError(f"too many backups in one second: {BACKUPS / stamp}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole, so that an editor or a watcher never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def _refresh() -> None:
    """Make the stubs anew from labs/; refuse a file that somebody has filled in."""
    for lab in COURSE:
        for path in sorted((LABS / lab.folder).glob("*")):
            if path.suffix not in (".py", ".sql") or path.name.startswith("test_"):
                continue
            text = path.read_text(encoding="utf-8")
            if "TODO" not in text:
                sys.exit(f"{path.relative_to(ROOT)} has no TODO: it is filled in, and no stub")
            _write(STUBS / lab.folder / f"{path.name}{_ENDING}", text)


if __name__ == "__main__":
    _refresh()
