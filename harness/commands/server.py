"""`lab doctor` and `lab psql`: which PostgreSQL would be used, what is missing, and a prompt in it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from harness.commands.common import Exit, JsonFile, out, trouble_told
from harness.limits import CHUNK_MAX, ORDERS_MAX

DOCTOR_EPILOG = """Examples:
  lab doctor             which PostgreSQL the commands will use, and why
  lab doctor --clean     also drop the databases that `lab demo --keep` left
"""
PSQL_EPILOG = """Examples:
  lab psql                            a prompt in a clean database with the story's 40 orders
  lab psql -- -c 'TABLE jobs'         one query
  lab psql --database lab_1a2b3c      a database that `lab demo --keep` left
"""


def doctor(
    clean: Annotated[
        bool, typer.Option("--clean", help="Drop the databases that --keep left behind.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Say which PostgreSQL would be used, what is missing, and how to fix it."""
    from harness.database import inspect_sources
    from harness.report.data import write_json

    if clean:
        _drop_kept()
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


def _drop_kept() -> None:
    from harness.database import drop_kept, open_server

    with trouble_told(), open_server() as server:
        dropped = drop_kept(server)
    out.print(f"Dropped: {', '.join(dropped)}" if dropped else "Nothing was kept; nothing dropped.")


def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to psql, for example -c 'TABLE orders'.")
    ] = None,
    database: Annotated[
        str,
        typer.Option(metavar="NAME", help="A database that --keep left, instead of a clean one."),
    ] = "",
    orders: Annotated[
        int, typer.Option(min=1, max=ORDERS_MAX, help="Orders in the scenario that is laid out.")
    ] = 40,
    chunk_size: Annotated[int, typer.Option(min=1, max=CHUNK_MAX, help="Orders a chunk.")] = 10,
) -> None:
    """Open psql in a clean database that holds the course's scenario; it is dropped when you leave."""
    from harness.database import open_server, psql_kept
    from harness.scenario import festival
    from harness.seeding import seed
    from harness.workshop import open_workshop

    with trouble_told(), ExitStack() as stack:
        if database:
            command, environment = psql_kept(stack.enter_context(open_server()), database)
        else:
            laboratory = stack.enter_context(open_workshop()).laboratory
            seed(laboratory.control, festival(orders, chunk_size))
            command, environment = laboratory.psql()
        done = subprocess.run([*command, *(arguments or [])], env={**os.environ, **environment})
    sys.exit(done.returncode)
