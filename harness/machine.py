"""The state machine: any mixture of jobs, workers, rivals and kills, one gate at a time.

A sweep tries every place for one fault. What it does not try is a mixture: two workers, one frozen,
an edit, a kill, another registration. Hypothesis draws such stories here, from rules that each end at
a gate: a worker is held, waits for a lock, or is done. So a story replays the same way every time, and
a failing one can be shrunk to its few steps that matter.

What is drawn depends on nothing but what was drawn before: rules look at the model in memory, never at
an answer of the database, a process ID or a clock. After every rule the judge reads the evidence.

    explore(workshop, impl, seed=7)        # raises StoryBroken with numbered steps
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import psycopg
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness.contract import ApprovedOrder
from harness.healthy import describe_failure
from harness.judge import judge_finished, judge_safety
from harness.limits import MACHINE_EXAMPLES, MACHINE_STEPS
from harness.records import (
    CallResult,
    Died,
    Evidence,
    Finding,
    Hold,
    Policy,
    Raised,
    Returned,
    Stop,
)
from harness.scenario import Scenario, festival, unregistered
from harness.script import Script, ScriptMaker, drain, read_report, register, run_chunks
from harness.seeding import seed as seed_rows
from harness.workshop import Actor, Scene, Workshop

#: Two jobs with orders of their own; three chunks each, the last one short. One is registered already.
JOBS = (
    festival(5, 2, job_id="spring", first_id=1001),
    unregistered(festival(5, 2, job_id="autumn", first_id=5001, seed=1)),
)
WORKERS_MAX = 3
#: What a worker may be asked to do; whoever drains also doubts, and is harder to lead astray.
WORK: Mapping[str, ScriptMaker] = {"run_chunk": run_chunks, "drain": drain}
#: The most boundaries one step of a worker goes: a chunk of the worked answer has about 24.
STEP_MAX = 24
WAITS = "it waits for a lock"
REQUESTS = ("the same", "the same, shuffled", "another quantity", "another chunk size")


class StoryBroken(AssertionError):
    """A promise broke. `steps` is the story, `findings` what the judge says."""

    def __init__(self, findings: Sequence[Finding], steps: Sequence[str]) -> None:
        first = findings[0]
        super().__init__(f"{first.promise}: expected {first.expected}; seen {first.seen}")
        self.findings = tuple(findings)
        self.steps = tuple(steps)


@dataclass
class Worker:
    """One client in the story. `held` is where it stands; without, it waits for a lock or is done."""

    name: str
    job: int
    actor: Actor
    held: Hold | None = None
    frozen: bool = False


@dataclass
class Machine(RuleBasedStateMachine):
    """The rules. One machine is one story on clean rows."""

    workshop: Workshop
    impl: Path
    heard: Callable[[Sequence[str]], None] = lambda steps: None
    steps: list[str] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.started = 0
        self.registered = {n for n, job in enumerate(JOBS) if job.registered}
        self.touched: set[int] = set()  # approved orders that another owner edited or deleted
        self.zombies: list[int] = []
        self._stage: AbstractContextManager[Scene] | None = None  # taken by the first rule

    # Hypothesis compares and hashes machines by identity; a dataclass would not.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @initialize()
    def open(self) -> None:
        """Take the stage: clean rows, the orders of both jobs."""

        def write(control: psycopg.Connection[Any]) -> None:
            for job in JOBS:
                seed_rows(control, job)

        self._stage = self.workshop.scene(write)
        self.scene = self._stage.__enter__()

    def teardown(self) -> None:
        """End everybody."""
        self.heard(self.steps)
        if self._stage is not None:
            self._stage.__exit__(None, None, None)

    # --- jobs ---------------------------------------------------------------------------------------

    @rule(job=st.integers(0, 1), request=st.sampled_from(REQUESTS))
    def register(self, job: int, request: str) -> None:
        """Register a job; again, it must be the same request or a Conflict."""
        first = job not in self.registered
        scenario = JOBS[job] if first else _request(JOBS[job], request)
        result = self._one_call(register(scenario))
        self._tell(
            f"{JOBS[job].job_id} is registered{'' if first else f' again, {request}'}", result
        )
        refused = not first and request in REQUESTS[2:]
        right = isinstance(result, Raised) and result.is_a("Conflict")
        if not (right if refused else isinstance(result, Returned)):
            self._broken("same request", "Conflict" if refused else "it returns", _say(result))
        self.registered.add(job)

    @rule(job=st.integers(0, 1))
    def report(self, job: int) -> None:
        """Read a report; it must say what the audit and the orders say."""
        result = self._one_call(read_report(JOBS[job]))
        self._tell(f"a report of {JOBS[job].job_id} is read", result)
        if job not in self.registered:
            if not (isinstance(result, Raised) and result.is_a("UnknownJob")):
                self._broken("honest report", "UnknownJob", _say(result))
            return
        expected = _report(JOBS[job], self.scene.evidence())
        value = result.value if isinstance(result, Returned) else None
        seen = {name: list(getattr(value, name, ())) for name in expected}
        if not isinstance(result, Returned) or seen != expected:
            self._broken("honest report", f"{expected}", f"{seen if value else _say(result)}")

    # --- workers --------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.workers) < WORKERS_MAX)
    @rule(
        job=st.integers(0, 1),
        boundary=st.integers(1, STEP_MAX),
        work=st.sampled_from(sorted(WORK)),
    )
    def start(self, job: int, boundary: int, work: str) -> None:
        """Start a worker on a job, up to a boundary."""
        self.started += 1
        actor = self.scene.actor(self.impl, stop=Stop(boundary=boundary))
        worker = Worker(f"W{self.started}", job, actor)
        self.workers.append(worker)
        actor.start(WORK[work](JOBS[job]))
        self._go(worker, f"{worker.name} starts to {work} {JOBS[job].job_id}")

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, WORKERS_MAX - 1), boundaries=st.integers(1, STEP_MAX))
    def step(self, which: int, boundaries: int) -> None:
        """Let a held worker go on for some boundaries."""
        worker = self._worker(which)
        if worker.held is not None and not worker.frozen:
            number = worker.held.boundary.number + boundaries
            worker.actor.lane.release(Stop(boundary=number))
            self._go(worker, f"{worker.name} goes on")

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, WORKERS_MAX - 1), policy=st.sampled_from(list(Policy)))
    def kill(self, which: int, policy: Policy) -> None:
        """Kill a worker, wherever it is."""
        worker = self._worker(which)
        self.workers.remove(worker)
        worker.actor.client.kill()
        worker.actor.lane.cut(policy)
        pids = worker.actor.lane.backend_pids
        if policy is Policy.LEAVE_OPEN:
            self.zombies += pids
        else:
            self.scene.laboratory.wait_backends_gone(pids)
        self._tell(f"{worker.name} is killed ({policy})")
        self._settle()

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, WORKERS_MAX - 1))
    def freeze(self, which: int) -> None:
        """Stop a held worker's process."""
        worker = self._worker(which)
        if worker.held is not None and not worker.frozen:
            worker.actor.client.freeze()
            worker.frozen = True
            self._tell(f"{worker.name} is frozen")

    @precondition(lambda self: self.workers)
    @rule(which=st.integers(0, WORKERS_MAX - 1))
    def thaw(self, which: int) -> None:
        """Let a frozen worker's process run again."""
        worker = self._worker(which)
        if worker.frozen:
            worker.actor.client.thaw()
            worker.frozen = False
            self._tell(f"{worker.name} is thawed")

    # --- others -----------------------------------------------------------------------------------------

    @rule(job=st.integers(0, 1), position=st.integers(0, 4), delete=st.booleans())
    def edit(self, job: int, position: int, delete: bool) -> None:
        """Let another owner edit or delete an approved order, unless it is locked."""
        order = JOBS[job].approved_ids[position]
        control = self.scene.laboratory.control
        try:
            with control.transaction():
                control.execute(
                    "SELECT FROM orders WHERE order_id = %s FOR UPDATE NOWAIT", (order,)
                )
                control.execute(_DELETE if delete else _EDIT, (order,))
        except psycopg.errors.LockNotAvailable:
            self._tell(f"another owner finds order {order} locked")
            return
        self.touched.add(order)
        self._tell(f"another owner {'deletes' if delete else 'edits'} order {order}")

    @rule()
    def recover(self) -> None:
        """End all workers, let the server notice its zombies, and let a healthy worker finish each job."""
        for worker in self.workers:
            worker.actor.close()
        pids = [p for worker in self.workers for p in worker.actor.lane.backend_pids]
        self.workers.clear()
        self.scene.terminate([*pids, *self.zombies])
        self.zombies.clear()
        for job in sorted(self.registered):
            self._finish(JOBS[job])

    def _finish(self, scenario: Scenario) -> None:
        result = self._one_call(drain(scenario))
        self._tell(f"a healthy worker drains {scenario.job_id}", result)
        conflict = isinstance(result, Raised) and result.is_a("Conflict")
        if conflict and self.touched & set(scenario.approved_ids):
            return
        if not isinstance(result, Returned):
            self._broken("liveness", "a healthy worker finishes", _say(result))
        findings = judge_finished(scenario, _own(scenario, self.scene.evidence()))
        if findings:
            raise StoryBroken(findings, self.steps)

    # --- the judge ----------------------------------------------------------------------------------------

    @invariant()
    def safe(self) -> None:
        """What is committed is whole chunks in order, whatever happened."""
        evidence = self.scene.evidence()
        for job, scenario in enumerate(JOBS):
            judged = replace(scenario, registered=job in self.registered)
            findings = judge_safety(judged, _own(scenario, evidence))
            if findings:
                raise StoryBroken(findings, self.steps)

    # --- helpers ------------------------------------------------------------------------------------------

    def _worker(self, which: int) -> Worker:
        return self.workers[which % len(self.workers)]

    def _go(self, worker: Worker, doing: str) -> None:
        """Let a worker go on to its next gate, and then those that it woke."""
        self._wait(worker)
        self._tell(f"{doing}: {self._state(worker)}")
        self._settle()

    def _wait(self, worker: Worker) -> None:
        """Wait until the worker is held, waits for somebody's lock, or is done."""
        others = [p for w in self.workers if w is not worker for p in w.actor.lane.backend_pids]
        pids = (*others, *self.zombies)
        worker.held = worker.actor.go_on(until=lambda: self.scene.blocked(worker.actor, *pids))
        if worker.held is None and not worker.actor.busy:
            self._judge_end(worker)

    def _settle(self) -> None:
        """Bring every worker whose lock came free to its next gate, in the order of their start."""
        for worker in self.workers:
            if worker.held is None and worker.actor.busy:
                self._wait(worker)
                state = self._state(worker)
                if state != WAITS:
                    self._tell(f"{worker.name}, woken: {state}")

    def _state(self, worker: Worker) -> str:
        if worker.held is not None:
            boundary = worker.held.boundary
            points = f" ({', '.join(boundary.points)})" if boundary.points else ""
            return f"held at boundary {boundary.number}{points}"
        if worker.actor.busy:
            return WAITS
        return f"it is done: {_say(worker.actor.calls[-1][1])}"

    def _judge_end(self, worker: Worker) -> None:
        """A worker ends well, or with an error that the story explains."""
        result = worker.actor.calls[-1][1]
        allowed = {"LockNotAvailable"}
        if worker.job not in self.registered:
            allowed.add("UnknownJob")
        if self.touched & set(JOBS[worker.job].approved_ids):
            allowed.add("Conflict")
        if isinstance(result, Returned) or (
            isinstance(result, Raised) and any(result.is_a(name) for name in allowed)
        ):
            return
        self._broken("one at a time", "the worker drains the job", _say(result))

    def _one_call(self, script: Script) -> CallResult:
        actor = self.scene.actor(self.impl)
        actor.follow(script)
        actor.close()
        return actor.calls[-1][1]

    def _tell(self, text: str, result: CallResult | None = None) -> None:
        self.steps.append(text if result is None else f"{text}: {_say(result)}")

    def _broken(self, promise: str, expected: str, seen: str) -> None:
        raise StoryBroken([Finding(promise, self.steps[-1], expected, seen)], self.steps)


def explore(
    workshop: Workshop,
    impl: Path,
    number: int,
    *,
    examples: int = MACHINE_EXAMPLES,
    heard: Callable[[Sequence[str]], None] = lambda steps: None,
) -> None:
    """Play `examples` stories drawn from the seed `number`.

    Args:
        heard: Told the steps of every story that was played, also while a failing one is shrunk.

    Raises:
        StoryBroken: If a promise broke; the story is the shortest that Hypothesis found.
        hypothesis.errors.Flaky: If the same story once broke a promise and once did not: our fault.
    """

    def machine() -> Machine:
        return Machine(workshop, impl, heard)

    run_state_machine_as_test(
        cast(Any, seed(number)(machine)),  # a factory will do; its annotation asks for a class
        settings=settings(
            max_examples=examples,
            stateful_step_count=MACHINE_STEPS,
            deadline=None,
            database=None,
            derandomize=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def _request(scenario: Scenario, request: str) -> Scenario:
    """Return the registration again as `request` says."""
    first, *others = scenario.approval
    if request == "another chunk size":
        return replace(scenario, chunk_size=scenario.chunk_size + 1)
    if request == "another quantity":
        changed = ApprovedOrder(first.order_id, first.revision, first.qty + 1)
        return replace(scenario, approval=(changed, *others))
    if request == "the same, shuffled":
        shuffled = list(scenario.approval)
        random.Random(1).shuffle(shuffled)
        return replace(scenario, approval=tuple(shuffled))
    return scenario


def _own(scenario: Scenario, evidence: Evidence) -> Evidence:
    """Return the evidence without what belongs to the other job's orders."""
    foreign = {i for job in JOBS if job.job_id != scenario.job_id for i in job.approved_ids}
    kept = tuple(
        c for c in evidence.changes
        if c.table != "orders" or (c.new or c.old or {}).get("order_id") not in foreign
    )  # fmt: skip
    return replace(evidence, changes=kept)


def _report(scenario: Scenario, evidence: Evidence) -> dict[str, list[int]]:
    """Return what a report must say, from the audit and the orders as they are."""
    audit = {row.order_id: row for row in evidence.audit if row.job_id == scenario.job_id}
    groups: dict[str, list[int]] = {
        "approved": list(scenario.approved_ids),
        "committed": [i for i in scenario.approved_ids if i in audit],
        "unprocessed": [i for i in scenario.approved_ids if i not in audit],
        "matching": [], "drifted": [], "missing": [],
    }  # fmt: skip
    for order_id in groups["committed"]:
        now, then = evidence.order(order_id), audit[order_id]
        left = (scenario.tenant, "cancelled", then.revision_after, then.qty)
        if now is None:
            groups["missing"].append(order_id)
        elif (now.tenant, now.state, now.revision, now.qty) == left:
            groups["matching"].append(order_id)
        else:
            groups["drifted"].append(order_id)
    return groups


def _say(result: CallResult) -> str:
    if isinstance(result, Returned):
        return "it returned"
    return "the process ended" if isinstance(result, Died) else describe_failure(result)


_EDIT = "UPDATE orders SET revision = revision + 1 WHERE order_id = %s"
_DELETE = "DELETE FROM orders WHERE order_id = %s"
