"""The graded checks of lab 10: a unit ends once, and its effect shares the transaction of its end."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

from harness.contract import Outcome
from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.ledger import (
    Meeting,
    age_claims,
    calls,
    killed_everywhere,
    leased,
    leaves_as_it_was,
    meet_everywhere,
    rolls_back,
    tables,
)
from harness.ledger.history import children_of, effects_of, show
from harness.ledger.judge import (
    every_child_ended,
    judged_by_event,
    one_live_claim,
    one_way,
)
from harness.ledger.scenario import (
    LONG_AGO,
    PARENT,
    STRANGER,
    Ending,
    LedgerScenario,
    ledger,
    one,
    scan,
    scans,
)
from harness.limits import VICTIM_LOCK_TIMEOUT_MS
from harness.records import Returned
from harness.script import Call

STATES = ("processed", "failed", "skipped")
#: Hundreds of children, and one of them is bad.
HUNDREDS, BAD_ONE = 200, 123

TIMES = (
    "2026-09-19T18:02:11+02:00", "2026-09-19T16:02:11Z", "2026-09-19T16:02:11+00:00",
    "2024-02-29T23:59:59-03:00", "2026-12-31T23:30:00-09:30", "2026-01-01T00:15:00+05:45",
    "2026-09-19T18:02:11.5+02:00", "2026-09-19T18:02:11.123456+05:30",
)  # fmt: skip
NO_TIMES = (
    "", "soon", "tomorrow", "now", "2026-02-30T18:00:00+02:00", "2025-02-29T00:00:00+01:00",
    "2026-13-01T00:00:00Z", "2026-09-19T25:00:00Z", "18:02 on Saturday",
)  # fmt: skip
STRANGERS = (
    scan(1, subject=STRANGER), scan(2, subject=STRANGER, occurred_at="soon"), scan(3, subject=""),
    scan(4, subject="Ticket-0001"), scan(5, subject="ticket-0001 "), scan(6, subject="%"),
)  # fmt: skip


def process(limit: int, parent_id: str = PARENT) -> Call:
    return Call(10, "process", (parent_id, *leased(limit)))


def kept(scenario: LedgerScenario, evidence):
    """Return the broken promises of `process`; a claim of an ended child shows here, too."""
    broken = one_way(scenario, evidence) or judged_by_event(scenario, evidence)
    return broken or one_live_claim(scenario, evidence)


@check(
    "the first end stays; the loser gets False and leaves no trace", promise="one-way", points=14
)
def test_the_first_end_stays(bench: Bench):
    scenario = one(ledger(scans(3)))
    (child_id,) = scenario.parent.ids(1)
    pairs = list(product(STATES, STATES))
    for (first, second), (scene, actor, _) in zip(pairs, bench.stages([scenario] * 9), strict=True):
        did = f"called finish with {first!r}"
        bench.equal(did, True, bench.call(actor, "finish", child_id, Outcome(first, "reason one")))
        before = scene.evidence()
        wanted = (first, None if first == "processed" else "reason one")
        rows = children_of(before, PARENT)
        bench.equal(f"{did}; read state and outcome", wanted, (rows[1].state, rows[1].outcome))
        bench.judged(one_way(scenario, before), did)
        did += f", then with {second!r}"
        seen = bench.call(actor, "finish", child_id, Outcome(second, "reason two"))
        bench.equal(did, False, seen, cause="Zero rows changed means that somebody else was first.")
        bench.equal(f"{did}; compared the tables", tables(before), tables(scene.evidence()))


@check("unknown children are False, unknown states are ValueError", promise="one-way", points=6)
def test_unknown_children_and_states(bench: Bench):
    scenario = one(ledger(scans(2)))
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        for state in STATES:
            did = f"called finish with {state!r} for a child that is not there"
            bench.equal(did, False, bench.call(actor, "finish", 999_999, Outcome(state, "x")))
        for state in ("done", "", "Processed", "pending"):
            result = bench.result(actor, "finish", scenario.parent.ids(0)[0], Outcome(state, "x"))
            bench.raises(result, "ValueError", f"called finish with the state {state!r}")
        bench.equal("read what these calls changed", [], list(scene.evidence().changes))


@check(
    "the subject is judged first, then the time; equal events have two effects",
    promise="one-way",
    points=14,
)
def test_each_event_is_judged(bench: Bench):
    events = [
        *(scan(n, occurred_at=at) for n, at in enumerate(NO_TIMES)), *STRANGERS,
        *(scan(n, occurred_at=at) for n, at in enumerate(TIMES)), scan(1), scan(1), scan(2), scan(1),
        scan(3, occurred_at=NO_TIMES[1]), scan(4, note={"deep": [None, 1]}),
    ]  # fmt: skip
    scenario = one(ledger(events))
    for settings in ({}, {"TimeZone": "Asia/Kathmandu", "DateStyle": "SQL, DMY"}):
        with bench.scene(scenario) as scene:
            did = f"processed {len(events)} events: bad times, strangers, times in many zones, equal ones"
            actor = scene.actor(bench.impl, settings=settings)
            ended = ids_of(bench, did, bench.call(actor, "process", PARENT, *leased(100)))
            evidence = scene.evidence()
            bench.judged(kept(scenario, evidence), did)
            bench.judged(every_child_ended(scenario, evidence), did)
            bench.equal(
                f"{did}; read what it returned", sorted(scenario.parent.ids()), sorted(ended)
            )


def ids_of(bench: Bench, did: str, value) -> list[int]:
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        raise bench.broken(did, "a list of child IDs", repr(value)[:200])
    return value


@check("one bad event among hundreds stops nobody", promise="one-way", points=8)
def test_one_bad_event_among_hundreds(bench: Bench):
    events = scans(HUNDREDS)
    events[BAD_ONE] = scan(BAD_ONE, occurred_at="2026-02-30T18:00:00+02:00")
    scenario = one(ledger(events))
    with bench.scene(scenario) as scene:
        did = f"processed {HUNDREDS} events, of which {BAD_ONE} happened on 30 February"
        ended = ids_of(
            bench, did, bench.call(bench.actor(scene), "process", PARENT, *leased(HUNDREDS))
        )
        evidence = scene.evidence()
        bench.judged(kept(scenario, evidence), did)
        bench.judged(every_child_ended(scenario, evidence), did)
        bench.equal(f"{did}; counted what it returned", HUNDREDS, len(set(ended)))


@check("it claims at most `limit`, skips live claims and ended children, and says what it ended",
       promise="one-way", points=8)  # fmt: skip
def test_process_works_within_its_claim(bench: Bench):
    parent = ledger(
        scans(12), ended={0: Ending("processed"), 5: Ending("failed", "x")},
        claimed={1: timedelta(minutes=5), 2: LONG_AGO, 5: LONG_AGO},
    )  # fmt: skip
    other = ledger(scans(3), "scans-friday", first_id=100)
    scenario = LedgerScenario((parent, other))
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        for wanted in ((2, 3, 4), (6, 7, 8), (9, 10, 11), ()):
            did = (
                "processed with limit 3, where 0 and 5 of 12 had ended and 1 was another worker's; "
                f"this call's turn is {show(wanted)}"
            )
            ended = ids_of(bench, did, bench.call(actor, "process", PARENT, *leased(3)))
            bench.equal(did, sorted(parent.ids(*wanted)) if wanted else [], sorted(ended))
        nothing = bench.call(actor, "process", "no-such-parent", *leased(3))
        bench.equal("processed a parent that is not there", [], nothing)
        evidence = scene.evidence()
        bench.judged(kept(scenario, evidence), did)
        states = {row.state for row in children_of(evidence, "scans-friday")}
        bench.equal(f"{did}; read another parent's children", {"pending"}, states)


@check(
    "killed after any statement: mark and effect together, and finished work stays",
    promise="one-way",
    points=18,
)
def test_killed_at_every_boundary(bench: Bench):
    scenario = one(ledger([scan(0), scan(1, subject=STRANGER), scan(2)]))
    killed_everywhere(
        bench, scenario, process(3), again=[process(3)], safety=kept, finished=every_child_ended
    )


@check(
    "a worker that is frozen past its lease ends nothing twice when it wakes up",
    promise="one-way",
    points=14,
)
def test_a_frozen_worker_wakes_up(bench: Bench):
    scenario = one(ledger([scan(0), scan(1, subject=STRANGER), scan(2)]))

    def each_once(met: Meeting):
        evidence = met.scene.evidence()
        bench.judged(one_way(scenario, evidence) or judged_by_event(scenario, evidence), met.did)
        ended = [
            child_id for result in (met.first, *met.rivals) if isinstance(result, Returned)
            for child_id in ids_of(bench, met.did, result.value)
        ]  # fmt: skip
        both = {i for i in ended if ended.count(i) > 1}
        bench.equal(f"{met.did}; compared what both said they had ended", "no child in both",
                    f"in both: children {show(both)}" if both else "no child in both",
                    cause="Only the call whose UPDATE changed the row has ended the child.")  # fmt: skip
        for result in (met.first, *met.rivals):
            bench.returned(result, met.did)
        bench.judged(every_child_ended(scenario, evidence), met.did)

    meet_everywhere(bench, scenario, process(3), [process(3)], each_once, past_lease=True)


@check("two ends for one child at once: one wins", promise="one-way", points=6)
def test_two_ends_at_once(bench: Bench):
    scenario = one(ledger(scans(2)))
    (child_id,) = scenario.parent.ids(0)
    finish = [Call(10, "finish", (child_id, Outcome(state, "x"))) for state in STATES]
    for first, second in ((0, 1), (2, 0)):

        def one_wins(met: Meeting):
            said = [bench.returned(result, met.did) for result in (met.first, *met.rivals)]
            bench.judged(one_way(scenario, met.scene.evidence()), met.did)
            bench.equal(met.did, [False, True], sorted(said))
            row = children_of(met.scene.evidence(), PARENT)[0]
            winner = STATES[(first, second)[said.index(True)]]  # noqa: B023  (called in the loop)
            bench.equal(f"{met.did}; read the winner's end", winner, row.state)

        meet_everywhere(bench, scenario, finish[first], [finish[second]], one_wins)


@check("trouble with the database ends no child", promise="one-way", points=4)
def test_trouble_is_no_end(bench: Bench):
    scenario = one(ledger(scans(3)))
    short = {"lock_timeout": str(VICTIM_LOCK_TIMEOUT_MS)}
    did = "made every write of an effect run into a lock timeout, called process"
    with bench.scene(scenario) as scene:
        with scene.rival_transaction() as rival:
            rival.execute("LOCK TABLE event_effects IN EXCLUSIVE MODE")
            actor = scene.actor(bench.impl, settings=short)
            actor.follow(calls(process(3)))
            bench.admit(actor.calls[-1][1])
        ends = [(row.sequence, row.state) for row in children_of(scene.evidence(), PARENT)]
        bench.equal(
            f"{did}; read the children", [(n, "pending") for n in range(3)], ends,
            cause="A lock timeout says nothing about the event; the next try may succeed.",
        )  # fmt: skip
        age_claims(scene)
        bench.call(bench.actor(scene), "process", PARENT, *leased(3))
        evidence = scene.evidence()
        bench.judged(kept(scenario, evidence), did)
        bench.judged(every_child_ended(scenario, evidence), f"{did}, and again without the lock")


@check("open transactions, and the connection afterwards", promise="hygiene", points=8)
def test_leaves_the_connection_as_it_was(bench: Bench):
    events = [scan(0), scan(1, occurred_at="soon"), scan(2, subject=STRANGER), scan(3)]
    scenario = one(ledger(events))
    (child_id,) = scenario.parent.ids(3)
    finish = Call(10, "finish", (child_id, Outcome("processed")))
    leaves_as_it_was(bench, scenario, [
        (finish, "finished a child", ""),
        (finish, "finished it again", ""),
        (Call(10, "finish", (child_id, Outcome("done"))), "met an unknown state", "ValueError"),
        (process(9), "processed", ""),
        (process(9), "found nothing to process", ""),
    ])  # fmt: skip
    bench.equal(
        "read what finish returned inside an open transaction",
        True,
        rolls_back(bench, scenario, finish),
    )
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        work = "INSERT INTO subjects VALUES ('ticket-of-the-caller')"
        result = bench.around(
            actor, "finish", child_id, Outcome("processed"), before=work, after="SELECT 1"
        )
        did = "finished a child inside a transaction that has work of its own, and committed that"
        bench.returned(result, did)
        evidence = scene.evidence()
        bench.judged(one_way(scenario, evidence), did)
        xids = {change.xid for change in evidence.changes}
        bench.equal(f"{did}; counted the transactions", 1, len(xids))
        bench.equal(f"{did}; counted the effects", 1, len(effects_of(evidence, PARENT)))
