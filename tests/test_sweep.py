"""Sweeps: every boundary of the worked answers, and wrong answers at the place where a kill shows them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from zoo import materialise, wrong_answers

from harness.activity import ACTIVITIES, Activity, activities, sized
from harness.course import ROOT, SOLUTIONS
from harness.faults import parse_fault
from harness.inject import run_fault
from harness.records import Boundary, Policy, Touch, Unit, Verdict
from harness.report.grid import repeat_line, sweep_view
from harness.sweep import Sweep, by_point, chunk_of, judge_kills_of, run_sweep
from harness.waiting import wait_until
from harness.workshop import Workshop, open_workshop

IDS = [f"lab{row.lab}-{row.name}" for row in ACTIVITIES]
#: Two chunks, the second one short: what the tests need, in two thirds of the time.
TEST_ORDERS, TEST_CHUNK = 5, 3


def small(lab: int) -> Activity:
    """Return a lab's activity on a scenario of two chunks."""
    return sized(activities(lab)[0], TEST_ORDERS, TEST_CHUNK, 0)


def swept(workshop: Workshop, impl: Path, lab: int, **options: object) -> Sweep:
    """Sweep one lab on a small scenario."""
    return run_sweep(workshop, impl, small(lab), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ACTIVITIES, ids=IDS)
def test_worked_answers_survive_a_kill_at_every_boundary(workshop: Workshop, row: Activity) -> None:
    """Every boundary of the clean run is reached and killed at, and nothing breaks."""
    sweep = run_sweep(workshop, SOLUTIONS, sized(row, TEST_ORDERS, TEST_CHUNK, 1))
    assert sweep.verdict is Verdict.PASS, [cell.line for cell in sweep.failures]
    done, total = sweep.covered
    assert done == total == len(sweep.cells) > 0
    seen, commits = sweep.commits
    assert seen == commits
    assert sweep.notes == ()


def test_the_recovery_is_killed_at_each_of_its_boundaries(workshop: Workshop) -> None:
    """With two kills a run, every pair is played: more pairs than boundaries, all of them whole."""
    sweep = swept(workshop, SOLUTIONS, 2, double=True)
    assert sweep.verdict is Verdict.PASS
    assert sweep.kills > 2 * len(sweep.record.boundaries)
    assert {cell.then is None for cell in sweep.cells} == {True, False}


@pytest.mark.parametrize("policy", [Policy.HALF_CLOSE, Policy.LEAVE_OPEN])
def test_other_ways_to_let_go_are_survived(workshop: Workshop, policy: Policy) -> None:
    """Whatever the server still does after the kill, the chunk is whole."""
    sweep = swept(workshop, SOLUTIONS, 3, policy=policy)
    assert sweep.verdict is Verdict.PASS
    notes = {cell.run.note for cell in sweep.cells}
    met = "the healthy client met the zombie's lock"
    assert (met in notes) == (policy is Policy.LEAVE_OPEN)


#: Wrong answers that a kill exposes, with the first line at which it does. A statement that commits by
#: itself does so at its Sync: there the point is `commit`.
EXPOSED = {
    "chunk-three-commits": (3, "kill@commit"),
    "chunk-orders-committed-first": (3, "kill@commit"),
    "chunk-checkpoint-after": (3, "kill@commit"),
    "chunk-checkpoint-before": (3, "kill@commit"),
    "chunk-idempotent-steps": (3, "kill@commit"),
    "freeze-two-commits": (1, "kill@commit"),
}


@pytest.mark.parametrize("name", EXPOSED)
def test_a_kill_exposes_what_is_committed_apart(
    workshop: Workshop, tmp_path: Path, name: str
) -> None:
    """The first failure is at the named place, and its line repeats it."""
    answer = next(wrong for wrong in wrong_answers() if wrong.name == name)
    impl = materialise(answer, tmp_path / name)
    lab, line = EXPOSED[name]
    sweep = swept(workshop, impl, lab)
    assert sweep.verdict is Verdict.FAIL
    assert repeat_line(sweep.failures[0], sweep.record.boundaries) == line
    row = judge_kills_of(small(lab), sweep.record)
    again = run_fault(workshop, impl, row, parse_fault(line))
    assert again.verdict is Verdict.FAIL
    assert again.findings[0].promise == sweep.failures[0].run.findings[0].promise


def test_a_client_that_never_sends_the_same_twice_is_swept_by_points(
    workshop: Workshop, tmp_path: Path
) -> None:
    """Boundary numbers mean nothing then; the sweep says so and places its kills by meaning."""
    answer = next(wrong for wrong in wrong_answers() if wrong.name == "chunk-three-commits")
    impl = materialise(answer, tmp_path / "random")
    chunk = impl / "lab03_chunk" / "chunk.py"
    text = (SOLUTIONS / "lab03_chunk" / "chunk.py").read_text()
    noisy = text.replace(
        "    with conn.transaction():\n        job =",
        "    import random\n    conn.execute(f'SELECT {random.SystemRandom().random()}')\n"
        "    with conn.transaction():\n        job =",
    )
    assert noisy != text
    chunk.write_text(noisy)
    sweep = swept(workshop, impl, 3)
    assert sweep.verdict is Verdict.PASS
    assert "differ from its recorded run" in sweep.notes[0]
    assert {cell.fault.stop.point for cell in sweep.cells} >= {
        "orders",
        "audit",
        "checkpoint",
        "commit",
    }


def test_two_databases_find_what_one_finds(workshop: Workshop) -> None:
    """Side by side, the boundaries are shared out, and all of them are killed at."""
    with open_workshop() as second:
        sweep = swept(workshop, SOLUTIONS, 3, beside=[second])
    assert sweep.verdict is Verdict.PASS
    assert [cell.boundary for cell in sweep.cells] == list(range(1, sweep.covered[1] + 1))


def test_a_stub_is_not_swept(workshop: Workshop) -> None:
    """A lab that is not filled in is told apart from one that fails."""
    sweep = swept(workshop, ROOT / "labs", 3)
    assert not sweep.started
    assert sweep.verdict is Verdict.SKIP


def test_a_fault_that_is_never_reached_is_void(workshop: Workshop) -> None:
    """Armed and not reached is never a pass."""
    run = run_fault(workshop, SOLUTIONS, small(3), parse_fault("kill@audit#9"))
    assert run.verdict is Verdict.VOID
    assert not run.reached


def test_chunks_are_told_by_work_that_repeats() -> None:
    """Three commits for one chunk are one chunk, because the fourth changes the same table as the first."""
    points = ["orders.update", "job_audit.insert", "jobs.update"] * 2
    record = [
        Boundary(n, 1, Unit.QUERY, "", touches=(Touch(*point.split("."), 1, n),), committed=(n,))
        for n, point in enumerate(points, 1)
    ]
    assert [chunk_of(record)[n] for n in range(1, 7)] == [1, 1, 1, 2, 2, 2]
    assert str(by_point(parse_fault("kill@5"), record)) == "kill@audit#2"


def test_ctrl_c_keeps_what_was_found_and_leaves_nothing(workshop: Workshop) -> None:
    """Interrupted in the middle, a sweep returns its cells, and no client session is left."""
    seen = 0

    def interrupt(done: int, total: int, text: str) -> None:
        nonlocal seen
        seen = done
        if done == 4:
            raise KeyboardInterrupt

    sweep = swept(workshop, SOLUTIONS, 3, progress=interrupt)
    assert sweep.interrupted
    assert len(sweep.cells) == seen == 4
    assert workshop.laboratory.learner_sessions() == []
    assert sweep_view(sweep) is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_nothing_is_left_of_an_interrupted_command(number: signal.Signals) -> None:
    """Scenario: `lab sweep 3` is ended in the middle. Outcome: no process of it is left."""
    command = [sys.executable, "-m", "harness.cli", "sweep", "3", "--impl", "solutions"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        family: set[int] = set()
        wait_until(
            lambda: len(family.update(descendants(process.pid)) or family) >= 8,
            "clients were started and killed",
            wait_s=60,
        )
        family.update(descendants(process.pid))
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
    if number is signal.SIGINT:
        assert process.returncode == 130, output
        assert "interrupted" in output
    wait_until(lambda: not any(map(alive, family)), "its processes are gone", wait_s=30)


def descendants(pid: int) -> set[int]:
    """Return the processes below `pid`; its embedded server's keeper is meant to stay a while."""
    import psutil

    try:
        below = psutil.Process(pid).children(recursive=True)
        return {p.pid for p in below if "harness.process.forkserver" in " ".join(p.cmdline())}
    except psutil.Error:
        return set()


def alive(pid: int) -> bool:
    """Tell whether the process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
