"""The stage of a notebook: one workshop a kernel, started with the first run, ended with the kernel.

A workshop costs about a second and a run some hundredths, so a notebook keeps one. A kernel that is
killed cannot close it; then the kernel of the operating system ends the clients, the server's keeper
notices that its user is gone, and the next workshop drops the database.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from harness.course import SOLUTIONS
from harness.explore.mistakes import MISTAKES
from harness.impl import find_impl
from harness.workshop import Workshop, open_workshop

_open = ExitStack()
_workshops: list[Workshop] = []


def the_workshop() -> Workshop:
    """Return this kernel's workshop; the first call starts it, the end of the kernel closes it."""
    if not _workshops:
        atexit.register(_open.close)
        _open.callback(_workshops.clear)
        _workshops.append(_open.enter_context(open_workshop()))
    return _workshops[0]


def implementation(name: str) -> Path:
    """Return whose code runs: labs, solutions, a path, or the worked answer with one of `MISTAKES`.

    Raises:
        UnknownImpl: If it is none of them.
    """
    return _with_mistake(name) if name in MISTAKES else find_impl(name)


def _with_mistake(name: str) -> Path:
    the_workshop()  # so that the folder is removed when it closes
    folder = Path(_open.enter_context(tempfile.TemporaryDirectory(prefix="lab-mistake-")))
    copy = folder / name.replace(" ", "-")
    shutil.copytree(SOLUTIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file, edits = MISTAKES[name]
    text = (copy / file).read_text()
    for old, new in edits.items():
        assert text.count(old) == 1, f"{file}: {old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    (copy / file).write_text(text)
    return copy
