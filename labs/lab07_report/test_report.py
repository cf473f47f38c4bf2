"""The graded checks of lab 7: what was committed then and what the orders are now are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.damage import DAMAGE
from harness.grading.reconciling import FILE, BadQuery, Row, open_reader, read_query, run_query
from harness.grading.shapes import SHAPES
from harness.grading.words import step_text
from harness.history import show_ids
from harness.records import AuditRow, CallResult, Evidence, ItemRow, JobRow, OrderRow, Raised
from harness.run import describe_failure
from harness.scenario import Scenario, festival, make_scenario
from harness.seeding import seed
from harness.workshop import Scene

#: Two of three chunks done; the third is short.
JOB = festival(23, 10, seed=71, done_chunks=2)
#: Another job, complete, and in the same database: its rows are nobody else's business.
BESIDE = festival(12, 5, seed=72, done_chunks=3, job_id="beside", first_id=50_001)
NAMES = ("approved", "committed", "unprocessed", "matching", "drifted", "missing")

#: What may happen to an order after the job committed it, by its position in the list.
DRIFT: Mapping[int, tuple[str, str]] = {
    0: ("raised the revision", "revision = revision + 1"),
    3: ("changed the quantity, as a normal write", "qty = qty + 1, revision = revision + 1"),
    5: ("changed only the quantity", "qty = qty + 1"),
    8: ("reopened it, as a normal write", "state = 'pending', revision = revision + 1"),
    9: ("reopened it without raising the revision", "state = 'pending'"),
    10: ("moved it to another tenant", "tenant = 'aurora-catering'"),
    14: ("lowered the revision", "revision = revision - 1"),
    19: ("created it anew, pending in revision 1", "state = 'pending', revision = 1"),
}
GONE = (1, 10, 18)

#: Rows of a query, or wrong positions, that one message spells out.
ROWS_SHOWN = 6

Groups = dict[str, tuple[int, ...]]
Reader = psycopg.Connection[Any]


# --- report -------------------------------------------------------------------------------------------


@check(
    "fresh, half-done and complete jobs of every shape, each on its own",
    promise="honest report",
    points=12,
)
def test_every_stage(bench: Bench):
    jobs = []
    for number, (name, shape) in enumerate(SHAPES.items()):
        done = (1, 1, 2, 0, 3, 1, 2, 1)[number]
        first = shape.approved_ids[0] if name == "very large IDs" else 1000 * (number + 1)
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
        for words, job_id, spoil in (
            ("a report", JOB.job_id, ""),
            ("UnknownJob", "no-such-job", ""),
            ("DamagedProgress", JOB.job_id, "DELETE FROM job_audit WHERE position = 4"),
        ):
            if spoil:
                scene.rival(spoil)
            before = bench.session(actor)
            result = bench.result(actor, "report", job_id)
            bench.hygiene(actor, before, result, f"after {words}, looked at the connection")
        heal(scene, JOB)
        value = bench.inside(actor, "report", JOB.job_id)
        told(bench, "reported inside an open transaction", value, groups(JOB))
        bench.equal("read what all of it changed", [], list(scene.evidence().changes))


# --- reconcile.sql ------------------------------------------------------------------------------------


@check("reconcile.sql has no row for an exact job, done or half done", promise="honest report", points=8)  # fmt: skip
def test_reconcile_is_silent_when_exact(bench: Bench):
    query = read(bench)
    stages = [
        festival(23, 10, seed=74 + n, first_id=1000 * (n + 1), job_id=f"{n} chunks done", done_chunks=n)
        for n in range(4)
    ]  # fmt: skip
    odd = festival(6, 4, seed=8, tenant="l'été 夏 \\ %s", job_id="50 % «pluie»'; --", done_chunks=1, first_id=9001)  # fmt: skip
    with bench.scene(odd) as scene:
        for job in (*stages, BESIDE):
            seed(scene.laboratory.control, job)
        scene.rival("DELETE FROM job_audit WHERE job_id = 'beside'")
        scene.rival("UPDATE orders SET qty = qty + 1 WHERE order_id = ANY(%s)", (list(BESIDE.approved_ids),))  # fmt: skip
        scene.rival("UPDATE orders SET qty = qty + 1 WHERE order_id = %s", (stages[1].approved_ids[-1],))  # fmt: skip
        with open_reader(scene.laboratory) as reader:
            for job in (odd, *stages):
                did = f"ran reconcile.sql for job {job.job_id!r}, exact in its first {job.next_index} of {len(job.approval)}"
                counted(bench, did, job, ask(bench, reader, query, job), set())


@check("reconcile.sql has one row for each position that is damaged", promise="honest report", points=10)  # fmt: skip
def test_reconcile_finds_damage(bench: Bench):
    query = read(bench)
    for job in dict.fromkeys(damage.scenario for damage in DAMAGE):
        with bench.scene(job) as scene, open_reader(scene.laboratory) as reader:
            for damage in (damage for damage in DAMAGE if damage.scenario == job):
                for statement in damage.sql:
                    scene.rival(statement)
                rows = ask(bench, reader, query, job)
                evidence = scene.evidence()
                did = f"{damage.words}, then ran reconcile.sql"
                wrong = wrong_positions(evidence, job)
                counted(bench, did, job, rows, wrong, past_end(evidence, job))
                heal(scene, job)


@check("reconcile.sql has one row for each order that drifted or is missing", promise="honest report", points=8)  # fmt: skip
def test_reconcile_finds_drift(bench: Bench):
    query = read(bench)
    with bench.scene(JOB) as scene, open_reader(scene.laboratory) as reader:
        wrong = set()
        for position, (words, assignment) in DRIFT.items():
            order_id = JOB.approved_ids[position]
            scene.rival(f"UPDATE orders SET {assignment} WHERE order_id = %s", (order_id,))
            wrong.add(position)
            did = f"order {order_id}: another owner {words}; ran reconcile.sql"
            counted(bench, did, JOB, ask(bench, reader, query, JOB), wrong)
        for position in GONE:
            order_id = JOB.approved_ids[position]
            scene.rival("DELETE FROM orders WHERE order_id = %s", (order_id,))
            wrong.add(position)
            did = f"order {order_id}: another owner deleted it; ran reconcile.sql"
            counted(bench, did, JOB, ask(bench, reader, query, JOB), wrong)
        scene.rival("DELETE FROM job_audit WHERE position IN (0, 1, 6)")
        scene.rival("UPDATE job_audit SET qty = qty + 3, order_id = 77 WHERE position IN (3, 7)")
        did = "spoiled the audit too, partly at the same positions; ran reconcile.sql"
        counted(
            bench, did, JOB, ask(bench, reader, query, JOB), wrong_positions(scene.evidence(), JOB)
        )


def read(bench: Bench) -> bytes:
    """Return the query's text; one that is not there is a broken promise."""
    try:
        return read_query(bench.impl)
    except BadQuery as problem:
        raise bench.broken(f"looked for {FILE}", "a file with one query", str(problem)) from None


def ask(bench: Bench, reader: Reader, query: bytes, job: Scenario) -> list[Row]:
    """Run the query for a job, as the learner's role."""
    try:
        return run_query(reader, query, job.job_id)
    except BadQuery as problem:
        raise bench.broken(
            f"ran {FILE} with job_id {job.job_id!r}, in a transaction that only reads", "rows", str(problem),
            cause="It has to be one SELECT with the parameter %(job_id)s; any other percent sign is written twice.",
        ) from None  # fmt: skip


def counted(
    bench: Bench,
    did: str,
    job: Scenario,
    rows: Sequence[Row],
    wrong: set[int],
    maybe: Iterable[int] = (),
) -> None:
    """Demand one row for each wrong position; positions that `maybe` holds may have one, too."""
    if len(wrong) <= len(rows) <= len(wrong | set(maybe)):
        return
    ids = dict(enumerate(job.approved_ids))
    places = ", ".join(f"{p} (order {ids.get(p, 'none')})" for p in sorted(wrong)[:ROWS_SHOWN])
    places += f" and {len(wrong) - ROWS_SHOWN} more" if len(wrong) > ROWS_SHOWN else ""
    shown = "; ".join(f"({', '.join(row)})" for row in rows[:ROWS_SHOWN])
    more = f" and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""
    raise bench.broken(
        did,
        f"one row for each of {len(wrong)} wrong positions: {places}" if wrong else "no row",
        f"{len(rows)} rows: {shown}{more}" if rows else "no row",
        cause="A plain join hides what one side lacks, and a comparison with NULL is not true."
        if len(rows) < len(wrong)
        else "A position is listed that is only unfinished, belongs to another job, or was listed already.",
    )


def wrong_positions(evidence: Evidence, scenario: Scenario) -> set[int]:
    """Return the positions at which list, audit, checkpoint and orders of a job disagree."""
    job = evidence.job(scenario.job_id)
    assert job is not None
    items = {row.position: row for row in evidence.items if row.job_id == job.job_id}
    audit = {row.position: row for row in evidence.audit if row.job_id == job.job_id}
    wrong = {
        position
        for position in {*items, *audit}
        if not _exact(job, position, items.get(position), audit.get(position), evidence)
    }
    mid_chunk = job.next_index % job.chunk_size and job.next_index != len(items)
    return wrong | {job.next_index} if mid_chunk or job.next_index > len(items) else wrong


def _exact(
    job: JobRow, position: int, item: ItemRow | None, audit: AuditRow | None, evidence: Evidence
) -> bool:
    if item is None or audit is None or position >= job.next_index:
        return audit is None and position >= job.next_index
    after = item.revision + 1
    row = AuditRow(job.job_id, position, item.order_id, item.revision, after, item.qty)
    order = OrderRow(item.order_id, job.tenant, item.qty, "cancelled", after)
    return audit == row and evidence.order(item.order_id) == order


def past_end(evidence: Evidence, scenario: Scenario) -> range:
    """Return the positions between the end of the list and a checkpoint past it: free to be listed."""
    job = evidence.job(scenario.job_id)
    return range(len(scenario.approval), job.next_index if job else 0)


# --- what is prepared, and what is said ---------------------------------------------------------------


def drift(scene: Scene) -> dict[int, str]:
    """Let other owners change committed orders; return what was done to which."""
    for position, (_, assignment) in DRIFT.items():
        order_id = JOB.approved_ids[position]
        scene.rival(f"UPDATE orders SET {assignment} WHERE order_id = %s", (order_id,))
    return {JOB.approved_ids[position]: words for position, (words, _) in DRIFT.items()}


def heal(scene: Scene, scenario: Scenario) -> None:
    """Put checkpoint and audit back to what they were."""
    scene.rival("UPDATE jobs SET next_index = %s", (scenario.next_index,))
    scene.rival("DELETE FROM job_audit")
    scene.rival(
        "INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)"
        " SELECT job_id, position, order_id, revision, revision + 1, qty FROM job_items"
        " WHERE position < %s",
        (scenario.next_index,),
    )


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
