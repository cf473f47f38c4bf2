"""The terminal's view of a sweep: a grid of boundaries by chunk, coverage in words, stories.

A cell's letter says which boundary it is, and a failure has a letter of its own, so the grid reads
without colours, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from harness.faults import Kind
from harness.records import COMMIT_POINT, POINT_ALIASES, Boundary, Finding, Verdict
from harness.report.terminal import VERDICT_STYLE, finding_text
from harness.run import Run
from harness.story import tell
from harness.sweep import Cell, Sweep, by_point, chunk_of

#: Letters of the points; any other change of a table is a plus.
POINT_LETTERS = {"orders": "o", "audit": "a", "checkpoint": "p", COMMIT_POINT: "C"}
BROKEN, VOID, MISSING, IMPOSSIBLE = "X", "?", "-", "_"
#: Cells in one line of the grid: with its label it fits 80 columns.
CELLS_A_LINE = 60
#: Failures named beside the one that is told.
LINES_SHOWN = 6
SWEEP_SCHEMA = "interrupted/sweep/v1"
RANDOM_SCHEMA = "interrupted/stories/v1"


def print_sweep(console: Console, sweep: Sweep, repeat: str) -> None:
    """Print one sweep: grid, coverage, and the failures.

    Args:
        repeat: The command that repeats a failure, up to its fault line: ``lab sweep 3``.
    """
    console.print(sweep_view(sweep), highlight=False)
    if sweep.record.findings and sweep.started:
        console.print(Text("\nWithout any fault:", style="bold"))
        console.print(finding_text(sweep.record.findings[0]), end="")
    record = sweep.record.boundaries
    told, *others = sweep.failures or (None,)
    if told is not None:
        print_failure(console, told.run, record, repeat_command(repeat, repeat_line(told, record)))
    named = [
        cell
        for cell in others
        if not repeat_line(cell, record)[-1:].isdigit() or "#" in repeat_line(cell, record)
    ]
    for cell in (named or others)[:LINES_SHOWN]:
        line = repeat_command(repeat, repeat_line(cell, record))
        console.print(f"  {cell.run.findings[0].promise}:  {line}", highlight=False)
    more = len(others) - len((named or others)[:LINES_SHOWN])
    if more > 0:
        console.print(f"  and {more} more like them", style="dim")


def repeat_command(command: str, line: str) -> str:
    """Put the fault line into the command: in its place, where it has one, else at the end."""
    at = f"--at '{line}'"
    return command.replace("{at}", at) if "{at}" in command else f"{command} {at}"


def sweep_view(sweep: Sweep) -> RenderableType:
    """Return title, grid and coverage."""
    row = sweep.activity
    title = Text(f"lab {row.lab}: {row.name}" if row.lab else row.name, style="bold")
    if not sweep.started:
        return Group(title, Text("  not started yet", style=VERDICT_STYLE[Verdict.SKIP]))
    notes = [Text(f"  {note}", style="yellow") for note in sweep.notes]
    return Group(title, *_rows(sweep), *notes, coverage_words(sweep))


def legend(sweeps: Sequence[Sweep]) -> Text:
    """Explain the letters that occur."""
    letters = {boundary_letter(b) for s in sweeps for b in s.record.boundaries}
    names = [f"{letter} {point}" for point, letter in POINT_LETTERS.items() if letter in letters]
    names += ["+ another change"] if "+" in letters else []
    names += [
        ". any other",
        f"{BROKEN} a promise broke",
        f"{VOID} did not land",
        f"{MISSING} not tried",
        f"{IMPOSSIBLE} not possible there",
    ]
    return Text("one letter a boundary:  " + "   ".join(names), style="dim")


def print_failure(console: Console, run: Run, record: Sequence[Boundary], command: str) -> None:
    """Print a failed run: the finding, the story, the wire log, and the line that repeats it."""
    story = tell(run, record)
    console.print(Text(f"\n{story.headline}.", style="bold red"))
    for number, step in enumerate(story.steps, 1):
        console.print(Text(f"  {number}. {step}"))
    console.print()
    for finding in run.findings[:1]:
        console.print(finding_text(finding), end="")
    if story.log:
        console.print(Text("  the wire around it:", style="bold"))
        for line in story.log:
            console.print(Text(f"  {line}", style="dim"), no_wrap=True, overflow="ellipsis")
    console.print(Text(f"\n  repeat it:   {command}\n", style="bold"))


def print_story(console: Console, steps: Sequence[str], findings: Sequence[Finding]) -> None:
    """Print a story as numbered steps that a person can follow, and what broke at its end."""
    console.print(Text("The shortest story found that breaks a promise:", style="bold red"))
    for number, step in enumerate(steps, 1):
        console.print(Text(f"  {number}. {step}"))
    console.print()
    for finding in findings[:1]:
        console.print(finding_text(finding))


def repeat_line(cell: Cell, record: Sequence[Boundary]) -> str:
    """Return the fault line of a cell, by point where its boundary has one."""
    first = by_point(cell.fault, record)
    return f"{first},{cell.then}" if cell.then is not None else str(first)


def sweep_data(sweep: Sweep, impl: str) -> dict[str, Any]:
    """Return a sweep as JSON-ready data."""
    from harness.report.data import run_data

    record = sweep.record.boundaries
    return {
        "impl": impl,
        "lab": sweep.activity.lab,
        "activity": sweep.activity.name,
        "fault": sweep.kind,
        "policy": sweep.policy,
        "double": sweep.double,
        "verdict": sweep.verdict,
        "interrupted": sweep.interrupted,
        "covered": list(sweep.covered),
        "commits": list(sweep.commits),
        "kills": sweep.kills,
        "seconds": round(sweep.seconds, 3),
        "notes": list(sweep.notes),
        "clean": run_data(sweep.record),
        "cells": [_cell_data(cell, record) for cell in sweep.cells],
    }


def _cell_data(cell: Cell, record: Sequence[Boundary]) -> dict[str, Any]:
    failed = cell.run.verdict is Verdict.FAIL
    return {
        "line": repeat_line(cell, record),
        "boundary": cell.boundary,
        "verdict": cell.run.verdict,
        "note": cell.run.note,
        "findings": [finding.promise for finding in cell.run.findings],
        "story": list(tell(cell.run, record).steps) if failed else [],
        "seconds": round(cell.run.seconds, 6),
    }


def _rows(sweep: Sweep) -> list[Text]:
    """Return one line a chunk, more when it is long."""
    chunks = chunk_of(sweep.record.boundaries)
    verdicts = worst_verdicts(sweep.cells)
    rows = []
    last = max((chunks[b.number] for b in sweep.record.boundaries if b.committed), default=1)
    for chunk, group in groupby(sweep.record.boundaries, key=lambda b: chunks[b.number]):
        boundaries = list(group)
        for start in range(0, len(boundaries), CELLS_A_LINE):
            part = boundaries[start : start + CELLS_A_LINE]
            name = ("" if start else f"chunk {chunk}") if chunk <= last else "after"
            row = Text(f"  {name:<9}{part[0].number:>4}  ")
            for boundary in part:
                row.append_text(_cell(boundary, verdicts.get(boundary.number)))
            rows.append(row)
    return rows


def worst_verdicts(cells: Sequence[Cell]) -> dict[int, Verdict]:
    """Return the worst verdict at each boundary; skip where the fault is not possible."""
    order = (Verdict.SKIP, Verdict.PASS, Verdict.VOID, Verdict.ERROR, Verdict.FAIL)
    worst: dict[int, Verdict] = {}
    for cell in cells:
        verdict = cell.run.verdict if cell.run.possible else Verdict.SKIP
        worst[cell.boundary] = max(worst.get(cell.boundary, Verdict.SKIP), verdict, key=order.index)
    return worst


def _cell(boundary: Boundary, verdict: Verdict | None) -> Text:
    if verdict is None:
        return Text(MISSING, style="dim")
    if verdict is Verdict.PASS:
        return Text(boundary_letter(boundary), style="green")
    if verdict is Verdict.FAIL:
        return Text(BROKEN, style="bold red reverse")
    if verdict is Verdict.SKIP:
        return Text(IMPOSSIBLE, style="dim")
    return Text(VOID, style="yellow")


def boundary_letter(boundary: Boundary) -> str:
    if boundary.committed:
        return POINT_LETTERS[COMMIT_POINT]
    aliases = [p for p in boundary.points if p in POINT_ALIASES.values()]
    return POINT_LETTERS[aliases[-1]] if aliases else "+" if boundary.points else "."


def coverage_words(sweep: Sweep) -> Text:
    """Say what was covered, how fast, and how it ended."""
    done, total = sweep.covered
    seen, commits = sweep.commits
    text = Text("  ")
    text.append(sweep.verdict.upper(), style=f"bold {VERDICT_STYLE[sweep.verdict]}")
    text.append(f"  {done} of {total} boundaries")
    if commits:
        text.append(f"; {seen} of {commits} commits seen from both sides")
    what = (
        "double kills" if sweep.double else "kills" if sweep.kind is Kind.KILL else str(sweep.kind)
    )
    if sweep.kind is Kind.KILL:
        speed = f", {sweep.kills / sweep.seconds:.0f} a second" if sweep.seconds else ""
        text.append(f"; {sweep.kills} kills{' in pairs' if sweep.double else ''}{speed}")
    else:
        text.append(f"; {what} {len(sweep.cells)} times")
    if sweep.failures:
        text.append(f"; broken at {len(sweep.failures)}")
    if sweep.interrupted:
        text.append("; interrupted", style="yellow")
    return text
