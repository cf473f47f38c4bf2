"""`lab demo`: the main job, killed at the four points, resumed and judged."""

from __future__ import annotations

from typing import Annotated

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
from harness.scenario import festival

EPILOG = """Examples:
  lab demo                                     the worked answer, all four points
  lab demo --orders 23 --chunk-size 10         a short last chunk
  lab demo --impl labs --point audit           your own code, killed after the audit only
  lab demo --html demo.html                    a page to step through what happened
"""


def demo(
    orders: Annotated[int, typer.Option(min=1, help="How many orders are approved.")] = 40,
    chunk_size: Annotated[int, typer.Option(min=1, help="How many are committed at a time.")] = 10,
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
    with trouble_told(), _progress() as progress:
        task = progress.add_task("starting PostgreSQL", total=None)

        def tell(text: str) -> None:
            progress.update(task, description=text)

        with open_workshop(progress=tell, spawn=spawn, keep=keep) as workshop:
            result = run_demo(workshop, folder, scenario, points, tell)
            kept = workshop.laboratory.psql_command() if keep else ""
    out.print(demo_table(result))
    print_findings(out, result.rows)
    if json is not None:
        write_json(json, demo_data(result, impl))
    if html is not None:
        from harness.report.page import demo_page, write_page

        write_page(html, demo_page(result, impl))
    if kept:
        out.print("The database is left as the last scene ended it. Open it, or drop it, with:")
        out.print(f"  {kept}\n  uv run lab doctor --clean", highlight=False, soft_wrap=True)
    raise typer.Exit(exit_for(result.verdict))


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )
