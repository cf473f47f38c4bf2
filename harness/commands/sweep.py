"""`lab sweep`: kill at every boundary, of a lab or of any program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.commands.common import Impl, JsonFile, err, exit_for, out, trouble_told, usage
from harness.faults import Fault, FaultLineError, Kind, parse_fault
from harness.impl import UnknownImpl, find_impl
from harness.records import Policy, Verdict

if TYPE_CHECKING:
    from harness.activity import Activity
    from harness.sweep import Sweep


EPILOG = """Examples:
  lab sweep 3                              your run_chunk, killed at every boundary
  lab sweep 3 --at 'kill@audit#2'          one of these kills again, with its story
  lab sweep --impl solutions --double      the recovery is killed, too
  lab sweep 6 --fault lose-reply           another fault at every boundary
  lab sweep --setup s.sql --check c.sql -- python batch.py     any program, in any language
"""
#: What a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130


def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[N] | -- COMMAND", help="The lab; or with --setup, any command."),
    ] = None,
    impl: Impl = "labs",
    double: Annotated[
        bool, typer.Option("--double", help="Kill the recovering client, too.")
    ] = False,
    policy: Annotated[
        Policy, typer.Option(help="How the killed client's connection is let go of.")
    ] = Policy.ABORT,
    fault: Annotated[Kind, typer.Option(help="Which fault is put at every boundary.")] = Kind.KILL,
    at: Annotated[
        str | None, typer.Option(metavar="LINE", help="Only this fault, such as kill@audit#2.")
    ] = None,
    orders: Annotated[int, typer.Option(min=1, help="How many orders are approved.")] = 23,
    chunk_size: Annotated[int, typer.Option(min=1, help="How many are committed at a time.")] = 10,
    seed: Annotated[int, typer.Option(help="Moves IDs, quantities and neighbours.")] = 0,
    json: JsonFile = None,
) -> None:
    """Kill a client at every boundary of its life, each time in a clean database, and judge."""
    from harness.activity import activities, sized

    try:
        folder = find_impl(impl)
        faults = [parse_fault(line) for line in at.split(",")] if at else []
    except (UnknownImpl, FaultLineError) as problem:
        usage(str(problem))
    rows = tuple(sized(row, orders, chunk_size, seed) for row in activities(_lab(words or [])))
    if double and fault is not Kind.KILL:
        usage("--double kills the recovering client, too: it goes with --fault kill only")
    if faults:
        _one(folder, impl, rows, faults)
    _all(folder, impl, rows, fault, policy, double, json)


def _lab(words: list[str]) -> int | None:
    """Read the lab's number; None for every lab."""
    from harness.activity import activities

    if not words:
        return None
    if len(words) > 1 or not words[0].isdigit():
        usage(f"{' '.join(words)!r} is no lab's number; a program needs --setup and --check")
    number = int(words[0])
    if not activities(number):
        known = sorted({row.lab for row in activities()})
        usage(f"nothing is swept for lab {number}: use one of {', '.join(map(str, known))}")
    return number


def _all(
    folder: Path,
    impl: str,
    rows: tuple[Activity, ...],
    kind: Kind,
    policy: Policy,
    double: bool,
    json: Path | None,
) -> None:
    from harness.report.data import write_json
    from harness.report.grid import SWEEP_SCHEMA, legend, print_sweep, sweep_data
    from harness.sweep import run_sweep
    from harness.workshop import open_workshop

    found: list[Sweep] = []
    interrupted = False
    try:
        with trouble_told(), _progress() as progress:
            task = progress.add_task("starting PostgreSQL", total=None)

            def tell(done: int, total: int, text: str) -> None:
                progress.update(task, completed=done, total=total or None, description=text)

            private = kind is Kind.CRASH
            with open_workshop(progress=lambda t: tell(0, 0, t), private=private) as workshop:
                for row in rows:
                    found.append(
                        run_sweep(
                            workshop,
                            folder,
                            row,
                            kind=kind,
                            policy=policy,
                            double=double,
                            progress=tell,
                        )
                    )
                    if found[-1].interrupted:
                        interrupted = True
                        break
    except KeyboardInterrupt:
        interrupted = True
    for result in found:
        print_sweep(out, result, _repeat(result.activity, impl))
    if found:
        out.print(legend(found))
        _totals(found)
    if json is not None:
        data = {"schema": SWEEP_SCHEMA, "sweeps": [sweep_data(s, impl) for s in found]}
        write_json(json, data)
    if interrupted:
        err.print("[yellow]Interrupted:[/] this is what was found until then.")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(exit_for(_worst(found)))


def _one(folder: Path, impl: str, rows: tuple[Activity, ...], faults: list[Fault]) -> None:
    """Play one fault line, told in full."""
    from harness.inject import run_fault
    from harness.report.grid import print_failure
    from harness.report.terminal import VERDICT_STYLE
    from harness.run import Play, play_clean
    from harness.sweep import judge_kills_of
    from harness.workshop import open_workshop

    if len(rows) != 1:
        usage("--at needs one lab: lab sweep 3 --at 'kill@audit#2'")
    (row,) = rows
    first, then = faults[0], (faults[1] if len(faults) > 1 else None)
    line = ",".join(map(str, faults))
    with trouble_told(), _progress() as progress:
        progress.add_task(line, total=None)
        with open_workshop(private=first.kind is Kind.CRASH) as workshop:
            clean = play_clean(Play(workshop, folder, row))
            record = clean.boundaries
            row = judge_kills_of(row, clean)
            run = run_fault(workshop, folder, row, first, then=then, record=record)
    out.print(
        f"[bold {VERDICT_STYLE[run.verdict]}]{run.verdict.upper()}[/]  {line}", highlight=False
    )
    if run.note:
        out.print(f"  {run.note}", highlight=False)
    if run.verdict is Verdict.FAIL:
        print_failure(out, run, record, f"{_repeat(row, impl)} --at '{line}'")
    raise typer.Exit(exit_for(run.verdict))


def _repeat(row: Activity, impl: str) -> str:
    return f"lab sweep {row.lab}" + (f" --impl {impl}" if impl != "labs" else "")


def _worst(found: list[Sweep]) -> Verdict:
    """Return the verdict of all sweeps; labs that are not started fail only when nothing else is there."""
    verdicts = {result.verdict for result in found}
    for worst in (Verdict.FAIL, Verdict.ERROR, Verdict.VOID):
        if worst in verdicts:
            return worst
    return Verdict.PASS if Verdict.PASS in verdicts else Verdict.FAIL


def _totals(found: list[Sweep]) -> None:
    kills = sum(result.kills for result in found)
    seconds = sum(result.seconds for result in found)
    if kills and len(found) > 1:
        out.print(f"{kills} kills in {seconds:.1f} s: {kills / seconds:.0f} a second")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )
