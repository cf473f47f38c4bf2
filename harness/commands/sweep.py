"""`lab sweep`: kill at every boundary, of a lab or of any program."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

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
from harness.faults import Fault, FaultLineError, Kind, parse_fault
from harness.impl import UnknownImpl, find_impl
from harness.limits import (
    CHUNK_MAX,
    ORDERS_MAX,
    PROGRAM_RESUMES,
    SWEEP_CHUNK,
    SWEEP_JOBS,
    SWEEP_ORDERS,
)
from harness.records import Policy, Verdict

if TYPE_CHECKING:
    from harness.activity import Activity
    from harness.sweep import Progress, Sweep
    from harness.workshop import Workshop


EPILOG = """Examples:
  lab sweep 3                              your run_chunk, killed at every boundary
  lab sweep 3 --at 'kill@audit#2'          one of these kills again, with its story
  lab sweep --impl solutions --double      the recovery is killed, too
  lab sweep 6 --fault lose-reply           another fault at every boundary
  lab sweep --random 60 --seed 7           random stories of workers, rivals and kills
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
    orders: Annotated[
        int, typer.Option(min=1, max=ORDERS_MAX, help="How many orders are approved.")
    ] = SWEEP_ORDERS,
    chunk_size: Annotated[
        int, typer.Option(min=1, max=CHUNK_MAX, help="How many are committed at a time.")
    ] = SWEEP_CHUNK,
    seed: Annotated[int, typer.Option(help="Moves IDs, quantities and neighbours.")] = 0,
    random: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Play random stories of workers, rivals and kills for so long."
        ),
    ] = None,
    setup: Annotated[
        Path | None, typer.Option(metavar="S.sql", help="Of a program: makes its tables and rows.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="C.sql", help="Of a program: a row for every violation.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="What resumes a killed program, if not the same command."
        ),
    ] = None,
    resumes: Annotated[
        int, typer.Option(min=1, help="How often it is started until it exits 0.")
    ] = PROGRAM_RESUMES,
    jobs: Annotated[
        int, typer.Option(min=1, max=16, help="How many databases are swept side by side.")
    ] = SWEEP_JOBS,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Kill a client at every boundary of its life, each time in a clean database, and judge."""
    if double and fault is not Kind.KILL:
        usage("--double kills the recovering client, too: it goes with --fault kill only")
    if random is not None:
        _random(impl, random, seed, json)
    try:
        faults = (
            [parse_fault(line, any_table=setup is not None) for line in at.split(",")] if at else []
        )
        subject = (
            _program(words or [], setup, check, resume, resumes)
            if setup or check
            else _labs(words or [], impl, orders, chunk_size, seed)
        )
    except (UnknownImpl, FaultLineError) as problem:
        usage(str(problem))
    # A program's tables are made for one database; a crash is one server's.
    jobs = 1 if setup is not None or fault is Kind.CRASH else jobs
    plan = Plan(subject, fault, policy, double, jobs)
    if faults:
        _one(plan, faults, html)
    _all(plan, json, html)


@dataclass(frozen=True)
class Subject:
    """Whose work is swept: rows of the table of activities, or one made for a program."""

    rows: Callable[[Workshop], Sequence[Activity]]
    impl: Path
    command: str  # what repeats it, up to the fault line
    several: bool


@dataclass(frozen=True)
class Plan:
    """What is done to it."""

    subject: Subject
    kind: Kind
    policy: Policy
    double: bool
    jobs: int

    def repeat(self, row: Activity) -> str:
        """Return the command that repeats something of one row, up to its fault line."""
        return self.subject.command.replace("{lab}", str(row.lab))


def _labs(words: list[str], impl: str, orders: int, chunk_size: int, seed: int) -> Subject:
    from harness.activity import activities, sized

    lab = _lab(words)
    folder = find_impl(impl)
    rows = tuple(sized(row, orders, chunk_size, seed) for row in activities(lab))
    options = {"--impl": (impl, "labs"), "--orders": (orders, SWEEP_ORDERS),
               "--chunk-size": (chunk_size, SWEEP_CHUNK), "--seed": (seed, 0)}  # fmt: skip
    said = [f"{name} {shlex.quote(str(v))}" for name, (v, usual) in options.items() if v != usual]
    command = " ".join(["lab sweep {lab}", *said])
    return Subject(lambda workshop: rows, folder, command, len(rows) > 1)


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


def _program(
    words: list[str], setup: Path | None, check: Path | None, resume: str | None, resumes: int
) -> Subject:
    from harness.program_sweep import Foreign, foreign_activity

    if setup is None or check is None or not words:
        usage("a program needs all of: --setup S.sql --check C.sql -- COMMAND")
    texts = []
    for path in (setup, check):
        if not path.is_file():
            usage(f"there is no file {path}")
        texts.append(path.read_text(encoding="utf-8"))
    again = tuple(shlex.split(resume)) if resume else tuple(words)
    foreign = Foreign(texts[0], texts[1], tuple(words), again, Path.cwd())
    said = f" --resume {shlex.quote(resume)}" if resume else ""
    command = f"lab sweep --setup {setup} --check {check}{said} {{at}} -- {shlex.join(words)}"
    return Subject(
        lambda workshop: (foreign_activity(workshop, foreign, resumes),),
        Path.cwd(), command, several=False,
    )  # fmt: skip


def _all(plan: Plan, json: Path | None, html: Path | None) -> None:
    """Sweep everything and print what was found, also after Ctrl-C."""
    from harness.report.data import write_json
    from harness.report.grid import SWEEP_SCHEMA, legend, print_sweep, sweep_data

    found: list[Sweep] = []
    interrupted = False
    try:
        _sweep_into(found, plan)
        interrupted = any(result.interrupted for result in found)
    except KeyboardInterrupt:
        interrupted = True
    for result in found:
        print_sweep(out, result, plan.repeat(result.activity))
    if found:
        out.print(legend(found))
        _totals(found)
    if json is not None:
        data = [sweep_data(result, str(plan.subject.impl)) for result in found]
        write_json(json, {"schema": SWEEP_SCHEMA, "sweeps": data})
    if html is not None and found:
        from harness.report.page import sweep_page, write_page

        write_page(html, sweep_page(found, plan.repeat))
    if interrupted:
        err.print("[yellow]Interrupted:[/] this is what was found until then.")
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(exit_for(_worst(found)))


def _sweep_into(found: list[Sweep], plan: Plan) -> None:
    from harness.sweep import run_sweep

    with _opened(plan.kind, plan.jobs) as ((workshop, *beside), tell):
        for row in plan.subject.rows(workshop):
            found.append(run_sweep(workshop, plan.subject.impl, row, kind=plan.kind,
                                   policy=plan.policy, double=plan.double, progress=tell, beside=beside))  # fmt: skip
            if found[-1].interrupted:
                break


def _random(impl: str, seconds: float, seed: int, json: Path | None) -> NoReturn:
    """Play random stories from seed after seed until the time is up or one fails."""
    from hypothesis.errors import Flaky

    from harness.machine import StoryBroken, explore
    from harness.report.data import write_json
    from harness.report.grid import RANDOM_SCHEMA, print_story

    try:
        folder = find_impl(impl)
    except UnknownImpl as problem:
        usage(str(problem))
    broken: StoryBroken | None = None
    stories, number, status, interrupted = 0, seed, Verdict.PASS, False

    def heard(steps: Sequence[str]) -> None:
        nonlocal stories
        stories += 1
        tell(
            min(int(clock() - started), int(seconds)),
            int(seconds),
            f"seed {number}, story {stories}",
        )

    clock = time.monotonic
    with _opened(Kind.KILL) as ((workshop,), tell):
        started = clock()
        try:
            while status is Verdict.PASS and clock() - started < seconds:
                explore(workshop, folder, number, heard=heard)
                number += 1
        except StoryBroken as found:
            broken, status = found, Verdict.FAIL
        except Flaky as unsound:
            err.print(
                f"[bold magenta]The same story ended in two ways:[/] {unsound}", highlight=False
            )
            status = Verdict.ERROR
        except KeyboardInterrupt:
            interrupted = True
    if broken is not None:
        print_story(out, broken.steps, broken.findings)
    again = f"lab sweep --random 60 --seed {number}" + (f" --impl {impl}" if impl != "labs" else "")
    out.print(f"{status.upper()}  {stories} stories, seeds {seed} to {number}", highlight=False)
    if status is not Verdict.PASS:
        out.print(f"  repeat it:   {again}", highlight=False)
    if json is not None:
        steps = broken.steps if broken else ()
        data = {
            "schema": RANDOM_SCHEMA,
            "verdict": status,
            "stories": stories,
            "seed": number,
            "steps": steps,
        }
        write_json(json, data)
    raise typer.Exit(INTERRUPTED if interrupted else exit_for(status))


def _one(plan: Plan, faults: list[Fault], html: Path | None) -> None:
    """Play one fault line, told in full."""
    from harness.inject import run_fault
    from harness.report.grid import print_failure, repeat_command
    from harness.report.terminal import VERDICT_STYLE
    from harness.run import Play, play_clean
    from harness.sweep import judge_kills_of

    if plan.subject.several:
        usage("--at needs one lab: lab sweep 3 --at 'kill@audit#2'")
    first, then = faults[0], (faults[1] if len(faults) > 1 else None)
    line = ",".join(map(str, faults))
    with _opened(first.kind) as ((workshop,), tell):
        (row,) = plan.subject.rows(workshop)
        tell(0, 0, line)
        clean = play_clean(Play(workshop, plan.subject.impl, row))
        row = judge_kills_of(row, clean)
        run = run_fault(workshop, plan.subject.impl, row, first, then=then, record=clean.boundaries)
    out.print(
        f"[bold {VERDICT_STYLE[run.verdict]}]{run.verdict.upper()}[/]  {line}", highlight=False
    )
    if run.note:
        out.print(f"  {run.note}", highlight=False)
    if run.verdict is Verdict.FAIL:
        print_failure(out, run, clean.boundaries, repeat_command(plan.repeat(row), line))
    if html is not None:
        from harness.report.page import run_page, write_page

        again = "uv run " + repeat_command(plan.repeat(row), line)
        page = run_page(line, run.note, [run], again, record=clean.boundaries)
        write_page(html, page)
    raise typer.Exit(exit_for(run.verdict))


@contextmanager
def _opened(kind: Kind, jobs: int = 1) -> Iterator[tuple[list[Workshop], Progress]]:
    """Open workshops under a progress bar; yield them and the function that moves the bar."""
    from harness.program_sweep import ScriptProblem
    from harness.workshop import open_workshop

    with trouble_told(), _bar() as bar:
        task = bar.add_task("starting PostgreSQL", total=None)

        def tell(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total or None, description=text)

        try:
            with ExitStack() as stack:
                opened = [
                    stack.enter_context(
                        open_workshop(
                            progress=lambda text: tell(0, 0, text), private=kind is Kind.CRASH
                        )
                    )
                    for _ in range(jobs)
                ]
                yield opened, tell
        except ScriptProblem as problem:
            usage(str(problem))


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


def _bar() -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    )
