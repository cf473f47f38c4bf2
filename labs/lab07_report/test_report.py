"""The graded checks of lab 7: what was committed then and what the orders are now are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.damage import DAMAGE
from harness.grading.drift import BESIDE, GONE, JOB, drift, heal
from harness.grading.shapes import SHAPES
from harness.grading.words import step_text
from harness.history import show_ids
from harness.records import CallResult, Raised
from harness.run import describe_failure
from harness.scenario import Scenario, festival, make_scenario
from harness.seeding import seed

NAMES = ("approved", "committed", "unprocessed", "matching", "drifted", "missing")
Groups = dict[str, tuple[int, ...]]


@check(
    "fresh, half-done and complete jobs of every shape, each on its own",
    promise="honest report",
    points=12,
)
def test_every_stage(bench: Bench):
    jobs = []
    for number, (name, shape) in enumerate(SHAPES.items()):
        done = (1, 1, 2, 0, 3, 1, 2, 2, 1)[number]
        first = shape.approved_ids[0] if "IDs" in name else 1000 * (number + 1)
        base = festival(len(shape.approval), shape.chunk_size, seed=number, first_id=first)
        jobs.append((name, make_scenario(
            base.approval, others=base.others, tenant=shape.tenant, chunk_size=shape.chunk_size,
            job_id=f"{number} {shape.job_id}", done_chunks=done,
        )))  # fmt: skip
    with bench.scene(jobs[0][1]) as scene:
        for _, job in jobs[1:]:
            seed(scene.laboratory.control, job)
        actor = bench.actor(scene)
        for name, job in jobs:
            value = bench.call(actor, "report", job.job_id)
            did = (
                f"reported {name}, with the first {job.next_index} of {len(job.approval)} committed"
            )
            told(bench, did, value, groups(job))
        bench.equal("read what the reports changed", [], list(scene.evidence().changes))


@check("a committed order that differs in anything is drifted", promise="honest report", points=12)
def test_drift(bench: Bench):
    with bench.scene(JOB) as scene:
        seed(scene.laboratory.control, BESIDE)
        words = drift(scene)
        value = bench.call(bench.actor(scene), "report", JOB.job_id)
        told(bench, "reported a job", value, groups(JOB, drifted=words), words)


@check(
    "a deleted order is missing, whatever looks like it", promise="honest report", points=8
)  # fmt: skip
def test_a_lookalike_is_no_replacement(bench: Bench):
    with bench.scene(JOB) as scene:
        words = {}
        for position in GONE:
            order_id = JOB.approved_ids[position]
            for twin in (100 + position, 900_000 + position):
                scene.rival(
                    "INSERT INTO orders (order_id, tenant, qty, state, revision)"
                    " SELECT %s, tenant, qty, state, revision FROM orders WHERE order_id = %s",
                    (twin, order_id),
                )
            scene.rival("DELETE FROM orders WHERE order_id = %s", (order_id,))
            words[order_id] = (
                f"deleted it; orders {100 + position} and {900_000 + position} look like it"
            )
        value = bench.call(bench.actor(scene), "report", JOB.job_id)
        told(bench, "reported a job", value, groups(JOB, missing=words), words)


@check(
    "what is not committed yet cannot drift, and what is, stays committed",
    promise="honest report",
    points=6,
)
def test_then_and_now(bench: Bench):
    edited, cancelled, deleted = JOB.approved_ids[20:23]
    words = {
        edited: "changed its quantity; the job had not come to it",
        cancelled: "cancelled it by hand; the job had not come to it",
        deleted: "deleted it; the job had not come to it",
    }
    with bench.scene(JOB) as scene:
        scene.rival("UPDATE orders SET qty = qty + 1, revision = revision + 1 WHERE order_id = %s", (edited,))  # fmt: skip
        scene.rival("UPDATE orders SET state = 'cancelled', revision = revision + 1 WHERE order_id = %s", (cancelled,))  # fmt: skip
        scene.rival("DELETE FROM orders WHERE order_id = %s", (deleted,))
        actor = bench.actor(scene)
        told(bench, "reported a job", bench.call(actor, "report", JOB.job_id), groups(JOB), words)
        reopened = JOB.approved_ids[:20]
        scene.rival("UPDATE orders SET state = 'pending', revision = revision + 1 WHERE order_id = ANY(%s)", (list(reopened),))  # fmt: skip
        words |= dict.fromkeys(reopened, "reopened it")
        value = bench.call(actor, "report", JOB.job_id)
        told(bench, "reported a job", value, groups(JOB, drifted=reopened), words)


@check("damaged progress and unknown jobs are refused", promise="honest report", points=14)
def test_damage_is_refused(bench: Bench):
    for job in dict.fromkeys(damage.scenario for damage in DAMAGE):
        with bench.scene(job) as scene:
            actor = bench.actor(scene)
            for damage in (damage for damage in DAMAGE if damage.scenario == job):
                for statement in damage.sql:
                    scene.rival(statement)
                result = bench.result(actor, "report", job.job_id)
                bench.raises(
                    result, "DamagedProgress", f"{damage.words}, then reported the job",
                    cause="The checkpoint is believed before the audit has proven it.",
                )  # fmt: skip
                heal(scene, job)
            told(bench, "healed the job and reported it", bench.call(actor, "report", job.job_id), groups(job))  # fmt: skip
            unknown = bench.result(actor, "report", "no-such-job")
            bench.raises(unknown, "UnknownJob", "reported a job that was never registered")


@check(
    "a report describes one moment, whoever writes meanwhile", promise="honest report", points=12
)
def test_one_moment(bench: Bench):
    later, sooner = JOB.approved_ids[2], JOB.approved_ids[13]
    moments = (groups(JOB, drifted=[sooner]), groups(JOB, drifted=[later], committed=23))
    edit = "UPDATE orders SET revision = revision + 1 WHERE order_id = %s"
    with bench.scene(JOB) as scene:
        scene.rival(edit, (sooner,))
        actor = bench.actor(scene)
        value = bench.call(actor, "report", JOB.job_id)
        told(bench, f"edited order {sooner}, then reported the job", value, moments[0])
        steps = actor.lane.boundaries
    story = (
        f"another transaction edit order {later}, put order {sooner} back and commit the last chunk"
    )
    for step in steps:
        did = f"held the report after {step_text(steps, step.number)}, let {story}, let the report go on"
        with bench.scene(JOB) as scene:
            scene.rival(edit, (sooner,))
            actor, _ = bench.held(scene, step.number, "report", JOB.job_id)
            with scene.rival_transaction() as rival:
                if write_unless_locked(rival, later, sooner):
                    rival.execute("COMMIT")
            either(bench, did, bench.finish(actor), moments)
    did = f"let {story}, with the report started before that commit"
    with bench.scene(JOB) as scene:
        scene.rival(edit, (sooner,))
        with scene.rival_transaction() as rival:
            write_unless_locked(rival, later, sooner)
            actor = bench.actor(scene)
            actor.start(bench.script("report", JOB.job_id))
            scene.wait_blocked_or_done(actor)
            rival.execute("COMMIT")
        either(bench, did, bench.finish(actor), moments)


def write_unless_locked(rival: psycopg.Connection[Any], later: int, sooner: int) -> bool:
    """Do the last chunk and two edits, unless the report has locked the job against it."""
    try:
        rival.execute("SELECT FROM jobs WHERE job_id = %s FOR UPDATE NOWAIT", (JOB.job_id,))
        rival.execute("SELECT FROM orders FOR UPDATE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return False
    rival.execute("UPDATE orders SET revision = revision + 1 WHERE order_id = %s", (later,))
    rival.execute("UPDATE orders SET revision = revision - 1 WHERE order_id = %s", (sooner,))
    rival.execute(
        "UPDATE orders SET state = 'cancelled', revision = revision + 1 WHERE order_id = ANY(%s)",
        (list(JOB.chunk_ids(3)),),
    )
    rival.execute(
        "INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)"
        " SELECT job_id, position, order_id, revision, revision + 1, qty FROM job_items"
        " WHERE job_id = %s AND position >= 20",
        (JOB.job_id,),
    )
    rival.execute("UPDATE jobs SET next_index = 23 WHERE job_id = %s", (JOB.job_id,))
    return True


def either(bench: Bench, did: str, result: CallResult, moments: Sequence[Groups]) -> None:
    """Demand the report of the moment before, or of the moment after."""
    before, after = moments
    expected = f"the moment before ({_shown(before)}) or the one after ({_shown(after)})"
    cause = "The parts of the report come from several statements, each with its own snapshot."
    if isinstance(result, Raised):
        raise bench.broken(did, expected, describe_failure(result), cause=cause)
    value = bench.returned(result, did)
    seen = {
        n: tuple(v) for n, v in zip(NAMES, bench.fields(did, value, *NAMES), strict=True)
    }  # fmt: skip
    if seen not in (before, after):
        raise bench.broken(did, expected, f"a mixture: {_shown(seen)}", cause=cause)


@check("a job of 5,000 orders", promise="honest report", points=4)
def test_many_orders(bench: Bench):
    scenario = festival(5_000, 100, seed=73, done_chunks=30)
    drifted, missing = scenario.approved_ids[17:3000:500], scenario.approved_ids[401:3000:700]
    with bench.scene(scenario) as scene:
        scene.rival("UPDATE orders SET qty = qty + 1 WHERE order_id = ANY(%s)", (list(drifted),))
        scene.rival("DELETE FROM orders WHERE order_id = ANY(%s)", (list(missing),))
        value = bench.call(bench.actor(scene), "report", scenario.job_id)
        did = "reported a job of 5,000 orders, 3,000 of them committed"
        told(bench, did, value, groups(scenario, drifted=drifted, missing=missing))


@check("the connection is left as it was, and nothing is written", promise="hygiene", points=6)
def test_leaves_the_connection_as_it_was(bench: Bench):
    with bench.scene(JOB) as scene:
        actor = bench.actor(scene)
        for ended, job_id, spoil in (
            ("", JOB.job_id, ""),
            ("UnknownJob", "no-such-job", ""),
            ("DamagedProgress", JOB.job_id, "DELETE FROM job_audit WHERE position = 4"),
        ):
            if spoil:
                scene.rival(spoil)
            before = bench.session(actor)
            result = bench.result(actor, "report", job_id)
            bench.hygiene(
                actor,
                before,
                result,
                f"after {ended or 'a report'}, looked at the connection",
                ended,
            )
        heal(scene, JOB)
        value = bench.inside(actor, "report", JOB.job_id)
        told(bench, "reported inside an open transaction", value, groups(JOB))
        bench.equal("read what all of it changed", [], list(scene.evidence().changes))


# --- what is said about a report ----------------------------------------------------------------------


def groups(
    scenario: Scenario,
    *,
    drifted: Iterable[int] = (),
    missing: Iterable[int] = (),
    committed: int | None = None,
) -> Groups:
    """Return the report that is right, given which committed orders changed or are gone."""
    ids = scenario.approved_ids
    end = scenario.next_index if committed is None else committed
    gone, changed = tuple(sorted(missing)), tuple(sorted(drifted))
    matching = tuple(i for i in ids[:end] if i not in gone and i not in changed)
    return dict(zip(NAMES, (ids, ids[:end], ids[end:], matching, changed, gone), strict=True))


def told(
    bench: Bench, did: str, value: object, expected: Groups, words: Mapping[int, str] | None = None
) -> None:
    """Demand a report, group by group; where an order is in the wrong one, say what became of it."""
    seen = dict(zip(NAMES, bench.fields(did, value, *NAMES), strict=True))
    for name in NAMES:
        if not isinstance(seen[name], list) or not all(isinstance(i, int) for i in seen[name]):
            raise bench.broken(
                f"{did}; read {name}", "a tuple of order IDs", repr(seen[name])[:200]
            )
    ids = sorted({i for group in (expected, seen) for name in NAMES for i in group[name]})
    places = ((i, _place(expected, i), _place(seen, i)) for i in ids)
    astray = [(i, right, wrong) for i, right, wrong in places if right != wrong][:4]
    if astray:
        happened = (f"; order {i}: {words[i]}" for i, _, _ in astray if words and i in words)
        raise bench.broken(
            did + "".join(happened),
            "; ".join(f"order {i} in {right}" for i, right, _ in astray),
            "; ".join(f"order {i} in {wrong}" for i, _, wrong in astray),
            cause="Committed is what the audit proves; matching, drifted and missing split it by the order's ID.",
            ids=[i for i, _, _ in astray],
        )  # fmt: skip
    for name in NAMES:
        bench.equal(
            f"{did}; read {name}", expected[name], seen[name],
            cause="IDs come in ID order, each once.",
        )  # fmt: skip


def _place(report: Mapping[str, Sequence[int]], order_id: int) -> str:
    return ", ".join(name for name in NAMES if order_id in report[name]) or "no group"


def _shown(report: Mapping[str, Sequence[int]]) -> str:
    end = f"{len(report['committed'])} committed"
    return f"{end}, drifted {show_ids(report['drifted'])}, missing {show_ids(report['missing'])}"
