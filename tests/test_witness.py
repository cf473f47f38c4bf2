"""The witness sees every committed change, and the learner's role cannot touch it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from harness.database import TABLES, Laboratory

Connection = psycopg.Connection[Any]


@pytest.fixture
def learner(clean: Laboratory) -> Iterator[Connection]:
    """A connection of the learner's role, straight to the server."""
    upstream = clean.server.upstream
    dsn = clean.learner_dsn(upstream.host, upstream.port)
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def orders(clean: Laboratory) -> None:
    """Four pending orders and a job of them, with nothing in the witness."""
    with clean.control.transaction():
        clean.control.execute("SET LOCAL witness.quiet = 'on'")
        clean.control.execute(
            "INSERT INTO orders SELECT n, 'north', n, 'pending', 1 FROM generate_series(1, 4) n"
        )
        clean.control.execute("INSERT INTO jobs VALUES ('job', 'north', 2, 0)")


def changes(laboratory: Laboratory, columns: str = "tbl, op") -> list[tuple[Any, ...]]:
    return laboratory.control.execute(
        f"SELECT {columns} FROM witness.change ORDER BY seq"  # type: ignore[arg-type]
    ).fetchall()


def notices(connection: Connection) -> list[tuple[str, str, str]]:
    """Collect from now on the table, the change and the transaction of each announcement."""
    seen: list[tuple[str, str, str]] = []

    def hear(diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == "LB001":
            assert diagnostic.schema_name == "lab"
            assert diagnostic.severity_nonlocalized == "INFO"
            seen.append(
                (
                    str(diagnostic.table_name),
                    str(diagnostic.constraint_name),
                    str(diagnostic.message_detail),
                )
            )

    connection.add_notice_handler(hear)
    return seen


# --- what it records ------------------------------------------------------------------------------


@pytest.mark.usefixtures("orders")
def test_a_change_is_recorded_with_its_transaction_and_its_rows(
    clean: Laboratory, learner: Connection
) -> None:
    seen = notices(learner)
    with learner.transaction():
        xid = learner.execute("SELECT pg_current_xact_id()::text").fetchone()
        with learner.transaction():  # a savepoint: the rows' own xmin is now another number
            learner.execute(
                "UPDATE orders SET state = 'cancelled', revision = 2 WHERE order_id = 3"
            )
    assert xid is not None
    assert seen == [("orders", "update:1", xid[0])]
    (row,) = changes(
        clean, "xid::text, backend_pid, tbl, op, old->>'state', new->>'state', new->>'order_id'"
    )
    assert row == (
        xid[0], learner.info.backend_pid, "orders", "update", "pending", "cancelled", "3",
    )  # fmt: skip


@pytest.mark.usefixtures("orders")
def test_every_table_has_its_four_triggers_always_enabled(clean: Laboratory) -> None:
    rows = clean.control.execute(
        """
        SELECT c.relname, array_agg(t.tgname::text ORDER BY t.tgname), bool_and(t.tgenabled = 'A')
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE NOT t.tgisinternal GROUP BY c.relname
        """
    ).fetchall()
    assert {name for name, _, _ in rows} == set(TABLES)
    for name, triggers, always in rows:
        wanted = {"witness_insert", "witness_update", "witness_delete", "witness_truncate"}
        assert set(triggers) == wanted | ({"witness_commit"} if name == "jobs" else set())
        assert always


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("statement", "announced"),
    [
        ("UPDATE orders SET revision = revision + 1 WHERE order_id <= 3", ["orders update:3"]),
        ("UPDATE orders SET order_id = order_id + 100", ["orders update:4"]),
        ("UPDATE orders SET revision = 2 WHERE order_id = 99", []),
        ("UPDATE orders SET revision = revision", []),
        ("UPDATE orders SET qty = 2 WHERE order_id <= 2", ["orders update:1"]),
        ("DELETE FROM orders WHERE order_id = 1", ["orders delete:1"]),
        ("DELETE FROM orders WHERE false", []),
        ("INSERT INTO orders VALUES (7, 'north', 1), (8, 'north', 1)", ["orders insert:2"]),
        (
            "INSERT INTO orders VALUES (1, 'north', 9), (9, 'north', 1)"
            " ON CONFLICT (order_id) DO UPDATE SET qty = excluded.qty",
            ["orders insert:1", "orders update:1"],
        ),
        ("INSERT INTO orders VALUES (1, 'north', 9) ON CONFLICT DO NOTHING", []),
        ("SELECT * FROM orders FOR UPDATE", []),
        (
            "WITH o AS (UPDATE orders SET revision = 2 WHERE order_id = 1 RETURNING 1),"
            " a AS (INSERT INTO job_audit VALUES ('job', 0, 1, 1, 2, 1) RETURNING 1)"
            " UPDATE jobs SET next_index = 1",
            ["job_audit insert:1", "jobs update:1", "orders update:1"],
        ),
        (
            "DO $$ begin update orders set revision = 2; update jobs set next_index = 2; end $$",
            ["jobs update:1", "orders update:4"],
        ),
    ],
)
def test_a_statement_announces_the_rows_that_it_changed(
    clean: Laboratory, learner: Connection, statement: str, announced: list[str]
) -> None:
    seen = notices(learner)
    learner.execute("SET client_min_messages = error")
    learner.execute(statement)  # type: ignore[arg-type]
    assert sorted(f"{table} {change}" for table, change, _ in seen) == announced
    rows = changes(clean, "tbl || ' ' || op")
    assert len(rows) == sum(int(text.rsplit(":")[1]) for text in announced)


@pytest.mark.usefixtures("orders")
def test_merge_is_recorded_by_what_it_did(clean: Laboratory, learner: Connection) -> None:
    if clean.server.version < 150000:
        pytest.skip("MERGE came with PostgreSQL 15")
    learner.execute(
        "MERGE INTO orders o USING (VALUES (1), (50)) AS s (id) ON o.order_id = s.id"
        " WHEN MATCHED THEN UPDATE SET revision = 2"
        " WHEN NOT MATCHED THEN INSERT VALUES (50, 'north', 1)"
    )
    rows = changes(clean, "op, old->>'order_id', new->>'order_id'")
    assert sorted(rows) == [("insert", None, "50"), ("update", "1", "1")]


@pytest.mark.usefixtures("orders")
def test_a_copy_is_recorded(clean: Laboratory, learner: Connection) -> None:
    with learner.cursor().copy("COPY subjects FROM STDIN") as copy:
        copy.write("maths\nphysics\n")
    assert changes(clean, "tbl, op, new->>'subject'") == [
        ("subjects", "insert", "maths"), ("subjects", "insert", "physics"),
    ]  # fmt: skip


@pytest.mark.usefixtures("orders")
def test_old_and_new_of_one_row_stay_together_in_a_large_update(
    clean: Laboratory, learner: Connection
) -> None:
    with learner.transaction():
        learner.execute("SET LOCAL work_mem = '64kB'")  # the transition tables go to disk
        learner.execute("INSERT INTO orders SELECT n, 'south', 1 FROM generate_series(100, 5099) n")
        learner.execute("UPDATE orders SET order_id = -order_id WHERE tenant = 'south'")
    rows = clean.control.execute(
        "SELECT count(*), bool_and((old->>'order_id')::int = -(new->>'order_id')::int)"
        " FROM witness.change WHERE op = 'update'"
    ).fetchone()
    assert rows == (5000, True)


@pytest.mark.usefixtures("orders")
def test_what_rolls_back_leaves_no_record(clean: Laboratory, learner: Connection) -> None:
    seen = notices(learner)
    with learner.transaction() as outer:
        learner.execute("UPDATE orders SET revision = 2 WHERE order_id = 1")
        with learner.transaction() as inner:
            learner.execute("UPDATE orders SET revision = 2 WHERE order_id = 2")
            raise psycopg.Rollback(inner)
    assert [row[0] for row in changes(clean, "old->>'order_id'")] == ["1"]
    with learner.transaction() as outer:
        learner.execute("UPDATE orders SET revision = 2 WHERE order_id = 3")
        raise psycopg.Rollback(outer)
    assert len(changes(clean)) == 1
    assert len(seen) == 3  # the wire log still knows of all three


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("setting", ["on", "off", "local"])
def test_the_setting_at_commit_is_recorded(
    clean: Laboratory, learner: Connection, setting: str
) -> None:
    with learner.transaction():
        learner.execute("UPDATE jobs SET next_index = 1")
        learner.execute("UPDATE jobs SET next_index = 2")
        learner.execute(f"SET LOCAL synchronous_commit = {setting}")  # type: ignore[arg-type]
    assert clean.control.execute(
        "SELECT s.synchronous_commit, count(*) FROM witness.commit_setting s"
        " JOIN witness.change USING (xid) GROUP BY 1"
    ).fetchall() == [(setting, 2)]


@pytest.mark.usefixtures("orders")
def test_an_early_look_at_constraints_does_not_fix_the_setting(
    clean: Laboratory, learner: Connection
) -> None:
    """Whoever lets the deferred trigger fire early and then turns the setting off shows up at the next update."""
    with learner.transaction():
        learner.execute("UPDATE jobs SET next_index = 1")
        learner.execute("SET CONSTRAINTS ALL IMMEDIATE")
        learner.execute("SET LOCAL synchronous_commit = off")
        learner.execute("UPDATE jobs SET next_index = 2")
    assert clean.control.execute("SELECT synchronous_commit FROM witness.commit_setting").fetchall() == [("off",)]  # fmt: skip


def test_the_harness_can_be_quiet_for_itself_and_a_client_cannot(
    clean: Laboratory, learner: Connection
) -> None:
    learner.execute("SET witness.quiet = 'on'")
    learner.execute("INSERT INTO subjects VALUES ('maths')")
    assert changes(clean) == [("subjects", "insert")]
    clean.control.execute("DELETE FROM subjects")
    assert changes(clean) == [("subjects", "insert"), ("subjects", "delete")]
    with clean.control.transaction():
        clean.control.execute("SET LOCAL witness.quiet = 'on'")
        clean.control.execute("INSERT INTO subjects VALUES ('maths')")
    assert len(changes(clean)) == 2


def test_a_truncate_by_the_owner_is_recorded(clean: Laboratory) -> None:
    clean.control.execute("TRUNCATE subjects")
    assert changes(clean) == [("subjects", "truncate")]


@pytest.mark.usefixtures("orders")
def test_temporary_tables_of_the_same_names_change_nothing(
    clean: Laboratory, learner: Connection
) -> None:
    for name in ("change", "old_rows", "new_rows", "commit_setting"):
        learner.execute(f"CREATE TEMP TABLE {name} (LIKE lab.orders)")  # type: ignore[arg-type]
    learner.execute("SET search_path = pg_temp, lab, pg_catalog")
    learner.execute("UPDATE lab.orders SET revision = 2 WHERE order_id = 1")
    assert changes(clean, "op, new->>'revision'") == [("update", "2")]
    learner.execute("CREATE TEMP TABLE orders (order_id bigint, revision int)")
    learner.execute("INSERT INTO orders VALUES (1, 1)")  # the temporary one: no business of ours
    assert len(changes(clean)) == 1


# --- what the learner's role may not do -------------------------------------------------------------

_FORBIDDEN = {
    # the witness itself
    "read it": "SELECT * FROM witness.change",
    "read the settings": "TABLE witness.commit_setting",
    "write it": "INSERT INTO witness.change (tbl, op) VALUES ('orders', 'update')",
    "change it": "UPDATE witness.change SET tbl = 'x'",
    "empty it": "DELETE FROM witness.change",
    "truncate it": "TRUNCATE witness.change",
    "lock it": "BEGIN; LOCK TABLE witness.change IN ACCESS EXCLUSIVE MODE",
    "drop it": "DROP SCHEMA witness CASCADE",
    "copy it": "COPY witness.change TO STDOUT",
    "read its sequence": "SELECT last_value FROM witness.change_seq_seq",
    "turn its sequence": "SELECT setval('witness.change_seq_seq', 1000000)",
    "call a trigger function": "SELECT witness.on_update()",
    "announce something": "SELECT witness.announce('orders', 'update', 1)",
    "use its function": "CREATE TEMP TABLE t (i int);"
    " CREATE TRIGGER x AFTER UPDATE ON t EXECUTE FUNCTION witness.on_update()",
    "replace a trigger function": "CREATE OR REPLACE FUNCTION witness.on_update() RETURNS trigger"
    " LANGUAGE plpgsql AS 'begin return null; end'",
    "rewrite a trigger function": "ALTER FUNCTION witness.on_update() SECURITY INVOKER",
    # the triggers
    "disable triggers": "ALTER TABLE orders DISABLE TRIGGER ALL",
    "drop a trigger": "DROP TRIGGER witness_update ON orders",
    "rename a trigger": "ALTER TRIGGER witness_update ON orders RENAME TO x",
    "play a replica": "SET session_replication_role = replica",
    "add a trigger": "CREATE TRIGGER x BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "add a rule": "CREATE RULE x AS ON UPDATE TO orders DO INSTEAD NOTHING",
    "truncate a table": "TRUNCATE orders",
    "change a table": "ALTER TABLE orders ADD COLUMN x int",
    "inherit from a table": "CREATE TEMP TABLE heir () INHERITS (lab.orders)",
    "drop a table": "DROP TABLE orders CASCADE",
    "protect a table": "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
    # new things
    "function in public": "CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'select 1'",
    "function in lab": "CREATE FUNCTION lab.f() RETURNS int LANGUAGE sql AS 'select 1'",
    "table in public": "CREATE TABLE public.orders (i int)",
    "table in lab": "CREATE TABLE lab.x (i int)",
    "schema": "CREATE SCHEMA mine",
    "database": "CREATE DATABASE mine",
    "role": "CREATE ROLE mine",
    "extension": "DROP EXTENSION plpgsql CASCADE",
    "event trigger": "CREATE EVENT TRIGGER x ON sql_drop EXECUTE FUNCTION witness.on_truncate()",
    # other identities
    "be the owner": "SET ROLE {owner}",
    "be the owner for the session": "SET SESSION AUTHORIZATION {owner}",
    "be a superuser": "ALTER ROLE {learner} SUPERUSER",
    "grant itself the owner": "GRANT {owner} TO {learner}",
    "grant itself the witness": "GRANT ALL ON ALL TABLES IN SCHEMA witness TO {learner}",
    "change the owner's password": "ALTER ROLE {owner} PASSWORD 'x'",
    # the machine and the server
    "read passwords": "SELECT * FROM pg_authid",
    "read a file": "SELECT pg_read_file('PG_VERSION')",
    "list files": "SELECT pg_ls_dir('.')",
    "read a file as a large object": "SELECT lo_import('PG_VERSION')",
    "write a file": "COPY orders TO '/tmp/interrupted-orders'",
    "run a program": "COPY orders TO PROGRAM 'true'",
    "change the server": "ALTER SYSTEM SET fsync = on",
    "change the database": "ALTER DATABASE {database} SET search_path = public",
    "reload the server": "SELECT pg_reload_conf()",
    "choose the victim of a deadlock": "SET deadlock_timeout = '1ms'",
    "end other sessions": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{owner}'",
}


@pytest.mark.parametrize("statement", _FORBIDDEN.values(), ids=_FORBIDDEN.keys())
def test_the_learner_may_not(clean: Laboratory, learner: Connection, statement: str) -> None:
    owner = clean.server.admin["user"]
    text = statement.format(owner=owner, learner=clean.learner, database=clean.name)
    with pytest.raises(errors.InsufficientPrivilege):
        learner.execute(text)  # type: ignore[arg-type]


def test_the_learner_reaches_no_other_database(clean: Laboratory) -> None:
    upstream = clean.server.upstream
    dsn = clean.learner_dsn(upstream.host, upstream.port)
    for name in ("postgres", "template1"):
        if clean.server.source == "url":
            pytest.skip("who may enter the databases of a given server is its owner's affair")
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(dsn, dbname=name)


def test_the_learner_needs_its_password(clean: Laboratory) -> None:
    if clean.server.source == "url":
        pytest.skip("how a given server checks passwords is its owner's affair")
    upstream = clean.server.upstream
    dsn = clean.learner_dsn(upstream.host, upstream.port)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(dsn, password="guessed")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(dsn, user=clean.server.admin["user"])


def test_the_learner_owns_nothing_and_is_in_no_role(clean: Laboratory) -> None:
    assert clean.control.execute(
        """
        SELECT (SELECT count(*) FROM pg_class WHERE relowner = r.oid)
             + (SELECT count(*) FROM pg_proc WHERE proowner = r.oid)
             + (SELECT count(*) FROM pg_namespace WHERE nspowner = r.oid)
             + (SELECT count(*) FROM pg_database WHERE datdba = r.oid)
             + (SELECT count(*) FROM pg_auth_members WHERE member = r.oid)
        FROM pg_roles r WHERE rolname = %s
        """,
        (clean.learner,),
    ).fetchone() == (0,)
    assert clean.control.execute(
        "SELECT rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls, rolcanlogin"
        " FROM pg_roles WHERE rolname = %s",
        (clean.learner,),
    ).fetchone() == (False, False, False, False, False, True)


def test_a_learner_that_owns_functions_of_its_own_cannot_lend_them_to_the_witness(
    clean: Laboratory, learner: Connection
) -> None:
    """A temporary operator or function is never found by the names that the witness uses."""
    learner.execute("INSERT INTO subjects VALUES ('maths')")
    learner.execute(
        "CREATE FUNCTION pg_temp.to_jsonb(r lab.subjects) RETURNS jsonb LANGUAGE sql"
        " AS $$ select '\"forged\"'::jsonb $$"
    )
    learner.execute("SET search_path = pg_temp, lab")
    learner.execute("UPDATE lab.subjects SET subject = 'physics'")
    assert changes(clean, "new->>'subject'") == [("maths",), ("physics",)]
