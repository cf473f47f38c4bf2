"""The matrix: every wrong answer is caught with the right words, every right answer scores full.

The graded checks are themselves under test here. A wrong answer's note names the check that must
fail on it (`caught_by`) and the promise it must name; other checks of the lab may fail too. For a right
answer every check must pass of every lab whose file it brings; a style of chunks, in the drain, too.

At the end of the run a table shows which check caught which wrong answer (`conftest.py` prints it).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CAUGHT
from zoo import Right, Wrong, materialise, right_answers, wrong_answers

from harness.course import COURSE, SOLUTIONS, Lab, lab
from harness.grading.bench import Bench
from harness.grading.runner import Played, checks_of, play_check
from harness.learner import pristine
from harness.records import Verdict

#: Where the chunk of track A meets all its faults at once; a style of labs 3 or 4 must hold there, too.
WHERE_CHUNKS_MEET, CHUNK_LABS = 5, {3, 4}

WRONG = wrong_answers()
RIGHT = right_answers()


def play(workshop: object, impl: Path, of: Lab, only: str = "") -> Iterator[tuple[str, Played]]:
    """Run the graded checks of one lab on an implementation, one after another; or the one named."""
    for name, check, function in checks_of(of):
        if only and name != f"test_{only}":
            continue
        bench = Bench(workshop, impl, of, check)
        yield name, play_check(lambda bench=bench, function=function: function(bench), of, "again")


def promises_named(played: Played) -> set[str]:
    return {finding["promise"] for finding in played.evidence.get("findings", ())}


def labs_of(answer: Right) -> list[Lab]:
    """Return the labs that an answer's files belong to, and where its chunks are drained."""
    brought = {
        entry.number for entry in COURSE for path in answer.files if path.startswith(entry.folder)
    }
    return [
        lab(n) for n in sorted(brought | ({WHERE_CHUNKS_MEET} if brought & CHUNK_LABS else set()))
    ]


@pytest.mark.parametrize("wrong", WRONG, ids=[answer.name for answer in WRONG])
def test_a_wrong_answer_is_caught_with_its_promise(
    wrong: Wrong, workshop, tmp_path, record_property
):
    impl = materialise(wrong, tmp_path / "impl")
    failed = []
    for name, played in play(workshop, impl, lab(wrong.lab), only=wrong.caught_by):
        assert played.verdict in (Verdict.PASS, Verdict.FAIL), f"{name}: {played.message}"
        if played.verdict is Verdict.FAIL:
            failed.append(f"{name}: {sorted(promises_named(played))}")
            if wrong.promise in promises_named(played):
                record_property(CAUGHT, (wrong.name, name, wrong.promise))
                return
    pytest.fail(
        f"{wrong.mistake}\nno check of lab {wrong.lab} named {wrong.promise!r}; failed: {failed}"
    )


@pytest.mark.parametrize("right", RIGHT, ids=[answer.name for answer in RIGHT])
def test_a_right_answer_scores_full(right: Right, workshop, tmp_path):
    impl = materialise(right, tmp_path / "impl")
    for entry in labs_of(right):
        for name, played in play(workshop, impl, entry):
            assert played.verdict is Verdict.PASS, f"lab {entry.number}, {name}:\n{played.message}"


@pytest.mark.parametrize("entry", COURSE, ids=[entry.folder for entry in COURSE])
def test_the_worked_answer_scores_full(entry: Lab, workshop):
    points = 0
    for name, played in play(workshop, SOLUTIONS, entry):
        assert played.verdict is Verdict.PASS, f"{name}:\n{played.message}"
    for _, check, _ in checks_of(entry):
        points += check.points
    assert points == 100


@pytest.mark.parametrize("entry", COURSE, ids=[entry.folder for entry in COURSE])
def test_the_stub_is_told_as_not_started(entry: Lab, workshop, tmp_path):
    """Earlier labs are done; this one still has its TODO."""
    stubs = {name: pristine.stub_text(name) for name in pristine.files_of(entry)}
    impl = materialise(Right("stub", "", stubs), tmp_path / "impl")
    for name, played in play(workshop, impl, entry):
        assert played.verdict is Verdict.FAIL, f"{name}: {played.verdict}"
        assert played.evidence == {"not_started": True}, f"{name}:\n{played.message}"
        assert "Traceback" not in played.message
