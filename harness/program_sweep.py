"""Any program in any language under the same sweep: three files of yours, and no line of ours in them.

    lab sweep --setup setup.sql --check check.sql -- python batch.py

* the *setup* makes the tables and their first rows, before every run;
* the *program* finds the database in DATABASE_URL and does its work; it is killed at every boundary
  and started again until it exits with 0;
* the *check* is a query that returns one row for every violation; no rows means all is well.

The tables live in schema `public` of a database made for this sweep; the role that the program logs
in as owns them. Watchers (the witness's triggers) are put on each table, so that a fault can be
placed by meaning (``kill@orders.update#2``) and a failure can be told by transactions. What the
setup or the program calls COMMIT is looked at from outside, by the server's own word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from harness import limits
from harness.activity import Activity
from harness.client import ClientLimits
from harness.database import Laboratory
from harness.healthy import COMPLETE, Heard, describe_exit
from harness.records import Change, Evidence, Finding, Stop
from harness.workshop import Actor, Scene, Workshop

#: What a program of somebody else may use.
PROGRAM_LIMITS = ClientLimits(
    wall_s=limits.PROGRAM_WALL_S,
    cpu_s=limits.PROGRAM_WALL_S,
    memory_bytes=limits.PROGRAM_MEMORY_BYTES,
    processes=limits.PROGRAM_PROCESSES,
)


class ScriptProblem(Exception):
    """The setup or the check is no good; the text says which, and what the server said."""


@dataclass(frozen=True)
class Foreign:
    """Somebody's program with its setup and check. `resume` is what is started after a kill."""

    setup: str
    check: str
    command: tuple[str, ...]
    resume: tuple[str, ...]
    cwd: Path

    @property
    def name(self) -> str:
        """Return the command as one line, the program without its folder."""
        return " ".join([Path(self.command[0]).name, *self.command[1:]])


@dataclass(frozen=True)
class Command:
    """The work of somebody's program: one start of a command."""

    words: tuple[str, ...]

    def start(
        self,
        scene: Scene,
        impl: Path,
        scenario: Any,
        *,
        stop: Stop | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start the command in the folder that `lab` was called in."""
        return scene.command(self.words, scenario.cwd, stop=stop, limits=PROGRAM_LIMITS)

    def heard(self, actor: Actor) -> Heard:
        """Return how the command ended and what it printed."""
        ended = actor.client.wait()
        return Heard(exit=ended, lines=actor.client.lines())


def foreign_activity(workshop: Workshop, foreign: Foreign, resumes: int) -> Activity:
    """Return the activity that a sweep puts under fault, and make the workshop's database fit for it.

    Args:
        resumes: How many clients may try to finish after a kill.

    Raises:
        ScriptProblem: If setup or check cannot be run at all.
    """
    laboratory = workshop.laboratory
    _open_public(laboratory)
    prepare(laboratory, foreign)
    violations(laboratory, foreign)
    return Activity(
        lab=0,
        name=foreign.name,
        scenario=foreign,
        work=Command(foreign.command),
        resume=Command(foreign.resume),
        attempts=resumes,
        seed=lambda control, _: prepare(laboratory, foreign),
        inspect=lambda scene: inspect(scene, foreign),
        safety=lambda scenario, evidence: [],
        answers=exits_zero,
        finished=no_violations,
        promise="your check",
    )


# --- the database ---------------------------------------------------------------------------------------


def prepare(laboratory: Laboratory, foreign: Foreign) -> None:
    """Run the setup in an empty schema `public`, as the program's own role, and put watchers on it.

    Raises:
        ScriptProblem: If the server refuses the setup.
    """
    control = laboratory.control
    learner = sql.Identifier(laboratory.learner)
    for (schema,) in control.execute(_OWN_SCHEMAS, (laboratory.learner,)).fetchall():
        control.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    control.execute(sql.SQL("CREATE SCHEMA public AUTHORIZATION {}").format(learner))
    upstream = laboratory.server.upstream
    dsn = laboratory.learner_dsn(upstream.host, upstream.port, application_name="setup")
    try:
        with psycopg.connect(dsn, autocommit=True) as own:
            own.execute(foreign.setup.encode())
    except psycopg.Error as error:
        raise ScriptProblem(f"the setup failed: {str(error).strip()}") from error
    control.execute(_WATCH)


def violations(laboratory: Laboratory, foreign: Foreign) -> tuple[str, ...]:
    """Run the check on a fresh connection and return its rows, a line each.

    Raises:
        ScriptProblem: If the check is no query, or the server refuses it.
    """
    with laboratory.connect() as connection:
        try:
            cursor = connection.execute(foreign.check.encode())
            rows = cursor.fetchall()
        except psycopg.Error as error:
            raise ScriptProblem(f"the check failed: {str(error).strip()}") from error
        names = [column.name for column in cursor.description or ()]
    return tuple(", ".join(f"{n} {v}" for n, v in zip(names, row, strict=True)) for row in rows)


def inspect(scene: Scene, foreign: Foreign) -> Evidence:
    """Read what the watchers recorded, and what the check says."""
    rows = scene.laboratory.control.execute(_CHANGES).fetchall()
    changes = tuple(Change(*row) for row in rows)
    return Evidence(changes=changes, violations=violations(scene.laboratory, foreign))


def _open_public(laboratory: Laboratory) -> None:
    """Let new sessions find schema `public`, which the program's role may fill; `control` keeps `lab`."""
    name, learner = sql.Identifier(laboratory.name), sql.Identifier(laboratory.learner)
    laboratory.control.execute("DROP SCHEMA IF EXISTS public CASCADE")
    for statement in (
        "ALTER DATABASE {} SET search_path = public",
        "GRANT CREATE ON DATABASE {} TO {}",
    ):
        laboratory.control.execute(sql.SQL(statement).format(name, learner))


# --- the judges -----------------------------------------------------------------------------------------


def exits_zero(foreign: Foreign, before: Evidence | None, heard: Heard) -> list[Finding]:
    """The program, left alone, exits with 0."""
    if heard.status == COMPLETE:
        return []
    resumed = before is not None
    return [Finding(
        "liveness",
        "started the program again after the kill" if resumed else "ran the program with no fault",
        "exit status 0",
        describe_exit(heard),
        "What an earlier run left behind stops the next one." if resumed else "",
    )]  # fmt: skip


def no_violations(foreign: Foreign, evidence: Evidence) -> list[Finding]:
    """The user's own check returns no rows once the program has exited with 0."""
    if not evidence.violations:
        return []
    shown = evidence.violations[: limits.VIOLATIONS_SHOWN]
    more = len(evidence.violations) - len(shown)
    seen = "\n".join(shown) + (f"\nand {more} more" if more else "")
    return [Finding("your check", "let the program finish and ran the check", "no rows", seen)]


_OWN_SCHEMAS = """
    SELECT nspname FROM pg_namespace JOIN pg_roles r ON r.oid = nspowner WHERE rolname = %s
"""
_CHANGES = """
    SELECT seq, xid::text::bigint, backend_pid, tbl, op, old, new, synchronous_commit
    FROM witness.change ORDER BY seq
"""
#: The triggers of witness.sql on every table that the setup made. TRUNCATE and rows alike.
_WATCH = """
do $$
declare t regclass; name text;
begin
    for t in select c.oid from pg_class c where relkind in ('r', 'p')
             and relowner <> (select nspowner from pg_namespace where nspname = 'witness')
             and relnamespace not in ('lab'::regnamespace, 'witness'::regnamespace)
             and relnamespace::regnamespace::text !~ '^pg_' loop
        execute format('create trigger witness_insert after insert on %s
            referencing new table as new_rows execute function witness.on_insert()', t);
        execute format('create trigger witness_update after update on %s
            referencing old table as old_rows new table as new_rows execute function witness.on_update()', t);
        execute format('create trigger witness_delete after delete on %s
            referencing old table as old_rows execute function witness.on_delete()', t);
        execute format('create trigger witness_truncate after truncate on %s
            execute function witness.on_truncate()', t);
        foreach name in array array['insert', 'update', 'delete', 'truncate'] loop
            execute format('alter table %s enable always trigger %I', t, 'witness_' || name);
        end loop;
    end loop;
end $$
"""
