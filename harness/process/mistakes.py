"""A learner's error, by value: what it was called, what it said, and the learner's own lines.

Frames of the kit and of psycopg are left out, because they are never the mistake; paths are relative
to the implementation, because that is how the learner knows the files.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from harness import limits
from harness.course import Lab
from harness.process.values import printable


def describe_error(error: BaseException, impl: Path, package: str, phase: str) -> dict[str, Any]:
    """Return the fields of `records.Raised` for `error`, as JSON can hold them.

    Never raises: whatever about the error cannot be read is replaced by a word about that.
    """
    kind = type(error)
    sqlstate = getattr(error, "sqlstate", None)
    return {
        "type_name": str(kind.__name__),
        "bases": [str(c.__name__) for c in kind.__mro__[1:] if c is not object],
        "text": _text(error, impl, package),
        "sqlstate": sqlstate if isinstance(sqlstate, str) else None,
        "traceback": _traceback(error, impl, package),
        "phase": phase,
    }


def missing_file(lab: Lab, impl: Path) -> dict[str, Any]:
    """Describe a lab whose file is not there."""
    text = f"{lab.file} is missing: lab {lab.number} is answered in that file, in {impl.name}/"
    return _plain("FileNotFoundError", text, "import")


def missing_function(lab: Lab, function: str, found: object) -> dict[str, Any]:
    """Describe a file without the function, or with something else under its name."""
    wanted = f"{lab.file} must define a function {function}()"
    seen = "there is none" if found is None else f"{function} is of type {type(found).__name__}"
    return _plain("LookupError", f"{wanted}; {seen}", "lookup")


def _plain(type_name: str, text: str, phase: str) -> dict[str, Any]:
    return {
        "type_name": type_name,
        "bases": ["Exception", "BaseException"],
        "text": text,
        "sqlstate": None,
        "traceback": [],
        "phase": phase,
    }


def _text(error: BaseException, impl: Path, package: str) -> str:
    try:
        text = str(error)
    except Exception as second:
        text = f"(its text cannot be read: {type(second).__name__})"
    text = printable(text[: limits.CLIENT_ERROR_CHARS])
    return text.replace(f"{impl}/", "").replace(f"{package}.", "")


def _traceback(error: BaseException, impl: Path, package: str) -> list[str]:
    """Return the learner's frames, newest last, and before them those of the errors that led here."""
    lines: list[str] = []
    seen: set[int] = set()
    chained: BaseException | None = error
    while chained is not None and id(chained) not in seen and len(seen) < 4:
        seen.add(id(chained))
        frames = _frames(chained, impl)
        if chained is not error and frames:
            frames.append(f"{type(chained).__name__}: {_text(chained, impl, package)}")
            frames.append("which led to:" if chained is error.__cause__ else "and then:")
        lines = frames + lines
        hidden = chained.__suppress_context__
        chained = chained.__cause__ or (None if hidden else chained.__context__)
    return [printable(line) for line in lines]


def _frames(error: BaseException, impl: Path) -> list[str]:
    found = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in found if frame.filename.startswith(f"{impl}/")]
    lines: list[str] = []
    for frame in own[-limits.CLIENT_ERROR_FRAMES :]:
        name = frame.filename.removeprefix(f"{impl}/")
        lines.append(f'File "{name}", line {frame.lineno}, in {frame.name}')
        if frame.line:
            lines.append(f"    {frame.line[: limits.CLIENT_LINE_CHARS]}")
    if isinstance(error, SyntaxError) and error.filename:
        told = "".join(traceback.format_exception_only(error)).replace(f"{impl}/", "")
        # The last line repeats the type and the text.
        lines += [line.removeprefix("  ") for line in told.splitlines()[:-1]]
    return lines
