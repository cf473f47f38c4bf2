"""One run: clean rows, a client, a fault, the evidence, the verdict.

    with open_workshop() as workshop:
        run = run_with_fault(workshop, impl, festival(), drain, parse_fault("kill@audit#2"))
        print(run.verdict, run.findings)

A run is judged twice: safety on what a fresh connection sees once the client is gone, then liveness
when one healthy client has finished. A fault that was armed and did not land makes the run `void`:
neither a pass nor the learner's failure.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.faults import Fault, Kind
from harness.judge import judge_finished, judge_refusal, judge_safety
from harness.records import (
    Boundary,
    CallResult,
    Died,
    Evidence,
    Finding,
    Kill,
    Raised,
    Returned,
    Verdict,
    WireEvent,
)
from harness.scenario import Scenario
from harness.script import Call, ScriptMaker
from harness.workshop import Actor, Workshop


@dataclass(frozen=True)
class Run:
    """One run from clean rows to a verdict, with all that was seen on the way.

    `after_fault` is what the fresh connection saw once the client was gone, `after_resume` what it
    saw when a healthy client had finished; a run without a fault has only the second.
    """

    scenario: Scenario
    fault: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    kill: Kill | None = None
    after_fault: Evidence | None = None
    after_resume: Evidence | None = None
    resumed_by: int | None = None
    boundaries: tuple[Boundary, ...] = ()
    events: tuple[WireEvent, ...] = ()
    calls: tuple[tuple[Call, CallResult], ...] = ()
    seconds: float = 0.0


def run_clean(workshop: Workshop, impl: Path, scenario: Scenario, maker: ScriptMaker) -> Run:
    """Run the script without a fault; its boundaries are the record that faults are placed by."""
    started = time.perf_counter()
    with workshop.scene(scenario) as scene:
        actor = scene.actor(impl)
        actor.follow(maker(scenario))
        actor.close()
        evidence = scene.evidence()
    findings = (
        judge_safety(scenario, evidence)
        or judge_calls(actor.calls)
        or judge_finished(scenario, evidence)
    )
    return Run(
        scenario,
        "",
        _verdict(findings),
        tuple(findings),
        after_resume=evidence,
        resumed_by=actor.client.pid,
        boundaries=actor.lane.boundaries,
        events=actor.lane.events,
        calls=tuple(actor.calls),
        seconds=time.perf_counter() - started,
    )


def run_with_fault(
    workshop: Workshop, impl: Path, scenario: Scenario, maker: ScriptMaker, fault: Fault
) -> Run:
    """Kill a client at the fault's place, read what is there, let a healthy client finish, judge.

    Raises:
        ValueError: If the fault is not a kill.
    """
    if fault.kind is not Kind.KILL:
        raise ValueError(f"run_with_fault makes kills; {fault} is another fault")
    started = time.perf_counter()
    with workshop.scene(scenario) as scene:
        actor = scene.actor(impl, stop=fault.stop)
        hold = actor.follow(maker(scenario))
        if hold is None:
            missed = "the client ended without reaching the place"
            kill = Kill(str(fault), None, None, fault.policy, False, missed)
            return _void(scenario, kill, actor, started)
        kill = actor.kill(str(fault), hold, fault.policy)
        after_fault = scene.evidence()
        healthy = scene.actor(impl)
        healthy.follow(maker(scenario))
        healthy.close()
        after_resume = scene.evidence()
    findings = (
        judge_safety(scenario, after_fault)
        or judge_safety(scenario, after_resume)
        or judge_calls(healthy.calls)
        or judge_finished(scenario, after_resume)
    )
    return Run(
        scenario,
        str(fault),
        _verdict(findings) if kill.landed else Verdict.VOID,
        tuple(findings),
        kill,
        after_fault,
        after_resume,
        healthy.client.pid,
        actor.lane.boundaries,
        actor.lane.events,
        tuple(actor.calls),
        time.perf_counter() - started,
    )


def run_rival_edit(
    workshop: Workshop, impl: Path, scenario: Scenario, maker: ScriptMaker, chunk: int
) -> Run:
    """Let another owner raise the revision of the chunk's middle order before the client starts.

    The client must commit the chunks before it, refuse this one as a whole, and name the order.
    """
    started = time.perf_counter()
    ids = scenario.chunk_ids(chunk)
    edited = ids[len(ids) // 2]
    with workshop.scene(scenario) as scene:
        scene.rival("UPDATE orders SET revision = revision + 1 WHERE order_id = %s", (edited,))
        actor = scene.actor(impl)
        actor.follow(maker(scenario))
        actor.close()
        evidence = scene.evidence()
    last = actor.calls[-1][1] if actor.calls else None
    findings = judge_safety(scenario, evidence) or judge_refusal(
        scenario, evidence, edited, chunk, last
    )
    return Run(
        scenario,
        f"rival-write, order {edited}",
        _verdict(findings),
        tuple(findings),
        after_fault=evidence,
        boundaries=actor.lane.boundaries,
        events=actor.lane.events,
        calls=tuple(actor.calls),
        seconds=time.perf_counter() - started,
    )


def judge_calls(calls: Sequence[tuple[Call, CallResult]]) -> list[Finding]:
    """A healthy client must not raise: an error here is a finding, with the learner's own lines."""
    for call, result in calls:
        if not isinstance(result, Returned):
            return [Finding(
                "liveness",
                f"called {call} in a healthy client, with no fault",
                "a result",
                describe_failure(result),
            )]  # fmt: skip
    return []


def describe_failure(result: Raised | Died) -> str:
    """Say how a call failed: the error and the learner's own frames, or how the process ended."""
    if isinstance(result, Died):
        return f"the process ended before it answered: {result.exit}"
    return "\n".join([f"{result.type_name}: {result.text}", *result.traceback])


def _verdict(findings: Sequence[Finding]) -> Verdict:
    return Verdict.FAIL if findings else Verdict.PASS


def _void(scenario: Scenario, kill: Kill, actor: Actor, started: float) -> Run:
    return Run(
        scenario,
        kill.fault,
        Verdict.VOID,
        kill=kill,
        boundaries=actor.lane.boundaries,
        events=actor.lane.events,
        calls=tuple(actor.calls),
        seconds=time.perf_counter() - started,
    )
