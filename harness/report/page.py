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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.activity import Activity
from harness.demo import Demo, DemoRow
from harness.faults import Kind
from harness.grading.result import CheckResult
from harness.limits import PAGE_SQL_CHARS, PAGE_STORIES_MAX
from harness.records import Boundary, Policy, Verdict
from harness.report.board import SHAPES, STATE_WORDS, lay_out
from harness.report.grid import boundary_letter, coverage_words, repeat_command, repeat_line
from harness.report.moments import moments_of
from harness.report.scenes import WatchedScene
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
class Grid:
    """One sweep's boundaries. `rows` are a name each, and its cells."""

    title: str
    words: str
    verdict: Verdict
    rows: Sequence[tuple[str, Sequence[GridCell]]]


@dataclass(frozen=True)
class Page:
    """A page before it is written."""

    title: str
    lead: str
    verdict: Verdict
    words: str
    repeat: str
    stories: Sequence[Story]
    grids: Sequence[Grid] = ()
    notes: Sequence[str] = ()
    boards: Sequence[Mapping[str, Any]] = ()  # a story's data names the one it plays on
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
        notes=[limits.strip()], boards=[board_data(scenario)],
    )  # fmt: skip


def sweep_page(sweeps: Sequence[Sweep], repeat: Callable[[Activity], str]) -> Page:
    """Make the page of sweeps: a grid of boundaries for each, whose cells open their stories.

    Args:
        repeat: Returns the command that repeats something of one activity, up to the fault line.
    """
    stories: list[Story] = []
    grids: list[Grid] = []
    boards: list[Mapping[str, Any]] = []
    notes: list[str] = []
    for sweep in sweeps:
        shown = _shown(sweep, PAGE_STORIES_MAX // len(sweeps))
        first = len(stories)
        stories += _sweep_stories(sweep, shown, repeat(sweep.activity), first, len(boards))
        grids.append(_grid(sweep, shown, first))
        notes += sweep.notes
        if len(shown) < len(sweep.cells):
            notes.append(f"{_name(sweep)}: {len(shown)} of {len(sweep.cells)} runs can be opened")
        if isinstance(sweep.activity.scenario, Scenario):
            boards.append(board_data(sweep.activity.scenario))
    one = sweeps[0]
    what = f"Sweep of {_name(one)}" if len(sweeps) == 1 else f"{len(sweeps)} sweeps"
    pairs = " and the one that recovers, too" if one.double else ""
    lead = f"The fault “{one.kind}” meets the client at every boundary of its life in turn{pairs}, each time in a clean database."
    verdict = worst_of([sweep.verdict for sweep in sweeps])
    words = grids[0].words if len(grids) == 1 else VERDICT_MEANING[verdict]
    command = repeat(one.activity) if len(sweeps) == 1 else "lab sweep"
    command = command if "{at}" in command else f"{command} {{at}}"
    command = command.replace("{at}", _options(one))
    return Page(what, lead, verdict, words, _command(command), stories, grids, notes, boards)


def run_page(
    title: str,
    lead: str,
    runs: Sequence[Run],
    repeat: str,
    *,
    record: Sequence[Boundary] = (),
    verdict: Verdict | None = None,
    words: str = "",
) -> Page:
    """Make the page of single runs, such as those of a graded check.

    Args:
        repeat: The command that repeats it.
        record: The boundaries of a clean run of the same client.
        verdict: The whole's; by default the worst of the runs'.
        words: Says the verdict; by default what the verdict means.
    """
    worst = verdict or worst_of([run.verdict for run in runs])
    stories = [
        make_story(f"s{n}", run.fault or "no fault", run, repeat, record)
        for n, run in enumerate(runs)
    ]
    boards = [board_data(r.scenario) for r in runs[:1] if isinstance(r.scenario, Scenario)]
    return Page(title, lead, worst, words or VERDICT_MEANING[worst], repeat, stories, boards=boards)


def check_page(result: CheckResult, scenes: Sequence[WatchedScene]) -> Page:
    """Make the page of one graded check from the scenes that it played; it failed in the last one."""
    lead = f"Lab {result.lab}; the promise is “{result.promise}”."
    findings = result.evidence.get("findings", [])
    stories = []
    for n, scene in enumerate(scenes):
        last = n == len(scenes) - 1
        size = f"{len(scene.scenario.approval)} orders, {scene.scenario.chunk_size} a chunk"
        data = story_data(steps_of(scene.scenario, scene.moments), scene.actors, n)
        stories.append(Story(
            f"s{n}", f"{n + 1}. {scene.fault or 'scene'}", result.verdict if last else Verdict.PASS,
            size, result.repeat, findings if last else (), data=data,
        ))  # fmt: skip
    boards = [board_data(scene.scenario) for scene in scenes]
    words = "" if findings and stories else result.message
    return Page(
        result.title, lead, result.verdict, words or VERDICT_MEANING[result.verdict], result.repeat,
        stories, boards=boards,
    )  # fmt: skip


def write_check_page(folder: Path, result: CheckResult, scenes: Sequence[WatchedScene]) -> None:
    """Write the page of one check into the folder, as ``lab03_chunk.short_last_chunk.html``."""
    write_page(folder / f"{result.id}.html", check_page(result, scenes))


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst verdict: fail, error, void, skip, then pass."""
    order = (Verdict.FAIL, Verdict.ERROR, Verdict.VOID, Verdict.PASS, Verdict.SKIP)
    return next((worst for worst in order if worst in verdicts), Verdict.SKIP)


# --- stories ----------------------------------------------------------------------------------------


def make_story(
    story_id: str,
    title: str,
    run: Run,
    repeat: str,
    record: Sequence[Boundary] = (),
    *,
    board: int = 0,
) -> Story:
    """Make a story of a run.

    Args:
        record: The boundaries of a clean run of the same client.
        board: Which of the page's boards it plays on.
    """
    told = tell(run, record) if run.verdict is Verdict.FAIL and run.fault else None
    headline = told.headline if told else _headline(run)
    data: Mapping[str, Any] = {}
    if isinstance(run.scenario, Scenario):
        moments, actors = moments_of(run, record)
        data = story_data(steps_of(run.scenario, moments), actors, board)
    return Story(
        story_id, title, run.verdict, headline, repeat, run.findings, told.log if told else (), data
    )  # fmt: skip


def story_data(steps: Sequence[Step], actors: Sequence[str], board: int = 0) -> dict[str, Any]:
    """Return steps as JSON-ready data; texts that repeat are kept once."""
    texts: dict[str, int] = {"": 0}
    start = next((s.at_s for s in steps if s.at_s is not None), 0.0)
    coded = [_coded(step, texts, start) for step in steps]
    return {"actors": list(actors), "texts": list(texts), "steps": coded, "board": board}


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
    if run.verdict is Verdict.FAIL:
        return f"Without any fault, the promise “{run.findings[0].promise}” is broken."
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


def _sweep_stories(
    sweep: Sweep, shown: Sequence[Cell], repeat: str, first: int, board: int
) -> list[Story]:
    record = sweep.record.boundaries
    stories = [make_story(f"s{first}", "no fault", sweep.record, _command(repeat), board=board)]
    for n, cell in enumerate(shown, first + 1):
        line = repeat_line(cell, record)
        again = _command(repeat_command(repeat, line))
        stories.append(make_story(f"s{n}", line, cell.run, again, record, board=board))
    return stories


def _options(sweep: Sweep) -> str:
    """Return the options that say which fault is swept, where it is not the usual one."""
    fault = f"--fault {sweep.kind}" if sweep.kind is not Kind.KILL else ""
    policy = f"--policy {sweep.policy}" if sweep.policy is not Policy.ABORT else ""
    return " ".join(filter(None, [fault, policy, "--double" if sweep.double else ""]))


def _name(sweep: Sweep) -> str:
    row = sweep.activity
    return f"lab {row.lab}, {row.name}" if row.lab else row.name


def _command(text: str) -> str:
    return "uv run " + " ".join(text.replace("{at}", "").split())


def _shown(sweep: Sweep, most: int) -> list[Cell]:
    """Choose the runs that can be opened: failures first, then those at points, then the rest."""
    points = {b.number for b in sweep.record.boundaries if b.points}

    def rank(cell: Cell) -> tuple[bool, bool, bool]:
        failed = cell.run.verdict is Verdict.FAIL
        return (not failed, cell.then is not None, cell.boundary not in points)

    chosen = {id(cell) for cell in sorted(sweep.cells, key=rank)[:most]}
    return [cell for cell in sweep.cells if id(cell) in chosen]


def _grid(sweep: Sweep, shown: Sequence[Cell], first: int) -> Grid:
    """Return a row for each chunk, with a cell for each boundary of the clean run, or for each run of it."""
    chunks = chunk_of(sweep.record.boundaries)
    rows: dict[str, list[GridCell]] = {"clean": [_clean_cell(sweep, first)]}
    last = max((chunks[b.number] for b in sweep.record.boundaries if b.committed), default=1)
    stories: dict[int, list[tuple[int, Cell]]] = {}
    for n, cell in enumerate(shown, first + 1):
        stories.setdefault(cell.boundary, []).append((n, cell))
    for boundary in sweep.record.boundaries:
        chunk = chunks[boundary.number]
        row = rows.setdefault(f"chunk {chunk}" if chunk <= last else "after", [])
        row += [_grid_cell(boundary, n, cell) for n, cell in stories.get(boundary.number, [])] or [
            GridCell("-", f"boundary {boundary.number}: no run to open", "none", "")
        ]
    words = _without_verdict(coverage_words(sweep).plain.strip())
    return Grid(_name(sweep), words, sweep.verdict, list(rows.items()))


def _clean_cell(sweep: Sweep, n: int) -> GridCell:
    verdict = sweep.record.verdict
    return GridCell(VERDICT_SIGN[verdict], f"no fault: {verdict}", verdict, f"s{n}")


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
    """Return the story that is open at first: a failure under a fault, else any, else a fault."""
    wrong = [s.id for s in stories if s.verdict is Verdict.FAIL]
    return (
        wrong[1:2]
        if wrong[:1] == ["s0"] and wrong[1:]
        else wrong or [s.id for s in stories[1:2]] or [s.id for s in stories] or [""]
    )[0]


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
