"""The page: one file that shows what happened, step by step, in any browser and without a network.

    write_page(Path("demo.html"), demo_page(demo, "solutions"))

A page has *stories*. Each is a run with its verdict in words and its steps as data; the script in the
page moves board, timeline and tables through them together. A demo is a list of stories, a sweep a
grid whose cells open theirs, a check a single one. Everything is put into the one file: style, script,
data. What comes from a learner goes through Jinja's escaping, or into JSON that cannot end its element.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.demo import Demo, DemoRow
from harness.grading.result import CheckResult
from harness.limits import PAGE_SQL_CHARS, PAGE_STORIES_MAX
from harness.records import Boundary, Verdict
from harness.report.board import SHAPES, STATE_WORDS, lay_out
from harness.report.grid import boundary_letter, coverage_words, repeat_command, repeat_line
from harness.report.moments import moments_of
from harness.report.steps import Step, steps_of
from harness.report.terminal import verdict_line
from harness.run import Run
from harness.scenario import Scenario
from harness.story import shorten, tell
from harness.sweep import Cell, Sweep, chunk_of

#: How a verdict looks without colour.
VERDICT_SIGN = {
    Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.SKIP: "–", Verdict.VOID: "?", Verdict.ERROR: "!",
}  # fmt: skip
VERDICT_MEANING = {
    Verdict.PASS: "every promise was kept",
    Verdict.FAIL: "a promise was broken",
    Verdict.SKIP: "an earlier lab is missing",
    Verdict.VOID: "the fault did not land: the harness's miss, not yours",
    Verdict.ERROR: "the harness or its environment failed",
}


@dataclass(frozen=True)
class Story:
    """One run as a page shows it. `data` is what the script needs; the rest is written out."""

    id: str
    title: str
    verdict: Verdict
    headline: str
    repeat: str
    findings: Sequence[Any] = ()
    log: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GridCell:
    """A boundary in a sweep's grid. `story` is empty where there is nothing to open."""

    letter: str
    label: str
    verdict: str
    story: str


@dataclass(frozen=True)
class Page:
    """A page before it is written. `grid` has the rows of a sweep: a name, and its cells."""

    title: str
    lead: str
    verdict: Verdict
    words: str
    repeat: str
    stories: Sequence[Story]
    grid: Sequence[tuple[str, Sequence[GridCell]]] = ()
    notes: Sequence[str] = ()
    board: Mapping[str, Any] | None = None
    live: Mapping[str, Any] | None = None


# --- pages ------------------------------------------------------------------------------------------


def demo_page(demo: Demo, impl: str = "solutions") -> Page:
    """Make the page of a demo: one story a scene."""
    scenario = demo.scenario
    size = f"--orders {len(scenario.approval)} --chunk-size {scenario.chunk_size}"
    seed = f" --seed {scenario.seed}" if scenario.seed else ""
    repeat = f"uv run lab demo --impl {impl} {size}{seed}"
    record = demo.rows[0].run.boundaries if demo.rows else ()
    stories = [
        make_story(f"s{n}", row.title, row.run, _demo_repeat(repeat, row), record)
        for n, row in enumerate(demo.rows)
    ]
    words, _, limits = verdict_line(demo).plain.partition("\n")
    lead = (
        f"{len(scenario.approval)} orders are approved for cancellation and committed "
        f"{scenario.chunk_size} at a time. The client is killed in the middle, and another one finishes."
    )
    return Page(
        "Interrupted, and finished", lead, demo.verdict, _without_verdict(words), repeat, stories,
        notes=[limits.strip()], board=board_data(scenario),
    )  # fmt: skip


def sweep_page(sweep: Sweep, repeat: str) -> Page:
    """Make the page of a sweep: a grid of boundaries whose cells open their stories.

    Args:
        repeat: The command that repeats something of it, up to the fault line.
    """
    record = sweep.record.boundaries
    stories = [make_story("s0", "no fault", sweep.record, f"uv run {repeat}")]
    shown = _shown(sweep)
    for n, cell in enumerate(shown, 1):
        line = repeat_line(cell, record)
        again = f"uv run {repeat_command(repeat, line)}"
        stories.append(make_story(f"s{n}", line, cell.run, again, record))
    notes = list(sweep.notes)
    if len(shown) < len(sweep.cells):
        notes.append(f"{len(shown)} of {len(sweep.cells)} runs can be opened: every failure, and the first at each boundary.")  # fmt: skip
    name = (
        f"lab {sweep.activity.lab}, {sweep.activity.name}"
        if sweep.activity.lab
        else sweep.activity.name
    )
    words = _without_verdict(coverage_words(sweep).plain.strip())
    scenario = sweep.activity.scenario
    lead = f"The client is put under {sweep.kind} at every boundary of its life in turn, each time in a clean database."
    return Page(
        f"Sweep of {name}", lead, sweep.verdict, words, f"uv run {repeat}", stories,
        grid=_grid(sweep, shown), notes=notes,
        board=board_data(scenario) if isinstance(scenario, Scenario) else None,
    )  # fmt: skip


def check_page(result: CheckResult, runs: Sequence[Run], record: Sequence[Boundary] = ()) -> Page:
    """Make the page of one graded check from the runs that it made, if it made any."""
    stories = [
        make_story(f"s{n}", run.fault or "no fault", run, result.repeat, record)
        for n, run in enumerate(runs)
    ]
    scenario = runs[0].scenario if runs else None
    return Page(
        result.title, f"Lab {result.lab}; the promise is “{result.promise}”.", result.verdict,
        result.message or VERDICT_MEANING[result.verdict], result.repeat, stories,
        board=board_data(scenario) if isinstance(scenario, Scenario) else None,
    )  # fmt: skip


# --- stories ----------------------------------------------------------------------------------------


def make_story(
    story_id: str, title: str, run: Run, repeat: str, record: Sequence[Boundary] = ()
) -> Story:
    """Make a story of a run; `record` are the boundaries of a clean run of the same client."""
    told = tell(run, record) if run.verdict is Verdict.FAIL else None
    headline = told.headline if told else _headline(run)
    data: Mapping[str, Any] = {}
    if isinstance(run.scenario, Scenario):
        moments, actors = moments_of(run, record)
        data = story_data(steps_of(run.scenario, moments), actors)
    return Story(
        story_id, title, run.verdict, headline, repeat, run.findings, told.log if told else (), data
    )  # fmt: skip


def story_data(steps: Sequence[Step], actors: Sequence[str]) -> dict[str, Any]:
    """Return steps as JSON-ready data; texts that repeat are kept once."""
    texts: dict[str, int] = {}
    start = next((s.at_s for s in steps if s.at_s is not None), 0.0)
    coded = [_coded(step, texts, start) for step in steps]
    return {"actors": list(actors), "texts": list(texts), "steps": coded}


def _coded(step: Step, texts: dict[str, int], start: float) -> dict[str, Any]:
    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    b = step.boundary
    code: dict[str, Any] = {
        "k": step.kind, "w": text(step.words), "a": step.who, "o": step.cells, "u": step.audit,
        "c": step.checkpoint, "x": step.transaction, "s": step.status if step.status != "I" else "",
        "l": int(step.locks), "h": int(not step.told), "m": step.touched, "look": step.look,
    }  # fmt: skip
    if step.at_s is not None:
        code["t"] = round((step.at_s - start) * 1000, 1)
    if b is not None:
        points = [p for p in b.points if "." not in p] or list(b.points)
        code |= {"b": b.number, "q": text(shorten(b.sql, PAGE_SQL_CHARS) or b.unit), "g": text(b.tag),
                 "p": text(points[-1]) if points else "", "e": b.error}  # fmt: skip
        code["d"] = int(bool(b.committed))
    return {
        key: value for key, value in code.items() if value not in ("", 0, (), None) or key == "a"
    }


def board_data(scenario: Scenario) -> dict[str, Any]:
    """Return the board that all stories of a page share."""
    layout = lay_out(len(scenario.approval), scenario.chunk_size)
    return {
        **asdict(layout),
        "orders": scenario.approved_ids,
        "approved": [(item.revision, item.qty) for item in scenario.approval],
        "chunk": scenario.chunk_size,
        "others": len(scenario.others),
        "shapes": SHAPES,
        "words": STATE_WORDS,
    }


def _headline(run: Run) -> str:
    if run.verdict is Verdict.VOID:
        return run.note or "the fault did not land"
    if run.after_resume is None:
        return "Another owner edited an approved order; its chunk was refused as a whole, and the order named."
    if run.kills:
        return "The client was killed; what it had not committed was gone, and another client finished."
    return run.note or "Nothing interfered; every chunk was committed."


def _demo_repeat(repeat: str, row: DemoRow) -> str:
    point = row.title.removeprefix("after ")
    return f"{repeat} --point {point}" if row.run.kills else repeat


def _without_verdict(words: str) -> str:
    """Drop the verdict that a line begins with: the page shows it beside the line."""
    first, _, rest = words.partition("  ")
    return rest.strip() if first.strip().lower() in set(Verdict) else words


# --- the grid ---------------------------------------------------------------------------------------


def _shown(sweep: Sweep) -> list[Cell]:
    """Choose the runs that can be opened: all where they are few, else failures and one a boundary."""
    if len(sweep.cells) <= PAGE_STORIES_MAX:
        return list(sweep.cells)
    chosen, seen = [], set[int]()
    for cell in sweep.cells:
        if cell.run.verdict is Verdict.FAIL or cell.boundary not in seen:
            seen.add(cell.boundary)
            chosen.append(cell)
    return chosen[:PAGE_STORIES_MAX]


def _grid(sweep: Sweep, shown: Sequence[Cell]) -> list[tuple[str, Sequence[GridCell]]]:
    """Return a row for each chunk, with a cell for each boundary of the clean run."""
    chunks = chunk_of(sweep.record.boundaries)
    rows: dict[str, list[GridCell]] = {}
    last = max((chunks[b.number] for b in sweep.record.boundaries if b.committed), default=1)
    stories: dict[int, list[tuple[int, Cell]]] = {}
    for n, cell in enumerate(shown, 1):
        stories.setdefault(cell.boundary, []).append((n, cell))
    for boundary in sweep.record.boundaries:
        chunk = chunks[boundary.number]
        row = rows.setdefault(f"chunk {chunk}" if chunk <= last else "after", [])
        row += [_grid_cell(boundary, n, cell) for n, cell in stories.get(boundary.number, [])] or [
            GridCell("-", f"boundary {boundary.number}: not swept", "none", "")
        ]
    return list(rows.items())


def _grid_cell(boundary: Boundary, n: int, cell: Cell) -> GridCell:
    verdict = cell.run.verdict
    letter = boundary_letter(boundary) if verdict is Verdict.PASS else VERDICT_SIGN[verdict]
    where = shorten(boundary.sql, 50) or boundary.unit
    return GridCell(letter, f"{cell.line}, after {where}: {verdict}", verdict, f"s{n}")


# --- writing ----------------------------------------------------------------------------------------


def render(page: Page) -> str:
    """Return the page as HTML."""
    template = _environment().get_template("page.html.j2")
    return template.render(
        page=page, sign=VERDICT_SIGN, meaning=VERDICT_MEANING, first=_first(page.stories)
    )


def write_page(path: Path, page: Page) -> None:
    """Write the page so that the file is always whole: a new file takes the old one's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(render(page))
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _first(stories: Sequence[Story]) -> str:
    """Return the story that is open at first: a failure, else the first one with a fault."""
    wrong = [s.id for s in stories if s.verdict is Verdict.FAIL]
    return (wrong or [s.id for s in stories[1:2]] or [s.id for s in stories] or [""])[0]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = _script_data
    return environment


def _script_data(value: Any) -> Markup:
    """Return JSON for a script element: no text in it can end the element or start a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
