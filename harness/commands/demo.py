"""`lab demo`: the main job, killed at the four points, resumed and judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from harness.commands.common import (
    HtmlFile,
    Impl,
    JsonFile,
    err,
    exit_for,
    out,
    trouble_told,
    usage,
)
from harness.impl import UnknownImpl, find_impl
from harness.limits import CHUNK_MAX, ORDERS_MAX
from harness.scenario import festival

EPILOG = """Examples:
  lab demo                                     the worked answer, all four points
  lab demo --orders 23 --chunk-size 10         a short last chunk
  lab demo --impl labs --point audit           your own code, killed after the audit only
  lab demo --html demo.html                    a page to step through what happened
  lab demo --track ledger                      the second track: 1,000 events, 600 dispatched
"""


class Track(StrEnum):
    """The two tracks of the course, by what they are about."""

    BATCH = "batch"
    LEDGER = "ledger"


def demo(
    track: Annotated[
        Track, typer.Option(help="batch: the interrupted batch; ledger: the child ledger.")
    ] = Track.BATCH,
    orders: Annotated[
        int, typer.Option(min=1, max=ORDERS_MAX, help="How many orders are approved.")
    ] = 40,
    chunk_size: Annotated[
        int, typer.Option(min=1, max=CHUNK_MAX, help="How many are committed at a time.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Moves IDs, quantities and neighbours.")] = 0,
    impl: Impl = "solutions",
    point: Annotated[
        list[str] | None,
        typer.Option(help="Kill only here: orders, audit, checkpoint, commit. Repeatable."),
    ] = None,
    json: JsonFile = None,
    html: HtmlFile = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the database and print how to open it.")
    ] = False,
    spawn: Annotated[
        bool, typer.Option("--spawn", help="A fresh interpreter for each client.")
    ] = False,
) -> None:
    """Cancel 40 approved orders, 10 a commit, with the client killed at four points."""
    if track is Track.LEDGER:
        if point or html is not None:
            usage("--point and --html are about track batch; track ledger takes --json")
        _ledger(impl, seed, json, keep=keep, spawn=spawn)
    from harness.demo import DEMO_POINTS, run_demo
    from harness.report.data import demo_data, write_json
    from harness.report.terminal import demo_table, print_findings
    from harness.workshop import open_workshop

    points = tuple(point or DEMO_POINTS)
    for name in points:
        if name not in DEMO_POINTS:
            usage(f"{name!r} is no point of the demo: use {', '.join(DEMO_POINTS)}")
    try:
        folder = find_impl(impl)
    except UnknownImpl as problem:
        usage(str(problem))
    scenario = festival(orders, chunk_size, seed=seed)
    with _told() as tell, open_workshop(progress=tell, spawn=spawn, keep=keep) as workshop:
        result = run_demo(workshop, folder, scenario, points, tell)
        kept = workshop.laboratory.psql_command() if keep else ""
    out.print(demo_table(result))
    print_findings(out, result.rows)
    if json is not None:
        write_json(json, demo_data(result, impl))
    if html is not None:
        from harness.report.page import demo_page, write_page

        write_page(html, demo_page(result, impl))
    _tell_kept(kept)
    raise typer.Exit(exit_for(result.verdict))


def _ledger(impl: str, seed: int, json: Path | None, *, keep: bool, spawn: bool) -> NoReturn:
    """Play the story of track B and end with its status."""
    from harness.ledger.demo import demo_scenario, run_ledger_demo
    from harness.report.data import write_json
    from harness.report.ledger_story import ledger_demo_data, print_ledger_story
    from harness.workshop import open_workshop

    try:
        folder = find_impl(impl)
    except UnknownImpl as problem:
        usage(str(problem))
    with _told() as tell, open_workshop(progress=tell, spawn=spawn, keep=keep) as workshop:
        result = run_ledger_demo(workshop, folder, demo_scenario(seed), tell)
        kept = workshop.laboratory.psql_command() if keep else ""
    print_ledger_story(out, result)
    if json is not None:
        write_json(json, ledger_demo_data(result, impl))
    _tell_kept(kept)
    raise typer.Exit(exit_for(result.verdict))


def _tell_kept(command: str) -> None:
    if command:
        out.print("The database is left as the last scene ended it. Open it, or drop it, with:")
        out.print(f"  {command}\n  uv run lab doctor --clean", highlight=False, soft_wrap=True)


@contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """Show what is being done while it is done; yield the function that says it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with trouble_told(), Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("starting PostgreSQL", total=None)
        yield lambda text: progress.update(task, description=text)
