"""The graded checks of lab 7's second file: reconcile.sql lists what does not add up, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.damage import DAMAGE
from harness.grading.drift import BESIDE, DRIFT, GONE, JOB, heal
from harness.grading.reconciling import FILE, BadQuery, Row, open_reader, read_query, run_query
from harness.records import AuditRow, Evidence, ItemRow, JobRow, OrderRow
from harness.scenario import Scenario, festival
from harness.seeding import seed

#: Rows of a query, or wrong positions, that one message spells out.
ROWS_SHOWN = 6

Reader = psycopg.Connection[Any]


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
                counted(bench, did, job, rows, wrong, free_to_list(evidence, job))
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
    return {
        position
        for position in {*items, *audit}
        if not _exact(job, position, items.get(position), audit.get(position), evidence)
    }


def _exact(
    job: JobRow, position: int, item: ItemRow | None, audit: AuditRow | None, evidence: Evidence
) -> bool:
    if item is None or audit is None or position >= job.next_index:
        return audit is None and position >= job.next_index
    after = item.revision + 1
    row = AuditRow(job.job_id, position, item.order_id, item.revision, after, item.qty)
    order = OrderRow(item.order_id, job.tenant, item.qty, "cancelled", after)
    return audit == row and evidence.order(item.order_id) == order


def free_to_list(evidence: Evidence, scenario: Scenario) -> set[int]:
    """Return the positions where only the checkpoint is odd: a query may list them, or not.

    These are a checkpoint in the middle of a chunk or past the end, and what lies between the end of
    the list and such a checkpoint: no list, audit and order disagree there.
    """
    job = evidence.job(scenario.job_id)
    checkpoint, total = (job.next_index if job else 0), len(scenario.approval)
    between_chunks = checkpoint == total or checkpoint % scenario.chunk_size == 0
    odd = set() if between_chunks and checkpoint <= total else {checkpoint}
    return odd | set(range(total, checkpoint))
