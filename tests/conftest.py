"""What the tests of the kit share: one server, and one clean laboratory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.database import Laboratory, Server, open_laboratory, open_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The PostgreSQL server that the environment asks for; by default the embedded one."""
    with open_server() as running:
        yield running


@pytest.fixture(scope="session")
def session_laboratory(server: Server) -> Iterator[Laboratory]:
    """The one database of this test process; tests ask for `laboratory`, which is it, emptied."""
    with open_laboratory(server) as opened:
        yield opened


@pytest.fixture
def laboratory(session_laboratory: Laboratory) -> Laboratory:
    """A clean database: no rows, no learner sessions."""
    session_laboratory.clear()
    return session_laboratory
