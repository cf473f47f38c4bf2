"""The words of a failed check, as plain text: the same in pytest, in `lab check` and in a result file."""

from __future__ import annotations

from collections.abc import Sequence

from harness.course import Lab
from harness.grading.check import NotStarted, PromiseBroken
from harness.records import Boundary, Finding

#: Width of the label column.
LABEL = 14
#: Printed lines shown with a failure, and their length: enough for debugging, too little to bury it.
PRINTED_LINES = 12
PRINTED_WIDTH = 160
#: Characters of a statement in a sentence: enough to tell which one it is.
SQL_SHOWN = 48


def broken_text(broken: PromiseBroken, repeat: str) -> str:
    """Say what was done, expected and seen, which promise broke, the likely cause, what to do next."""
    first = {finding.promise: finding for finding in reversed(broken.findings)}
    told = [finding for finding in broken.findings if first[finding.promise] is finding]
    parts = [finding_text(finding) for finding in told]
    if len(told) < len(broken.findings):
        more = len(broken.findings) - len(told)
        parts.append(_line("and", f"{more} more like {'it' if len(told) == 1 else 'these'}"))
    if broken.output:
        parts.append(_line("printed", "\n".join(map(_cut, broken.output[-PRINTED_LINES:]))))
    parts.append(_line("again", repeat))
    return "\n".join(parts)


def finding_text(finding: Finding) -> str:
    """Return one finding's lines."""
    lines = [
        _line("promise", finding.promise),
        _line("did", finding.did),
        _line("expected", finding.expected),
        _line("seen", finding.seen),
    ]
    if finding.cause:
        lines.append(_line("likely cause", finding.cause))
    if finding.read:
        lines.append(_line("read", finding.read))
    return "\n".join(lines)


def not_started_text(lab: Lab, problem: NotStarted) -> str:
    """Tell a learner who has not begun what the first step is."""
    step = problem.step or (
        f"Open labs/{lab.file} and replace the line that raises NotImplementedError."
    )
    return "\n".join([
        f"Lab {lab.number} is not started yet. That is fine: this is where it begins.",
        f"  1. Read labs/{lab.folder}/README.md: the lesson, about {lab.minutes} minutes with the work.",
        f"  2. {step}",
        f"  3. Run `uv run lab check {lab.number}` again; `uv run lab hint {lab.number}` nudges.",
    ])  # fmt: skip


def unfit_text(lab: Lab, problem: BaseException, repeat: str) -> str:
    """Say that an answer is not of the kind that the contract names."""
    return "\n".join([
        _line("promise", "the contract"),
        _line("did", f"called a function of lab {lab.number} and looked into its answer"),
        _line("expected", f"an answer as the docstring in labs/{lab.file} describes it"),
        _line("seen", f"{problem}"),
        _line("likely cause", "The function returns nothing on some path, or another kind of value."),
        _line("read", f"labs/{lab.folder}/README.md"),
        _line("again", repeat),
    ])  # fmt: skip


def ours_text(verdict: str, problem: BaseException, repeat: str) -> str:
    """Say that a check ended without a verdict on the learner's code."""
    return "\n".join([
        f"This check ended with `{verdict}`: that is the kit's doing, not yours, and it was tried twice.",
        _line("reason", f"{type(problem).__name__}: {problem}"),
        _line("again", repeat),
        _line("next step", "run `uv run lab doctor`; if that finds nothing, report this text"),
    ])  # fmt: skip


def steps(texts: Sequence[str]) -> str:
    """Join what the harness did into one numbered story."""
    return "; ".join(f"({n}) {text}" for n, text in enumerate(texts, 1))


def step_text(record: Sequence[Boundary], number: int) -> str:
    """Name boundary `number` of a record by the statement that was carried out there."""
    spoken = [" ".join(boundary.sql.split()) for boundary in record[:number] if boundary.sql]
    statement = spoken[-1] if spoken else ""
    if not statement:
        return f"step {number}"
    shown = statement if len(statement) <= SQL_SHOWN else statement[: SQL_SHOWN - 3] + "..."
    return f"step {number}, `{shown}`"


def _line(label: str, value: str) -> str:
    return f"  {label + ':':<{LABEL}}" + value.replace("\n", "\n" + " " * (LABEL + 2))


def _cut(line: str) -> str:
    return line if len(line) <= PRINTED_WIDTH else line[:PRINTED_WIDTH] + " ..."
