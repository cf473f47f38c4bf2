"""`lab bench`: what a kill costs on this machine, beside its floor."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from harness.commands.common import Exit, Impl, JsonFile, err, out, trouble_told, usage
from harness.impl import UnknownImpl, find_impl
from harness.limits import KILLS_MAX

EPILOG = """Examples:
  lab bench                    200 kills of the worked answer
  lab bench --kills 1000       a thousand, over the four points
"""


def bench(
    kills: Annotated[
        int, typer.Option(min=1, max=KILLS_MAX, help="How many kills, over the four points.")
    ] = 200,
    impl: Impl = "solutions",
    json: JsonFile = None,
    spawn: Annotated[
        bool, typer.Option("--spawn", help="A fresh interpreter for each client.")
    ] = False,
) -> None:
    """Time kills from clean rows to a verdict, beside the same client with no fault."""
    from harness.report.data import write_json
    from harness.timing import measure_kills, percentile
    from harness.workshop import open_workshop

    try:
        folder = find_impl(impl)
    except UnknownImpl as problem:
        usage(str(problem))
    with (
        trouble_told(),
        open_workshop(spawn=spawn) as workshop,
        Progress(console=err, transient=True) as bar,
    ):
        task = bar.add_task("killing", total=kills)
        timing = measure_kills(
            workshop, folder, kills, lambda done: bar.update(task, completed=done)
        )
    table = Table(header_style="bold")
    for column in ("milliseconds", "median", "95 of 100", "longest"):
        table.add_column(column, justify="left" if column == "milliseconds" else "right")
    for name, values in (
        ("one kill, clean rows to verdict", timing.kills_ms),
        ("its floor: the chunk, no fault", timing.floors_ms),
    ):
        figures = (statistics.median(values), percentile(values, 0.95), max(values))
        table.add_row(name, *(f"{figure:.1f}" for figure in figures))
    verdicts = Counter(timing.verdicts)
    out.print(table)
    out.print(f"a kill costs {timing.ratio:.2f} times its floor (median of {kills} pairs)")
    out.print("verdicts: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    if json is not None:
        write_json(json, {
            "schema": "interrupted/bench/v1", "kills_ms": timing.kills_ms,
            "floors_ms": timing.floors_ms, "ratio": timing.ratio, "verdicts": verdicts,
        })  # fmt: skip
    raise typer.Exit(Exit.PASSED if set(verdicts) == {"pass"} else Exit.FAILED)
