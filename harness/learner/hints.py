"""Hints: the sections `## Hint k` of a lab's `hints.md`, from a nudge to nearly the answer."""

from __future__ import annotations

import re

from harness.course import LABS, Lab

_HEADING = re.compile(r"^## Hint \d+[^\n]*\n", re.MULTILINE)


def read_hints(lab: Lab) -> tuple[str, ...]:
    """Return the hints of a lab in order, as Markdown without their headings; () when it has none."""
    try:
        text = (LABS / lab.folder / "hints.md").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return tuple(part.strip() for part in _HEADING.split(text)[1:])
