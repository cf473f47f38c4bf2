"""The zoo's catalogue is in order: enough answers, each different, each compiles, each explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from zoo import PROMISES, Right, Wrong, materialise, right_answers, wrong_answers

from harness.course import COURSE, SOLUTIONS, lab
from harness.grading.runner import checks_of

WRONG, RIGHT = wrong_answers(), right_answers()


def test_there_are_enough_answers() -> None:
    """Track A has at least 40 mistakes, some in each of its labs, and 10 styles."""
    labs = [answer.lab for answer in WRONG if answer.lab <= 7]
    assert len(labs) >= 40
    assert set(labs) == set(range(1, 8))
    assert len(RIGHT) >= 10


def test_no_two_answers_are_the_same() -> None:
    """Names and texts are unique: no mistake is counted twice."""
    everyone = [tuple(sorted(answer.files.items())) for answer in (*WRONG, *RIGHT)]
    assert len(set(everyone)) == len(everyone)


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: answer.name)
def test_wrong_answers_are_explained(answer: Wrong) -> None:
    """A mistake has a sentence, a lab, a promise of the design, and the fault that shows it."""
    assert answer.mistake
    assert not answer.mistake.endswith("."), "the sentence is continued by whoever prints it"
    assert answer.lab in range(1, len(COURSE) + 1)
    assert answer.promise in PROMISES
    assert answer.fault


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: answer.name)
def test_wrong_answers_name_a_check_of_their_lab(answer: Wrong) -> None:
    """The note says which check catches it; `test_matrix.py` holds the check to that."""
    names = {name.removeprefix("test_") for name, _, _ in checks_of(lab(answer.lab))}
    assert answer.caught_by in names


@pytest.mark.parametrize("answer", [*WRONG, *RIGHT], ids=lambda answer: answer.name)
def test_answers_differ_and_compile(answer: Wrong | Right) -> None:
    """Each overridden file exists in the worked answers, differs from it, and compiles."""
    assert answer.files
    for path, text in answer.files.items():
        assert (SOLUTIONS / path).read_text(encoding="utf-8") != text
        if path.endswith(".py"):
            compile(text, path, "exec")


def test_an_answer_is_laid_over_the_worked_ones(tmp_path: Path) -> None:
    """What the answer does not bring is the worked file, what it brings is its own."""
    answer = WRONG[0]
    folder = materialise(answer, tmp_path / "impl")
    for entry in COURSE:
        worked = (SOLUTIONS / entry.file).read_text(encoding="utf-8")
        text = (folder / entry.file).read_text(encoding="utf-8")
        assert text == answer.files.get(entry.file, worked)
