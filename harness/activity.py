"""Activities: what a sweep puts under fault, one row a lab.

An *activity* is a small scenario, the work of one client on it, and the judges that belong to it. The
sweep knows nothing else of a lab, so a new lab is a new row here:

    Activity(3, "run_chunk", small, Calls(run_chunks), judge_safety, judge_finished)

*Work* is what one client is asked to do. `Calls` plays a script of contract functions, `Program` runs
a lab's program. Both start a client with a stop armed and go on until it is held or done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psycopg

from harness import healthy, judge, script
from harness.healthy import Heard
from harness.history import order_moves, show_ids, transactions
from harness.limits import SWEEP_CHUNK, SWEEP_ORDERS
from harness.records import Evidence, Finding, Stop
from harness.scenario import Scenario, festival, unregistered
from harness.script import Script
from harness.seeding import seed
from harness.workshop import Actor, Scene

#: Chunks that are done when the read-only report is swept.
REPORT_CHUNKS = 1
#: How long a program that meets a frozen holder waits. Shorter than a person notices.
PROGRAM_LOCK_TIMEOUT_MS = 200
#: How long it may take until it has said so. Far above its timeout, below the learner's own of 8 s.
PROGRAM_BUSY_WAIT_S = 5.0

Judge = Callable[[Any, Evidence], list[Finding]]
AnswerJudge = Callable[[Any, Evidence | None, Heard], list[Finding]]


class Work(Protocol):
    """What one client is asked to do."""

    def start(
        self,
        scene: Scene,
        impl: Path,
        scenario: Any,
        *,
        stop: Stop | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start a client on it and do not wait; `Actor.go_on` does."""

    def heard(self, actor: Actor) -> Heard:
        """Return what the client has said so far; a program must have ended."""


@dataclass(frozen=True)
class Calls:
    """A script of contract functions, called in one client."""

    maker: Callable[[Any], Script]

    def start(
        self,
        scene: Scene,
        impl: Path,
        scenario: Any,
        *,
        stop: Stop | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start a client and send the first call."""
        actor = scene.actor(impl, stop=stop, settings=settings)
        actor.start(self.maker(scenario))
        return actor

    def heard(self, actor: Actor) -> Heard:
        """Return the calls with their results."""
        return Heard(calls=tuple(actor.calls))


@dataclass(frozen=True)
class Program:
    """The program of a lab. In its arguments ``{job}`` is the scenario's job, ``{dsn}`` the database."""

    lab: int
    arguments: Sequence[str]

    def start(
        self,
        scene: Scene,
        impl: Path,
        scenario: Any,
        *,
        stop: Stop | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start the program."""
        arguments = [argument.replace("{job}", scenario.job_id) for argument in self.arguments]
        return scene.program(impl, self.lab, arguments, stop=stop, settings=settings)

    def heard(self, actor: Actor) -> Heard:
        """Return how the program ended and what it printed."""
        ended = actor.client.wait()
        return Heard(exit=ended, lines=actor.client.lines())


@dataclass(frozen=True)
class Activity:
    """One thing to sweep. `scenario` is what is written before each run; the judges read it, too.

    `safety` holds at every moment, `finished` when a healthy client is done, `answers` judges what
    that client said, given what was there before it started. `state` asks for less than `safety`: what
    was committed is whole, in however many transactions. A client that commits apart breaks `safety`
    in every run; where a fault makes it visible, `state` shows.
    """

    lab: int
    name: str
    scenario: Any
    work: Work
    safety: Judge
    finished: Judge
    answers: AnswerJudge = healthy.every_call_returns
    state: Judge | None = None  # None: as `safety`
    shared: AnswerJudge = healthy.every_call_returns  # what a client beside a rival may say
    resume: Work | None = None  # what a client does after a fault; None: the same work
    attempts: int = 1  # how many clients may try to finish
    inspect: Callable[[Scene], Evidence] = Scene.evidence
    busy_within_s: float | None = None  # how soon a program ends that meets a frozen holder
    promise: str = "bound"  # what is broken by a client that answers wrongly to a fault
    returns_when_done: bool = True  # whether a call that returns says that nothing is left to do
    rivals: bool = True  # whether another owner's edit of an order matters to it
    seed: Callable[[psycopg.Connection[Any], Any], None] = seed


def sized(activity: Activity, orders: int, chunk_size: int, seed: int) -> Activity:
    """Return the activity on a scenario of another size or seed."""
    old = activity.scenario
    if not isinstance(old, Scenario):
        from harness.ledger.activity import sized_ledger

        return sized_ledger(activity, orders, chunk_size, seed)
    scenario = festival(
        orders,
        chunk_size,
        seed=seed,
        registered=old.registered,
        done_chunks=REPORT_CHUNKS if old.next_index else 0,
    )
    return replace(activity, scenario=scenario)


def judged_by_state(activity: Activity) -> Activity:
    """Return the activity with `state` in the place of `safety`."""
    return replace(activity, safety=activity.state or activity.safety)


def activities(lab: int | None = None) -> tuple[Activity, ...]:
    """Return what is swept for one lab, or for every lab there is a row for."""
    # Late: its rows are made of this file's classes.
    from harness.ledger.activity import LEDGER_ACTIVITIES

    return tuple(row for row in ACTIVITIES + LEDGER_ACTIVITIES if lab in (None, row.lab))


# --- judges of single labs ----------------------------------------------------------------------------


def safe_registration(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Lab 1: the whole list or nothing, and no order touched."""
    return judge.frozen(scenario, evidence) + judge.approved_version(scenario, evidence)


def registered(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Lab 1: the job is there, as approved."""
    return judge.frozen(replace(scenario, registered=True), evidence)


def safe_cancellation(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Lab 2: the orders of the call in their approved version, all in one transaction or none."""
    findings = judge.approved_version(scenario, evidence) + judge.exactly_once(scenario, evidence)
    cancelled = {m.order_id for m in order_moves(evidence.changes) if m.cancels}
    wanted = set(scenario.chunk_ids(1))
    parts = transactions(scenario, evidence.changes)
    if cancelled and (cancelled != wanted or len(parts) > 1):
        findings.append(Finding(
            "approved version", "read what the call had committed",
            f"all of {show_ids(wanted)} in one transaction, or none",
            "; ".join(f"transaction {part.xid} cancelled {show_ids(part.cancelled)}" for part in parts),
            "The call commits order by order; a call is one transaction.",
            "labs/lab02_change/README.md", tuple(sorted(wanted ^ cancelled)),
        ))  # fmt: skip
    return findings


def cancelled(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Lab 2: every order of the call is cancelled."""
    done = {m.order_id for m in order_moves(evidence.changes) if m.cancels}
    missing = set(scenario.chunk_ids(1)) - done
    if not missing:
        return []
    return [Finding(
        "approved version", "let one healthy client call cancel_orders",
        f"cancelled: {show_ids(scenario.chunk_ids(1))}", f"not cancelled: {show_ids(missing)}",
        read="labs/lab02_change/README.md", order_ids=tuple(sorted(missing)),
    )]  # fmt: skip


def whole(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Labs 3 to 6, by state: taken together, the three records speak of the same orders."""
    promises = (judge.frozen, judge.approved_version, judge.exactly_once)
    findings = [finding for promise in promises for finding in promise(scenario, evidence)]
    together = tuple(replace(change, xid=0) for change in evidence.changes)
    for part in transactions(scenario, together):
        if not part.cancelled == part.audited == part.checkpointed:
            findings.append(Finding(
                "bound", "looked at all that was committed, in whatever transactions",
                "the same order IDs in orders, in job_audit and behind the checkpoint",
                f"orders {show_ids(part.cancelled)}; audit {show_ids(part.audited)}; "
                f"checkpoint {part.checkpoint_text}",
                "The three records are committed in separate transactions.",
                "labs/lab03_chunk/README.md",
                tuple(sorted(part.cancelled ^ part.audited | part.audited ^ part.checkpointed)),
            ))  # fmt: skip
    return findings


def untouched(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Lab 7: a report changes nothing."""
    if not evidence.changes:
        return []
    tables = ", ".join(dict.fromkeys(f"{c.operation} of {c.table}" for c in evidence.changes))
    return [Finding("honest report", "read the report", "no change anywhere", tables,
                    "A report only reads.", "labs/lab07_report/README.md")]  # fmt: skip


# --- the table ------------------------------------------------------------------------------------------

_SMALL = festival(SWEEP_ORDERS, SWEEP_CHUNK)
_WORKER = (
    "--dsn", "{dsn}", "--job", "{job}", "--lock-timeout-ms", str(PROGRAM_LOCK_TIMEOUT_MS),
)  # fmt: skip

#: What is swept. A lab may have several rows.
ACTIVITIES: tuple[Activity, ...] = (
    Activity(1, "register_job", unregistered(_SMALL), Calls(script.register),
             safe_registration, registered, promise="frozen", rivals=False),
    Activity(2, "cancel_orders", _SMALL, Calls(script.cancel),
             safe_cancellation, cancelled, healthy.cancelled_once,
             shared=healthy.returns_or_conflicts, promise="approved version"),
    Activity(3, "run_chunk", _SMALL, Calls(script.run_chunks),
             judge.judge_safety, judge.judge_finished, state=whole),
    Activity(4, "resume_chunk", _SMALL, Calls(script.resume_chunks),
             judge.judge_safety, judge.judge_finished, state=whole, promise="doubted"),
    Activity(5, "drain", _SMALL, Calls(script.drain),
             judge.judge_safety, judge.judge_finished, state=whole, promise="bounded"),
    Activity(6, "worker", _SMALL, Program(6, _WORKER),
             judge.judge_safety, judge.judge_finished, healthy.completes, state=whole,
             shared=healthy.completes_or_busy, busy_within_s=PROGRAM_BUSY_WAIT_S,
             promise="one at a time"),
    Activity(7, "report", festival(SWEEP_ORDERS, SWEEP_CHUNK, done_chunks=REPORT_CHUNKS),
             Calls(script.read_report), untouched, untouched, healthy.same_report,
             promise="honest report", rivals=False),
)  # fmt: skip
