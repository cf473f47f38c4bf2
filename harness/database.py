"""The laboratory: one clean database for one harness process, and the roles around it.

    owner      the harness's own user; owns the database, schema `lab` with the given tables, and the
               witness; its password never reaches a client
    learner    made for this laboratory; logs in with a random password, owns nothing, may read and
               write the rows of the lab tables and make temporary tables, and nothing else

Making a database takes long (50 ms) and emptying its tables short (1 ms), so one laboratory serves many
runs, with `clear` between them.

What a killed harness leaves behind is swept by the next one (`orphans.py`).
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from harness import course, limits
from harness.postgres.orphans import KEPT, drop, drop_unheld, lock_key, new_name, roll_back_prepared
from harness.postgres.server import DatabaseProblem, Server
from harness.postgres.sources import (
    SourceReport,
    chosen_source,
    connect,
    inspect_sources,
    open_server,
)
from harness.records import SessionRow
from harness.waiting import DeadlineExpired, wait_until

__all__ = [
    "DatabaseProblem",
    "DeadlineExpired",
    "Laboratory",
    "Server",
    "SourceReport",
    "chosen_source",
    "drop_kept",
    "inspect_sources",
    "open_laboratory",
    "open_server",
    "psql_kept",
]

#: The lab tables, children before their parents, so that they can be emptied in this order.
TABLES = (
    "job_audit", "job_items", "jobs", "orders",
    "event_effects", "child_work", "subjects", "parent_work",
)  # fmt: skip
_WITNESS = Path(__file__).with_name("witness.sql")
_SCHEMA = course.LABS / "schema.sql"


@contextmanager
def open_laboratory(server: Server, *, keep: bool = False) -> Iterator[Laboratory]:
    """Make a clean database with its roles, and drop both afterwards.

    Args:
        server: Where to make it; orphans of killed harnesses are dropped there first.
        keep: Leave database and learner role behind, until `drop_kept`.

    Raises:
        DatabaseProblem: If the database cannot be made, or the learner cannot log in to it.
    """
    with contextlib.ExitStack() as stack:
        maintenance = stack.enter_context(connect(server.admin))
        drop_unheld(server, maintenance, kept=False)
        laboratory = Laboratory(server, new_name(maintenance))
        stack.callback(laboratory.close, keep=keep)
        laboratory.make()
        yield laboratory


def drop_kept(server: Server) -> list[str]:
    """Drop every database that --keep left, and return their names."""
    with connect(server.admin) as maintenance:
        return drop_unheld(server, maintenance, kept=True)


def psql_kept(server: Server, name: str) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that open psql in a kept database, as its owner.

    Raises:
        DatabaseProblem: If there is no psql on this machine.
    """
    return _psql(server, name, server.admin["user"], server.admin.get("password", ""))


class Laboratory:
    """One clean database and its learner role. Made by `open_laboratory`.

    `control` is a connection of the owner in autocommit mode, for seeding and for whatever a rival
    does. The questions `xact_status`, `learner_sessions` and `wait_backends_gone` use another
    connection, so they may be asked from any thread, and while `control` is in a transaction.
    """

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.learner = f"{name}_learner"
        self._password = secrets.token_urlsafe(18)
        self._rows_deleted = 0
        self._hold()

    control: psycopg.Connection[Any]
    _observer: psycopg.Connection[Any]
    _holder: psycopg.Connection[Any]

    # --- for the stages -------------------------------------------------------------------------

    def learner_dsn(self, host: str, port: int, *, application_name: str = "client") -> str:
        """Return the URL with which a client logs in as the learner at `host:port`, the proxy's."""
        options = {
            "sslmode": "disable",
            "gssencmode": "disable",
            "application_name": application_name,
        }
        place = f"{quote(host, safe='')}:{port}/{self.name}"
        return f"postgresql://{self.learner}:{self._password}@{place}?{urlencode(options, quote_via=quote)}"

    def connect(self) -> psycopg.Connection[Any]:
        """Open a fresh connection of the owner, in autocommit mode; the caller closes it."""
        return connect(self.server.admin, dbname=self.name)

    def xact_status(self, xid: int) -> str:
        """Return 'in progress', 'committed' or 'aborted'; 'unknown' for one too old to tell."""
        row = self._observer.execute(
            "SELECT pg_xact_status(%s::text::xid8)", (str(xid),), prepare=True
        ).fetchone()
        return str(row[0]) if row is not None and row[0] is not None else "unknown"

    def learner_sessions(self) -> list[SessionRow]:
        """Return the server sessions that the learner's role has open, in the order they began."""
        rows = self._observer.execute(
            """
            SELECT pid, coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(query, ''),
                   (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory')
            FROM pg_stat_activity a WHERE usename = %s ORDER BY backend_start, pid
            """,
            (self.learner,),
        )
        return [SessionRow(*row) for row in rows]

    def wait_backends_gone(
        self, pids: Iterable[int], wait_s: float = limits.BACKEND_GONE_WAIT_S
    ) -> None:
        """Wait until no server process of `pids` is left; its transaction is then over too.

        Raises:
            DeadlineExpired: If one is still there after `wait_s` seconds; the text shows it.
        """
        wanted = list(pids)
        question = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"

        def gone() -> bool:
            row = self._observer.execute(question, (wanted,), prepare=True).fetchone()
            return row == (0,)

        wait_until(gone, f"server processes {wanted} are gone", wait_s=wait_s, dump=self._dump)

    def clear(self) -> None:
        """Empty the lab tables and the witness, and end whatever the learner's role left behind.

        Left are no learner session, no prepared transaction, no row and no changed default; numbers
        that the database gives out begin at 1 again. `control` must not be in a transaction.
        """
        sessions, prepared, altered = self._leftovers()
        if sessions:
            self._end_learner_sessions()
        if prepared:
            roll_back_prepared(self.control, self.learner)
        if altered:
            self._give_defaults()
        self.wipe()

    def wipe(self) -> None:
        """Empty the lab tables and the witness; sessions stay. No session may hold a lock on a row."""
        if self._rows_deleted > limits.CLEAR_ROWS_MAX:
            self.control.execute(_TRUNCATE)
            self._rows_deleted = 0
            return
        cursor = self.control.execute(_CLEAR)
        self._rows_deleted += max(cursor.rowcount, 0)
        while cursor.nextset():
            self._rows_deleted += max(cursor.rowcount, 0)

    def psql(self) -> tuple[list[str], dict[str, str]]:
        """Return the command and the environment that open psql here as the learner.

        Raises:
            DatabaseProblem: If there is no psql on this machine.
        """
        return _psql(self.server, self.name, self.learner, self._password)

    def psql_command(self) -> str:
        """Return the line that opens psql in this database after it was kept."""
        return f"uv run lab psql --database {self.name}"

    def crash(self) -> None:
        """Crash the server and start it again: what was not on its way to the disk is lost.

        Every session ends, also `control`, which is a new connection afterwards.

        Raises:
            DatabaseProblem: If the server is not private, or does not come back.
        """
        if self.server.restart is None:
            text = f"only a private embedded server may be crashed, not this: {self.server.description}"
            raise DatabaseProblem(text, "Open the server with private=True.")
        self._disconnect()
        self.server.restart()
        self._hold()
        self._connect()

    # --- for open_laboratory --------------------------------------------------------------------

    def make(self) -> None:
        """Make roles, database, tables and witness; the advisory lock is held already."""
        try:
            self._make_role()
            self._make_database()
            self._connect()
            self.control.execute(_read(_SCHEMA))
            self.control.execute(_read(_WITNESS))
            self._grant()
            self._try_learner_login()
        except psycopg.Error as error:
            text = f"the database for the labs could not be made: {error}"
            raise DatabaseProblem(
                text, "Check the rights of the user in LAB_DATABASE_URL."
            ) from error

    def close(self, *, keep: bool) -> None:
        """Drop database and learner role, or mark them as kept; then let go of the lock.

        A server that is gone by now is no error here: it would hide the first one, and the next
        harness finds an orphan.
        """
        self._disconnect(but_holder=True)
        with contextlib.suppress(psycopg.OperationalError, DatabaseProblem), self._holder as holder:
            if keep:
                statement = sql.SQL("COMMENT ON DATABASE {} IS {}")
                holder.execute(statement.format(sql.Identifier(self.name), sql.Literal(KEPT)))
            else:
                drop(self.server, holder, self.name)

    def _hold(self) -> None:
        self._holder = connect(self.server.admin)
        self._holder.execute("SELECT pg_advisory_lock(%s)", (lock_key(self.name),))

    def _connect(self) -> None:
        self.control = self.connect()
        self._observer = self.connect()

    def _disconnect(self, *, but_holder: bool = False) -> None:
        names = ("control", "_observer") if but_holder else ("control", "_observer", "_holder")
        for name in names:
            if hasattr(self, name):
                getattr(self, name).close()

    def _make_role(self) -> None:
        holder = self._holder
        holder.execute("SET password_encryption = 'scram-sha-256'")
        if self.server.version >= 160000:
            holder.execute(f"SET scram_iterations = {limits.SCRAM_ITERATIONS}")
        holder.execute(
            sql.SQL(
                "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"
                " CONNECTION LIMIT {} PASSWORD {}"
            ).format(
                sql.Identifier(self.learner),
                limits.LEARNER_CONNECTIONS,
                sql.Literal(self._password),
            )
        )
        # An owner that is no superuser may end the learner's sessions only as a member of its role.
        inherit = " WITH INHERIT TRUE" if self.server.version >= 160000 else ""
        row = holder.execute(
            "SELECT rolsuper FROM pg_roles WHERE rolname = session_user"
        ).fetchone()
        if row == (False,):
            grant = sql.SQL("GRANT {} TO CURRENT_USER" + inherit)
            holder.execute(grant.format(sql.Identifier(self.learner)))
        self._give_defaults()

    def _give_defaults(self) -> None:
        role = sql.Identifier(self.learner)
        self._holder.execute(sql.SQL("ALTER ROLE {} RESET ALL").format(role))
        for setting in _LEARNER_DEFAULTS:
            name, value = setting.split("=")
            statement = sql.SQL("ALTER ROLE {} SET {} = {}")
            self._holder.execute(statement.format(role, sql.Identifier(name), sql.Literal(value)))

    def _make_database(self) -> None:
        # template0 is the same everywhere; locale C sorts the same everywhere.
        strategy = " STRATEGY file_copy" if self.server.version >= 150000 else ""
        name, learner = sql.Identifier(self.name), sql.Identifier(self.learner)
        for statement in (
            f"CREATE DATABASE {{}} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'{strategy}",
            "REVOKE ALL ON DATABASE {} FROM public",
            "GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}",
            "ALTER DATABASE {} SET search_path = lab",
        ):
            self._holder.execute(sql.SQL(statement).format(name, learner))
        with self.connect() as first:
            # Before PostgreSQL 15 everybody may create things in `public`. So the tables are not there,
            # and no search_path of ours mentions it.
            first.execute("CREATE SCHEMA lab")
            if self.server.version < 150000:
                first.execute("REVOKE CREATE ON SCHEMA public FROM public")

    def _grant(self) -> None:
        learner = sql.Identifier(self.learner)
        for statement in (
            "GRANT USAGE ON SCHEMA lab TO {}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lab TO {}",
        ):
            self.control.execute(sql.SQL(statement).format(learner))

    def _try_learner_login(self) -> None:
        """Log in as a client will, apart from the proxy: a server that refuses that is no use."""
        upstream = self.server.upstream
        try:
            psycopg.connect(self.learner_dsn(upstream.host, upstream.port)).close()
        except psycopg.Error as error:
            text = f"the learner's role cannot log in without TLS: {str(error).strip()}"
            step = "Allow password logins from here in the server's pg_hba.conf (host or local, scram-sha-256)."
            raise DatabaseProblem(text, step) from error

    # --- leftovers --------------------------------------------------------------------------------

    def _leftovers(self) -> tuple[int, int, bool]:
        """Count the learner's sessions and prepared transactions; tell whether its defaults changed."""
        row = self._observer.execute(
            """
            SELECT (SELECT count(*) FROM pg_stat_activity WHERE usename = %(learner)s),
                   (SELECT count(*) FROM pg_prepared_xacts WHERE database = %(name)s),
                   (SELECT array_agg(s.setconfig::text) FROM pg_db_role_setting s
                    JOIN pg_roles r ON r.oid = s.setrole WHERE r.rolname = %(learner)s)
                   IS DISTINCT FROM ARRAY[%(defaults)s::text[]::text]
            """,
            {"learner": self.learner, "name": self.name, "defaults": list(_LEARNER_DEFAULTS)},
            prepare=True,
        ).fetchone()
        assert row is not None
        sessions, prepared, altered = row
        return sessions, prepared, altered

    def _end_learner_sessions(self) -> None:
        # One more question each time: a client that is still alive may have logged in again.
        def none_left() -> bool:
            rows = self._observer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
                (self.learner,),
            ).fetchall()
            return not rows

        wait_until(none_left, f"no session of {self.learner} is left",
                   wait_s=limits.BACKEND_GONE_WAIT_S, dump=self._dump)  # fmt: skip

    def _dump(self) -> str:
        """Return the sessions of this database and what they wait for, one a line."""
        rows = self._observer.execute(
            """
            SELECT pid, usename, application_name, state, wait_event_type, wait_event,
                   pg_blocking_pids(pid), left(query, 120)
            FROM pg_stat_activity WHERE datname = current_database() ORDER BY backend_start
            """
        )
        return "\n".join(" | ".join(str(value) for value in row) for row in rows)


_LEARNER_DEFAULTS = (
    f"lock_timeout={limits.LEARNER_LOCK_TIMEOUT_MS}",
    f"idle_in_transaction_session_timeout={limits.LEARNER_IDLE_TRANSACTION_MS}",
    "client_connection_check_interval=20",
)
_RESTART_NUMBERS = " ".join(
    f"SELECT setval('{name}', 1, false);"
    for name in ("child_work_child_id_seq", "event_effects_effect_id_seq", "witness.change_seq_seq")
)
_CLEAR = (
    "BEGIN; SET LOCAL witness.quiet = 'on'; "
    + " ".join(f"DELETE FROM {table};" for table in TABLES)
    + f" DELETE FROM witness.change; DELETE FROM witness.commit_setting; {_RESTART_NUMBERS} COMMIT"
)
_TRUNCATE = (
    "BEGIN; SET LOCAL witness.quiet = 'on'; TRUNCATE "
    + ", ".join((*TABLES, "witness.change", "witness.commit_setting"))
    + " RESTART IDENTITY; COMMIT"
)


def _read(path: Path) -> sql.SQL:
    """Return a script of the kit as a statement; `%` in it means nothing without arguments."""
    return sql.SQL(path.read_text(encoding="utf-8").replace("{", "{{").replace("}", "}}"))


def _psql(server: Server, name: str, user: str, password: str) -> tuple[list[str], dict[str, str]]:
    own = server.bin_dir / "psql" if server.bin_dir is not None else None
    program = str(own) if own is not None and own.exists() else shutil.which("psql")
    if program is None:
        raise DatabaseProblem("there is no psql here", "Install PostgreSQL's client programs.")
    place = {
        "PGHOST": server.upstream.host,
        "PGPORT": str(server.upstream.port),
        "PGDATABASE": name,
    }
    return [program], {**place, "PGUSER": user, "PGPASSWORD": password}
