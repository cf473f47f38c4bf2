"""The answers of track A do what the catalogue says, in this process and without the harness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import answers_a
import psycopg
import pytest
from zoo import Wrong, materialise, wrong_answers

from harness.course import SOLUTIONS
from harness.database import Laboratory

WRONG = [answer for answer in wrong_answers() if answer.lab <= 7]


@pytest.fixture
def dsn(clean: Laboratory) -> str:
    """Where a client logs in as the learner; these tests need no proxy in between."""
    return clean.learner_dsn(clean.server.upstream.host, clean.server.upstream.port)


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection as the labs get it, new for each answer: a wrong one may leave anything behind."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn


@pytest.mark.parametrize("number", answers_a.PLAIN)
def test_worked_answers_work(number: int, conn: psycopg.Connection, dsn: str) -> None:
    """Each worked answer keeps its lab's promise, also when others write in between."""
    kit = answers_a.load(SOLUTIONS, conn, dsn)
    answers_a.PLAIN[number](kit)
    for others in (answers_a.RIVAL, answers_a.TWO):
        if number in others:
            others[number](kit)


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: answer.name)
def test_wrong_answers_show_as_the_catalogue_says(
    answer: Wrong, conn: psycopg.Connection, dsn: str, tmp_path: Path
) -> None:
    """A wrong answer fails plain calls if its fault is 'none', and else passes all of them."""
    kit = answers_a.load(materialise(answer, tmp_path / answer.name), conn, dsn)
    if answer.fault == "none":
        with pytest.raises(BaseException):  # noqa: B017, PT011  (whatever the mistake leads to)
            answers_a.PLAIN[answer.lab](kit)
        return
    answers_a.PLAIN[answer.lab](kit)
    checks = {"rival write": answers_a.RIVAL, "two workers": answers_a.TWO}.get(answer.fault)
    if checks is not None and answer.name not in AT_A_BOUNDARY:
        with pytest.raises(BaseException):  # noqa: B017, PT011
            checks[answer.lab](kit)


#: These need somebody between two statements of one call, which only the harness can arrange.
AT_A_BOUNDARY = {
    "change-check-then-update",
    "chunk-lock-too-early",
    "doubt-two-snapshots",
    "report-orders-later",
    "report-two-selects",
}
