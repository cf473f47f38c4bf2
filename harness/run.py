"""One run: clean rows, a client, a fault, the evidence, the verdict.

    with open_workshop() as workshop:
        run = run_with_fault(workshop, impl, festival(), drain, parse_fault("kill@audit#2"))
        print(run.verdict, run.findings)

A run is judged twice: safety on what a fresh connection sees once the client is gone, then liveness
when one healthy client has finished. A fault that was armed and did not land makes the run `void`:
neither a pass nor the learner's failure.

A `Play` is a run in the making: who plays which activity under which fault. Kills are played here;
`living.py` has the faults that a client survives, and `inject.py` finds the player of any fault.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.activity import Activity, Calls
from harness.faults import Fault, Kind
from harness.healthy import Heard
from harness.healthy import describe_failure as describe_failure
from harness.healthy import judge_calls as judge_calls
from harness.judge import judge_finished, judge_refusal, judge_safety
from harness.records import (
    Boundary,
    CallResult,
    Evidence,
    Finding,
    Hold,
    Kill,
    Policy,
    Stop,
    Verdict,
    WireEvent,
)
from harness.scenario import Scenario
from harness.script import Call, ScriptMaker
from harness.workshop import Actor, Scene, Workshop

NOT_REACHED = "the client ended without reaching the place"


@dataclass(frozen=True)
class Run:
    """One run from clean rows to a verdict, with all that was seen on the way.

    `after_fault` is what the fresh connection saw once the client was gone, `after_resume` what it
    saw when a healthy client had finished; a run without a fault has only the second. `kills` are in
    order; `kill` is the first. `note` says in words what a fault did, or why it did not land.
    """

    scenario: Any  # a `Scenario` for track A
    fault: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    kills: tuple[Kill, ...] = ()
    after_fault: Evidence | None = None
    after_resume: Evidence | None = None
    resumed_by: int | None = None
    boundaries: tuple[Boundary, ...] = ()
    events: tuple[WireEvent, ...] = ()
    resume_boundaries: tuple[Boundary, ...] = ()  # of the client that finished
    resume_events: tuple[WireEvent, ...] = ()
    calls: tuple[tuple[Call, CallResult], ...] = ()
    seconds: float = 0.0
    note: str = ""
    possible: bool = True  # False where the fault cannot be made, such as a deadlock without a lock

    @property
    def kill(self) -> Kill | None:
        """Return the first kill, if there was one."""
        return self.kills[0] if self.kills else None

    @property
    def reached(self) -> bool:
        """Tell whether the fault's place was reached (and then perhaps missed)."""
        return self.note != NOT_REACHED


@dataclass(frozen=True)
class Play:
    """A run in the making. `record` holds the boundaries of a clean run, where a fault needs one."""

    workshop: Workshop
    impl: Path
    activity: Activity
    fault: Fault | None = None
    record: tuple[Boundary, ...] = ()
    started: float = field(default_factory=time.perf_counter)

    def scene(self) -> AbstractContextManager[Scene]:
        """Open a scene on clean rows with the activity's scenario in them."""
        activity = self.activity
        return self.workshop.scene(
            lambda control: activity.seed(control, activity.scenario), told_as=activity.scenario
        )

    def client(
        self,
        scene: Scene,
        stop: Stop | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        resume: bool = False,
    ) -> Actor:
        """Start a client on the activity's work, or to `resume` it; it is held at `stop`."""
        work, scenario = self.activity.work, self.activity.scenario
        if resume and self.activity.resume is not None:
            work = self.activity.resume
        return work.start(scene, self.impl, scenario, stop=stop, settings=settings)

    def advance(self, scene: Scene, actor: Actor, zombies: list[int]) -> Hold | None:
        """Let a client go on until it is held or done.

        `zombies` are server sessions of dead clients that the server still believes in. When the
        client meets a lock of theirs they are terminated (the list is then empty), and it goes on.
        """
        hold = actor.go_on(until=lambda: bool(zombies) and scene.blocked(actor, *zombies))
        if hold is None and actor.busy:
            scene.terminate(zombies)
            zombies.clear()
            hold = actor.go_on()
        return hold

    def heal(self, scene: Scene, zombies: list[int] | None = None) -> tuple[Actor, str]:
        """Let one healthy client finish; return it, and what it met of the `zombies`."""
        left, note = list(zombies or ()), ""
        healthy = self.client(scene, resume=True)
        if left:
            self.advance(scene, healthy, left)
        if zombies and not left:
            note = "the healthy client met the zombie's lock"
        attempts = self.activity.attempts - 1
        if left:
            scene.terminate(left)
            if self.answers(None, healthy):
                note = "the healthy client was turned away by the zombie's lock"
                attempts += 1
        healthy.finish()
        while attempts > 0 and self.answers(None, healthy):
            attempts -= 1
            healthy = self.client(scene, resume=True)
            healthy.finish()
        healthy.close()
        return healthy, note

    def answers(self, before: Evidence | None, actor: Actor) -> list[Finding]:
        """Judge what a healthy client said."""
        heard: Heard = self.activity.work.heard(actor)
        return self.activity.answers(self.activity.scenario, before, heard)

    def judged(
        self,
        actor: Actor,
        healthy: Actor,
        before: Sequence[Evidence],
        after: Evidence,
        *,
        findings: Sequence[Finding] = (),
        kills: Sequence[Kill] = (),
        note: str = "",
    ) -> Run:
        """Judge a run to its end: safety at every moment in `before`, then `findings`, then liveness."""
        activity, scenario = self.activity, self.activity.scenario
        broken = (
            next((found for seen in before if (found := activity.safety(scenario, seen))), [])
            or list(findings)
            or activity.safety(scenario, after)
            or self.answers(before[-1], healthy)
            or activity.finished(scenario, after)
        )
        landed = all(kill.landed for kill in kills)
        return Run(
            scenario,
            self.line,
            _verdict(broken) if landed else Verdict.VOID,
            tuple(broken),
            tuple(kills),
            before[-1],
            after,
            healthy.client.pid,
            resume_boundaries=healthy.lane.boundaries,
            resume_events=healthy.lane.events,
            note=note if landed else "; ".join(kill.void_reason for kill in kills),
            **self._seen(actor),
        )

    def judged_as(
        self, actor: Actor, seen: Evidence, findings: Sequence[Finding], note: str
    ) -> Run:
        """Return a run that ends without a healthy client, because no client could finish."""
        return Run(
            self.activity.scenario,
            self.line,
            _verdict(findings),
            tuple(findings),
            after_fault=seen,
            note=note,
            **self._seen(actor),
        )

    def missed(self, actor: Actor, note: str = NOT_REACHED, *, possible: bool = True) -> Run:
        """Return the run of a fault that did not land, or was not even `possible` at its place."""
        kills: tuple[Kill, ...] = ()
        if self.fault is not None and self.fault.kind is Kind.KILL:
            kills = (Kill(self.line, None, None, self.fault.policy, False, note),)
        return Run(
            self.activity.scenario,
            self.line,
            Verdict.VOID,
            kills=kills,
            note=note,
            possible=possible,
            **self._seen(actor),
        )

    @property
    def line(self) -> str:
        """Return the fault's line; empty without a fault."""
        return str(self.fault) if self.fault is not None else ""

    def _seen(self, actor: Actor) -> dict[str, Any]:
        return {
            "boundaries": actor.lane.boundaries,
            "events": actor.lane.events,
            "calls": tuple(actor.calls),
            "seconds": time.perf_counter() - self.started,
        }


def play_clean(play: Play) -> Run:
    """Play without a fault; the boundaries are the record that faults are placed by."""
    activity, scenario = play.activity, play.activity.scenario
    with play.scene() as scene:
        actor = play.client(scene)
        actor.finish()
        actor.close()
        evidence = activity.inspect(scene)
    findings = (
        play.answers(None, actor)
        or activity.safety(scenario, evidence)
        or activity.finished(scenario, evidence)
    )
    return Run(
        scenario,
        "",
        _verdict(findings),
        tuple(findings),
        after_resume=evidence,
        resumed_by=actor.client.pid,
        **play._seen(actor),
    )


def play_kill(play: Play, then: Fault | None = None) -> Run:
    """Kill a client at the fault's place, and with `then` the one that recovers, too.

    Safety is read after each kill; at the end one healthy client finishes.
    """
    assert play.fault is not None
    kills: list[Kill] = []
    before: list[Evidence] = []
    zombies: list[int] = []
    with play.scene() as scene:
        first = None
        for fault in (play.fault, then):
            if fault is None:
                continue
            actor = play.client(scene, fault.stop, resume=first is not None)
            first = first or actor
            hold = play.advance(scene, actor, zombies)
            if hold is None:
                return play.missed(first)
            kills.append(actor.kill(str(fault), hold, fault.policy))
            before.append(play.activity.inspect(scene))
            if fault.policy is Policy.LEAVE_OPEN:
                zombies += actor.lane.backend_pids
        healthy, note = play.heal(scene, zombies)
        after = play.activity.inspect(scene)
    assert first is not None
    return play.judged(first, healthy, before, after, kills=kills, note=note)


def run_clean(workshop: Workshop, impl: Path, scenario: Scenario, maker: ScriptMaker) -> Run:
    """Run the script without a fault; its boundaries are the record that faults are placed by."""
    return play_clean(Play(workshop, impl, _track_a(scenario, maker)))


def run_with_fault(
    workshop: Workshop,
    impl: Path,
    scenario: Scenario,
    maker: ScriptMaker,
    fault: Fault,
    recovery: ScriptMaker | None = None,
) -> Run:
    """Kill a client at the fault's place, read what is there, let a healthy client finish, judge.

    Args:
        recovery: What the healthy client is asked to do; the same as the killed one by default.

    Raises:
        ValueError: If the fault is not a kill; `inject.run_fault` plays the others.
    """
    if fault.kind is not Kind.KILL:
        raise ValueError(f"run_with_fault makes kills; {fault} is another fault")
    activity = replace(
        _track_a(scenario, maker), resume=Calls(recovery) if recovery is not None else None
    )  # fmt: skip
    return play_kill(Play(workshop, impl, activity, fault))


def _track_a(scenario: Scenario, maker: ScriptMaker) -> Activity:
    return Activity(0, maker.__name__, scenario, Calls(maker), judge_safety, judge_finished)


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


def _verdict(findings: Sequence[Finding]) -> Verdict:
    return Verdict.FAIL if findings else Verdict.PASS
