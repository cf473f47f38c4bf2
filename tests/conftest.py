"""What the tests of the kit share: one server, and one clean laboratory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.database import Laboratory, Server, open_laboratory, open_server
from harness.workshop import Workshop, open_workshop


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The PostgreSQL server that the environment asks for; by default the embedded one."""
    with open_server() as running:
        yield running


@pytest.fixture(scope="session")
def laboratory(server: Server) -> Iterator[Laboratory]:
    """The one database of this test process. It may hold rows of an earlier test: see `clean`."""
    with open_laboratory(server) as opened:
        yield opened


@pytest.fixture
def clean(laboratory: Laboratory) -> Laboratory:
    """The laboratory without rows, learner sessions or prepared transactions."""
    laboratory.clear()
    return laboratory


@pytest.fixture(scope="session")
def workshop() -> Iterator[Workshop]:
    """Server, database, proxy and fork server for tests that play whole runs."""
    with open_workshop() as opened:
        yield opened
