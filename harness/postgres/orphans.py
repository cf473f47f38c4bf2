"""Orphans: what a killed harness left on a server, and how the next one tells it from what is in use.

Every living harness holds an advisory lock, named after its database, in the database it logs in to.
What matches our names and is held by nobody is dropped, except what its user wanted to keep; that
carries a comment. The number of the login database is part of each name, because an advisory lock is
seen only in the database where it was taken: two harnesses that log in to different databases of one
server must not take each other's for orphans.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from typing import Any

import psycopg
from psycopg import sql

from harness.postgres.server import DatabaseProblem, Server
from harness.postgres.sources import connect

#: The comment on a database that --keep left.
KEPT = "kept by its user (--keep)"


def new_name(maintenance: psycopg.Connection[Any]) -> str:
    """Return a name that no other laboratory has, for one whose harness logs in as `maintenance` did."""
    return f"{_prefix(maintenance)}{secrets.token_hex(6)}"


def _prefix(maintenance: psycopg.Connection[Any]) -> str:
    row = maintenance.execute(
        "SELECT oid::bigint FROM pg_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return f"lab_{row[0]}_"


def lock_key(name: str) -> int:
    """Return the advisory lock's number: 64 bits of the name's digest, signed as bigint is."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


def drop_unheld(server: Server, maintenance: psycopg.Connection[Any], *, kept: bool) -> list[str]:
    """Drop our laboratories whose lock is free, either the kept ones or the others."""
    rows = maintenance.execute(
        """
        SELECT name, bool_or(comment IS NOT NULL AND comment = %(kept)s) FROM (
            SELECT datname::text, shobj_description(oid, 'pg_database') FROM pg_database
            WHERE pg_has_role(datdba, 'USAGE')
            UNION ALL
            SELECT left(rolname, -length('_learner')), NULL FROM pg_roles
            WHERE rolname LIKE '%%\\_learner'
        ) AS ours (name, comment)
        WHERE name ~ %(pattern)s GROUP BY name ORDER BY name
        """,
        {"kept": KEPT, "pattern": f"^{_prefix(maintenance)}[0-9a-f]{{12}}$"},
    ).fetchall()
    dropped = []
    for name, is_kept in rows:
        key = (lock_key(name),)
        if is_kept == kept and maintenance.execute(
            "SELECT pg_try_advisory_lock(%s)", key
        ).fetchone() == (True,):
            # Its owner may have kept it, or dropped it, since the list was read; IF EXISTS covers both.
            # Another user's orphan is not ours to drop.
            with contextlib.suppress(psycopg.Error, DatabaseProblem):
                drop(server, maintenance, name)
                dropped.append(name)
            maintenance.execute("SELECT pg_advisory_unlock(%s)", key)
    return dropped


def drop(server: Server, maintenance: psycopg.Connection[Any], name: str) -> None:
    """Drop a laboratory's database and learner role, whatever still uses them; absent ones are no error."""
    prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE database = %s"
    if maintenance.execute(prepared, (name,)).fetchone() != (0,):
        with connect(server.admin, dbname=name) as inside:  # they can be ended only from there
            roll_back_prepared(inside, f"{name}_learner")
    statement = "DROP DATABASE IF EXISTS {} WITH (FORCE)"
    maintenance.execute(sql.SQL(statement).format(sql.Identifier(name)))
    maintenance.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(f"{name}_learner")))


def roll_back_prepared(connection: psycopg.Connection[Any], learner: str) -> None:
    """Roll back the learner's prepared transactions in the connection's database.

    Done in the learner's role, because another's may be rolled back by a superuser only.
    """
    rows = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND owner = %s",
        (learner,),
    ).fetchall()
    connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(learner)))
    for (name,) in rows:
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))
    connection.execute("RESET ROLE")
