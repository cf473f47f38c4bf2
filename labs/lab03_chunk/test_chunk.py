"""The graded checks of lab 3: orders, audit and checkpoint of a chunk, together or not at all."""

from __future__ import annotations

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.rivals import EDITS, why_changed
from harness.grading.shapes import SHAPES
from harness.grading.words import step_text
from harness.history import order_moves, show_ids
from harness.judge import judge_finished, judge_safety
from harness.records import Raised, Stop
from harness.scenario import Scenario, festival
from harness.script import run_chunks
from harness.seeding import seed
from harness.workshop import Actor

#: A second job beside the story's: another list, another checkpoint, positions that are the same.
ANOTHER_JOB = festival(17, 6, seed=14, first_id=70_001, job_id="another-job", done_chunks=1)
POINTS = ("orders", "audit", "checkpoint", "commit")


@check("each call advances the next chunk of the frozen list", promise="in order", points=12)
def test_chunk_after_chunk(bench: Bench):
    scenario = festival()
    with bench.scene(scenario) as scene:
        seed(scene.laboratory.control, ANOTHER_JOB)
        actor = bench.actor(scene)
        for number in range(1, scenario.chunks + 1):
            result = bench.call(actor, "run_chunk", scenario.job_id)
            end = number * scenario.chunk_size
            bench.shows(
                f"called run_chunk, call {number} of 4",
                result,
                processed=scenario.chunk_ids(number),
                next_index=end,
                complete=end == 40,
            )
        evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence) or judge_finished(scenario, evidence))


@check(
    "jobs of every shape: short last chunk, one order, huge IDs, odd names",
    promise="in order",
    points=10,
)
def test_every_shape(bench: Bench):
    for scenario in SHAPES.values():
        bench.clean(scenario, run_chunks)


@check("a job that is complete, and one that nobody registered", promise="in order", points=6)
def test_complete_and_unknown(bench: Bench):
    scenario = festival(23, 10, done_chunks=3)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        result = bench.call(actor, "run_chunk", scenario.job_id)
        bench.shows(
            "called run_chunk on a job whose 23 orders are done",
            result,
            processed=(),
            next_index=23,
            complete=True,
            cause="An empty chunk at the end of the list means complete, not failure.",
        )
        unknown = bench.result(actor, "run_chunk", "no-such-job")
        bench.raises(unknown, "UnknownJob", "called run_chunk for a job that was never registered")
        bench.equal("read what those two calls changed", [], list(scene.evidence().changes))


@check(
    "killed at the four points, in the first, the middle and the short last chunk",
    promise="bound",
    points=20,
)
def test_killed_at_the_four_points(bench: Bench):
    bench.killed_everywhere(festival(23, 10, seed=9), run_chunks, POINTS, chunks=(1, 2, 3))


@check(
    "an order that is not as approved stops its chunk, and is named",
    promise="approved version",
    points=16,
)
def test_an_edited_order_stops_its_chunk(bench: Bench):
    stages = bench.stages(festival(23, 10, seed=10, done_chunks=1) for _ in EDITS)
    for edit, (scene, actor, scenario) in zip(EDITS, stages, strict=True):
        edited = scenario.chunk_ids(2)[4]
        did = f"let another owner {edit.words} order {edited}, then called run_chunk for its chunk"
        scene.rival(edit.sql, (edited,))
        before = scene.evidence()
        result = bench.result(actor, "run_chunk", scenario.job_id)
        after = scene.evidence()
        changed = {move.order_id for move in order_moves(after.changes)}
        bench.equal(
            f"{did}; read which orders the call changed", "none", show_ids(changed),
            cause=why_changed(changed, [edited], result, edit.spoils),
        )  # fmt: skip
        bench.raises(
            result, "Conflict", did, naming=[edited],
            cause="An UPDATE that matches no row is no error in SQL; the program has to count.",
        )  # fmt: skip
        bench.equal(f"{did}; compared all tables", _state(before), _state(after))


@check("two workers at once never run the same chunk", promise="in order", points=14)
def test_a_second_worker_gets_the_next_chunk(bench: Bench):
    scenario = festival(23, 10, seed=11)
    record = bench.clean(scenario, run_chunks).boundaries
    first_commit = next(b.number for b in record if b.committed)
    for boundary in range(1, first_commit):
        overlap(bench, scenario, boundary, step_text(record, boundary))


def overlap(bench: Bench, scenario: Scenario, boundary: int, step: str) -> None:
    """Hold one worker at a boundary inside its transaction, start another, let both go on."""
    did = f"held one worker after {step}, ran a second one, let the first go on"
    with bench.scene(scenario) as scene:
        first = bench.actor(scene, stop=Stop(boundary=boundary))
        second = bench.actor(scene)
        bench.landed(first.follow(run_chunks(scenario)), f"hold at boundary {boundary}")
        second.start(run_chunks(scenario))
        scene.wait_blocked_or_done(second)
        first.lane.release()
        first.go_on()
        second.go_on()
        evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence), did)
        for worker in (first, second):
            no_false_alarm(bench, worker, did)
        if judge_finished(scenario, evidence):  # one may have given way to the other with an error
            bench.actor(scene).follow(run_chunks(scenario))
            evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence) or judge_finished(scenario, evidence), did)


def no_false_alarm(bench: Bench, worker: Actor, did: str) -> None:
    """A worker may be refused by the database, but nothing here is a conflict or damage."""
    for _, result in worker.calls:
        if isinstance(result, Raised) and (
            result.is_a("Conflict") or result.is_a("DamagedProgress")
        ):
            raise bench.broken(
                did, "no Conflict: every order is as it was approved, or the job has cancelled it",
                f"{result.type_name}: {result.text}",
                cause="Both chose the same chunk: the choice is not protected until the commit.",
            )  # fmt: skip


@check("a call inside an open transaction does not commit it", promise="bound", points=10)
def test_nests_in_an_outer_transaction(bench: Bench):
    scenario = festival(23, 10, seed=12)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        result = bench.inside(actor, "run_chunk", scenario.job_id)
        bench.equal(
            "called run_chunk inside a transaction that was rolled back; read what remained",
            "none",
            show_ids(move.order_id for move in order_moves(scene.evidence().changes)),
            cause="The function commits by itself; conn.transaction() nests as a savepoint instead.",
        )
        bench.shows("read what it returned", result, processed=scenario.chunk_ids(1))


@check("the connection is left as it was, and the commit is durable", promise="hygiene", points=12)
def test_leaves_the_connection_as_it_was(bench: Bench):
    scenario = festival(23, 10, seed=13)
    edited = scenario.chunk_ids(2)[0]
    with bench.scene(scenario) as scene:
        scene.rival("UPDATE orders SET revision = revision + 1 WHERE order_id = %s", (edited,))
        actor = bench.actor(scene)
        left_as_it_was(bench, actor, scenario.job_id, "")
        left_as_it_was(bench, actor, scenario.job_id, "Conflict")
        left_as_it_was(bench, actor, "no-such-job", "UnknownJob")
        bench.durable(scene.evidence())
    complete = festival(23, 10, seed=13, done_chunks=3)
    with bench.scene(complete) as scene:
        actor = bench.actor(scene)
        left_as_it_was(bench, actor, complete.job_id, "")


def left_as_it_was(bench: Bench, actor: Actor, job_id: str, ended: str) -> None:
    before = bench.session(actor)
    result = bench.result(actor, "run_chunk", job_id)
    bench.hygiene(
        actor, before, result, f"after {ended or 'a call'}, looked at the connection", ended
    )


def _state(evidence) -> list[object]:
    return [evidence.orders, evidence.jobs, evidence.items, evidence.audit]
