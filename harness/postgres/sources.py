"""Where PostgreSQL comes from: a given server, a Docker container, or the embedded one.

They are tried in this order, and the first that is asked for is used: LAB_DATABASE_URL, then
LAB_DATABASE=docker, and without either the embedded server, which needs nothing. A source that was
asked for and cannot be used is an error with a next step; there is no silent second choice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from harness import limits
from harness.postgres import embedded, keeper
from harness.postgres.server import DatabaseProblem, Server
from harness.records import Upstream

#: Written into pg_stat_activity for every connection of the harness itself.
HARNESS_APPLICATION = "interrupted harness"
_EMBEDDED_DATABASE = "postgres"
SOURCES = ("url", "docker", "embedded")


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What `lab doctor` says about one source."""

    name: str
    chosen: bool
    usable: bool
    detail: str
    next_step: str = ""


@contextmanager
def open_server(
    *,
    source: str | None = None,
    private: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Server]:
    """Find or start PostgreSQL, and let go of it afterwards.

    Args:
        source: 'url', 'docker' or 'embedded'; None chooses by the environment.
        private: A server for this caller alone, with `Server.restart`; always the embedded one.
        progress: Called with a short text before each step that takes more than a moment.

    Raises:
        DatabaseProblem: If the source cannot be used.
    """
    tell = progress or (lambda _: None)
    chosen = "embedded" if private else source or chosen_source()
    assert chosen in SOURCES, chosen
    opener: Mapping[str, Callable[[], Any]] = {
        "url": _open_url,
        "docker": lambda: _open_docker(tell),
        "embedded": lambda: _open_embedded(private, tell),
    }
    with opener[chosen]() as server:
        _check(server)
        yield server


def chosen_source() -> str:
    """Return the source that the environment asks for.

    Raises:
        DatabaseProblem: If LAB_DATABASE has a value that means nothing.
    """
    if os.environ.get("LAB_DATABASE_URL"):
        return "url"
    wanted = os.environ.get("LAB_DATABASE") or "embedded"
    if wanted not in ("docker", "embedded"):
        text = f"LAB_DATABASE is {wanted!r}, which is no source of PostgreSQL"
        raise DatabaseProblem(text, "Set it to docker or embedded, or unset it.")
    return wanted


def inspect_sources() -> list[SourceReport]:
    """Try every source in order and say what came of it.

    A given server and the embedded one are really opened. Of Docker only the engine is asked, unless
    it is the chosen source, because a container takes seconds.
    """
    chosen = chosen_source()
    reports = []
    for name in SOURCES:
        try:
            with _probe(name, chosen) as detail:
                reports.append(SourceReport(name, name == chosen, True, detail))
        except DatabaseProblem as problem:
            reports.append(
                SourceReport(name, name == chosen, False, str(problem), problem.next_step)
            )
    return reports


@contextmanager
def _probe(name: str, chosen: str) -> Iterator[str]:
    if name == "docker" != chosen:
        from harness.postgres import container

        yield container.engine_description()
    else:
        with open_server(source=name) as server:
            version = f"{server.version // 10000}.{server.version % 10000}"
            yield f"{server.description}, version {version}"


def connect(admin: Mapping[str, Any], **changes: Any) -> psycopg.Connection[Any]:
    """Open a connection of the harness's own user, in autocommit mode.

    Raises:
        DatabaseProblem: If the server refuses or does not answer.
    """
    arguments = {**admin, **changes}
    try:
        return psycopg.connect(**arguments, autocommit=True)
    except psycopg.Error as error:
        raise _explain_connect(error, arguments) from error


@contextmanager
def _open_embedded(private: bool, tell: Callable[[str], None]) -> Iterator[Server]:
    with embedded.open_embedded(private=private, progress=tell) as running:
        admin = {
            "host": running.sockets,
            "port": keeper.PORT,
            "user": embedded.SUPERUSER,
            "password": running.password,
            "dbname": _EMBEDDED_DATABASE,
            "options": "",  # not PGOPTIONS: what a user sets for psql is not meant for us
            **_PLAIN,
        }
        where = f"{'private, ' if private else ''}in {running.home}"
        yield Server(
            source="embedded",
            version=_version(admin),
            upstream=Upstream(running.sockets, keeper.PORT),
            admin=admin,
            bin_dir=embedded.find_programs(),
            description=f"embedded PostgreSQL of user {running.home.owner()}, {where}",
            secrets=(str(running.home.parent),),
            restart=running.crash if private else None,
        )


@contextmanager
def _open_url() -> Iterator[Server]:
    url = os.environ.get("LAB_DATABASE_URL")
    if not url:
        raise DatabaseProblem("LAB_DATABASE_URL is not set", "Set it to use a PostgreSQL of yours.")
    try:
        admin: dict[str, Any] = {"connect_timeout": limits.CONNECT_WAIT_S, **conninfo_to_dict(url)}
    except psycopg.Error as error:
        text = f"LAB_DATABASE_URL cannot be read: {error}"
        raise DatabaseProblem(
            text, "It looks like postgresql://user:password@host:5432/db."
        ) from error
    admin["application_name"] = HARNESS_APPLICATION
    with connect(admin) as connection:
        info = connection.info
        # Where libpq ended up, of perhaps several hosts; all later connections go to the same one.
        admin |= {"host": info.host, "port": info.port, "dbname": info.dbname, "user": info.user}
        if "hostaddr" in admin:
            admin["hostaddr"] = info.hostaddr
        server = Server(
            source="url",
            version=info.server_version,
            upstream=Upstream(info.hostaddr or info.host, info.port),
            admin=admin,
            bin_dir=_wheel_programs(),
            description=f"PostgreSQL at {info.user}@{info.host}:{info.port}/{info.dbname}",
        )
    yield server


@contextmanager
def _open_docker(tell: Callable[[str], None]) -> Iterator[Server]:
    from harness.postgres import (
        container,  # only here: importing testcontainers takes half a second
    )

    with container.open_container(tell) as running:
        admin = {
            "host": running.host,
            "port": running.port,
            "user": running.user,
            "password": running.password,
            "dbname": running.database,
            "connect_timeout": limits.CONNECT_WAIT_S,
            "options": "",
            **_PLAIN,
        }
        container.wait_ready(lambda: connect(admin))
        with connect(admin) as connection:
            connection.execute(
                f'REVOKE ALL ON DATABASE postgres, template1, "{running.database}" FROM public'
            )
        yield Server(
            source="docker",
            version=_version(admin),
            upstream=Upstream(running.host, running.port),
            admin=admin,
            bin_dir=_wheel_programs(),
            description=f"PostgreSQL in a container of {running.image}",
        )


def _check(server: Server) -> None:
    """Refuse a server on which the kit could not work, before anything is made there."""
    if server.version < limits.SERVER_VERSION_MIN:
        text = f"the server is PostgreSQL {server.version // 10000}; the kit needs 14 or newer"
        raise DatabaseProblem(text, "Use a newer server, or unset LAB_DATABASE_URL.")
    with connect(server.admin) as connection:
        row = connection.execute(
            "SELECT rolsuper OR (rolcreatedb AND rolcreaterole), rolname, pg_is_in_recovery()"
            " FROM pg_roles WHERE rolname = session_user"
        ).fetchone()
        assert row is not None
        allowed, user, standby = row
    if standby:
        raise DatabaseProblem("the server is a read-only standby", "Use its primary.")
    if not allowed:
        text = f"role {user} may not create databases and roles"
        raise DatabaseProblem(text, f'As a superuser: ALTER ROLE "{user}" CREATEDB CREATEROLE;')


def _version(admin: Mapping[str, Any]) -> int:
    with connect(admin) as connection:
        return connection.info.server_version


def _wheel_programs() -> Path | None:
    try:
        return embedded.find_programs()
    except DatabaseProblem:
        return None


def _explain_connect(error: psycopg.Error, arguments: Mapping[str, Any]) -> DatabaseProblem:
    """Turn libpq's text into what is wrong and what to do; libpq gives no code before the login."""
    text = str(error).strip()
    where = f"{arguments.get('host') or 'the default host'}:{arguments.get('port') or 5432}"
    for words, step in _CONNECT_ADVICE:
        if words in text:
            return DatabaseProblem(f"no connection to PostgreSQL at {where}: {text}", step)
    return DatabaseProblem(f"no connection to PostgreSQL at {where}: {text}", _CONNECT_STEP)


#: Nothing but loopback and Unix sockets is used here, where encryption would only cost time.
_PLAIN = {
    "sslmode": "disable",
    "gssencmode": "disable",
    "application_name": HARNESS_APPLICATION,
}
_CONNECT_STEP = "Check LAB_DATABASE_URL with psql, or unset it to use the embedded server."
_CONNECT_ADVICE: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "Check user and password in LAB_DATABASE_URL."),
    ("no password supplied", "Put the password into LAB_DATABASE_URL, or into ~/.pgpass."),
    ("Connection refused", "Start the server, or check host and port in LAB_DATABASE_URL."),
    ("does not exist", "Check the names of database and user in LAB_DATABASE_URL."),
    ("pg_hba.conf", "Allow this user and host in the server's pg_hba.conf."),
    ("too many clients", "End other sessions, or raise max_connections."),
)
