"""`lab doctor` and `lab psql`: which PostgreSQL would be used, what is missing, and a prompt in it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from harness.commands.common import Exit, JsonFile, out, trouble_told


def doctor(json: JsonFile = None) -> None:
    """Say which PostgreSQL would be used, what is missing, and how to fix it."""
    from harness.database import inspect_sources
    from harness.report.data import write_json

    sources = inspect_sources()
    table = Table(header_style="bold")
    for column in ("source", "usable", "what was found", "next step"):
        table.add_column(column)
    for source in sources:
        mark = "[green]yes[/]" if source.usable else "[yellow]no[/]"
        table.add_row(source.name, mark, source.detail, source.next_step)
    out.print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    out.print(table)
    chosen = next((source for source in sources if source.chosen), None)
    if chosen is not None and chosen.usable:
        out.print(f"[green]Ready:[/] the commands will use {chosen.name}.")
    else:
        out.print("[red]Not ready:[/] no source can be used; see the next steps above.")
    if json is not None:
        write_json(
            json, {"schema": "interrupted/doctor/v1", "sources": [asdict(s) for s in sources]}
        )
    raise typer.Exit(Exit.PASSED if chosen is not None and chosen.usable else Exit.HARNESS)


def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to psql, for example -c 'TABLE orders'.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="Orders in the scenario that is laid out.")
    ] = 40,
    chunk_size: Annotated[int, typer.Option(min=1, help="Orders a chunk.")] = 10,
) -> None:
    """Open psql in a clean database that holds the course's scenario; it is dropped when you leave."""
    from harness.scenario import festival
    from harness.seeding import seed
    from harness.workshop import open_workshop

    with trouble_told(), open_workshop() as workshop:
        seed(workshop.laboratory.control, festival(orders, chunk_size))
        command, environment = workshop.laboratory.psql()
        done = subprocess.run([*command, *(arguments or [])], env={**os.environ, **environment})
    sys.exit(done.returncode)
