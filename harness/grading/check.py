"""One check: its words and points, and the exceptions that decide its verdict.

no exception      pass
PromiseBroken     fail    the learner's doing; carries the findings
NotStarted        fail    the file still has its TODO; told as a first step, not as an error
EarlierLabMissing skip    an earlier lab of the learner's own is not done yet
FaultMissed       void    the fault did not land: the harness's miss
anything else     error   harness or environment
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.records import Finding

F = TypeVar("F", bound=Callable[..., Any])

#: The attribute under which `@check` keeps its words on the function.
CHECK_ATTRIBUTE = "__interrupted_check__"


@dataclass(frozen=True, slots=True)
class Check:
    """A check's words: what it shows, which promise it is about, and what it is worth."""

    title: str
    promise: str
    points: int


def check(title: str, *, promise: str, points: int) -> Callable[[F], F]:
    """Mark a pytest function as a graded check.

    Args:
        title: A claim in the present tense, for people: "the list is stored in ID order".
        promise: The promise's name as in the lesson.
        points: What a pass earns; the checks of a lab add up to 100.
    """

    def mark(function: F) -> F:
        setattr(function, CHECK_ATTRIBUTE, Check(title, promise, points))
        return function

    return mark


class PromiseBroken(AssertionError):
    """A promise was broken. `findings` say how; `output` holds what the learner's code printed."""

    def __init__(self, findings: Sequence[Finding], output: Sequence[str] = ()) -> None:
        super().__init__(
            "; ".join(f"{f.promise}: expected {f.expected}, seen {f.seen}" for f in findings)
        )
        self.findings = tuple(findings)
        self.output = tuple(output)


class NotStarted(AssertionError):
    """The learner has not filled in a file of this lab yet; the text names it.

    `step` says what to do in the file; by default, to replace the line that raises.
    """

    def __init__(self, text: str, step: str = "") -> None:
        super().__init__(text)
        self.step = step


class EarlierLabMissing(Exception):
    """A function of an earlier lab is needed and not there yet."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class FaultMissed(Exception):
    """The fault did not land; the text says what was missed."""
