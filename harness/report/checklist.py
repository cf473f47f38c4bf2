"""The terminal's view of graded checks: a line for each the moment it ends, words where one failed.

    Lab 3: Bind three records
      pass  the first chunk is done in order (60 points)
      FAIL  the last chunk may be short (0 of 40 points)
        promise:      bound
        ...
    lab 3: 60 of 100 points

Two verdicts are told once a lab and not once a check: *not started yet*, because a wall of failures
says nothing to someone who has not begun, and *skip*, because one missing lab is one fact.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from harness.course import COURSE, Lab, lab
from harness.grading.result import CheckResult
from harness.grading.session import CheckRun, Listener
from harness.records import Verdict
from harness.report.terminal import VERDICT_STYLE

#: Columns before the words of a failed check.
INDENT = 4
_LABELLED = re.compile(r"\s*[a-z][a-z ]*: ")
#: An explanation longer than this is not repeated for every check that fails for the same reason.
REPEAT_CHARS = 60
_NO_DEBUGGER = (
    "  breakpoint(): a check has no terminal; `uv run lab run {} --in-process` gives your code one"
)


class Checklist(Listener):
    """Prints checks as they end. With `before`, only those that ended otherwise than then."""

    def __init__(
        self, console: Console, labs: Sequence[Lab], before: Mapping[str, CheckResult] | None = None
    ) -> None:
        self._console = console
        self._labs = labs
        self._before = before
        self._told: dict[str, str] = {}  # what was seen → the check it was seen in
        self._held: list[CheckResult] = []
        self._lab: int | None = None
        self._begun = False  # some check of this lab found code to judge
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Checklist:
        """Show the progress bar."""
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Take the progress bar away."""
        self._bar.stop()

    def begins(self, checks: int) -> None:
        """Set the bar's length."""
        self._task = self._bar.add_task("", total=checks)

    def starts(self, title: str) -> None:
        """Name the check beside the bar."""
        if self._task is not None:
            shown = textwrap.shorten(title, max(20, self._console.width - 40), placeholder="...")
            self._bar.update(self._task, description=shown)

    def ended(self, result: CheckResult) -> None:
        """Print the check, or hold it back for the end of its lab."""
        if self._task is not None:
            self._bar.advance(self._task)
        if result.lab != self._lab:
            self._begin_lab(result.lab)
        self._begun = self._begun or not not_started(result)
        if not changed(result, self._before):
            return
        if not_started(result) or result.verdict is Verdict.SKIP:
            self._held.append(result)
        else:
            self._print(result)

    def finish(self) -> None:
        """Tell what was held back in the last lab."""
        self._tell_held()

    def _begin_lab(self, number: int) -> None:
        self._tell_held()
        self._lab = number
        self._begun = False
        self._told.clear()
        if self._before is None:
            self._console.print(Text(f"Lab {number}: {lab(number).title}", style="bold"))

    def _print(self, result: CheckResult) -> None:
        passed = result.verdict is Verdict.PASS
        word = "pass" if passed else result.verdict.upper()
        earned = f"{result.max_points}" if passed else f"{result.points} of {result.max_points}"
        line = Text.assemble(
            "  ", (f"{word:<5}", f"bold {VERDICT_STYLE[result.verdict]}"), f" {result.title} ",
            (f"({earned} points)", "dim"),
        )  # fmt: skip
        self._console.print(line, soft_wrap=not self._console.is_terminal)
        if not passed:
            print_words(self._console, self._words(result), INDENT)

    def _words(self, result: CheckResult) -> str:
        """Return the check's words; a long reason that an earlier check had too is not said twice."""
        findings = result.evidence.get("findings") or []
        reason = "\n".join(str(finding["seen"]) for finding in findings)
        first = self._told.setdefault(reason, result.title) if len(reason) > REPEAT_CHARS else ""
        if "BdbQuit" in reason:
            return f"{result.message}\n{_NO_DEBUGGER.format(result.lab)}"
        if not first or first == result.title:
            return result.message
        opening = reason.splitlines()[0]
        return (
            f"  seen:         the same as in '{first}': {opening}\n  again:        {result.repeat}"
        )

    def _tell_held(self) -> None:
        waiting = [result for result in self._held if not_started(result)]
        skipped = [result for result in self._held if result.verdict is Verdict.SKIP]
        self._held.clear()
        if waiting and self._begun:
            titles = "; ".join(result.title for result in waiting)
            text = f"  wait  for code that is not written yet: {titles} (0 points)"
            print_words(self._console, text, 0, style="yellow")
        elif waiting:
            print_words(self._console, waiting[0].message, 0)
        for reason in dict.fromkeys(result.message for result in skipped):
            count = sum(1 for result in skipped if result.message == reason)
            checks = "1 check waits" if count == 1 else f"{count} checks wait"
            print_words(self._console, f"  skip  {checks}: {reason}", 0, style="yellow")


def changed(result: CheckResult, before: Mapping[str, CheckResult] | None) -> bool:
    """Tell whether a check ended otherwise than before, in verdict or words."""
    if before is None or result.id not in before:
        return True
    old = before[result.id]
    return (old.verdict, old.message) != (result.verdict, result.message)


def not_started(result: CheckResult) -> bool:
    """Tell whether a check failed only because nothing has been written yet."""
    return bool(result.evidence.get("not_started"))


def print_words(console: Console, text: str, indent: int, style: str = "") -> None:
    """Print plain text, long lines wrapped under their own beginning (in a terminal only).

    A line that is printed over and over, as by a loop that does not end, is shown once.
    """
    for line, same in groupby(text.splitlines()):
        times = sum(1 for _ in same)
        line = " " * indent + line + (f"   ({times} times)" if times > 1 else "")
        if console.is_terminal and len(line) > console.width:
            depth = len(line) - len(line.lstrip())
            hanging = 16 + indent if _LABELLED.match(line) else depth
            lines = textwrap.wrap(
                line.strip(), console.width, initial_indent=" " * depth,
                subsequent_indent=" " * hanging, break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
        else:
            lines = [line]
        for piece in lines:
            console.print(Text(piece, style=style), soft_wrap=True)


def points_line(entry: Lab, run: CheckRun, before: Mapping[str, CheckResult] | None = None) -> Text:
    """Return the one line that sums a lab up; with `before`, also what it was then."""
    results = run.of(entry)
    points, most = (sum(r.points for r in results), sum(r.max_points for r in results))
    style = "bold green" if points == most and results else "bold"
    text = Text.assemble((f"lab {entry.number}: {points} of {most} points", style))
    if not run.whole:
        text.append(" (not all checks were run)", style="dim")
    if before:
        was = sum(before[r.id].points for r in results if r.id in before)
        text.append(f" (was {was})" if was != points else " (as before)", style="dim")
    return text


def next_step(entry: Lab, run: CheckRun) -> str:
    """Say what a learner does now; empty when the words of the checks say it already."""
    results = run.of(entry)
    verdicts = {result.verdict for result in results}
    number = entry.number
    if all(not_started(result) for result in results):
        return ""
    if Verdict.FAIL in verdicts:
        return (
            f"Next: read the first failure, all of it; change one thing; `uv run lab check {number}` "
            f"again. `uv run lab hint {number}` nudges."
        )
    if verdicts & {Verdict.VOID, Verdict.ERROR}:
        return "Next: this is the kit's trouble, not yours. Run it again; `uv run lab doctor` looks for causes."
    if Verdict.SKIP in verdicts:
        return (
            "Next: finish the earlier lab (`uv run lab status` shows where you are), or let "
            f"`uv run lab catch-up {number}` put the worked files of the earlier labs in place."
        )
    if not run.whole:
        return f"Next: `uv run lab check {number}` runs all checks of the lab."
    return _after(entry)


def _after(entry: Lab) -> str:
    later = [other for other in COURSE if other.number == entry.number + 1]
    compare = f"`uv run lab diff {entry.number}` compares yours with the worked file."
    if not later:
        return f"Lab {entry.number} is done, and it is the last one. {compare}"
    return f"Lab {entry.number} is done. {compare} Next: labs/{later[0].folder}/README.md"
