"""Notice that a learner saved a file, and that `q` was pressed: the two events of a watch.

The watch begins when the context is entered, before the first run, so nothing saved during a run is
missed: it is the first thing that `saves` yields afterwards.
"""

from __future__ import annotations

import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from watchfiles import Change, watch

from harness.limits import WATCH_DEBOUNCE_MS, WATCH_KEY_MS, WATCH_STEP_MS

#: The endings of what a learner writes.
ENDINGS = (".py", ".sql")


@contextmanager
def saves(folder: Path) -> Iterator[Iterator[tuple[str, ...]]]:
    """Give an iterator that yields the names of the files saved together, and ends at `q`.

    Without a terminal on standard input there is no `q`; Ctrl-C is a KeyboardInterrupt as ever.
    """
    events = watch(
        folder,
        watch_filter=_is_the_learners,
        debounce=WATCH_DEBOUNCE_MS,
        step=WATCH_STEP_MS,
        rust_timeout=WATCH_KEY_MS,
        yield_on_timeout=True,
    )
    first = next(events)  # from here on the folder is watched
    with _single_keys():
        yield _saves(events, first)


def _saves(
    events: Iterator[set[tuple[Change, str]]], first: set[tuple[Change, str]]
) -> Iterator[tuple[str, ...]]:
    if first:
        yield _names(first)
    for changes in events:
        if _pressed() in ("q", "Q"):
            return
        if changes:
            yield _names(changes)


def _names(changes: set[tuple[Change, str]]) -> tuple[str, ...]:
    return tuple(sorted({Path(path).name for _, path in changes}))


def _is_the_learners(change: Change, path: str) -> bool:
    """Tell whether a file is the learner's: not the kit's checks, no editor's scratch file."""
    file = Path(path)
    hidden = any(part.startswith(".") or part == "__pycache__" for part in file.parts[-2:])
    return file.suffix in ENDINGS and not file.name.startswith("test_") and not hidden


@contextmanager
def _single_keys() -> Iterator[None]:
    """Let keys arrive one by one and unseen, if there is a terminal; Ctrl-C stays a signal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed() -> str:
    """Return the key that was pressed, or nothing; never waits."""
    if sys.stdin.isatty() and select.select([sys.stdin], [], [], 0)[0]:
        return sys.stdin.read(1)
    return ""
