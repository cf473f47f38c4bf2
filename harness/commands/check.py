"""`lab check`: the graded checks, once or again after every save."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from harness.commands.common import Exit, Impl, JsonFile, chosen_lab, err, out, trouble_told, usage
from harness.commands.learn import tell
from harness.course import COURSE, LABS, Lab
from harness.impl import UnknownImpl, find_impl
from harness.records import Verdict

if TYPE_CHECKING:
    from harness.grading.result import CheckResult
    from harness.grading.session import CheckOrder, CheckRun
    from harness.workshop import Workshop

EPILOG = """Examples:
  lab check                                    the first lab that is not finished
  lab check 3 --watch                          lab 3, and again after every save; q leaves
  lab check 3 -k short_last_chunk              one check
  lab check --impl solutions                   the worked files, all labs
  lab check --impl ../submission --json r.json
"""

#: The status of a command that was stopped by Ctrl-C, as shells have it.
INTERRUPTED = 128 + signal.SIGINT


def check(
    number: Annotated[
        int | None,
        typer.Argument(metavar="[N]", help="The lab; without it, the first unfinished.", show_default=False),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Check again after every save; q leaves.")
    ] = False,
    select: Annotated[
        str, typer.Option("-k", metavar="EXPR", help="Only this check, or those that match.")
    ] = "",
    impl: Impl = "labs",
    json: JsonFile = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="DIR", file_okay=False, help="Also write a page to step through each check."),
    ] = None,
    spawn: Annotated[
        bool, typer.Option("--spawn", help="A fresh interpreter for each client.")
    ] = False,
) -> None:  # fmt: skip
    """Run the graded checks of a lab, and say what to do next."""
    from harness.grading.session import CheckOrder

    try:
        folder = find_impl(impl)
    except UnknownImpl as problem:
        usage(str(problem))
    order = CheckOrder(_labs(number, own=folder == LABS), impl, select, json, html)
    with trouble_told():
        # pytest would take the exit of `trouble_told`'s handler for a check that failed.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if watch:
            status = _watch(order, folder, spawn)
        else:
            with _workshop(spawn) as workshop:
                status = _status(_round(order, workshop, own=folder == LABS), order)
    raise typer.Exit(status)


def _labs(number: int | None, *, own: bool) -> tuple[Lab, ...]:
    """Return the labs to check, all of which have checks."""
    from harness.grading.session import has_checks
    from harness.learner.progress import load

    if number is not None:
        chosen: tuple[Lab, ...] = (chosen_lab(number),)
    else:
        checked = tuple(entry for entry in COURSE if has_checks(entry))
        unfinished = [entry for entry in checked if not load().of(entry).behind]
        chosen = (unfinished[0],) if own and unfinished else checked
    if not chosen or not has_checks(chosen[0]):
        name = f"lab {chosen[0].number}" if chosen else "any lab"
        usage(f"this version of the kit has no graded checks for {name} yet")
    return chosen


@contextmanager
def _workshop(spawn: bool) -> Iterator[Workshop]:
    from harness.workshop import open_workshop

    with ExitStack() as stack:
        with err.status("starting PostgreSQL") as status:
            workshop = stack.enter_context(open_workshop(spawn=spawn, progress=status.update))
        yield workshop


# --- one round ------------------------------------------------------------------------------------


def _round(
    order: CheckOrder,
    workshop: Workshop,
    *,
    own: bool,
    before: Mapping[str, CheckResult] | None = None,
) -> CheckRun:
    """Run the checks once, print what came of them, and remember it if it is the learner's."""
    from harness.grading.session import run_checks
    from harness.report.checklist import Checklist, next_step, points_line, print_words

    with Checklist(out, order.labs, before) as checklist:
        run = run_checks(order, workshop, checklist)
        checklist.finish()
    if run.trouble:
        err.print(Text("The checks could not be run:", style="bold magenta"))
        err.print(Text(run.trouble), soft_wrap=True)
    for entry in order.labs:
        if run.of(entry):
            out.print(points_line(entry, run, before))
            news = before is None or (run.passed(entry) and run.changed(before))
            if own and news and (step := next_step(entry, run)):
                print_words(out, step, 0)
    if len(order.labs) > 1:
        points, most = sum(r.points for r in run.results), sum(r.max_points for r in run.results)
        out.print(Text(f"all: {points} of {most} points", style="bold"))
    if own:
        _remember(order, run)
    return run


def _remember(order: CheckOrder, run: CheckRun) -> None:
    """Record the points of a whole run; one that the kit spoiled says nothing about the learner."""
    from harness.learner.progress import record

    ours = {Verdict.VOID, Verdict.ERROR}
    if not run.whole or any(result.verdict in ours for result in run.results):
        return
    for entry in order.labs:
        results = run.of(entry)
        points, most = sum(r.points for r in results), sum(r.max_points for r in results)
        progress = record(entry, points=points, max_points=most, worked=False)
        if progress.trouble:
            tell(progress)
            return


def _status(run: CheckRun, order: CheckOrder) -> int:
    """Return the exit status: void and error alone are ours; a check that was skipped is not passed."""
    if run.interrupted:
        err.print("Stopped. What is printed above was found before.")
        return INTERRUPTED
    if run.bad_selection:
        names = ", ".join(run.deselected)
        usage(f"no check matches {order.select!r}" + (f"; there are: {names}" if names else ""))
    verdicts = {result.verdict for result in run.results}
    if verdicts & {Verdict.FAIL, Verdict.SKIP}:
        return Exit.FAILED
    if run.trouble or not verdicts or verdicts != {Verdict.PASS}:
        return Exit.HARNESS
    return Exit.PASSED


# --- watching -------------------------------------------------------------------------------------


def _watch(order: CheckOrder, folder: Path, spawn: bool) -> int:
    """Check, then again after every save, on one warm workshop, until q or Ctrl-C."""
    from harness.learner.watch import saves

    own = folder == LABS
    try:
        with saves(folder) as saved, _workshop(spawn) as workshop:
            run = _round(order, workshop, own=own)
            if run.bad_selection or run.interrupted:
                return _status(run, order)
            _invite()
            for names in saved:
                before = {result.id: result for result in run.results}
                out.print(Text(f"{datetime.now():%H:%M:%S}  {', '.join(names)} saved", style="dim"))
                run = _round(order, workshop, own=own, before=before)
                if run.interrupted:
                    return INTERRUPTED
            return Exit.PASSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _invite() -> None:
    out.print(Text("Watching: save a file to check again; q leaves.", style="dim"))
