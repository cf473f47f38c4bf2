"""The graded checks of lab 12: where counters and ledger disagree, the ledger wins."""

from __future__ import annotations

from datetime import timedelta

from harness.course import SOLUTIONS
from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.ledger import (
    calls,
    killed_everywhere,
    leased,
    leaves_as_it_was,
    raises_unknown_parent,
    rolls_back,
    tables,
)
from harness.grading.words import step_text
from harness.ledger.history import children_of, counted_totals, parent_of, totals_text
from harness.ledger.judge import ledger_wins, untouched_rows
from harness.ledger.scenario import (
    PARENT,
    Ending,
    LedgerScenario,
    ParentSeed,
    ledger,
    mixed_scans,
    odd_payload,
    one,
    scan,
    scans,
    unread,
)
from harness.records import Evidence, Stop
from harness.script import Call

REPAIR, DRY_RUN = Call(12, "reconcile", (PARENT, False)), Call(12, "reconcile", (PARENT,))
#: A session in which nothing can be written: what a dry run has to be content with.
READ_ONLY = {"default_transaction_read_only": "on"}
ENDS = {0: Ending("processed"), 1: Ending("failed", "x"), 2: Ending("skipped", "y")}
MANY = 400


def stored(seed: ParentSeed):
    """Return the totals as the parent has them."""
    return (*seed.counters, seed.completed)


def counted(seed: ParentSeed):
    """Return the totals as the rows have them."""
    ends = [child.ending.state if child.ending else "pending" for child in seed.children]
    counts = [ends.count(state) for state in ("processed", "failed", "skipped")]
    return (len(ends), *counts, "pending" not in ends)


def answer(bench: Bench, did: str, value) -> tuple:
    """Return before, after and changed of a Reconciliation."""
    before, after, changed = bench.fields(did, value, "before", "after", "changed")
    names = ("total", "processed", "failed", "skipped", "complete")
    return bench.fields(did, before, *names), bench.fields(did, after, *names), changed


def demand(bench: Bench, did: str, seed: ParentSeed, value, *, repaired: bool = False) -> None:
    """Demand what a reconciliation of this parent must say, `repaired` when it was repaired before."""
    before, after, changed = answer(bench, did, value)
    old = counted(seed) if repaired else stored(seed)
    bench.equal(f"{did}; read `before`", totals_text(old), totals_text(before))
    bench.equal(f"{did}; read `after`", totals_text(counted(seed)), totals_text(after))
    bench.equal(f"{did}; read `changed`", old != counted(seed), changed)


def repairs(bench: Bench, seed: ParentSeed, words: str) -> None:
    """Look, repair, and look again, each time comparing the answer and the rows."""
    scenario = one(seed)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        before = tables(scene.evidence())
        did = f"reconciled {words}"
        demand(bench, f"{did}, as a dry run", seed, bench.call(actor, "reconcile", PARENT))
        bench.equal(f"{did}, as a dry run; compared the tables", before, tables(scene.evidence()))
        demand(bench, did, seed, bench.call(actor, "reconcile", PARENT, False))
        evidence = scene.evidence()
        bench.judged(ledger_wins(scenario, evidence), did)
        keeps_the_rest(bench, did, before[0][0], evidence)
        again = f"{did}, and again"
        demand(bench, again, seed, bench.call(actor, "reconcile", PARENT, False), repaired=True)
        bench.equal(f"{again}; compared the tables", tables(evidence), tables(scene.evidence()))


def keeps_the_rest(bench: Bench, did: str, before, evidence: Evidence) -> None:
    """Demand that a repair touched nothing beside the counters and the completion."""
    after = parent_of(evidence, PARENT)
    names = ("payload", "decomposed_at", "failed_at", "failure")
    pair = [{name: getattr(row, name) for name in names} for row in (before, after)]
    bench.equal(f"{did}; read the parent's other columns", *pair)


@check(
    "total 99 over three terminal children becomes 3, complete",
    promise="the ledger wins",
    points=12,
)
def test_total_99_over_three_terminal_children(bench: Bench):
    for counters, failure in (
        ((99, 0, 0, 0), "timeout"),
        ((99, 1, 1, 1), None),
        ((99, 57, 30, 12), "timeout"),
    ):
        seed = ledger(scans(3), ended=ENDS, counters=counters, failure=failure)
        words = f"a parent with total 99 and counters {counters[1:]} over three terminal children"
        repairs(bench, seed, words)


@check("a completion stamp over one pending child is cleared", promise="the ledger wins", points=12)
def test_a_completion_over_one_pending_child(bench: Bench):
    stamped = {
        "a parent that is complete over one pending child": ledger(scans(1), completed=True),
        "a parent that is complete over one pending child of four, counters right": ledger(
            scans(4), ended=ENDS, counters=(4, 1, 1, 1), completed=True
        ),
        "a parent that is complete over one pending child of four, counters at four": ledger(
            scans(4), ended=ENDS, counters=(4, 2, 1, 1), completed=True, failure="timeout"
        ),
        "a parent that is complete over a child that is being worked on": ledger(
            scans(2), ended=[0], claimed={1: timedelta(minutes=5)}, completed=True
        ),
    }  # fmt: skip
    for words, seed in stamped.items():
        repairs(bench, seed, words)


@check("a missing completion is set", promise="the ledger wins", points=10)
def test_a_missing_completion_is_set(bench: Bench):
    for words, seed in {
        "a parent that is not complete, though its three children have ended": ledger(
            scans(3), ended=ENDS, counters=(3, 1, 1, 1)),
        "a failed parent whose only child was skipped": ledger(
            scans(1), ended={0: Ending("skipped", "y")}, counters=(1, 0, 0, 1), failure="timeout"),
        "an empty ledger that is not complete": ledger([]),
    }.items():  # fmt: skip
        repairs(bench, seed, words)


@check("counters are counted, whichever way they are wrong", promise="the ledger wins", points=12)
def test_counters_are_counted(bench: Bench):
    events = mixed_scans(MANY)
    ended = range(MANY * 3 // 5)
    right = counted(ledger(events, ended=ended))
    for counters in (
        (MANY, 573, 12, 4),
        (None, 0, 0, 0),
        (3, 0, 999, 0),
        (right[0] - 1, *right[1:4]),
    ):
        seed = ledger(events, ended=ended, counters=counters, failure="timeout")
        repairs(bench, seed, f"a parent with counters {counters} over {MANY} children")


@check("where all is right, nothing is changed", promise="the ledger wins", points=8)
def test_where_all_is_right(bench: Bench):
    for words, seed in {
        "a half-done parent, all right": ledger(scans(5), ended=ENDS, counters=(5, 1, 1, 1)),
        "a complete parent, all right": ledger(
            scans(3), ended=ENDS, counters=(3, 1, 1, 1), completed=True, failure="timeout"),
        "an empty ledger, all right": ledger([], counters=(0, 0, 0, 0), completed=True),
    }.items():  # fmt: skip
        repairs(bench, seed, words)


@check(
    "a dry run is the default, writes nothing, and waits for nobody",
    promise="the ledger wins",
    points=14,
)
def test_a_dry_run_only_looks(bench: Bench):
    seeds = [
        ledger(scans(3), ended=ENDS, counters=(99, 0, 0, 0)), ledger(scans(1), completed=True),
        ledger(scans(2), counters=(2, 0, 0, 0)),
    ]  # fmt: skip
    for seed in seeds:
        with bench.scene(one(seed)) as scene:
            for arguments in ((), (True,)):
                did = "reconciled as a dry run, in a session that is read-only"
                actor = scene.actor(bench.impl, settings=READ_ONLY)
                demand(bench, did, seed, bench.call(actor, "reconcile", PARENT, *arguments))
            with scene.rival_transaction() as rival:
                rival.execute("SELECT FROM parent_work FOR UPDATE")
                rival.execute("SELECT FROM child_work FOR UPDATE")
                did = (
                    "reconciled as a dry run while a worker had the parent and its children locked"
                )
                actor = bench.actor(scene)
                actor.start(calls(DRY_RUN))
                if scene.wait_blocked_or_done(actor):
                    rival.execute("ROLLBACK")
                    bench.finish(actor)
                    raise bench.broken(did, "an answer at once", "it waited for the lock")
                demand(bench, did, seed, bench.returned(bench.finish(actor), did))
            bench.equal(f"{did}; read what it changed", [], list(scene.evidence().changes))


@check(
    "a parent that was never decomposed, and other parents, are left alone",
    promise="the ledger wins",
    points=8,
)
def test_what_has_no_ledger_is_left_alone(bench: Bench):
    other = ledger(scans(3), "scans-friday", ended=ENDS, counters=(99, 0, 0, 0), first_id=100)
    for words, seed in {
        "a parent that was never decomposed": unread(scans(3)),
        "a legacy parent": unread(scans(3), failure="timeout"),
        "a parent that was never decomposed, with counters": ParentSeed(
            PARENT, {"events": scans(3)}, counters=(None, 7, 1, 0)),
        "a parent that was ended for its payload": ParentSeed(
            PARENT, {"events": 5}, completed=True, failure="no list of events"),
        "a parent without a payload": odd_payload(None, has_payload=False),
    }.items():  # fmt: skip
        with bench.scene(LedgerScenario((seed, other))) as scene:
            actor = bench.actor(scene)
            for dry_run in (True, False):
                did = f"reconciled {words}, with dry_run={dry_run}"
                before, after, changed = answer(
                    bench, did, bench.call(actor, "reconcile", PARENT, dry_run)
                )
                bench.equal(f"{did}; read `before`", totals_text(stored(seed)), totals_text(before))
                bench.equal(f"{did}; read `after`", totals_text(stored(seed)), totals_text(after))
                bench.equal(f"{did}; read `changed`", False, changed)
            bench.equal(f"{did}; read what it changed", [], list(scene.evidence().changes))


@check(
    "a repair while a worker ends the last child keeps the worker's completion",
    promise="the ledger wins",
    points=10,
)
def test_a_repair_while_workers_run(bench: Bench):
    for dry_run in (False, True):
        met_by_a_worker(bench, dry_run)


def met_by_a_worker(bench: Bench, dry_run: bool) -> None:
    """Hold reconcile at every boundary, let a worker end the last child and complete the parent."""
    seed = ledger([scan(0), scan(1), scan(2)], ended=[0, 1], counters=(3, 0, 0, 0))
    number = 0
    while True:
        number += 1
        with bench.scene(one(seed)) as scene:
            actor = bench.actor(scene, stop=Stop(boundary=number))
            hold = actor.follow(calls(Call(12, "reconcile", (PARENT, dry_run))))
            if hold is None:
                bench.returned(actor.calls[-1][1], "reconciled with nobody beside it")
                return
            where = step_text(actor.lane.boundaries, number)
            did = (
                f"held reconcile with dry_run={dry_run} after {where}, let a worker end the last child of "
                "three and complete the parent, let it go on"
            )
            worker = scene.actor(
                SOLUTIONS
            )  # the worked one: this lab needs no other of the learner's
            worker.start(calls(Call(11, "run_parent", (PARENT, *leased(5)))))
            scene.wait_blocked_or_done(worker)
            _, after, _ = answer(bench, did, bench.returned(bench.finish(actor), did))
            worker.go_on()
            total, processed, failed, skipped, complete = after
            sound = complete == (processed + failed + skipped == total == 3)
            if not sound:
                raise bench.broken(
                    did, "`after` is of one moment: complete when the three counts make 3",
                    totals_text(after), cause="Each count was read at another moment.",
                )  # fmt: skip
            evidence = scene.evidence()
            row = parent_of(evidence, PARENT)
            wanted = counted_totals(children_of(evidence, PARENT))[-1]
            bench.equal(
                f"{did}; read whether the parent is complete", wanted, row.completed_at is not None,
                cause="Between the look and the repair the worker completed the parent.",
            )  # fmt: skip


@check(
    "killed after any statement: counters old or new, never between",
    promise="the ledger wins",
    points=6,
)
def test_killed_at_every_boundary(bench: Bench):
    seed = ledger(scans(3), ended=ENDS, counters=(99, 0, 7, 0))

    def old_or_new(scenario, evidence):
        row = parent_of(evidence, PARENT)
        seen = (row.total, row.processed, row.failed, row.skipped, row.completed_at is not None)
        if seen not in (stored(seed), counted(seed)):
            raise bench.broken("killed the client, read the parent",
                               f"{totals_text(stored(seed))}, or {totals_text(counted(seed))}",
                               totals_text(seen))  # fmt: skip
        return untouched_rows(scenario, evidence)

    killed_everywhere(
        bench, one(seed), REPAIR, again=[REPAIR], safety=old_or_new, finished=ledger_wins
    )


@check(
    "unknown parents, open transactions, and the connection afterwards", promise="hygiene", points=8
)
def test_leaves_the_connection_as_it_was(bench: Bench):
    seed = ledger(scans(3), ended=ENDS, counters=(99, 0, 0, 0))
    scenario = LedgerScenario((seed, unread(scans(2), "scans-friday")))
    for dry_run in (True, False):
        with bench.scene(scenario) as scene:
            raises_unknown_parent(bench, scene, "reconcile", dry_run)
    leaves_as_it_was(bench, scenario, [
        (DRY_RUN, "made a dry run", ""),
        (REPAIR, "repaired", ""),
        (REPAIR, "found nothing to repair", ""),
        (Call(12, "reconcile", ("scans-friday", False)), "left a parent alone", ""),
        (Call(12, "reconcile", ("no-such-parent", False)), "met an unknown parent", "UnknownParent"),
    ])  # fmt: skip
    value = rolls_back(bench, scenario, REPAIR)
    demand(bench, "repaired inside an open transaction", seed, value)
