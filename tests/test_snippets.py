"""What the lessons show is what PostgreSQL and psycopg do.

Every snippet with a result in a comment is run against the real server, and the result is compared.
The snippets share a small table of umbrellas, so that they give away nothing about the labs' tables:

    print(cur.statusmessage)   # UPDATE 0        Python: the comment beside or below begins with it
    -- 7 Bo                                      SQL: one comment per row below the statement

Where a snippet needs somebody else at the same time, its own test plays that part.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from test_lessons import fences, lesson

from harness.course import COURSE, lab
from harness.database import Laboratory
from harness.scenario import festival
from harness.waiting import wait_until

#: Snippets that need a rival: a text that is in them. Each has a test of its own below.
NEEDS_RIVAL = ("FROM repairs r", "set_config('lock_timeout'")
#: A snippet's statement waits for a lock if it is still waiting after this long.
LOCK_WAIT_MS = 50
#: The rival must be seen waiting within this time; it takes a millisecond.
BLOCKED_WAIT_S = 10.0
#: Orders that lab 1 pages over.
ORDERS_SHOWN = 6


@dataclass(frozen=True)
class Stage:
    """Two connections in autocommit mode to a database with three umbrellas, all of them Ada's."""

    conn: psycopg.Connection[Any]
    other: psycopg.Connection[Any]


@contextmanager
def session(laboratory: Laboratory) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection that sees the umbrellas."""
    with laboratory.connect() as conn:
        path = conn.execute("SELECT 'lesson, ' || current_setting('search_path')").fetchone()
        conn.execute("SELECT set_config('search_path', %s, false)", path)
        yield conn


@pytest.fixture
def stage(clean: Laboratory) -> Iterator[Stage]:
    """Set up the umbrellas and the story's first orders; take the umbrellas down afterwards."""
    clean.control.execute("CREATE SCHEMA lesson")
    clean.control.execute(
        "CREATE TABLE lesson.umbrellas"
        " (id int PRIMARY KEY, owner text, state text DEFAULT 'dry', revision int DEFAULT 1);"
        "CREATE TABLE lesson.repairs (umbrella int, n int);"
        "INSERT INTO lesson.umbrellas VALUES (7, 'Ada'), (8, 'Ada'), (9, 'Ada');"
        "INSERT INTO lesson.repairs VALUES (7, 1)"
    )
    story = festival()
    for item in story.approval[:ORDERS_SHOWN]:
        clean.control.execute(
            "INSERT INTO orders (order_id, tenant, qty, revision) VALUES (%s, %s, %s, %s)",
            (item.order_id, story.tenant, item.qty, item.revision),
        )
    try:
        with session(clean) as conn, session(clean) as other:
            yield Stage(conn, other)
    finally:
        clean.control.execute("DROP SCHEMA lesson CASCADE")


def claims(code: str) -> list[str]:
    """Return the comment beside each print, or the comment line below it."""
    lines = code.splitlines()
    found = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if "print(" in line:
            beside = re.search(r"\)\s+# (.*)$", line)
            found.append(beside[1] if beside else below.removeprefix("# "))
    return found


def run_python(code: str, stage: Stage) -> list[str]:
    """Run a snippet, and return what it prints."""
    printed: list[str] = []
    exec(  # the snippets are ours
        compile(code, "snippet", "exec"),
        {
            "conn": stage.conn,
            "other": stage.other,
            "psycopg": psycopg,
            "print": lambda *values: printed.append(" ".join(map(str, values))),
        },
    )
    return printed


def assert_claims(printed: list[str], claimed: list[str]) -> None:
    """Each claim begins with what was printed; a remark may follow after three spaces."""
    assert printed == [claim.split("   ")[0].strip() for claim in claimed]


def snippets(language: str) -> list[Any]:
    """Return the blocks of a language in the lessons of track A that need no rival."""
    return [
        pytest.param(code, id=f"{entry.folder}-{number}")
        for entry in COURSE
        if entry.track == "A"
        for number, (found, code) in enumerate(fences(lesson(entry)), 1)
        if found == language
        and not code.startswith("def ")
        and not any(text in code for text in NEEDS_RIVAL)
    ]


def snippet_with(number: int, text: str) -> str:
    """Return the one block in the lesson of lab `number` that contains `text`."""
    (code,) = [code for _, code in fences(lesson(lab(number))) if text in code]
    return code


def wait_blocked(clean: Laboratory, pid: int) -> None:
    """Wait until the server process `pid` waits for a lock that somebody holds."""
    wait_until(
        lambda: (
            clean.control.execute("SELECT cardinality(pg_blocking_pids(%s))", (pid,)).fetchone()
            != (0,)
        ),
        f"server process {pid} waits for a lock",
        wait_s=BLOCKED_WAIT_S,
    )


# --- alone ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", snippets("python"))
def test_python_prints_what_its_comments_say(code: str, stage: Stage) -> None:
    """A snippet that nobody disturbs prints what the lesson shows."""
    if "VALUES (7, 'Ada') ON CONFLICT" in code:  # it begins before there is an umbrella
        stage.conn.execute("DELETE FROM umbrellas")
    assert_claims(run_python(code, stage), claims(code))


@pytest.mark.parametrize("code", snippets("sql"))
def test_sql_returns_what_its_comments_say(code: str, stage: Stage) -> None:
    """Each statement returns the rows in the comment lines below it."""
    stage.conn.execute("UPDATE umbrellas SET owner = 'Bo' WHERE id = 7")
    words = {None: "NULL", True: "true", False: "false"}
    for statement, remarks in re.findall(r"([^;]+);\n((?:--[^\n]*\n)*)", code):
        cursor = stage.conn.execute(statement)
        rows = cursor.fetchall() if cursor.description else [(cursor.statusmessage,)]
        seen = [" ".join(words.get(value, str(value)) for value in row) for row in rows]
        assert_claims(seen, [line.removeprefix("-- ") for line in remarks.splitlines()])


# --- with somebody else ---------------------------------------------------------------------------


def test_lab01_a_second_insert_waits_for_the_first(clean: Laboratory, stage: Stage) -> None:
    """
    Scenario:
    * A inserts umbrella 10 and has not committed; B inserts it with ON CONFLICT DO NOTHING.

    Outcome:
    * B waits, writes nothing when A commits, and finds A's row.
    """
    insert = "INSERT INTO umbrellas (id, owner) VALUES (10, %s) ON CONFLICT (id) DO NOTHING"
    counts: list[int] = []
    with stage.conn.transaction():
        stage.conn.execute(insert, ("Ada",))
        waiter = threading.Thread(
            target=lambda: counts.append(stage.other.execute(insert, ("Bo",)).rowcount)
        )
        waiter.start()
        wait_blocked(clean, stage.other.info.backend_pid)
    waiter.join()
    owner = stage.other.execute("SELECT owner FROM umbrellas WHERE id = 10").fetchone()
    assert (counts, owner) == ([0], ("Ada",))


def test_lab02_an_update_that_waited_looks_again(clean: Laboratory, stage: Stage) -> None:
    """
    Scenario:
    * A changes umbrella 8 from revision 1 to 2; B updates it where its revision is 1.

    Outcome:
    * B waits, and when A commits, B has changed no row and got no error.
    """
    tags: list[str | None] = []
    update = "UPDATE umbrellas SET state = 'wet' WHERE id = 8 AND revision = 1"
    with stage.conn.transaction():
        stage.conn.execute("UPDATE umbrellas SET revision = 2 WHERE id = 8")
        waiter = threading.Thread(
            target=lambda: tags.append(stage.other.execute(update).statusmessage)
        )
        waiter.start()
        wait_blocked(clean, stage.other.info.backend_pid)
    waiter.join()
    assert tags == ["UPDATE 0"]


@pytest.mark.parametrize(
    ("statement", "result"),
    re.findall(r"^\| `([^`]*umbrellas[^`]*)` \| (.+) \|$", lesson(lab(3)), re.MULTILINE),
)
def test_lab03_for_update_blocks_what_the_table_says(
    statement: str, result: str, stage: Stage
) -> None:
    """While A holds umbrella 7 FOR UPDATE, B's statement waits or answers, as in the lesson."""
    stage.other.execute(f"SET lock_timeout = {LOCK_WAIT_MS}")
    with stage.conn.transaction():
        stage.conn.execute("SELECT owner FROM umbrellas WHERE id = 7 FOR UPDATE")
        if result == "waits":
            with pytest.raises(psycopg.errors.LockNotAvailable):
                stage.other.execute(statement)
        else:
            tag = str(stage.other.execute(statement).statusmessage)
            assert result.startswith((f"`{tag}`", "answers at once"))


def test_lab04_one_statement_can_mix_two_moments(clean: Laboratory, stage: Stage) -> None:
    """
    Scenario:
    * A changes umbrella 7 and adds a repair; B asks for both in one statement, FOR UPDATE.

    Outcome:
    * B waits, then sees the new umbrella with the old repairs, as the lesson shows.
    """
    code = snippet_with(4, NEEDS_RIVAL[0])
    printed: list[str] = []
    with stage.conn.transaction():
        stage.conn.execute("UPDATE umbrellas SET revision = 2 WHERE id = 7")
        stage.conn.execute("INSERT INTO repairs VALUES (7, 2)")
        waiter = threading.Thread(target=lambda: printed.extend(run_python(code, stage)))
        waiter.start()
        wait_blocked(clean, stage.other.info.backend_pid)
    waiter.join()
    assert_claims(printed, claims(code))


def test_lab06_a_lock_timeout_ends_the_wait(stage: Stage) -> None:
    """Behind somebody who holds umbrella 7, the snippet ends with the error in its last comment."""
    code = snippet_with(6, NEEDS_RIVAL[1])
    claim = code.splitlines()[-1]
    with stage.other.transaction():
        stage.other.execute("SELECT owner FROM umbrellas WHERE id = 7 FOR UPDATE")
        with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
            run_python(code, stage)
    first_line = str(caught.value).splitlines()[0]
    assert claim == f"# psycopg.errors.LockNotAvailable, SQLSTATE 55P03: {first_line}"
