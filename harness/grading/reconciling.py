"""The query of lab 7, run as a person would run it.

`reconcile.sql` is text: it is read from the implementation's folder and never imported. It runs as the
learner's role, in a transaction that cannot write, behind a cursor. So a file that is not one query
is refused by the server, and a result without end does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from harness.database import Laboratory
from harness.grading.check import NotStarted
from harness.limits import QUERY_ROWS, QUERY_WAIT_MS

#: The file, relative to an implementation's folder.
FILE = "lab07_report/reconcile.sql"
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)

Row = tuple[str, ...]


class BadQuery(Exception):
    """The file cannot be run as one query; the text says why, in the words of who refused it."""


def read_query(impl: Path) -> bytes:
    """Return the text of the implementation's query.

    Raises:
        NotStarted: If there is nothing but comments in it.
        BadQuery: If the file is not there.
    """
    try:
        text = (impl / FILE).read_bytes()
    except OSError as problem:
        raise BadQuery(f"{FILE} cannot be read: {problem.strerror}") from None
    if not _COMMENTS.sub("", text.decode(errors="replace")).strip(" \t\r\n;"):
        raise NotStarted(
            f"{FILE} is not started yet: there are only comments in it",
            f"Open labs/{FILE} and replace its comment by one query.",
        )
    return text


@contextmanager
def open_reader(laboratory: Laboratory) -> Iterator[psycopg.Connection[Any]]:
    """Connect as the learner's role, past the proxy; a query that takes too long is ended."""
    upstream = laboratory.server.upstream
    dsn = laboratory.learner_dsn(upstream.host, upstream.port, application_name="reconcile")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET statement_timeout = {QUERY_WAIT_MS}")
        yield connection


def run_query(connection: psycopg.Connection[Any], query: bytes, job_id: str) -> list[Row]:
    """Return the rows the query gives for one job, as texts; at most `QUERY_ROWS` of them.

    Raises:
        BadQuery: If psycopg or the server refuses the query, or it takes too long.
    """
    connection.execute("BEGIN READ ONLY")
    try:
        with connection.cursor("reconcile") as cursor:
            cursor.execute(query, {"job_id": job_id})
            result = connection.execute(f"FETCH {QUERY_ROWS} FROM reconcile").pgresult
    except (psycopg.Error, TypeError) as problem:
        raise BadQuery(f"{type(problem).__name__}: {problem}") from None
    finally:
        connection.execute("ROLLBACK")
    assert result is not None
    # As texts: which columns there are, and of which types, is up to the query.
    return [
        tuple(
            (result.get_value(row, column) or b"NULL").decode(errors="replace")
            for column in range(result.nfields)
        )
        for row in range(result.ntuples)
    ]
