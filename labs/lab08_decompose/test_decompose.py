"""The graded checks of lab 8: every unit of work is a durable row before any is dispatched."""

from __future__ import annotations

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.ledger import (
    Meeting,
    killed_everywhere,
    leaves_as_it_was,
    meet_everywhere,
    raises_unknown_parent,
    rolls_back,
    tables,
    ungated,
)
from harness.ledger.history import children_of, parent_of
from harness.ledger.judge import enumerated
from harness.ledger.scenario import (
    LONG_AGO,
    PARENT,
    LedgerScenario,
    ledger,
    mixed_scans,
    odd_payload,
    one,
    scan,
    scans,
    unread,
)
from harness.records import ChildRow
from harness.script import Call

DECOMPOSE = Call(8, "decompose", (PARENT,))
#: The list of the lessons, and one that does not fit into anybody's single round trip.
MANY, HUGE = 1_000, 20_000

WELL_FORMED = {
    "three events": scans(3),
    "one event": scans(1),
    "equal events, which are different events": [scan(1), scan(2), scan(1), scan(1)],
    "nested objects, nulls and numbers beside the two keys": [
        scan(1, gate={"name": "north", "lanes": [1, None, {"open": True}]}, note=None, count=1),
        scan(2, count=True, weight=1.5),
    ],
    "empty strings, and texts that are no times": [
        scan(1, subject=""), scan(2, occurred_at=""), scan(3, occurred_at="soon"),
    ],
    "other scripts, quotes, percent signs": [scan(1, subject="l'été 夏 \\ %s {} \"'; --")],
    "time zones and a leap day": [
        scan(1, occurred_at="2024-02-29T23:59:59.5-03:30"), scan(2, occurred_at="2026-01-01T00:00:00Z"),
    ],
}  # fmt: skip
MALFORMED = [
    None, True, 7, 1.5, "text", "", [], [scan(1)], {}, {"subject": "ticket-0001"},
    {"occurred_at": "2026-09-19T18:02:11+02:00"}, scan(1, subject=None), scan(2, subject=5),
    scan(3, subject=["ticket-0001"]), scan(4, occurred_at=None), scan(5, occurred_at=1_789_840_000),
    scan(6, occurred_at={"at": "2026-09-19T18:02:11+02:00"}), scan(7, occurred_at=False),
]  # fmt: skip
NO_LIST = {
    "a JSON null": None,
    "a list and no object": scans(2),
    "a text": "events",
    "a number": 7,
    "no key 'events'": {},
    "another key": {"event": scans(1)},
    "events: null": {"events": None},
    "events: an object": {"events": {"0": scan(1)}},
    "events: a text": {"events": "[]"},
}


@check(
    "every event becomes one open row, in the order of the list", promise="enumerated", points=14
)
def test_every_event_becomes_a_row(bench: Bench):
    stages = bench.stages(one(unread(events)) for events in WELL_FORMED.values())
    for (name, events), (scene, actor, scenario) in zip(WELL_FORMED.items(), stages, strict=True):
        did = f"decomposed {name}"
        bench.equal(did, len(events), bench.call(actor, "decompose", PARENT))
        evidence = scene.evidence()
        bench.judged(enumerated(scenario, evidence), did)
        rows = children_of(evidence, PARENT)
        bench.equal(f"{did}; read the rows", "all open, none claimed", row_states(rows))
        bench.equal(
            f"{did}; read the parent",
            "decomposed, not completed, not failed",
            parent_state(evidence),
        )


def row_states(rows: list[ChildRow]) -> str:
    """Say in one sentence that rows are new, or which one is not."""
    for row in rows:
        if (row.state, row.outcome) != ("pending", None):
            return f"sequence {row.sequence} is {row.state}, outcome {row.outcome!r}"
        if row.attempts or row.processing_started_at:
            return f"sequence {row.sequence} has a claim, attempts {row.attempts}"
    return "all open, none claimed"


def parent_state(evidence, parent_id: str = PARENT) -> str:
    row = parent_of(evidence, parent_id)
    words = (
        ("decomposed", row.decomposed_at),
        ("completed", row.completed_at),
        ("failed", row.failed_at),
    )
    return ", ".join(name if at is not None else f"not {name}" for name, at in words)


@check("a malformed event is kept, and skipped with a reason", promise="enumerated", points=14)
def test_a_malformed_event_is_kept(bench: Bench):
    mixed = [event for bad in MALFORMED for event in (bad, scan(1))]
    lists = [mixed, *([bad] for bad in MALFORMED), MALFORMED]
    for scene, actor, scenario in bench.stages(one(unread(events)) for events in lists):
        events = scenario.parent.listed
        did = f"decomposed {len(events)} events, of which {events[0]!r} is malformed"
        bench.equal(did, len(events), bench.call(actor, "decompose", PARENT))
        evidence = scene.evidence()
        bench.judged(enumerated(scenario, evidence), did)
        good = [row for row in children_of(evidence, PARENT) if row.event == scan(1)]
        bench.equal(f"{did}; read the others", "all open, none claimed", row_states(good))


@check("a payload without a list of events ends the parent, once", promise="enumerated", points=12)
def test_no_list_ends_the_parent(bench: Bench):
    parents = {name: odd_payload(payload) for name, payload in NO_LIST.items()}
    parents["no payload at all (NULL)"] = odd_payload(None, has_payload=False)
    parents["no list, and an earlier failure"] = odd_payload({}, failure="timeout")
    stages = bench.stages(map(one, parents.values()))
    for name, (scene, actor, scenario) in zip(parents, stages, strict=True):
        did = f"decomposed a parent whose payload is {name}"
        bench.equal(did, 0, bench.call(actor, "decompose", PARENT))
        evidence = scene.evidence()
        ended = "not decomposed, completed, failed"
        bench.equal(f"{did}; read the parent", ended, parent_state(evidence))
        bench.judged(enumerated(scenario, evidence), did)
        bench.equal(f"{did}, and again", 0, bench.call(actor, "decompose", PARENT))
        bench.equal(
            f"{did}, and again; compared the tables", tables(evidence), tables(scene.evidence())
        )


@check("an empty list is a list: decomposed, total 0", promise="enumerated", points=4)
def test_an_empty_list_is_a_list(bench: Bench):
    for scene, actor, scenario in bench.stages([one(unread([]))]):
        bench.equal("decomposed an empty list", 0, bench.call(actor, "decompose", PARENT))
        evidence = scene.evidence()
        state = "decomposed, not completed, not failed"
        bench.equal("decomposed an empty list; read the parent", state, parent_state(evidence))
        bench.judged(enumerated(scenario, evidence))


@check(
    "what is decomposed stays as it is, whatever payload and counters say",
    promise="enumerated",
    points=10,
)
def test_repeating_makes_no_second_set(bench: Bench):
    events = mixed_scans(20)
    done = ledger(
        events, ended=range(6), claimed={7: LONG_AGO}, counters=(99, 3, 1, 0), failure="timeout",
        payload={"events": [*events, scan(70)]},
    )  # fmt: skip
    parents = {
        "whose payload has grown": done,
        "whose payload is gone": ledger(events, payload={}, counters=(None, 0, 0, 0)),
        "that is complete": ledger(scans(3), ended=range(3), completed=True),
    }
    stages = bench.stages(map(one, parents.values()))
    for (name, parent), (scene, actor, _) in zip(parents.items(), stages, strict=True):
        before = tables(scene.evidence())
        did = f"decomposed again a parent {name}, with {len(parent.children)} children"
        for _ in range(2):
            bench.equal(did, len(parent.children), bench.call(actor, "decompose", PARENT))
        bench.equal(f"{did}; compared the tables", before, tables(scene.evidence()))


@check(
    "a parent that failed before there was a ledger is decomposed", promise="enumerated", points=4
)
def test_a_legacy_parent_is_decomposed(bench: Bench):
    parents = [unread(mixed_scans(12), failure="timeout"), unread([], failure="timeout")]
    for scene, actor, scenario in bench.stages(map(one, parents)):
        wanted = len(scenario.parent.listed)
        did = f"decomposed a legacy parent: it failed, has no children, and lists {wanted} events"
        bench.equal(did, wanted, bench.call(actor, "decompose", PARENT))
        bench.judged(enumerated(scenario, scene.evidence()), did)


@check("two at once make one set, and both return its size", promise="enumerated", points=14)
def test_two_at_once_make_one_set(bench: Bench):
    for scenario in (one(unread(mixed_scans(9))), one(odd_payload({"events": "none"}))):
        wanted = len(scenario.parent.listed or ())

        def one_set(met: Meeting, scenario=scenario, wanted=wanted):
            for result in (met.first, *met.rivals):
                bench.equal(met.did, wanted, bench.returned(result, met.did))
            bench.judged(enumerated(scenario, met.scene.evidence()), met.did)

        meet_everywhere(bench, scenario, DECOMPOSE, [DECOMPOSE], one_set)


@check(
    "killed after any statement: all rows and the mark, or nothing", promise="enumerated", points=14
)
def test_killed_at_every_boundary(bench: Bench):
    for parent in (unread(mixed_scans(9)), odd_payload({"events": None}), unread([])):

        def all_there(scenario, evidence):
            row = parent_of(evidence, PARENT)
            ended = row.completed_at is not None and scenario.parent.listed is None
            decomposed = row.decomposed_at is not None
            bench.equal("decomposed again after a kill", True, decomposed or ended)
            return []

        killed_everywhere(
            bench, one(parent), DECOMPOSE, again=[DECOMPOSE], safety=enumerated, finished=all_there
        )


@check("1,000 and 20,000 events; other parents stay as they are", promise="enumerated", points=6)
def test_long_lists(bench: Bench):
    others = (ledger(scans(3), "scans-friday"), unread(scans(3), "scans-saturday"))
    many = LedgerScenario((unread(mixed_scans(MANY)), *others))
    with bench.scene(many) as scene:
        did = f"decomposed a list of {MANY:,} events, with two other parents beside it"
        before = scene.evidence()
        bench.equal(did, MANY, bench.call(bench.actor(scene), "decompose", PARENT))
        evidence = scene.evidence()
        bench.judged(enumerated(many, evidence), did)
        for parent in others:
            pair = [children_of(e, parent.parent_id) for e in (before, evidence)]
            bench.equal(f"{did}; compared {parent.parent_id!r}", *pair)
    with bench.scene(one(unread(scans(HUGE)))) as scene, ungated(bench, scene) as actor:
        did = f"decomposed a list of {HUGE:,} events"
        bench.equal(did, HUGE, bench.call(actor, "decompose", PARENT))
        seen = scene.laboratory.control.execute(
            "SELECT count(*), min(sequence), max(sequence), count(processed_at), count(skipped_at),"
            " (SELECT total FROM parent_work) FROM child_work"
        ).fetchone()
        bench.equal(
            f"{did}; counted, lowest, highest, ended, total", (HUGE, 0, HUGE - 1, 0, 0, HUGE), seen
        )


@check(
    "unknown parents, open transactions, and the connection afterwards", promise="hygiene", points=8
)
def test_leaves_the_connection_as_it_was(bench: Bench):
    scenario = LedgerScenario((unread(mixed_scans(5)), odd_payload(None, "scans-friday")))
    with bench.scene(scenario) as scene:
        raises_unknown_parent(bench, scene, "decompose")
    leaves_as_it_was(bench, scenario, [
        (DECOMPOSE, "decomposed a parent", ""),
        (DECOMPOSE, "decomposed it again", ""),
        (Call(8, "decompose", ("scans-friday",)), "ended a parent without a list", ""),
        (Call(8, "decompose", ("no-such-parent",)), "met an unknown parent", "UnknownParent"),
    ])  # fmt: skip
    bench.equal(
        "read what it returned inside an open transaction",
        5,
        rolls_back(bench, scenario, DECOMPOSE),
    )
