"""The graded checks of lab 11: a parent that failed goes on from its ledger and is never parsed again."""

from __future__ import annotations

from datetime import timedelta

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.ledger import (
    Meeting,
    age_claims,
    bounded_call,
    killed_everywhere,
    leased,
    leaves_as_it_was,
    meet_everywhere,
    raises_unknown_parent,
)
from harness.ledger.history import children_of, effects_of, parent_of
from harness.ledger.judge import judge_ledger_finished, judge_ledger_safety
from harness.ledger.scenario import (
    LONG_AGO,
    PARENT,
    STRANGER,
    Ending,
    LedgerScenario,
    ending_of,
    ledger,
    mixed_scans,
    odd_payload,
    one,
    scan,
    scans,
    unread,
)
from harness.script import Call

MINUTES = timedelta(minutes=5)
#: The list of the lessons. Of 600 that were dispatched, 589 had ended when the job hit its time limit;
#: the last eleven are claimed by a worker that is gone.
EVENTS, DISPATCHED, CLAIMED = 1_000, 600, 11


def run_parent(parent_id: str = PARENT, limit: int = 2) -> Call:
    return Call(11, "run_parent", (parent_id, *leased(limit)))


def steps(bench: Bench, actor, did: str) -> set[tuple[str, str]]:
    """Call resumable and return its steps; a parent that is listed twice breaks the promise."""
    value = bench.call(actor, "resumable")
    if not isinstance(value, list):
        raise bench.broken(did, "a list of ParentStep", repr(value)[:200])
    listed = [bench.fields(did, step, "parent_id", "action") for step in value]
    bench.equal(f"{did}; counted each parent", len(set(listed)), len(listed))
    return set(listed)


def every_stage() -> LedgerScenario:
    """Return parents in every stage, whatever became of an earlier run of them."""
    ended = {n: Ending("failed", "x") for n in range(3)}
    return LedgerScenario((
        unread(scans(3), "new"),
        unread(scans(3), "legacy", failure="timeout"),
        unread([], "empty list"),
        odd_payload({"events": 5}, "no list yet"),
        odd_payload(None, "no payload", has_payload=False),
        ledger(scans(3), "untouched", first_id=100),
        ledger(scans(3), "half done", ended=[1], first_id=200),
        ledger(scans(3), "half done and failed", ended=[1], failure="timeout", first_id=300),
        ledger(scans(3), "in work", claimed={0: MINUTES, 1: MINUTES, 2: MINUTES}, first_id=400),
        ledger(scans(3), "all ended", ended=ended, first_id=500),
        ledger(scans(3), "all ended, failed", ended=ended, failure="timeout", first_id=600),
        ledger([], "an empty ledger"),
        ledger(scans(3), "counters lie", counters=(3, 3, 0, 0), first_id=700),
        ledger(scans(3), "complete", ended=ended, completed=True, first_id=800),
        ledger(scans(3), "complete, once failed", ended=ended, completed=True, failure="timeout",
               first_id=900),
    ))  # fmt: skip


@check("every parent that is not complete is listed, with the step that comes next",
       promise="parent failure is not child completion", points=14)  # fmt: skip
def test_lists_what_is_left(bench: Bench):
    scenario = every_stage()
    with bench.scene(scenario) as scene:
        did = "called resumable with parents in every stage"
        expected = {
            (seed.parent_id, "dispatch" if seed.decomposed else "decompose")
            for seed in scenario.parents if not seed.completed
        }  # fmt: skip
        seen = steps(bench, bench.actor(scene), did)
        bench.equal(
            f"{did}; which are missing or wrong", [], sorted(expected - seen),
            cause="completed_at tells whether anything is left; decomposed_at, what. failed_at is history.",
        )  # fmt: skip
        bench.equal(f"{did}; which should not be there", [], sorted(seen - expected))
        bench.equal(f"{did}; read what it changed", [], list(scene.evidence().changes))


@check("four children of which two are terminal and a stale parent: exactly the other two are done",
       promise="parent failure is not child completion", points=10)  # fmt: skip
def test_four_children_of_which_two_are_terminal(bench: Bench):
    events = [scan(0), scan(1, subject=STRANGER), scan(2), scan(3)]
    stale = {
        "failed, with counters that say all four are done": {"counters": (4, 4, 0, 0), "failure": "timeout"},
        "with counters that say none is": {"counters": (4, 0, 0, 0)},
        "failed, with a payload that is gone": {"payload": {"events": []}, "failure": "worker lost"},
        "with a payload that has grown": {"payload": {"events": [*events, scan(4)]}},
        "with a total of 2": {"counters": (2, 1, 1, 0), "failure": "timeout"},
    }  # fmt: skip
    for words, columns in stale.items():
        scenario = one(ledger(events, ended=[0, 1], claimed={0: LONG_AGO, 2: LONG_AGO}, **columns))
        with bench.scene(scenario) as scene:
            did = f"resumed a parent of four children, two of them terminal, {words}"
            actor = bench.actor(scene)
            bench.equal(did, {(PARENT, "dispatch")}, steps(bench, actor, did))
            bench.call(actor, "run_parent", PARENT, *leased(10))
            evidence = scene.evidence()
            broken = judge_ledger_safety(scenario, evidence)
            bench.judged(broken or judge_ledger_finished(scenario, evidence), did)
            touched = {
                change.new["sequence"] for change in evidence.changes
                if change.table == "child_work" and change.new
            }  # fmt: skip
            bench.equal(f"{did}; read which children it touched", {2, 3}, touched)
            bench.equal(f"{did}; asked again", set(), steps(bench, actor, did))


@check("1,000 events with 600 dispatched and a timeout: each ends once, nothing is repeated",
       promise="parent failure is not child completion", points=12)  # fmt: skip
def test_a_thousand_events_with_600_dispatched(bench: Bench):
    events = mixed_scans(EVENTS)
    done = DISPATCHED - CLAIMED
    parent = ledger(
        events, ended=range(done), claimed=dict.fromkeys(range(done, DISPATCHED), LONG_AGO),
        counters=(EVENTS, 573, 12, 4), failure="timeout", payload={"events": events[:10]},
    )  # fmt: skip
    scenario = one(parent)
    with bench.scene(scenario) as scene:
        did = (
            f"resumed a parent of {EVENTS:,} events: {DISPATCHED} dispatched, {done} of them ended, the other "
            f"{CLAIMED} abandoned; then a timeout, and counters that say 573, 12 and 4"
        )
        actor = bench.actor(scene)
        bench.equal(did, {(PARENT, "dispatch")}, steps(bench, actor, did))
        bench.call(actor, "run_parent", PARENT, *leased(100))
        evidence = scene.evidence()
        broken = judge_ledger_safety(scenario, evidence)
        bench.judged(broken or judge_ledger_finished(scenario, evidence), did)
        wanted = [n for n, event in enumerate(events) if ending_of(event).state == "processed"]
        seen = [effect.sequence for effect in effects_of(evidence, PARENT)]
        bench.equal(f"{did}; read the effects", wanted, seen)


@check("new, legacy, empty and unusable parents are brought to their end",
       promise="parent failure is not child completion", points=12)  # fmt: skip
def test_every_parent_comes_to_its_end(bench: Bench):
    scenario = every_stage()
    busy = "in work"
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        listed = sorted(parent_id for parent_id, _ in steps(bench, actor, "called resumable"))
        for parent_id in listed:
            if parent_id != busy:  # live claims have a check of their own
                bench.call(actor, "run_parent", parent_id, *leased(2))
        did = "called run_parent, two children a claim, for every parent that resumable had listed"
        evidence = scene.evidence()
        bench.judged(judge_ledger_safety(scenario, evidence), did)
        bench.equal(f"{did}; asked again", {(busy, "dispatch")}, steps(bench, actor, did))
        age_claims(scene)
        bench.call(actor, "run_parent", busy, *leased(2))
        evidence = scene.evidence()
        broken = judge_ledger_safety(scenario, evidence)
        bench.judged(broken or judge_ledger_finished(scenario, evidence), did)
        for parent_id in ("no list yet", "no payload"):
            row = parent_of(evidence, parent_id)
            bench.equal(
                f"{did}; read {parent_id!r}", "failed, no ledger",
                f"{'failed' if row.failed_at else 'not failed'}, {'a' if row.decomposed_at else 'no'} ledger",
            )  # fmt: skip
        bench.equal(f"{did}; asked a last time", set(), steps(bench, actor, did))


@check("another worker's live claim is neither taken over nor waited for, and keeps the parent open",
       promise="parent failure is not child completion", points=12)  # fmt: skip
def test_live_claims_of_others(bench: Bench):
    for words, columns in {
        "": {},
        ", where the counters fit a complete parent": {"counters": (4, 3, 1, 0)},
        ", where the total is 3": {"counters": (3, 0, 0, 0), "failure": "timeout"},
    }.items():
        scenario = one(ledger(scans(4), claimed={1: MINUTES}, **columns))
        with bench.scene(scenario) as scene:
            did = f"called run_parent where sequence 1 of 4 was claimed 5 minutes ago for an hour{words}"
            bounded_call(bench, scene, run_parent(), did)
            evidence = scene.evidence()
            rows = [(row.state, row.attempts) for row in children_of(evidence, PARENT)]
            wanted = [("processed", 1), ("pending", 1), ("processed", 1), ("processed", 1)]
            bench.equal(f"{did}; read states and attempts", wanted, rows)
            bench.judged(judge_ledger_safety(scenario, evidence), did)
            actor = bench.actor(scene)
            bench.equal(f"{did}; asked again", {(PARENT, "dispatch")}, steps(bench, actor, did))
            age_claims(scene)
            bench.call(actor, "run_parent", PARENT, *leased(2))
            evidence = scene.evidence()
            broken = judge_ledger_safety(scenario, evidence)
            did += "; and again when the lease was over"
            bench.judged(broken or judge_ledger_finished(scenario, evidence), did)


@check("killed after any statement, a new worker finishes the parent, and each effect is there once",
       promise="parent failure is not child completion", points=18)  # fmt: skip
def test_killed_at_every_boundary(bench: Bench):
    scenario = one(unread([scan(0), None], failure="timeout"))
    killed_everywhere(bench, scenario, run_parent(limit=1), again=[run_parent()])


@check("several workers run one parent, others another, and a frozen one wakes up",
       promise="parent failure is not child completion", points=12)  # fmt: skip
def test_several_workers(bench: Bench):
    friday = ledger([scan(3)], "scans-friday", failure="timeout", first_id=100)
    together = LedgerScenario((ledger(scans(2)), friday))
    others = [run_parent("scans-friday"), run_parent(limit=1)]
    meet_everywhere(bench, together, run_parent(limit=1), others, all_to_the_end)
    frozen = one(ledger(scans(1), failure="timeout"))
    meet_everywhere(bench, frozen, run_parent(), [run_parent()], all_to_the_end, past_lease=True)


def all_to_the_end(met: Meeting) -> None:
    for result in (met.first, *met.rivals):
        met.bench.returned(result, met.did)
    evidence = met.scene.evidence()
    broken = judge_ledger_safety(met.scenario, evidence)
    met.bench.judged(broken or judge_ledger_finished(met.scenario, evidence), met.did)


@check("unknown parents, and the connection afterwards", promise="hygiene", points=10)
def test_leaves_the_connection_as_it_was(bench: Bench):
    scenario = LedgerScenario((
        unread(scans(3)), ledger(scans(2), "scans-friday", first_id=100, claimed={0: MINUTES}),
        odd_payload(7, "scans-monday"),
    ))  # fmt: skip
    with bench.scene(scenario) as scene:
        raises_unknown_parent(bench, scene, "run_parent", *leased(2))
    leaves_as_it_was(bench, scenario, [
        (Call(11, "resumable"), "listed what is left", ""),
        (run_parent(), "ran a new parent", ""),
        (run_parent("scans-friday"), "ran a parent with a live claim", ""),
        (run_parent("scans-monday"), "ran a parent without a list", ""),
        (run_parent("no-such-parent"), "met an unknown parent", "UnknownParent"),
        (Call(11, "resumable"), "listed what is left", ""),
    ])  # fmt: skip
