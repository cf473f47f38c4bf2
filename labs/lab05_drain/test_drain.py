"""The graded checks of lab 5: a bounded number of chunks, and the first trouble goes to the caller."""

from __future__ import annotations

from collections import Counter

from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.shapes import SHAPES
from harness.history import order_moves, show_ids
from harness.judge import judge_finished, judge_refusal, judge_safety
from harness.records import Boundary, Evidence, Raised, Stop
from harness.scenario import Scenario, festival
from harness.script import Call, Script, drain

POINTS = ("orders", "audit", "checkpoint", "commit")
#: A long approval: a batch that reads the whole list for every chunk, or keeps it all locked, shows.
MANY, MANY_CHUNK = 5_000, 500


@check(
    "at most max_chunks chunks a call, each committed before the next", promise="bounded", points=14
)
def test_stops_at_its_bound(bench: Bench):
    scenario = festival(53, 10, seed=31)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        done = 0
        for max_chunks, chunks in ((1, 1), (2, 2), (1, 1), (9, 2)):
            result = bench.call(actor, "drain", scenario.job_id, max_chunks)
            ids = scenario.approved_ids[done * 10 : (done + chunks) * 10]
            done += chunks
            bench.shows(
                f"called drain with max_chunks={max_chunks} when {done - chunks} of 6 chunks were done",
                result,
                processed=ids,
                chunks=chunks,
                complete=done == 6,
                cause="Each chunk call counts once, and the call that says complete is the last.",
            )
        evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence) or judge_finished(scenario, evidence))


@check(
    "it stops when the job is complete, and says so again when asked again",
    promise="bounded",
    points=10,
)
def test_stops_at_completion(bench: Bench):
    for name, scenario in SHAPES.items():
        with bench.scene(scenario) as scene:
            actor = bench.actor(scene)
            result = bench.call(actor, "drain", scenario.job_id, 1000)
            did = f"called drain with max_chunks=1000 on {name}"
            bench.shows(
                did, result,
                processed=scenario.approved_ids, chunks=scenario.chunks, complete=True,
            )  # fmt: skip
            again = bench.call(actor, "drain", scenario.job_id, 5)
            bench.shows(
                f"{did}, then again on the complete job", again, processed=(), complete=True,
                cause="An empty list of processed orders may still mean complete.",
            )  # fmt: skip
            (chunks,) = bench.fields(did, again, "chunks")
            if chunks not in (0, 1):
                raise bench.broken(f"{did}, then again", "0 or 1 chunk calls", f"{chunks}")
            evidence = scene.evidence()
            bench.judged(
                judge_safety(scenario, evidence) or judge_finished(scenario, evidence), did
            )


@check(
    "killed at the four points in every chunk, a new client drains the rest",
    promise="bound",
    points=24,
)
def test_killed_at_the_four_points(bench: Bench):
    bench.killed_everywhere(festival(23, 10, seed=32), drain, POINTS, chunks=(1, 2, 3))


@check("a conflict goes to the caller at once; earlier chunks stay", promise="bounded", points=14)
def test_a_conflict_goes_to_the_caller(bench: Bench):
    scenario = festival(43, 10, seed=33)
    edited = scenario.chunk_ids(3)[6]
    spoil = "UPDATE orders SET revision = revision + 1 WHERE order_id = %s"
    did = (
        f"let another owner edit order {edited} of the third chunk, called drain with max_chunks=9"
    )
    with bench.scene(scenario) as scene:
        scene.rival(spoil, (edited,))
        actor = bench.actor(scene)
        result = bench.result(actor, "drain", scenario.job_id, 9)
        bench.raises(result, "Conflict", did, naming=[edited])
        evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence), did)
        bench.judged(judge_refusal(scenario, evidence, edited, 3, result), did)
        before = len(actor.lane.boundaries)
        bench.result(actor, "drain", scenario.job_id, 9)
        again = actor.lane.boundaries[before:]
    tries = whole_tries(again, single_try(bench, scenario, spoil, edited))
    if tries > 1:
        raise bench.broken(
            f"{did}, and again; counted how often the same chunk was tried in one call",
            "once: a conflict needs a new approval", f"{tries} times",
            cause="A conflict is a business decision; trying again cannot change it.",
        )  # fmt: skip


def single_try(bench: Bench, scenario: Scenario, spoil: str, edited: int) -> Counter[str]:
    """Count the statements of one refused chunk call of the learner's own lab 4."""
    with bench.scene(festival(43, 10, seed=33, done_chunks=2)) as scene:
        scene.rival(spoil, (edited,))
        actor = bench.actor(scene)
        bench.admit(actor.call(4, "resume_chunk", scenario.job_id))
        return Counter(b.sql for b in actor.lane.boundaries)


def whole_tries(boundaries: tuple[Boundary, ...], one: Counter[str]) -> int:
    """Return how often every statement of one chunk call stands in a call's boundaries."""
    seen = Counter(b.sql for b in boundaries)
    return min((seen[text] // count for text, count in one.items()), default=0)


@check(
    "damage, an unknown job and a broken connection go to the caller at once",
    promise="bounded",
    points=12,
)
def test_other_trouble_goes_to_the_caller(bench: Bench):
    scenario = festival(33, 10, seed=34, done_chunks=1)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        unknown = bench.result(actor, "drain", "no-such-job", 3)
        bench.raises(unknown, "UnknownJob", "called drain for a job nobody registered")
        scene.rival("DELETE FROM job_audit WHERE position = 4")
        result = bench.result(actor, "drain", scenario.job_id, 3)
        did = "deleted the audit row at position 4, called drain"
        bench.raises(result, "DamagedProgress", did, cause="A drain resumes proven progress only.")
        bench.equal(f"{did}; read what it changed", [], list(scene.evidence().changes))
    record = bench.clean(scenario, drain).boundaries
    second = next(b.number for b in record if b.committed) + 1
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene, stop=Stop(boundary=second))
        bench.landed(actor.follow(drain(scenario)), f"terminate@{second}")
        scene.terminate(actor.lane.backend_pids)
        actor.lane.release()
        actor.go_on()
        did = "ended the server's session after the first chunk of this call (terminate)"
        reports_lost_connection(bench, actor.calls[-1][1], did)
        bench.judged(judge_safety(scenario, scene.evidence()), did)


@check(
    "the answer to COMMIT is lost: the error goes to the caller, the next drain reads the truth",
    promise="bounded",
    points=10,
)
def test_a_lost_commit(bench: Bench):
    scenario = festival(23, 10, seed=35)
    record = bench.clean(scenario, drain).boundaries
    commits = [b.number for b in record if b.committed]
    for number in commits:
        for lost, stop in (
            ("the answer to COMMIT was lost", Stop(boundary=number)),
            ("COMMIT itself was lost", Stop(boundary=number, before=True)),
        ):
            lost_commit(bench, scenario, stop, f"{lost}, at boundary {number}")


def lost_commit(bench: Bench, scenario: Scenario, stop: Stop, did: str) -> None:
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene, stop=stop)
        bench.landed(actor.follow(drain(scenario)), did)
        actor.lane.cut()
        actor.go_on()
        scene.laboratory.wait_backends_gone(actor.lane.backend_pids)
        reports_lost_connection(bench, actor.calls[-1][1], did)
        bench.judged(judge_safety(scenario, scene.evidence()), did)
        healthy = bench.actor(scene)
        healthy.follow(drain(scenario))
        evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence) or judge_finished(scenario, evidence), did)


def reports_lost_connection(bench: Bench, result, did: str) -> None:
    if not (isinstance(result, Raised) and result.is_a("OperationalError")):
        seen = f"{result.type_name}: {result.text}" if isinstance(result, Raised) else repr(result)
        raise bench.broken(
            did, "psycopg's OperationalError, as it is", seen,
            cause="Nobody in here knows whether the commit happened; the caller has to hear of it.",
        )  # fmt: skip


@check(
    "5,000 orders, and a rival who finishes the job under your hands", promise="bounded", points=8
)
def test_long_jobs_and_a_rival_who_finishes(bench: Bench):
    many = festival(MANY, MANY_CHUNK, seed=36)
    with bench.patience():
        run = bench.clean(many, drain)
    result = bench.returned(run.calls[-1][1], "drained 5,000 orders")
    bench.shows("drained 5,000 orders", result, processed=many.approved_ids, complete=True)
    scenario = festival(43, 10, seed=37)
    record = bench.clean(scenario, drain).boundaries
    first_commit = next(b.number for b in record if b.committed)
    did = "held a drain after its first commit, let another finish the job, let the first go on"
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene, stop=Stop(boundary=first_commit))
        bench.landed(actor.follow(drain(scenario)), f"hold at boundary {first_commit}")
        rival = bench.actor(scene)
        rival.follow(drain(scenario))
        actor.lane.release()
        actor.go_on()
        result = bench.returned(actor.calls[-1][1], did)
        bench.shows(did, result, processed=scenario.chunk_ids(1), complete=True)
        evidence = scene.evidence()
        bench.judged(judge_safety(scenario, evidence) or judge_finished(scenario, evidence), did)


@check(
    "the connection is left as it was, and a reported commit survives a server crash",
    promise="hygiene",
    points=8,
)
def test_hygiene_and_durability(bench: Bench):
    scenario = festival(23, 10, seed=38)
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        for job_id, ended in ((scenario.job_id, ""), ("no-such-job", "UnknownJob")):
            before = bench.session(actor)
            result = bench.result(actor, "drain", job_id, 2)
            bench.hygiene(
                actor,
                before,
                result,
                f"after {ended or 'a drain'}, looked at the connection",
                ended,
            )
        bench.durable(scene.evidence())
    with bench.crashable() as workshop, workshop.scene(scenario) as scene:
        actor = bench.actor(scene)
        actor.follow(two_chunks(scenario))
        bench.returned(actor.calls[-1][1], "drained two chunks")
        workshop.laboratory.crash()
        survived(bench, scenario, scene.evidence())


def two_chunks(scenario: Scenario) -> Script:
    yield Call(5, "drain", (scenario.job_id, 2))


def survived(bench: Bench, scenario: Scenario, evidence: Evidence) -> None:
    """Demand that the two chunks that were reported are there after the crash."""
    expected = scenario.chunk_ids(1) + scenario.chunk_ids(2)
    seen = [move.order_id for move in order_moves(evidence.changes) if move.cancels]
    bench.equal(
        "drained two chunks, crashed the server (crash) when they were reported, started it again",
        show_ids(expected), show_ids(seen), promise="hygiene",
        cause="With synchronous_commit off, a commit is reported before it is on disk.",
    )  # fmt: skip
