"""What the lessons of track B show is what PostgreSQL and psycopg do.

The snippets and their stage are those of `test_snippets.py`: umbrellas, with a result in a comment. No
snippet of this track needs a rival that it does not bring itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import test_snippets
from test_lessons import fences, lesson
from test_snippets import Stage, assert_claims, claims, run_python

from harness.course import COURSE

stage = test_snippets.stage


def snippets(language: str) -> list[Any]:
    """Return the blocks of a language in the lessons of track B, signatures left out."""
    return [
        pytest.param(code, id=f"{entry.folder}-{number}")
        for entry in COURSE
        if entry.track == "B"
        for number, (found, code) in enumerate(fences(lesson(entry)), 1)
        if found == language and "-> " not in code.splitlines()[0]
    ]


@pytest.mark.parametrize("code", snippets("python"))
def test_python_prints_what_its_comments_say(code: str, stage: Stage) -> None:
    """Each print shows what stands beside it."""
    assert_claims(run_python(code, stage), claims(code))


@pytest.mark.parametrize("code", snippets("sql"))
def test_sql_returns_what_its_comments_say(code: str, stage: Stage) -> None:
    """Each statement returns the rows in the comment lines below it."""
    test_snippets.test_sql_returns_what_its_comments_say(code, stage)
