"""The state machine, with fixed seeds: mixtures of workers, rivals and kills that nobody thought of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from zoo import materialise, wrong_answers

from harness.course import SOLUTIONS
from harness.machine import StoryBroken, explore
from harness.workshop import Workshop

#: Seeds of the suite; `lab sweep --random` goes further.
SEEDS = (1, 2, 3)


@pytest.mark.parametrize("number", SEEDS)
def test_worked_answers_survive_every_story(workshop: Workshop, number: int) -> None:
    """The judge's invariants hold after every rule."""
    explore(workshop, SOLUTIONS, number, examples=5)


def test_a_seed_tells_the_same_stories_again(workshop: Workshop) -> None:
    """Every step, with what came of it, is the same the second time."""
    told: list[list[Sequence[str]]] = []
    for _ in range(2):
        stories: list[Sequence[str]] = []
        explore(
            workshop, SOLUTIONS, 11, examples=4, heard=lambda s, keep=stories: keep.append(tuple(s))
        )  # type: ignore[misc]
        told.append(stories)
    assert told[0] == told[1]
    assert any(len(story) > 3 for story in told[0])


def test_a_wrong_answer_becomes_a_short_story(workshop: Workshop, tmp_path: Path) -> None:
    """A chunk in three commits breaks with one worker; the story that is left has few steps."""
    answer = next(wrong for wrong in wrong_answers() if wrong.name == "chunk-three-commits")
    impl = materialise(answer, tmp_path / answer.name)
    with pytest.raises(StoryBroken) as broken:
        # Hypothesis draws differently in a process that has loaded other modules; the mistake is so
        # common a path that many examples are never needed, and few may just miss it.
        explore(workshop, impl, 5, examples=300)
    assert broken.value.findings[0].promise == "bound"
    assert len(broken.value.steps) <= 3
