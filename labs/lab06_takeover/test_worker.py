"""The graded checks of lab 6: one worker at a time advances a job, and no chunk runs twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness.client import ClientLimits
from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.words import step_text
from harness.history import show_ids
from harness.judge import judge_finished, judge_safety
from harness.limits import HURRIED_WALL_S
from harness.records import Boundary, ClientExit, EndKind, Evidence, Stop
from harness.scenario import Scenario, festival
from harness.workshop import Actor, Scene

POINTS = ("orders", "audit", "checkpoint", "commit")
COMPLETE, USAGE, MORE, CONFLICT, DAMAGED, UNKNOWN, BUSY, LOST = 0, 2, 10, 20, 21, 22, 30, 31
#: How long a worker in these checks waits for a lock: long enough to wait, short enough to be quick.
LOCK_TIMEOUT_MS = "100"
#: A worker that is not busy by now is hung; one that is needs a tenth of a second.
BUSY_LIMITS = ClientLimits(wall_s=HURRIED_WALL_S)
#: Nothing listens on this port: connecting is refused at once.
NO_SERVER = "postgresql://nobody:x@127.0.0.1:1/nowhere?connect_timeout=2"


def start(bench: Bench, scene: Scene, job_id: str, *more: str, stop: Stop | None = None) -> Actor:
    """Start one worker through the proxy."""
    arguments = ["--dsn", "{dsn}", "--job", job_id, "--lock-timeout-ms", LOCK_TIMEOUT_MS, *more]
    return scene.program(bench.impl, 6, arguments, stop=stop)


def ended(bench: Bench, actor: Actor, did: str, *wanted: int) -> ClientExit:
    """Wait until a worker has ended and demand one of the exit statuses."""
    end = actor.client.wait()
    bench.program_started(end, actor.client.errors())
    if end.kind is not EndKind.EXITED or end.code not in wanted:
        wanted_text = "exit " + " or ".join(map(str, wanted))
        raise bench.broken(did, wanted_text, str(end), cause=why_status(end, wanted))
    return end


def why_status(end: ClientExit, wanted: Sequence[int]) -> str:
    """Return the likely cause of a wrong exit status."""
    if end.kind is EndKind.LIMIT:
        return (
            "It waits without a timeout, or loops: a frozen holder must make it busy, never hung."
        )
    if end.code == 1:
        return "An exception left main; what it printed to stderr is shown below."
    if end.code == LOST and BUSY in wanted:
        return (
            "A lock timeout and a deadlock are OperationalErrors, too: look at the SQLSTATE before "
            "the connection counts as lost."
        )
    if end.kind is EndKind.SIGNALED:
        return (
            "The signal ended the process; a handler has to take a note and let the chunk finish."
        )
    return ""


def told(bench: Bench, actor: Actor, did: str) -> list[dict[str, Any]]:
    """Return the JSON lines a worker printed; anything else on stdout breaks the promise."""
    lines = []
    for text in actor.client.lines():
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not {"processed", "next_index", "complete"} <= set(line):
            expected = "one JSON object a chunk with processed, next_index and complete"
            raise bench.broken(f"{did}; read its stdout", expected, repr(text))
        lines.append(line)
    return lines


def chunks_told(lines: Sequence[dict[str, Any]]) -> list[tuple[tuple[int, ...], int, bool]]:
    """Return what the lines say about chunks; a line of a job found complete is left out."""
    return [
        (tuple(line["processed"]), line["next_index"], line["complete"])
        for line in lines
        if line["processed"] or not line["complete"]
    ]


def chunk_lines(scenario: Scenario, *numbers: int) -> list[tuple[tuple[int, ...], int, bool]]:
    """Return what a worker should say about these chunks."""
    total = len(scenario.approval)
    ends = [min(number * scenario.chunk_size, total) for number in numbers]
    return [
        (scenario.chunk_ids(n), end, end == total) for n, end in zip(numbers, ends, strict=True)
    ]


def record(bench: Bench, scenario: Scenario) -> tuple[Boundary, ...]:
    """Run one worker to the end without a fault and return its boundaries."""
    with bench.scene(scenario) as scene:
        worker = start(bench, scene, scenario.job_id, "--max-chunks", "100")
        ended(bench, worker, "ran one worker with --max-chunks 100", COMPLETE)
        judged(bench, scenario, scene.evidence(), "ran one worker", finished=True)
        return worker.lane.boundaries


def judged(
    bench: Bench, scenario: Scenario, evidence: Evidence, did: str, *, finished: bool = False
) -> None:
    findings = judge_safety(scenario, evidence)
    bench.judged(findings or (judge_finished(scenario, evidence) if finished else []), did)


def finishes(bench: Bench, scene: Scene, scenario: Scenario, did: str) -> None:
    """Let one healthy worker finish the job, and judge the whole."""
    worker = start(bench, scene, scenario.job_id, "--max-chunks", "100")
    ended(bench, worker, f"{did}; then ran a healthy worker", COMPLETE)
    judged(bench, scenario, scene.evidence(), did, finished=True)


@check(
    "one line a chunk, and an exit status that says what to do next",
    promise="one at a time",
    points=12,
)
def test_lines_and_exit_status(bench: Bench):
    scenario = festival(23, 10, seed=41, job_id="annulation «pluie» 雨'; --")
    with bench.scene(scenario) as scene:
        for max_chunks, numbers, status in (
            ("1", (1,), MORE),
            ("5", (2, 3), COMPLETE),
            ("1", (), COMPLETE),
        ):
            worker = start(bench, scene, scenario.job_id, "--max-chunks", max_chunks)
            did = f"ran the worker with --max-chunks {max_chunks}"
            ended(bench, worker, did, status)
            lines = told(bench, worker, did)
            bench.equal(
                f"{did}; read its lines", chunk_lines(scenario, *numbers), chunks_told(lines)
            )
        judged(bench, scenario, scene.evidence(), "ran it three times", finished=True)


@check("each kind of trouble has its own exit status", promise="one at a time", points=12)
def test_each_trouble_has_its_status(bench: Bench):
    scenario = festival(23, 10, seed=42, done_chunks=1)
    edited = scenario.chunk_ids(2)[3]
    with bench.scene(scenario) as scene:
        unknown = start(bench, scene, "no-such-job")
        ended(bench, unknown, "ran it for a job nobody registered", UNKNOWN)
        scene.rival("UPDATE orders SET revision = revision + 1 WHERE order_id = %s", (edited,))
        conflict = start(bench, scene, scenario.job_id)
        ended(bench, conflict, f"let another owner edit order {edited}, ran the worker", CONFLICT)
        scene.rival("DELETE FROM job_audit WHERE position = 2")
        damaged = start(bench, scene, scenario.job_id)
        ended(bench, damaged, "deleted the audit row at position 2, ran the worker", DAMAGED)
        bench.equal("read what the three changed", [], list(scene.evidence().changes))
        no_server = scene.program(bench.impl, 6, ["--dsn", NO_SERVER, "--job", scenario.job_id])
        ended(bench, no_server, "ran it where no server listens", LOST)
        for arguments in (
            ["--job", "x"],
            ["--dsn", "{dsn}"],
            ["--dsn", "{dsn}", "--job", "x", "--no-such"],
        ):
            usage = scene.program(bench.impl, 6, arguments)
            ended(bench, usage, f"ran it with {' '.join(arguments)}", USAGE)
        silent = [line for worker in (unknown, conflict, damaged) for line in worker.client.lines()]
        bench.equal("read what they printed", [], silent)


@check(
    "killed at the four points in every chunk, another worker takes over",
    promise="one at a time",
    points=20,
)
def test_killed_and_taken_over(bench: Bench):
    scenario = festival(23, 10, seed=43)
    clean = record(bench, scenario)
    for chunk in (1, 2, 3):
        for point in POINTS:
            fault = bench.place(clean, point, chunk)
            did = f"killed a worker after {point} in chunk {chunk} ({fault})"
            with bench.scene(scenario) as scene:
                worker = start(
                    bench, scene, scenario.job_id, "--max-chunks", "100", stop=fault.stop
                )
                bench.kill(worker, bench.landed(worker.go_on(), str(fault)), str(fault))
                evidence = scene.evidence()
                judged(bench, scenario, evidence, did)
                true_lines(bench, worker, evidence, did)
                finishes(bench, scene, scenario, did)


def true_lines(bench: Bench, worker: Actor, evidence: Evidence, did: str) -> None:
    """Demand that no printed line speaks of a chunk that is not committed."""
    committed = {row.order_id for row in evidence.audit}
    for line in told(bench, worker, did):
        untrue = [i for i in line["processed"] if i not in committed]
        if untrue:
            raise bench.broken(
                f"{did}; compared its lines with the database", "a line only for what is committed",
                f"it printed {show_ids(untrue)}; the database has no audit of them",
                cause="The line is printed before the commit, or without knowing of it.", ids=untrue,
            )  # fmt: skip


@check(
    "while one holds the job, another is busy and not hung, at every step",
    promise="one at a time",
    points=18,
)
def test_a_frozen_holder_makes_the_other_busy(bench: Bench):
    scenario = festival(23, 10, seed=44)
    clean = record(bench, scenario)
    first_commit = next(b.number for b in clean if b.committed)
    steps = {next(b.number for b in clean if point in b.points) for point in POINTS[:3]}
    for number in sorted({1, *steps, first_commit - 1}):
        frozen(bench, scenario, number, step_text(clean, number))


def frozen(bench: Bench, scenario: Scenario, number: int, step: str) -> None:
    """Freeze a worker at a boundary of its first chunk, run a rival, thaw it, let all finish."""
    did = f"froze a worker after {step} (freeze@{number}), ran another"
    with bench.scene(scenario) as scene:
        holder = start(
            bench, scene, scenario.job_id, "--max-chunks", "1", stop=Stop(boundary=number)
        )
        bench.landed(holder.go_on(), f"freeze@{number}")
        holder.client.freeze()
        holder.lane.release()
        # Without the watchdog that the kit gives every session, waiting without a timeout is for ever.
        arguments = ["--dsn", "{dsn}", "--job", scenario.job_id, "--max-chunks", "1"]
        arguments += ["--lock-timeout-ms", LOCK_TIMEOUT_MS]
        rival = scene.program(
            bench.impl, 6, arguments, settings={"lock_timeout": "0"}, limits=BUSY_LIMITS
        )
        end = ended(bench, rival, did, BUSY, MORE)
        rivals = chunks_told(told(bench, rival, did))
        if end.code == MORE and not rivals:
            raise bench.broken(
                did, f"exit {BUSY}: it could not have the job", f"exit {MORE}, no chunk"
            )
        judged(bench, scenario, scene.evidence(), did)
        holder.client.thaw()
        ended(bench, holder, f"{did}; then thawed the first", MORE, BUSY)
        both = sorted(rivals + chunks_told(told(bench, holder, did)))
        judged(bench, scenario, scene.evidence(), f"{did}; then thawed the first")
        once = [ids for ids, _, _ in both]
        if len(once) != len(set(once)):
            raise bench.broken(did, "each chunk told by one worker", f"told twice: {both}")
        finishes(bench, scene, scenario, did)


@check("a rival may continue the job between any two chunks", promise="one at a time", points=8)
def test_two_workers_continue_one_job(bench: Bench):
    scenario = festival(43, 10, seed=45)
    first_commit = next(b.number for b in record(bench, scenario) if b.committed)
    did = "held a worker after its first commit, let another run two chunks, let the first go on"
    with bench.scene(scenario) as scene:
        first = start(
            bench, scene, scenario.job_id, "--max-chunks", "9", stop=Stop(boundary=first_commit)
        )
        bench.landed(first.go_on(), f"hold at boundary {first_commit}")
        second = start(bench, scene, scenario.job_id, "--max-chunks", "2")
        ended(bench, second, did, MORE)
        first.lane.release()
        ended(bench, first, did, COMPLETE)
        bench.equal(f"{did}; read the first's lines", chunk_lines(scenario, 1, 4, 5),
                    chunks_told(told(bench, first, did)))  # fmt: skip
        bench.equal(f"{did}; read the second's lines", chunk_lines(scenario, 2, 3),
                    chunks_told(told(bench, second, did)))  # fmt: skip
        judged(bench, scenario, scene.evidence(), did, finished=True)


@check(
    "COMMIT or its answer is lost: exit 31, and no line that is not true",
    promise="one at a time",
    points=14,
)
def test_a_lost_commit(bench: Bench):
    scenario = festival(23, 10, seed=46)
    for boundary in (b for b in record(bench, scenario) if b.committed):
        for name, stop in (
            ("lose-reply", Stop(boundary=boundary.number)),
            ("lose-request", Stop(boundary=boundary.number, before=True)),
        ):
            lost(
                bench,
                scenario,
                stop,
                f"cut the connection around a COMMIT ({name}@{boundary.number})",
            )
    middle = next(b.number for b in record(bench, scenario) if "orders" in b.points)
    with bench.scene(scenario) as scene:
        worker = start(bench, scene, scenario.job_id, stop=Stop(boundary=middle))
        bench.landed(worker.go_on(), f"terminate@{middle}")
        scene.terminate(worker.lane.backend_pids)
        worker.lane.release()
        did = f"ended its session from the server in mid-chunk (terminate@{middle})"
        ended(bench, worker, did, LOST)
        finishes(bench, scene, scenario, did)


def lost(bench: Bench, scenario: Scenario, stop: Stop, did: str) -> None:
    with bench.scene(scenario) as scene:
        worker = start(bench, scene, scenario.job_id, "--max-chunks", "100", stop=stop)
        bench.landed(worker.go_on(), did)
        before = scene.evidence() if not stop.before else None
        worker.lane.cut()
        ended(bench, worker, did, LOST)
        evidence = scene.evidence()
        judged(bench, scenario, evidence, did)
        true_lines(bench, worker, evidence, did)
        if before is not None:
            same = len(before.audit) == len(evidence.audit)
            if not same:
                raise bench.broken(
                    did, "at most reading after a lost answer", "it committed more chunks"
                )
        finishes(bench, scene, scenario, did)


@check("SIGTERM finishes the running chunk and no other", promise="one at a time", points=8)
def test_sigterm_finishes_the_chunk(bench: Bench):
    scenario = festival(23, 10, seed=47)
    clean = record(bench, scenario)
    for chunk, wanted in ((1, (MORE,)), (2, (MORE,)), (3, (MORE, COMPLETE))):
        stop = bench.place(clean, "orders", chunk).stop
        did = f"sent SIGTERM in the middle of chunk {chunk}"
        with bench.scene(scenario) as scene:
            worker = start(bench, scene, scenario.job_id, "--max-chunks", "100", stop=stop)
            bench.landed(worker.go_on(), did)
            worker.client.terminate()
            worker.lane.release()
            ended(bench, worker, did, *wanted)
            bench.equal(f"{did}; read its lines", chunk_lines(scenario, *range(1, chunk + 1)),
                        chunks_told(told(bench, worker, did)))  # fmt: skip
            finishes(bench, scene, scenario, did)


@check("the victim of a deadlock tries again or is busy", promise="one at a time", points=8)
def test_a_deadlock_victim(bench: Bench):
    scenario = festival(23, 10, seed=48)
    last = scenario.chunk_ids(1)[-1]
    did = f"made the worker the victim of a deadlock over order {last}"
    with bench.scene(scenario) as scene:
        # The rival holds an order of the chunk, then asks for the job that the worker holds.
        with scene.rival_transaction() as rival:
            scene.never_the_victim(rival)
            rival.execute("SELECT 1 FROM orders WHERE order_id = %s FOR UPDATE", (last,))
            arguments = ["--dsn", "{dsn}", "--job", scenario.job_id, "--lock-timeout-ms", "5000"]
            worker = scene.program(bench.impl, 6, arguments)
            if scene.wait_blocked_or_done(worker):
                rival.execute("SELECT 1 FROM jobs WHERE job_id = %s FOR UPDATE", (scenario.job_id,))
        ended(bench, worker, did, COMPLETE, MORE, BUSY)
        judged(bench, scenario, scene.evidence(), did)
        finishes(bench, scene, scenario, did)
