"""The graded checks of lab 4: work resumes only after the audit proves the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.damage import AUDIT_DAMAGE, CHECKPOINT_DAMAGE, Damage
from harness.grading.rivals import EDITS
from harness.grading.shapes import SHAPES
from harness.grading.words import step_text
from harness.history import order_moves, show_ids
from harness.records import Evidence, Stop
from harness.scenario import Scenario, festival, make_scenario
from harness.script import Call, Script, resume_chunks

TWO_MOMENTS = "Checkpoint and audit were read at two moments; a chunk was committed in between."
BETWEEN_CHUNKS = "A checkpoint stands between chunks only: a multiple of chunk_size, or the end."
#: A job with its first chunk done.
JOB = festival(23, 10, seed=25, done_chunks=1)
POINTS = ("orders", "audit", "checkpoint", "commit")


@check("healthy progress is accepted, wherever the job stands", promise="doubted", points=10)
def test_healthy_progress_is_accepted(bench: Bench):
    for scene, actor, scenario in bench.stages(every_stage_of_every_shape()):
        seen = bench.call(actor, "verify_progress", scenario.job_id)
        total = len(scenario.approval)
        did = f"called verify_progress on a healthy job with {scenario.next_index} of {total} orders done"
        bench.equal(did, scenario.next_index, seen)
        bench.equal(f"{did}; read what it changed", [], list(scene.evidence().changes))


def every_stage_of_every_shape() -> Iterator[Scenario]:
    for shape in SHAPES.values():
        for chunks in range(shape.chunks + 1):
            yield make_scenario(
                shape.approval, job_id=shape.job_id, tenant=shape.tenant,
                chunk_size=shape.chunk_size, others=shape.others, done_chunks=chunks,
            )  # fmt: skip


@check("a doctored audit is refused, and nothing changes", promise="doubted", points=20)
def test_a_doctored_audit_is_refused(bench: Bench):
    refuses_all(bench, AUDIT_DAMAGE, "verify_progress")


@check("a doctored checkpoint is refused, and nothing changes", promise="doubted", points=14)
def test_a_doctored_checkpoint_is_refused(bench: Bench):
    refuses_all(bench, CHECKPOINT_DAMAGE, "verify_progress")


@check("resume_chunk does not run over damage", promise="doubted", points=14)
def test_resume_refuses_damage(bench: Bench):
    with bench.scene(JOB) as scene:
        actor = bench.actor(scene)
        bench.call(actor, "resume_chunk", JOB.job_id)
        scene.rival("DELETE FROM job_audit WHERE position = 12")
        result = bench.result(actor, "resume_chunk", JOB.job_id)
        did = "resumed one chunk, deleted the audit row at position 12, resumed in the same process"
        bench.raises(
            result, "DamagedProgress", did, cause="Progress is doubted before every chunk."
        )
    refuses_all(bench, AUDIT_DAMAGE + CHECKPOINT_DAMAGE, "resume_chunk")


def refuses_all(bench: Bench, damages: Sequence[Damage], function: str) -> None:
    stages = bench.stages(damage.scenario for damage in damages)
    for damage, (scene, actor, scenario) in zip(damages, stages, strict=True):
        for statement in damage.sql:
            scene.rival(statement)
        before = scene.evidence()
        did = (
            f"{damage.words}, with {scenario.next_index} of 23 orders done, then called {function}"
        )
        result = bench.result(actor, function, scenario.job_id)
        cause = BETWEEN_CHUNKS if "middle of a chunk" in damage.words else ""
        raised = bench.raises(result, "DamagedProgress", did, cause=cause)
        if not re.search(r"\d", raised.text):
            where = "the text says where: a position, an order ID, or what the checkpoint says"
            raise bench.broken(did, where, raised.text or "an empty text")
        bench.equal(f"{did}; compared every table", tables(before), tables(scene.evidence()))


@check(
    "proven progress is resumed with the next chunk, in jobs of every shape",
    promise="in order",
    points=8,
)
def test_resumes_proven_progress(bench: Bench):
    for scenario in SHAPES.values():
        bench.clean(scenario, resume_chunks)


@check("killed at the four points in every chunk, a new client resumes", promise="bound", points=12)
def test_killed_at_the_four_points(bench: Bench):
    bench.killed_everywhere(festival(23, 10, seed=22), resume_chunks, POINTS, chunks=(1, 2, 3))


@check("a chunk that commits while you verify is no damage", promise="doubted", points=10)
def test_a_chunk_committed_meanwhile_is_no_damage(bench: Bench):
    scenario = festival(23, 10, seed=23, done_chunks=1)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        actor.follow(verify(scenario.job_id))
        bench.admit(actor.calls[0][1])
        record = actor.lane.boundaries
    for boundary in range(1, len(record) + 1):
        verified_meanwhile(bench, boundary, step_text(record, boundary))


def verified_meanwhile(bench: Bench, boundary: int, step: str) -> None:
    """Hold verify_progress at a boundary, let another worker commit a chunk, let it go on."""
    scenario = festival(23, 10, seed=23, done_chunks=1)
    did = f"held verify_progress after {step} while another worker committed the second chunk"
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene, stop=Stop(boundary=boundary))
        if actor.follow(verify(scenario.job_id)) is None:
            return  # it sent fewer statements this time; what it saw is checked at the others
        worker = bench.actor(scene)
        worker.start(one_chunk(scenario.job_id))
        scene.wait_blocked_or_done(worker)
        actor.lane.release()
        actor.go_on()
        seen = bench.returned(actor.calls[-1][1], did, cause=TWO_MOMENTS)
        if seen not in (10, 20):
            expected = "10 or 20, the checkpoint before or after that chunk"
            raise bench.broken(did, expected, repr(seen), cause=TWO_MOMENTS)


@check(
    "an edited order stops the job; the chunk before it stays", promise="approved version", points=6
)
def test_an_edited_order_stops_the_job(bench: Bench):
    stages = bench.stages(festival(23, 10, seed=24, done_chunks=1) for _ in EDITS)
    for edit, (scene, actor, scenario) in zip(EDITS, stages, strict=True):
        edited = scenario.chunk_ids(2)[7]
        did = f"let another owner {edit.words} order {edited} of the second chunk, called resume_chunk"
        scene.rival(edit.sql, (edited,))
        before = scene.evidence()
        result = bench.result(actor, "resume_chunk", scenario.job_id)
        bench.raises(result, "Conflict", did, naming=[edited])
        bench.equal(f"{did}; compared every table", tables(before), tables(scene.evidence()))


@check(
    "unknown jobs, open transactions, and the connection afterwards", promise="hygiene", points=6
)
def test_leaves_the_connection_as_it_was(bench: Bench):
    with bench.scene(JOB) as scene:
        actor = bench.actor(scene)
        for function in ("verify_progress", "resume_chunk"):
            unknown = bench.result(actor, function, "no-such-job")
            bench.raises(unknown, "UnknownJob", f"called {function} for a job nobody registered")
            for job_id, ended in (("no-such-job", "UnknownJob"), (JOB.job_id, "")):
                before = bench.session(actor)
                result = bench.result(actor, function, job_id)
                bench.hygiene(
                    actor, before, result, f"called {function}, looked at the connection", ended
                )
    with bench.scene(JOB) as scene:
        bench.inside(bench.actor(scene), "resume_chunk", JOB.job_id)
        remained = show_ids(move.order_id for move in order_moves(scene.evidence().changes))
        did = "called resume_chunk inside a transaction that was rolled back; read what remained"
        bench.equal(did, "none", remained)
    with bench.scene(JOB) as scene:
        scene.rival("DELETE FROM job_audit WHERE position = 3")
        actor = bench.actor(scene)
        before = bench.session(actor)
        result = bench.result(actor, "resume_chunk", JOB.job_id)
        bench.hygiene(
            actor, before, result, "met damage, looked at the connection", "DamagedProgress"
        )


def verify(job_id: str) -> Script:
    yield Call(4, "verify_progress", (job_id,))


def one_chunk(job_id: str) -> Script:
    yield Call(4, "resume_chunk", (job_id,))


def tables(evidence: Evidence) -> list[object]:
    return [evidence.orders, evidence.jobs, evidence.items, evidence.audit]
