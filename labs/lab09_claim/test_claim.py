"""The graded checks of lab 9: a unit has at most one live claim, and an abandoned claim comes back."""

from __future__ import annotations

from datetime import timedelta

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
)
from harness.ledger.history import children_of, show
from harness.ledger.judge import one_live_claim
from harness.ledger.scenario import (
    LONG_AGO,
    PARENT,
    Ending,
    LedgerScenario,
    ParentSeed,
    ledger,
    one,
    scan,
    scans,
)
from harness.records import Evidence
from harness.script import Call

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
#: A session far from UTC, and by a quarter of an hour: clocks without a zone are wrong there.
FAR_AWAY = {"TimeZone": "Asia/Kathmandu"}
THREE = Call(9, "claim", (PARENT, *leased(3)))


def claimed(bench: Bench, did: str, value) -> list[tuple[int, int, object, int]]:
    """Return the claimed children as tuples; a value of another shape breaks the promise."""
    if not isinstance(value, list):
        raise bench.broken(did, "a list of ClaimedChild", repr(value)[:200])
    return [bench.fields(did, c, "child_id", "sequence", "event", "attempts") for c in value]


def expected(parent: ParentSeed, *sequences: int, attempts: int = 1):
    """Return what a claim of these children answers."""
    return [
        (parent.child(n).child_id, n, parent.child(n).event, attempts) for n in sequences
    ]  # fmt: skip


def live(evidence: Evidence, parent_id: str = PARENT) -> list[tuple[int, int]]:
    """Return sequence and attempts of every child with a claim."""
    rows = children_of(evidence, parent_id)
    return [(row.sequence, row.attempts) for row in rows if row.processing_started_at is not None]


@check(
    "the lowest sequences, in order, at most `limit` of them", promise="one live claim", points=14
)
def test_lowest_sequences_within_the_limit(bench: Bench):
    parent = ledger(scans(25))
    with bench.scene(one(parent)) as scene:
        actor = bench.actor(scene)
        done = 0
        for limit in (1, 3, 10, 2, 500):
            did = f"claimed with limit {limit} when {done} of 25 children were claimed"
            value = bench.call(actor, "claim", PARENT, *leased(limit))
            wanted = range(done, min(done + limit, 25))
            bench.equal(did, expected(parent, *wanted), claimed(bench, did, value))
            done = max(done, *wanted) + 1
            bench.equal(
                f"{did}; read the rows", [(n, 1) for n in range(done)], live(scene.evidence())
            )
        did = "claimed again when every child was claimed"
        bench.equal(did, [], claimed(bench, did, bench.call(actor, "claim", PARENT, *leased(5))))
        bench.judged(one_live_claim(one(parent), scene.evidence()))


@check(
    "children that have ended, and other parents, are left alone",
    promise="one live claim",
    points=12,
)
def test_ended_children_and_other_parents(bench: Bench):
    ends = {1: Ending("processed"), 2: Ending("failed", "x"), 3: Ending("skipped", "y"),
            7: Ending("skipped", "z"), 8: Ending("failed", "x")}  # fmt: skip
    parent = ledger(scans(10), ended=ends)
    other = ledger(scans(10), "scans-friday", first_id=400)
    for scenario in (one(parent), LedgerScenario((parent, other)), LedgerScenario((other, parent))):
        with bench.scene(scenario) as scene:
            actor = bench.actor(scene)
            did = "claimed with limit 4 where sequences 1, 2, 3, 7 and 8 of 10 have ended"
            value = bench.call(actor, "claim", PARENT, *leased(4))
            bench.equal(did, expected(parent, 0, 4, 5, 6), claimed(bench, did, value))
            value = bench.call(actor, "claim", PARENT, *leased(40))
            bench.equal(
                f"{did}, then with limit 40", expected(parent, 9), claimed(bench, did, value)
            )
            evidence = scene.evidence()
            bench.judged(one_live_claim(scenario, evidence), did)
            bench.equal(f"{did}; read the other parent", [], live(evidence, "scans-friday"))


@check(
    "a claim is live for exactly as long as the caller's lease", promise="one live claim", points=16
)
def test_the_lease_is_the_callers(bench: Bench):
    ages = dict(enumerate((9 * MINUTE, 11 * MINUTE, 50 * MINUTE, 23 * 60 * MINUTE, 2 * DAY)))
    parent = ledger(scans(5), claimed=ages)
    for lease, free in (
        (10 * MINUTE, (1, 2, 3, 4)), (MINUTE, (0, 1, 2, 3, 4)), (45 * MINUTE, (2, 3, 4)),
        (60 * MINUTE, (3, 4)), (DAY, (4,)), (DAY + MINUTE, (4,)), (7 * DAY, ()),
        (timedelta(seconds=570.5), (1, 2, 3, 4)),
    ):  # fmt: skip
        with bench.scene(one(parent, lease=lease)) as scene:
            actor = scene.actor(bench.impl, settings=FAR_AWAY)
            did = (
                f"claimed with a lease of {lease} where sequences 0 to 4 were claimed 9 minutes, "
                "11 minutes, 50 minutes, 23 hours and 2 days ago"
            )
            value = bench.call(actor, "claim", PARENT, 10, lease)
            bench.equal(did, expected(parent, *free, attempts=2), claimed(bench, did, value))
            value = bench.call(actor, "claim", PARENT, 10, lease)
            bench.equal(f"{did}, and again at once", [], claimed(bench, did, value))
            bench.judged(one_live_claim(one(parent, lease=lease), scene.evidence()), did)


@check("a claim begins now, by the database's clock", promise="one live claim", points=10)
def test_a_claim_begins_now(bench: Bench):
    parent = ledger(scans(6), claimed={0: 3 * DAY, 1: LONG_AGO})
    for settings in ({}, FAR_AWAY, {"TimeZone": "America/St_Johns"}):
        with bench.scene(one(parent)) as scene:
            clock = "SELECT clock_timestamp()"
            control = scene.laboratory.control
            (start,) = control.execute(clock).fetchone()
            actor = scene.actor(bench.impl, settings=settings)
            bench.call(actor, "claim", PARENT, *leased(4))
            (end,) = control.execute(clock).fetchone()
            zone = settings.get("TimeZone", "the server's zone")
            for row in children_of(scene.evidence(), PARENT)[:4]:
                at = row.processing_started_at
                if at is None or not start <= at <= end:
                    raise bench.broken(
                        f"claimed sequence {row.sequence} in a session in {zone}, read its claim",
                        f"processing_started_at between {start} and {end}", f"{at}",
                        cause="Workers' clocks and zones differ; the server's clock is one for all.",
                    )  # fmt: skip


@check("an abandoned claim comes back, and every claim counts", promise="one live claim", points=12)
def test_an_abandoned_claim_comes_back(bench: Bench):
    parent = ledger(scans(4))
    with bench.scene(one(parent)) as scene:
        for attempt in (1, 2, 3):
            did = f"let a worker claim two children and vanish, {attempt - 1} times before this one"
            value = bench.call(bench.actor(scene), "claim", PARENT, *leased(2))
            bench.equal(did, expected(parent, 0, 1, attempts=attempt), claimed(bench, did, value))
            rows = [(0, attempt), (1, attempt)]
            bench.equal(f"{did}; read the rows", rows, live(scene.evidence()))
            age_claims(scene)
        bench.call(bench.actor(scene), "claim", PARENT, *leased(1))
        did = "claimed sequence 0 again, where 0 to 1 were abandoned and 2 to 3 never claimed; claimed 9 more"
        value = bench.call(bench.actor(scene), "claim", PARENT, *leased(9))
        wanted = expected(parent, 1, attempts=4) + expected(parent, 2, 3)
        bench.equal(did, wanted, claimed(bench, did, value))
        bench.judged(one_live_claim(one(parent), scene.evidence()), did)


@check("two, three and four workers at once never claim the same child, and none waits",
       promise="one live claim", points=16)  # fmt: skip
def test_workers_at_once(bench: Bench):
    parent = ledger(scans(20), ended={2: Ending("failed", "x")})

    def disjoint(met: Meeting):
        if any(met.waited):
            raise bench.broken(
                met.did, "no claim waits: rows that another worker is claiming are passed over",
                "it waited for the first one's lock",
                cause="FOR UPDATE waits; SKIP LOCKED passes over.",
            )  # fmt: skip
        taken: list[int] = []
        for result in (met.first, *met.rivals):
            seen = claimed(bench, met.did, bench.returned(result, met.did))
            bench.equal(f"{met.did}; counted one's children", 3, len(seen))
            taken += [sequence for _, sequence, _, _ in seen]
        twice = {n for n in taken if taken.count(n) > 1}
        if twice:
            raise bench.broken(
                met.did, "no child is claimed by two", f"claimed twice: sequences {show(twice)}",
                cause="Rows that are chosen without a lock are chosen by both.",
            )  # fmt: skip
        bench.judged(one_live_claim(one(parent), met.scene.evidence()), met.did)

    for rivals in (1, 2, 3):
        meet_everywhere(bench, one(parent), THREE, [THREE] * rivals, disjoint)


@check("a child that somebody has locked is passed over", promise="one live claim", points=6)
def test_locked_rows_are_passed_over(bench: Bench):
    parent = ledger(scans(6), claimed={4: LONG_AGO})
    with bench.scene(one(parent)) as scene, scene.rival_transaction() as rival:
        rival.execute(
            "SELECT FROM child_work WHERE sequence IN (0, 2, 4) ORDER BY child_id FOR UPDATE"
        )
        did = "claimed with limit 3 while somebody had sequences 0, 2 and 4 of 6 locked"
        actor = bench.actor(scene)
        actor.start(calls(THREE))
        if scene.wait_blocked_or_done(actor):
            rival.execute("ROLLBACK")
            bench.finish(actor)
            raise bench.broken(did, "sequences 1, 3, 5, at once", "it waited for the lock")
        value = bench.returned(bench.finish(actor), did)
        bench.equal(did, expected(parent, 1, 3, 5), claimed(bench, did, value))


@check(
    "killed after any statement: no claim is lost, and none is counted twice",
    promise="one live claim",
    points=6,
)
def test_killed_at_every_boundary(bench: Bench):
    scenario = one(ledger(scans(5), claimed={0: LONG_AGO}))

    def all_claimed(scenario, evidence):
        seen = [sequence for sequence, _ in live(evidence)]
        bench.equal("claimed with limit 9 after a kill, read the rows", list(range(5)), seen)
        return []

    again = [Call(9, "claim", (PARENT, *leased(9)))]
    killed_everywhere(
        bench, scenario, THREE, again=again, safety=one_live_claim, finished=all_claimed
    )


@check("events arrive as they are; an unknown parent has nothing to claim; the connection afterwards",
       promise="hygiene", points=8)  # fmt: skip
def test_leaves_the_connection_as_it_was(bench: Bench):
    odd = [scan(1, gate={"lanes": [1, None]}), scan(2, subject=""), scan(3, subject="夏 \\ %s '")]
    parent = ledger(odd)
    with bench.scene(one(parent)) as scene:
        actor = bench.actor(scene)
        did = "claimed children with nested and odd events"
        value = bench.call(actor, "claim", PARENT, *leased(9))
        bench.equal(
            did, expected(parent, 0, 1, 2), claimed(bench, did, value), promise="one live claim"
        )
        nothing = bench.call(actor, "claim", "no-such-parent", *leased(9))
        bench.equal(
            "claimed from a parent that is not there", [], nothing, promise="one live claim"
        )
    nobody = Call(9, "claim", ("no-such-parent", *leased(9)))
    leaves_as_it_was(bench, one(ledger(scans(4))), [
        (THREE, "claimed", ""), (THREE, "claimed the last one", ""), (THREE, "found nothing free", ""),
        (nobody, "met an unknown parent", ""),
    ])  # fmt: skip
    value = rolls_back(bench, one(parent), THREE)
    did = "claimed inside an open transaction"
    bench.equal(did, expected(parent, 0, 1, 2), claimed(bench, did, value))
