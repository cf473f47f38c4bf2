"""The laboratory: clean for every run, gone afterwards, and harmless to its neighbours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors

from harness import limits
from harness.database import (
    TABLES,
    DatabaseProblem,
    DeadlineExpired,
    Laboratory,
    Server,
    drop_kept,
    open_laboratory,
    open_server,
    psql_kept,
)
from harness.postgres.sources import connect
from harness.waiting import wait_until

Connection = psycopg.Connection[Any]


def learner(laboratory: Laboratory) -> Connection:
    upstream = laboratory.server.upstream
    dsn = laboratory.learner_dsn(upstream.host, upstream.port)
    return psycopg.connect(dsn, autocommit=True)


def databases(server: Server) -> set[str]:
    """Return every laboratory of which a database or a role exists."""
    with connect(server.admin) as connection:
        rows = connection.execute(
            "SELECT datname::text FROM pg_database WHERE datname ~ '^lab_'"
            " UNION SELECT replace(rolname, '_learner', '') FROM pg_roles WHERE rolname ~ '^lab_'"
        )
        return {name for (name,) in rows}


# --- clear ----------------------------------------------------------------------------------------


def test_clear_leaves_no_row_and_restarts_the_numbers(laboratory: Laboratory) -> None:
    for _ in range(2):
        laboratory.clear()
        with learner(laboratory) as client:
            client.execute("INSERT INTO orders VALUES (1, 'north', 1)")
            client.execute("INSERT INTO jobs VALUES ('job', 'north', 1)")
            client.execute("INSERT INTO job_items VALUES ('job', 0, 1, 1, 1)")
            client.execute("INSERT INTO job_audit VALUES ('job', 0, 1, 1, 2, 1)")
            client.execute("INSERT INTO parent_work (parent_id) VALUES ('p')")
            child = client.execute(
                "INSERT INTO child_work (parent_id, sequence) VALUES ('p', 0) RETURNING child_id"
            ).fetchone()
            client.execute("INSERT INTO subjects VALUES ('maths')")
            client.execute(
                "INSERT INTO event_effects (parent_id, sequence, subject, occurred_at)"
                " VALUES ('p', 0, 'maths', now())"
            )
        assert child == (1,)
    laboratory.clear()
    for table in (*TABLES, "witness.change", "witness.commit_setting"):
        assert laboratory.control.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)  # type: ignore[arg-type]


def test_clear_truncates_after_many_rows(
    clean: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLEAR_ROWS_MAX", 50)
    fill = "INSERT INTO subjects SELECT n::text FROM generate_series(1, 60) n"
    sizes = set()
    for _ in range(
        2
    ):  # deleting leaves the pages, truncating does not; every second turn truncates
        clean.control.execute(fill)
        clean.clear()
        sizes |= set(clean.control.execute("SELECT pg_relation_size('subjects') > 0").fetchall())
        for table in ("subjects", "witness.change"):
            assert clean.control.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)  # type: ignore[arg-type]
    assert sizes == {(True,), (False,)}


def test_clear_ends_a_session_that_holds_locks(clean: Laboratory) -> None:
    client = learner(clean)
    client.execute("BEGIN")
    client.execute("LOCK TABLE orders")
    assert [row.state for row in clean.learner_sessions()] == ["idle in transaction"]
    clean.clear()
    assert clean.learner_sessions() == []
    with pytest.raises(psycopg.OperationalError):
        client.execute("SELECT 1")
    client.close()


def test_clear_rolls_back_a_prepared_transaction(clean: Laboratory) -> None:
    with learner(clean) as client:
        client.execute("BEGIN")
        client.execute("INSERT INTO subjects VALUES ('maths')")
        client.execute("PREPARE TRANSACTION 'it''s {odd}'")
    clean.clear()
    rows = clean.control.execute(
        "SELECT * FROM pg_prepared_xacts WHERE database = %s", (clean.name,)
    )
    assert rows.fetchall() == []
    assert clean.learner_sessions() == []


def test_clear_takes_back_defaults_that_the_learner_gave_itself(clean: Laboratory) -> None:
    with learner(clean) as client:
        client.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        client.execute("ALTER ROLE CURRENT_USER SET lock_timeout = 0")
    clean.clear()
    with learner(clean) as client:
        assert client.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert client.execute("SHOW lock_timeout").fetchone() == ("8s",)


# --- questions --------------------------------------------------------------------------------------


def test_xact_status_tells_the_truth_from_any_thread(clean: Laboratory) -> None:
    with learner(clean) as client:
        seen: list[str] = []

        def ask(xid: int) -> str:
            thread = threading.Thread(target=lambda: seen.append(clean.xact_status(xid)))
            thread.start()
            thread.join()
            return seen[-1]

        for ending, expected in (("COMMIT", "committed"), ("ROLLBACK", "aborted")):
            client.execute("BEGIN")
            row = client.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
            assert row is not None
            assert ask(row[0]) == "in progress"
            client.execute(ending)  # type: ignore[arg-type]
            assert ask(row[0]) == expected


def test_xact_status_answers_while_control_is_in_a_transaction(clean: Laboratory) -> None:
    with clean.control.transaction():
        row = clean.control.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
        assert clean.xact_status(row[0]) == "in progress"


def test_waiting_for_a_backend_that_stays_says_what_it_does(clean: Laboratory) -> None:
    with learner(clean) as client:
        client.execute("SELECT 'a query to recognise'")
        with pytest.raises(DeadlineExpired, match="a query to recognise"):
            clean.wait_backends_gone([client.info.backend_pid], wait_s=0.05)
        pid = client.info.backend_pid
    clean.wait_backends_gone([pid])
    assert clean.learner_sessions() == []


def test_sessions_are_shown_with_their_advisory_locks(clean: Laboratory) -> None:
    with learner(clean) as client:
        client.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
        (row,) = clean.learner_sessions()
        assert (row.pid, row.state, row.advisory_locks) == (client.info.backend_pid, "idle", 2)


def test_the_watchdogs_stand_on_the_learner_role(clean: Laboratory) -> None:
    with learner(clean) as client:
        for name, value in (
            ("lock_timeout", limits.LEARNER_LOCK_TIMEOUT_MS),
            ("idle_in_transaction_session_timeout", limits.LEARNER_IDLE_TRANSACTION_MS),
            ("client_connection_check_interval", 20),
        ):
            assert client.execute(
                "SELECT setting::int FROM pg_settings WHERE name = %s", (name,)
            ).fetchone() == (value,)


def test_the_address_of_a_client_survives_odd_characters(clean: Laboratory) -> None:
    dsn = clean.learner_dsn("/tmp/a b/ö", 6543, application_name="the first client")
    fields = psycopg.conninfo.conninfo_to_dict(dsn)
    assert fields["host"] == "/tmp/a b/ö"
    assert fields["application_name"] == "the first client"
    assert (fields["sslmode"], fields["gssencmode"]) == ("disable", "disable")


def test_psql_opens_as_the_learner(clean: Laboratory) -> None:
    command, environment = clean.psql()
    done = subprocess.run(
        [*command, "-XAtc", "SELECT current_user, count(*) FROM orders"],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == (f"{clean.learner}|0", "")


def test_a_shared_server_is_not_crashed(clean: Laboratory) -> None:
    with pytest.raises(DatabaseProblem, match="only a private embedded server"):
        clean.crash()


# --- what is left behind ----------------------------------------------------------------------------


def test_a_closed_laboratory_leaves_nothing(server: Server) -> None:
    with open_laboratory(server) as laboratory:
        assert laboratory.name in databases(server)
        with learner(laboratory) as client:
            client.execute("BEGIN")
            client.execute("INSERT INTO subjects VALUES ('maths')")
            client.execute("PREPARE TRANSACTION 'left over'")
            stays_open = learner(laboratory)
    assert laboratory.name not in databases(server)
    stays_open.close()


def test_a_kept_laboratory_stays_until_it_is_dropped(server: Server) -> None:
    with open_laboratory(server, keep=True) as kept:
        kept.control.execute("INSERT INTO subjects VALUES ('maths')")
    with open_laboratory(server):  # sweeps orphans, and this is none
        pass
    assert kept.name in databases(server)
    command, environment = psql_kept(server, kept.name)
    done = subprocess.run(
        [*command, "-XAtc", "SELECT op FROM witness.change"],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "insert\n"
    assert kept.name in drop_kept(server)
    assert kept.name not in databases(server)


_HARNESS = """
import sys, time
from harness.database import open_laboratory, open_server
import psycopg
with open_server() as server, open_laboratory(server) as laboratory:
    dsn = laboratory.learner_dsn(server.upstream.host, server.upstream.port)
    client = psycopg.connect(dsn, autocommit=True)
    client.execute("BEGIN; INSERT INTO subjects VALUES ('maths'); PREPARE TRANSACTION 'orphan'")
    client.execute("BEGIN; LOCK TABLE orders")
    print(laboratory.name, flush=True)
    sys.stdin.read()
"""


def start_harness() -> tuple[subprocess.Popen[str], str]:
    """Start another harness with a laboratory of its own; return it and the database's name."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HARNESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_killed_harness_leaves_an_orphan_that_the_next_one_drops(server: Server) -> None:
    if server.source == "docker":
        pytest.skip("every harness has a container of its own")
    process, name = start_harness()
    with process:
        assert name in databases(server)
        with open_laboratory(server):
            assert name in databases(server), "a living harness lost its database"
        process.send_signal(signal.SIGKILL)
    with connect(server.admin) as connection:
        question = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        wait_until(lambda: connection.execute(question, (name,)).fetchone() == (0,),
                   "the killed harness's sessions are gone", wait_s=10)  # fmt: skip
    with open_laboratory(server):
        assert name not in databases(server)


def test_two_harnesses_at_once_do_not_disturb_one_another(server: Server) -> None:
    with open_laboratory(server) as one, open_laboratory(server) as two:
        with learner(one) as client:
            client.execute("INSERT INTO subjects VALUES ('maths')")
            two.clear()
            assert client.execute("SELECT count(*) FROM subjects").fetchone() == (1,)
        upstream = server.upstream
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(one.learner_dsn(upstream.host, upstream.port), dbname=two.name)


def test_a_server_that_vanished_does_not_hide_the_first_error() -> None:
    def work_and_fail() -> None:
        with open_server(private=True) as server, open_laboratory(server) as laboratory:
            data = laboratory.control.execute("SHOW data_directory").fetchone()
            assert data is not None
            os.kill(int(Path(data[0], "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work_and_fail()


# --- a crash --------------------------------------------------------------------------------------


def test_a_crash_keeps_what_was_committed_for_sure_and_loses_what_was_not() -> None:
    """
    Scenario: one commit with synchronous_commit on, one with off, then the server crashes.

    Outcome: the first is there and the second is lost, the locks of the dead sessions are gone, and
    the laboratory works on.
    """
    with open_server(private=True) as server, open_laboratory(server) as laboratory:
        pid = laboratory.control.info.backend_pid
        with learner(laboratory) as client:
            client.execute("INSERT INTO subjects VALUES ('sure')")
            client.execute("SET synchronous_commit = off")
            client.execute("INSERT INTO subjects VALUES ('doubtful')")
            laboratory.crash()
        assert laboratory.control.info.backend_pid != pid
        assert laboratory.control.execute("TABLE subjects").fetchall() == [("sure",)]
        assert laboratory.control.execute("SELECT new->>'subject' FROM witness.change").fetchall() == [("sure",)]  # fmt: skip
        laboratory.clear()
        with learner(laboratory) as client:
            client.execute("INSERT INTO orders VALUES (1, 'north', 1)")
            with pytest.raises(errors.InsufficientPrivilege):
                client.execute("TABLE witness.change")
        with open_laboratory(server):
            assert laboratory.name in databases(server), "the crash lost the advisory lock"
