"""What the checks of track B share: old claims, and a kill or a rival at every boundary.

Nothing here sleeps and nothing races. A worker that is frozen past its lease is held at a boundary
while the harness makes its claims older; a rival runs until it is done or waits for a lock, and only
then the first one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from harness.grading.bench import Bench
from harness.grading.words import step_text
from harness.ledger import seeding as ledger_seeding
from harness.ledger.findings import READ
from harness.ledger.judge import judge_ledger_finished, judge_ledger_safety
from harness.ledger.scenario import LEASE, LONG_AGO, LedgerScenario
from harness.records import CallResult, Evidence, Finding, Raised, Returned, Stop
from harness.run import describe_failure
from harness.script import Call, Script
from harness.workshop import Actor, Scene

Judge = Callable[[LedgerScenario, Evidence], list[Finding]]

#: The promise that each lab of the track teaches.
PROMISES = dict(enumerate(READ, 8))
#: A call over a handful of children that has made so many statements goes round in circles.
STATEMENTS_MAX = 500


def calls(*wanted: Call) -> Script:
    """Make these calls, one after another, whatever they return."""
    for call in wanted:  # noqa: UP028  (a script is sent each result; `yield from` a tuple takes none)
        yield call


def age_claims(scene: Scene, by: timedelta = LONG_AGO) -> None:
    """Let time pass for every claim, by the database's clock."""
    ledger_seeding.age_claims(scene.laboratory.control, by)


@contextmanager
def ungated(bench: Bench, scene: Scene) -> Iterator[Actor]:
    """Yield a client that talks to the server directly: no faults, and no price for each statement.

    For calls of 20,000 statements, which a loop of single INSERTs makes, and is right.
    """
    workshop = bench.workshop
    upstream = scene.laboratory.server.upstream
    dsn = scene.laboratory.learner_dsn(upstream.host, upstream.port)
    client = workshop.host.start_calls(bench.impl, dsn, limits=workshop.limits)
    actor = Actor(scene, client, workshop.proxy.lane())
    try:
        yield actor
    finally:
        actor.close()


def tables(evidence: Evidence) -> list[object]:
    """Return the rows of the ledger's tables, to compare before and after."""
    return [evidence.parents, evidence.children, evidence.effects]


def killed_everywhere(
    bench: Bench,
    scenario: LedgerScenario,
    call: Call,
    *,
    again: Sequence[Call],
    safety: Judge = judge_ledger_safety,
    finished: Judge = judge_ledger_finished,
) -> None:
    """Kill a client at every boundary of one call; judge; a new client must finish.

    Args:
        again: What the new client calls, when every claim of the dead one is over.
        safety: Judges what is there after the kill, and at the end.
        finished: Judges what is there at the end.
    """
    for number in count(1):
        with bench.workshop.scene(scenario) as scene:
            actor = bench.actor(scene, stop=Stop(boundary=number))
            hold = actor.follow(calls(call))
            for _, result in actor.calls:
                bench.returned(result, f"called {call} without a fault")
            if hold is None:
                return
            where = step_text(actor.lane.boundaries, number)
            did = f"killed the client after {where}, of {call}"
            bench.kill(actor, hold, f"kill@{number}")
            bench.judged(safety(scenario, scene.evidence()), did)
            age_claims(scene)
            did += "; a new one went on when every old claim was over"
            healthy = bench.actor(scene)
            healthy.follow(calls(*again))
            for _, result in healthy.calls:
                bench.returned(result, did)
            evidence = scene.evidence()
            bench.judged(safety(scenario, evidence) or finished(scenario, evidence), did)


@dataclass(frozen=True)
class Meeting:
    """A client that was held at a boundary while others worked, and then went on.

    `waited` tells for each rival whether it waited for a lock of the one that was held.
    """

    bench: Bench
    scenario: LedgerScenario
    scene: Scene
    did: str
    first: CallResult
    rivals: tuple[CallResult, ...]
    waited: tuple[bool, ...]


def meet_everywhere(
    bench: Bench,
    scenario: LedgerScenario,
    first: Call,
    rivals: Sequence[Call],
    judge: Callable[[Meeting], None],
    *,
    past_lease: bool = False,
) -> None:
    """Hold a client at every boundary of one call in turn, let the rivals work, let it go on; judge.

    Args:
        past_lease: Make every claim old while the client is held: it is frozen past its lease.
    """
    for number in count(1):
        with bench.workshop.scene(scenario) as scene:
            actor = bench.actor(scene, stop=Stop(boundary=number))
            hold = actor.follow(calls(first))
            if hold is None:
                bench.returned(actor.calls[-1][1], f"called {first} with nobody beside it")
                return
            where = step_text(actor.lane.boundaries, number)
            if past_lease:
                age_claims(scene)
            others = []
            for call in rivals:
                other = bench.actor(scene)
                other.start(calls(call))
                others.append((other, scene.wait_blocked_or_done(other)))
            result = bench.finish(actor)
            late = "until its claims were over, " if past_lease else ""
            judge(Meeting(
                bench,
                scenario,
                scene,
                f"held {first} after {where}, {late}ran {', '.join(map(str, rivals))} beside it, "
                "let the first go on",
                result,
                tuple(bench.finish(other) for other, _ in others),
                tuple(blocked for _, blocked in others),
            ))  # fmt: skip


def bounded_call(bench: Bench, scene: Scene, call: Call, did: str) -> Any:
    """Call a function that must return although others have live claims: it may not wait for them."""
    actor = bench.actor(scene)
    actor.start(calls(call))
    actor.go_on(until=lambda: len(actor.lane.boundaries) > STATEMENTS_MAX)
    if actor.busy:
        raise bench.broken(
            did, "it returns: it does not wait for other workers' live claims",
            f"it was still going round after {STATEMENTS_MAX} statements",
            cause="The loop goes on until every child has ended, not until nothing can be claimed.",
        )  # fmt: skip
    return bench.returned(actor.calls[-1][1], did)


def leaves_as_it_was(
    bench: Bench, scenario: LedgerScenario, wanted: Sequence[tuple[Call, str, str]]
) -> None:
    """Make calls on one connection and look at it after each.

    Args:
        wanted: Each call, in words, and the error that it must end with, or an empty text.
    """
    with bench.workshop.scene(scenario) as scene:
        actor = bench.actor(scene)
        for call, did, ended in wanted:
            before = bench.session(actor)
            result = bench.result(actor, call.function, *call.args, **call.kwargs)
            bench.hygiene(actor, before, result, f"{did}, looked at the connection", ended)
        bench.durable(scene.evidence())


def raises_unknown_parent(bench: Bench, scene: Scene, function: str, *rest: Any) -> None:
    """Demand UnknownParent, under the promise of the lab, and that nothing was changed."""
    did = f"called {function} for a parent that is not there"
    result = bench.result(bench.actor(scene), function, "no-such-parent", *rest)
    if not (isinstance(result, Raised) and result.is_a("UnknownParent")):
        seen = (
            f"it returned {result.value!r}"
            if isinstance(result, Returned)
            else describe_failure(result)
        )
        promise = PROMISES[bench.lab.number]
        raise bench.broken(did, "UnknownParent", seen, promise=promise)
    bench.equal(f"{did}; read what it changed", [], list(scene.evidence().changes))


def rolls_back(bench: Bench, scenario: LedgerScenario, call: Call) -> Any:
    """Call a function inside an outer transaction that is rolled back: nothing may remain of it."""
    with bench.workshop.scene(scenario) as scene:
        before = tables(scene.evidence())
        actor = bench.actor(scene)
        value = bench.inside(actor, call.function, *call.args)
        did = f"called {call} inside a transaction that was rolled back; read what remained"
        if tables(scene.evidence()) != before:
            raise bench.broken(
                did, "nothing", "rows that the call committed", promise="hygiene",
                cause="The function commits by itself; conn.transaction() nests as a savepoint.",
            )  # fmt: skip
        return value


def leased(limit: int) -> tuple[int, timedelta]:
    """Return limit and lease as arguments: the lease is longer than any check."""
    return limit, LEASE
