"""`lab run`: call one of your functions and look, without checks and without faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from harness.commands.common import Exit, Impl, chosen_lab, err, out, trouble_told, usage
from harness.course import ROOT, Lab
from harness.impl import UnknownImpl, find_impl
from harness.limits import CHUNK_MAX, ORDERS_MAX
from harness.scenario import Scenario, festival

if TYPE_CHECKING:
    from harness.records import CallResult, Evidence
    from harness.workshop import Scene

EPILOG = """Examples:
  lab run 3                                    run_chunk(conn, the story's job)
  lab run 3 --done-chunks 3                    the same, with 30 of the 40 orders done
  lab run 5 drain festival-cancellation 2      arguments as JSON, or plain words
  lab run 2 cancel_orders umbra-events '[{"order_id": 1001, "revision": 2, "qty": 3}]'
  lab run 9 claim p1 5 '{"seconds": 30}'       a lease, for track B
  lab run 3 --in-process                       on your terminal: breakpoint() works
"""


def run(
    number: Annotated[int, typer.Argument(metavar="N", help="The lab.")],
    function: Annotated[
        str, typer.Argument(metavar="[FUNCTION]", help="Which of its functions; the first, if not said.", show_default=False)
    ] = "",
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments after conn, as JSON; without any, those of the story.")
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="In a plain process on your terminal, for breakpoint().")
    ] = False,
    orders: Annotated[int, typer.Option(min=1, max=ORDERS_MAX, help="Orders in the scenario.")] = 40,
    chunk_size: Annotated[int, typer.Option(min=1, max=CHUNK_MAX, help="Orders a chunk.")] = 10,
    done_chunks: Annotated[int, typer.Option(min=0, help="Chunks the job has run already.")] = 0,
    impl: Impl = "labs",
) -> None:  # fmt: skip
    """Call a lab's function in a clean database that holds the course's scenario."""
    from harness.learner import trial

    lab = chosen_lab(number)
    function = function or lab.functions[0]
    if function not in lab.functions:
        usage(f"lab {number} has no function {function!r}: use {', '.join(lab.functions)}")
    scenario = trial.stage(function, festival(orders, chunk_size, done_chunks=done_chunks))
    try:
        folder = find_impl(impl)
        given = trial.arguments(lab, function, arguments or [], scenario)
    except (UnknownImpl, trial.NoArguments) as problem:
        usage(str(problem))
    out.print(Text(f"{function}({_shown(function, given)})", style="bold"), soft_wrap=True)
    with trouble_told():
        if in_process:
            status = _in_process(folder, lab, function, given, scenario)
        else:
            status = _as_client(folder, lab, function, given, scenario)
    raise typer.Exit(status)


def _as_client(
    folder: Path, lab: Lab, function: str, given: tuple[Any, ...], scenario: Scenario
) -> int:
    """Run the call as the checks do: in a client process of its own, with its limits."""
    from harness.workshop import open_workshop

    with open_workshop() as workshop, workshop.scene(scenario) as scene:
        if function == "main":
            status = _program(scene, folder, lab, given)
        else:
            status = _tell(lab, scene.actor(folder).call(lab.number, function, *given))
        if lab.track == "A":
            _tell_database(scene.evidence(), scenario)
    return status


def _shown(function: str, given: tuple[Any, ...]) -> str:
    from harness.learner import trial

    words = [text if len(text := trial.show(a)) < 60 else text[:57] + "..." for a in given]
    return ", ".join(words if function == "main" else ["conn", *words])


def _tell(lab: Lab, result: CallResult) -> int:
    """Print what a call printed and what came of it; return the exit status."""
    from harness.learner.trial import show
    from harness.records import Died, Returned
    from harness.run import describe_failure

    for line in result.exit.output if isinstance(result, Died) else result.output:
        out.print(Text(f"printed   {line}"), soft_wrap=True)
    if isinstance(result, Returned):
        out.print(Text(f"returned  {show(result.value)}"), soft_wrap=True)
        return Exit.PASSED
    out.print(Text(describe_failure(result), style="red"), soft_wrap=True)
    if not isinstance(result, Died) and result.type_name == "BdbQuit":
        out.print(f"breakpoint() needs a terminal: `uv run lab run {lab.number} --in-process`")
    return Exit.FAILED


def _program(scene: Scene, folder: Path, lab: Lab, given: tuple[Any, ...]) -> int:
    """Run the lab's program to its end and print its lines and its exit status."""

    ended = scene.program(folder, lab.number, [str(word) for word in given]).client.wait()
    for line in ended.output:
        out.print(Text(f"printed   {line}"), soft_wrap=True)
    out.print(Text(f"ended     {ended}"))
    return Exit.PASSED if ended.code == 0 else Exit.FAILED


def _in_process(
    folder: Path, lab: Lab, function: str, given: tuple[Any, ...], scenario: Scenario
) -> int:
    """Run the call in a process that has this terminal: no proxy, no limits."""
    from harness.database import open_laboratory, open_server
    from harness.evidence import read_evidence
    from harness.process.values import encode
    from harness.seeding import seed

    with open_server() as server, open_laboratory(server) as laboratory:
        seed(laboratory.control, scenario)
        plan = {
            "impl": str(folder),
            "lab": lab.number,
            "function": function,
            "arguments": encode(list(given)),
            "dsn": laboratory.learner_dsn(server.upstream.host, server.upstream.port),
        }
        status = _debug(plan)
        if lab.track == "A":
            _tell_database(read_evidence(laboratory.control), scenario)
    return status


def _debug(plan: dict[str, Any]) -> int:
    """Run `harness.learner.debug` and return the exit status; Ctrl-C is for that process alone."""
    from harness.learner.debug import PLAN_VARIABLE

    environment = {**os.environ, PLAN_VARIABLE: json.dumps(plan)}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.learner.debug"], cwd=ROOT, env=environment, check=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    if done.returncode < 0:
        err.print(f"The process ended by {signal.Signals(-done.returncode).name}.")
    return 130 if done.returncode == 130 else Exit(done.returncode != 0)


def _tell_database(evidence: Evidence, scenario: Scenario) -> None:
    """Say in one line what the database holds now."""
    job = evidence.job(scenario.job_id)
    ids = set(scenario.approved_ids)
    cancelled = sum(1 for o in evidence.orders if o.order_id in ids and o.state == "cancelled")
    audit = sum(1 for row in evidence.audit if row.job_id == scenario.job_id)
    checkpoint = f"next_index {job.next_index}" if job else "no job"
    line = f"{cancelled} of {len(ids)} approved orders cancelled, {audit} audit rows, {checkpoint}"
    out.print(Text(f"database  {line}", style="dim"), soft_wrap=True)
