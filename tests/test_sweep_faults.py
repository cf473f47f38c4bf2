"""Every fault of the table, as a line: the worked answers survive it, and a wrong answer does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from zoo import materialise, wrong_answers

from harness.activity import Activity, activities, sized
from harness.course import SOLUTIONS
from harness.database import DatabaseProblem
from harness.faults import FaultLineError, parse_fault
from harness.inject import run_fault
from harness.records import Verdict
from harness.run import Run
from harness.workshop import Workshop, open_workshop


def small(lab: int) -> Activity:
    """Return a lab's activity on two chunks."""
    return sized(activities(lab)[0], 5, 3, 0)


def played(workshop: Workshop, impl: Path, lab: int, line: str) -> Run:
    """Play one fault line on a lab."""
    return run_fault(workshop, impl, small(lab), parse_fault(line))


@pytest.fixture(scope="module")
def private() -> Iterator[Workshop]:
    """A workshop whose server may be crashed."""
    with open_workshop(private=True) as opened:
        yield opened


#: A line for each fault where it lands, for calls and for the program. What the note must say.
LANDED = (
    ("lose-request@commit", "before"),
    ("lose-reply@commit", "carried out"),
    ("freeze@audit", "rival waited for the first one's lock"),
    ("terminate@orders", "terminated"),
    ("rival-worker@checkpoint", "rival waited for the first one's lock"),
    ("rival-write@orders", "after the client let go of it"),
    ("rival-write@1", "first"),
    ("kill@audit:leave-open", "met the zombie's lock"),
)


@pytest.mark.parametrize("lab", [3, 6])
@pytest.mark.parametrize(("line", "note"), LANDED, ids=[line for line, _ in LANDED])
def test_worked_answers_survive(workshop: Workshop, lab: int, line: str, note: str) -> None:
    """The fault lands, does what its name says, and breaks no promise."""
    run = played(workshop, SOLUTIONS, lab, line)
    assert run.verdict is Verdict.PASS, (run.note, run.findings)
    assert note in run.note


@pytest.mark.parametrize("lab", [3, 6])
@pytest.mark.parametrize(
    ("kind", "sqlstate"),
    [("deadlock", "40P01"), ("serialization", "40001"), ("lock-timeout", "55P03")],
)
def test_the_client_is_the_victim(workshop: Workshop, lab: int, kind: str, sqlstate: str) -> None:
    """At the first boundary where the fault is possible the server ends the client's transaction."""
    for number in range(1, 30):
        run = played(workshop, SOLUTIONS, lab, f"{kind}@{number}")
        if run.possible:
            assert run.verdict is Verdict.PASS, run.findings
            assert run.note == f"the server answered {sqlstate}"
            assert sqlstate in {boundary.error for boundary in run.boundaries}
            return
    pytest.fail(f"{kind} was possible nowhere")


@pytest.mark.parametrize("line", ["crash@audit", "crash@commit", "crash@commit#2"])
def test_reported_commits_survive_a_crash(private: Workshop, line: str) -> None:
    """The server stops in the middle of a chunk, and right after it reported a commit."""
    run = played(private, SOLUTIONS, 3, line)
    assert run.verdict is Verdict.PASS, run.findings
    assert "crashed" in run.note


def test_an_unsafe_commit_does_not_survive_a_crash(private: Workshop, tmp_path: Path) -> None:
    """With synchronous_commit off, what was reported is lost, or there by luck."""
    run = played(private, wrong("chunk-async-local", tmp_path), 3, "crash@commit")
    assert run.verdict is Verdict.FAIL
    assert run.findings[0].promise == "hygiene"


#: Wrong answers that only another fault than a kill exposes: the lab, and a line that does.
EXPOSED = {
    "drain-reconnects": (5, "lose-reply@commit"),
    "drain-swallows-lost-connection": (5, "terminate@orders"),
    "worker-assumes-success": (6, "lose-request@commit"),
    "worker-assumes-failure": (6, "lose-reply@commit"),
    "worker-blind-retry": (6, "lose-reply@commit"),
    "worker-lost-is-more": (6, "terminate@orders"),
    "worker-lost-is-a-crash": (6, "terminate@orders"),
    "worker-prints-before-commit": (6, "lose-request@commit"),
    "worker-busy-is-more": (6, "freeze@orders"),
    "worker-conflict-is-damage": (6, "rival-write@1"),
    "freeze-stores-live-rows": (1, "rival-write@1"),
    "freeze-select-then-insert": (1, "rival-worker@jobs.insert"),
    "chunk-swallows-conflict": (3, "rival-write@1"),
    "worker-busy-is-complete": (6, "freeze@orders"),
    "worker-waits-for-ever": (6, "freeze@orders"),
    "worker-timeout-in-seconds": (6, "freeze@orders"),
}


@pytest.mark.parametrize("name", EXPOSED)
def test_a_wrong_answer_is_exposed(workshop: Workshop, tmp_path: Path, name: str) -> None:
    """The line makes the mistake visible."""
    lab, line = EXPOSED[name]
    run = played(workshop, wrong(name, tmp_path), lab, line)
    assert run.verdict is Verdict.FAIL, run.note


def test_lost_request_and_lost_reply_look_the_same_and_are_opposites(workshop: Workshop) -> None:
    """The client sees one exception; the database holds nothing, or the whole chunk."""
    runs = [played(workshop, SOLUTIONS, 3, f"lose-{what}@commit") for what in ("request", "reply")]
    errors = [run.calls[-1][1] for run in runs]
    assert getattr(errors[0], "text", "") == getattr(errors[1], "text", None)
    changed = [len(run.after_fault.changes) if run.after_fault else -1 for run in runs]
    assert changed[0] == 0
    assert changed[1] > 0


def test_a_crash_needs_a_private_server(workshop: Workshop) -> None:
    """Nobody else's server is stopped."""
    with pytest.raises(DatabaseProblem, match="private"):
        played(workshop, SOLUTIONS, 3, "crash@audit")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("explode@audit", "no fault"),
        ("kill@mails.insert", "no point"),
        ("freeze@audit:abort", "takes no policy"),
        ("kill@audit#0", "counted from 1"),
    ],
)
def test_impossible_lines_are_refused(line: str, says: str) -> None:
    """A line that cannot be is an error that says which part is wrong."""
    with pytest.raises(FaultLineError, match=says):
        parse_fault(line)


def test_only_a_kill_follows_a_kill(workshop: Workshop) -> None:
    """Two faults in one run are two kills."""
    first, then = parse_fault("kill@1"), parse_fault("freeze@1")
    with pytest.raises(FaultLineError, match="only a kill"):
        run_fault(workshop, SOLUTIONS, small(3), first, then=then)


def wrong(name: str, folder: Path) -> Path:
    """Lay a wrong answer down and return its folder."""
    answer = next(answer for answer in wrong_answers() if answer.name == name)
    return materialise(answer, folder / name)
