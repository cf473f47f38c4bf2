"""What the tests of the kit share: one server, and one clean laboratory."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from harness.database import Laboratory, Server, open_laboratory, open_server
from harness.workshop import Workshop, open_workshop

# Where the tests are started in the background of a shell, SIGINT is ignored, and whatever they start
# would inherit that. A handler of our own is reset by exec, so that Ctrl-C means what it means to users.
signal.signal(signal.SIGINT, signal.default_int_handler)


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


#: The property under which the matrix records what caught a wrong answer.
CAUGHT = "caught"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the matrix's table: wrong answer, the check that caught it, the promise it named."""
    rows = sorted(
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == CAUGHT
    )
    if not rows:
        return
    terminalreporter.section(f"{len(rows)} wrong answers: caught by, promise named")
    width = max(len(row[0]) for row in rows)
    for answer, check, promise in rows:
        terminalreporter.write_line(
            f"{answer:<{width}}  {check.removeprefix('test_'):<55}  {promise}"
        )
