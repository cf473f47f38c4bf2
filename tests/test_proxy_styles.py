"""Every way to talk SQL, and the boundaries that the proxy finds in it.

Each case is a client's code and the boundaries of its life, one line each:
``unit  tag or error  status  points``. They are written down in full, because a sweep kills at each
of them and a point that moves by one would prove something else than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from harness.database import Laboratory
from harness.proxy import Lane, Proxy
from harness.records import POINT_ALIASES, Boundary

Connection = psycopg.Connection[Any]

UPDATE = "update orders set state = 'cancelled', revision = revision + 1 where order_id = "
AUDIT = "insert into job_audit values ('J', {0}, {0} + 1, 1, 2, 5)"
CHECKPOINT = "update jobs set next_index = next_index + 1"
CTE = f"""
    with o as ({UPDATE} 1 returning 1), a as ({AUDIT.format(0)} returning 1)
    {CHECKPOINT} where exists (select from o) and exists (select from a)
"""


@pytest.fixture(scope="module")
def proxy(laboratory: Laboratory) -> Iterator[Proxy]:
    """One proxy before the laboratory's server."""
    with Proxy(laboratory.server.upstream, laboratory.xact_status) as running:
        yield running


@pytest.fixture
def lane(proxy: Proxy, clean: Laboratory) -> Iterator[Lane]:
    """A lane without a stop, before three pending orders and a job over them."""
    clean.control.execute("insert into orders select n, 'T', 5 from generate_series(1, 3) n")
    clean.control.execute("insert into jobs values ('J', 'T', 2)")
    with proxy.lane() as opened:
        yield opened


@pytest.fixture
def conn(lane: Lane, clean: Laboratory) -> Iterator[Connection]:
    """The learner's connection through the lane."""
    with psycopg.connect(clean.learner_dsn(lane.host, lane.port), autocommit=True) as opened:
        yield opened


def line(boundary: Boundary) -> str:
    """Return a boundary as one line of a case."""
    parts = [boundary.unit.value, boundary.tag or boundary.error, boundary.status]
    # Where there is an alias it says enough. Triggers of one statement fire in no promised order.
    points = sorted(set(boundary.points) - set(POINT_ALIASES), key=lambda p: (p == "commit", p))
    return "  ".join(filter(None, (*parts, " ".join(points))))


def run_pipeline(conn: Connection, *statements: str) -> None:
    """Send all statements in one go."""
    with conn.pipeline():
        for statement in statements:
            conn.execute(statement)


# --- the cases ------------------------------------------------------------------------------------

CASES: dict[str, tuple[Callable[[Connection], object], list[str]]] = {}


def case(*expected: str) -> Callable[[Callable[[Connection], object]], object]:
    """Register a client and its boundaries under the function's name."""

    def register(client: Callable[[Connection], object]) -> object:
        CASES[client.__name__.replace("_", " ").strip()] = (client, list(expected))
        return client

    return register


@case("Query  UPDATE 1  I  orders commit")
def autocommit_without_parameters(conn: Connection) -> None:
    conn.execute(UPDATE + "1")


@case("Execute  UPDATE 1  orders", "Sync  I  commit")
def autocommit_with_parameters(conn: Connection) -> None:
    """The Execute is carried out, and only Sync commits it."""
    conn.execute(UPDATE + "%s", (1,))


@case("Query  UPDATE 0  I")
def no_rows_is_no_touch(conn: Connection) -> None:
    conn.execute(UPDATE + "99")


@case("Query  I")
def empty_query(conn: Connection) -> None:
    conn.execute("")


@case(
    "Query  BEGIN  T",
    "Execute  UPDATE 1  orders",
    "Sync  T",
    "Query  INSERT 0 1  T  audit",
    "Query  UPDATE 1  T  checkpoint",
    "Query  COMMIT  I  commit",
)
def one_transaction(conn: Connection) -> None:
    with conn.transaction():
        conn.execute(UPDATE + "%s", (1,))
        conn.execute(AUDIT.format(0))
        conn.execute(CHECKPOINT)


@case("Query  BEGIN  T", "Query  UPDATE 1  T  orders", "Query  ROLLBACK  I")
def rollback_is_no_commit(conn: Connection) -> None:
    with conn.transaction():
        conn.execute(UPDATE + "1")
        raise psycopg.Rollback


@case(
    "Query  BEGIN  T",
    "Query  UPDATE 1  T  orders",
    "Query  22012  E",
    "Query  ROLLBACK  I",
)
def commit_of_a_failed_transaction_is_no_commit(conn: Connection) -> None:
    """COMMIT answers ROLLBACK, without any error."""
    conn.execute("begin")
    conn.execute(UPDATE + "1")
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1/0")
    conn.execute("commit")


@case("Query  BEGIN  T", "Query  UPDATE 1  T  orders", "Query  COMMIT  I  commit")
def end_is_a_commit(conn: Connection) -> None:
    conn.execute("begin")
    conn.execute(UPDATE + "1")
    conn.execute("end")


@case(
    "Query  BEGIN  T",
    "Query  UPDATE 1  T  orders",
    "Query  COMMIT  T  commit",
    "Query  UPDATE 1  T  orders",
    "Query  ROLLBACK  I",
)
def commit_and_chain(conn: Connection) -> None:
    conn.execute("begin")
    conn.execute(UPDATE + "1")
    conn.execute("commit and chain")
    conn.execute(UPDATE + "2")
    conn.execute("rollback")


@case(
    "Query  BEGIN  T",
    "Query  SAVEPOINT  T",
    "Query  UPDATE 1  T  orders",
    "Query  ROLLBACK  T",
    "Query  RELEASE  T",
    "Query  SAVEPOINT  T",
    "Query  UPDATE 1  T  orders",
    "Query  RELEASE  T",
    "Query  COMMIT  I  commit",
)
def savepoints(conn: Connection) -> None:
    with conn.transaction():
        with conn.transaction():
            conn.execute(UPDATE + "1")
            raise psycopg.Rollback
        with conn.transaction():
            conn.execute(UPDATE + "2")


@case("Query  UPDATE 1; INSERT 0 1; UPDATE 1  I  audit checkpoint orders commit")
def several_statements_in_one_message(conn: Connection) -> None:
    conn.execute(f"{UPDATE} 1; {AUDIT.format(0)}; {CHECKPOINT}")


@case("Query  BEGIN; UPDATE 1; COMMIT; BEGIN; UPDATE 1  T  orders commit", "Query  ROLLBACK  I")
def a_commit_inside_one_message(conn: Connection) -> None:
    conn.execute(f"begin; {UPDATE} 1; commit; begin; {UPDATE} 2")
    conn.execute("rollback")


@case("Query  BEGIN  T", "Query  UPDATE 1  E", "Query  ROLLBACK  I")
def what_a_failed_message_did_is_gone(conn: Connection) -> None:
    """The update ran and was announced, then the same message failed."""
    conn.execute("begin")
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute(f"{UPDATE} 1; select 1/0")
    conn.execute("rollback")


@case("Query  BEGIN; UPDATE 1; COMMIT  I  orders commit")
def what_a_failed_message_committed_stays(conn: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute(f"begin; {UPDATE} 1; commit; select 1/0")


@case("Query  UPDATE 1  I  audit checkpoint orders commit")
def one_statement_that_does_all_three(conn: Connection) -> None:
    conn.execute(CTE)


@case("Query  DO  I  checkpoint orders commit")
def do_block(conn: Connection) -> None:
    conn.execute(f"do $$ begin {UPDATE} 1; {CHECKPOINT}; end $$")


@case("Query  DO  I  orders commit")
def do_block_that_commits_inside(conn: Connection) -> None:
    """Two transactions in one unit: one committed, one rolled back."""
    conn.execute(f"do $$ begin {UPDATE} 1; commit; {UPDATE} 2; rollback; end $$")


@case("Query  CREATE PROCEDURE  I", "Query  CALL  I  orders commit")
def procedure_that_commits_twice(conn: Connection) -> None:
    """Two transactions in one unit, both committed."""
    body = f"begin {UPDATE} 1; commit; {UPDATE} 2; commit; end"
    conn.execute(f"create procedure pg_temp.p() language plpgsql as $$ {body} $$")
    conn.execute("call pg_temp.p()")


@case(
    "Query  CREATE TABLE; BEGIN; UPDATE 1; INSERT 0 2  T  orders",
    "Query  23505  I",
)
def commit_that_fails_on_a_deferred_constraint(conn: Connection) -> None:
    conn.execute(f"""
        create temp table t (x int unique deferrable initially deferred);
        begin; {UPDATE} 1; insert into t values (1), (1)
    """)
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("commit")


@case(
    "Query  SHOW  I",
    "Query  BEGIN; UPDATE 1; PREPARE TRANSACTION  I  orders",
    "Query  COMMIT PREPARED  I  commit",
)
def two_phases(conn: Connection) -> None:
    """After the first phase the session is idle and nothing is committed."""
    if conn.execute("show max_prepared_transactions").fetchone() == ("0",):
        pytest.skip("this server allows no prepared transactions")
    conn.execute(f"begin; {UPDATE} 1; prepare transaction 'x'")
    conn.execute("commit prepared 'x'")


@case(
    "Execute  UPDATE 1  orders",
    "Execute  INSERT 0 1  audit",
    "Execute  UPDATE 1  checkpoint",
    "Sync  I  commit",
)
def pipeline_is_one_implicit_transaction(conn: Connection) -> None:
    """Everything arrives in one go, and each statement still is a boundary of its own."""
    run_pipeline(conn, UPDATE + "1", AUDIT.format(0), CHECKPOINT)


@case(
    "Execute  BEGIN",
    "Execute  UPDATE 1  orders",
    "Execute  INSERT 0 1  audit",
    "Execute  COMMIT  commit",
    "Sync  I",
)
def transaction_in_a_pipeline(conn: Connection) -> None:
    run_pipeline(conn, "begin", UPDATE + "1", AUDIT.format(0), "commit")


@case("Execute  UPDATE 1  orders", "Execute  22012", "Sync  I")
def error_in_the_middle_of_a_pipeline(conn: Connection) -> None:
    """The server skips what follows the error, so it makes no boundary."""
    statements = (UPDATE + "1", "select 1/0", UPDATE + "2", UPDATE + "3")
    with pytest.raises(psycopg.errors.DivisionByZero):
        run_pipeline(conn, *statements)


@case("Execute  UPDATE 1  orders", "Execute  42601", "Sync  I", "Query  UPDATE 1  I  orders commit")
def error_in_a_parse(conn: Connection) -> None:
    """The error comes from Parse; it counts for the Execute that belongs to it."""
    with pytest.raises(psycopg.errors.SyntaxError):
        run_pipeline(conn, UPDATE + "1", "selct", UPDATE + "2")
    conn.execute(UPDATE + "3")


@case(
    "Execute  UPDATE 1  orders",
    "Execute  UPDATE 1  orders",
    "Execute  UPDATE 1  orders",
    "Sync  I  commit",
)
def executemany(conn: Connection) -> None:
    conn.cursor().executemany(UPDATE + "%s", [(1,), (2,), (3,)])


@case(
    "Sync  I",
    "Execute  UPDATE 1  orders",
    "Sync  I  commit",
    "Execute  UPDATE 1  orders",
    "Sync  I  commit",
)
def prepared_statement(conn: Connection) -> None:
    """Parse comes once, with a Sync of its own; later only Bind and Execute."""
    for order_id in (1, 2):
        conn.execute(UPDATE + "%s", (order_id,), prepare=True)


@case("Query", "CopyDone  COPY 2  I  audit commit")
def copy_in(conn: Connection) -> None:
    copy = "copy job_audit (job_id, position, order_id, revision_before, revision_after, qty) from stdin"
    with conn.cursor().copy(copy) as stream:
        stream.write_row(("J", 0, 1, 1, 2, 5))
        stream.write_row(("J", 1, 2, 1, 2, 5))


@case("Query", "CopyDone  22P02  I", "Query  SELECT 1  I")
def copy_in_that_the_server_refuses(conn: Connection) -> None:
    copy = conn.cursor().copy("copy orders from stdin")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation), copy as stream:
        stream.write("not a number\n")
    conn.execute("select 1")


@case("Query", "CopyDone  57014  I")
def copy_in_that_the_client_gives_up(conn: Connection) -> None:
    copy = conn.cursor().copy("copy orders from stdin")
    with pytest.raises(ValueError, match="enough"), copy:
        raise ValueError("enough")


@case("Query  COPY 3  I")
def copy_out(conn: Connection) -> None:
    with conn.cursor().copy("copy orders to stdout") as stream:
        assert len(list(stream.rows())) == 3


@case(
    "Query  BEGIN  T",
    "Execute  DECLARE CURSOR",
    "Sync  T",
    "Sync  T",
    "Query  FETCH 2  T",
    "Query  UPDATE 1  T  orders",
    "Query  CLOSE CURSOR  T",
    "Query  COMMIT  I  commit",
)
def server_side_cursor(conn: Connection) -> None:
    with conn.transaction(), conn.cursor("named") as cursor:
        cursor.execute("select order_id from orders order by 1 for update")
        assert cursor.fetchmany(2) == [(1,), (2,)]
        conn.execute(UPDATE + "1")


@case("Query  LISTEN  I", "Query  NOTIFY  I", "Query  SET  I", "Query  SELECT 1  I")
def asynchronous_messages_end_nothing(conn: Connection) -> None:
    """Notifications and parameter changes come between the answers and are no answers."""
    conn.execute("listen channel")
    conn.execute("notify channel, 'hello'")
    conn.execute("set application_name = 'other'")
    conn.execute("select 1")
    assert [n.payload for n in conn.notifies(timeout=0)] == ["hello"]


@pytest.mark.parametrize("name", CASES)
def test_boundaries(name: str, lane: Lane, conn: Connection) -> None:
    """Each style has exactly its boundaries, and each boundary its points."""
    client, expected = CASES[name]
    client(conn)
    assert [line(boundary) for boundary in lane.boundaries] == expected
    assert [boundary.number for boundary in lane.boundaries] == [*range(1, len(expected) + 1)]
