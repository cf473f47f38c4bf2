"""The answers of track B do what the catalogue says, in this process and without the harness."""

from __future__ import annotations

from pathlib import Path

import answers_b
import pytest
from answers_b import CUT, PLAIN, RIVAL
from zoo import Wrong, materialise, wrong_answers

from harness.course import SOLUTIONS
from harness.database import Laboratory

WRONG = [answer for answer in wrong_answers() if answer.lab >= 8]
#: The faults that a cut connection stands for, and those that a second worker does.
CUTS, RIVALS = ("kill@",), ("two workers", "freeze", "lock timeout")


@pytest.mark.parametrize("number", PLAIN)
def test_worked_answers_work(number: int, clean: Laboratory) -> None:
    """Each worked answer keeps its lab's promise: alone, cut anywhere, with a rival anywhere."""
    for family in (PLAIN, CUT, RIVAL):
        if number in family:
            family[number](answers_b.load(SOLUTIONS, clean))


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: answer.name)
def test_wrong_answers_show_as_the_catalogue_says(
    answer: Wrong, clean: Laboratory, tmp_path: Path
) -> None:
    """A wrong answer passes plain calls unless its fault is 'none', and fails under its fault."""
    folder = materialise(answer, tmp_path / answer.name)
    family = PLAIN
    if answer.fault != "none":
        PLAIN[answer.lab](answers_b.load(folder, clean))
        family = CUT if answer.fault.startswith(CUTS) else RIVAL
        assert family is CUT or answer.fault in RIVALS
    with pytest.raises(BaseException):  # noqa: B017, PT011  (whatever the mistake leads to)
        family[answer.lab](answers_b.load(folder, clean))
