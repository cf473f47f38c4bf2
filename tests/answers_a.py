"""What track A's functions must do when nothing goes wrong, as plain checks on one connection.

The graded checks run a client process and judge it from outside. These run the kit's own answers in
this process, which is quick and enough to prove two things: every right answer works, and a wrong
answer that the catalogue says needs a fault does look right without one. One function a lab; each
takes a `Kit` (the functions of one answer) and an empty database.
"""

from __future__ import annotations

import importlib
import io
import json
import signal
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from harness.contract import ApprovedOrder, Conflict, DamagedProgress, UnknownJob
from harness.course import COURSE
from harness.limits import HOLD_WAIT_S
from harness.waiting import wait_until

TENANT, OTHER = "marsmallow", "venusta"
TABLES = {"orders": 1, "jobs": 1, "job_items": 2, "job_audit": 2}


@dataclass(frozen=True)
class Kit:
    """The functions of one answer, the text of its reconcile.sql, and a connection to use."""

    functions: dict[str, Callable[..., Any]]
    reconcile: str
    conn: psycopg.Connection
    dsn: str

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a function that checks, after each call, how it left the connection."""
        function = self.functions[name]

        def call(*args: Any) -> Any:
            with unchanged_session(self.conn):
                return function(self.conn, *args)

        return call


def load(folder: Path, conn: psycopg.Connection, dsn: str) -> Kit:
    """Import an answer's seven labs under a package name of their own."""
    package = types.ModuleType(f"answer_{folder.name.replace('-', '_')}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    functions = {}
    for lab in COURSE[:7]:
        module = importlib.import_module(f"{package.__name__}.{lab.folder}.{lab.module}")
        functions |= {name: getattr(module, name) for name in lab.functions}
    return Kit(functions, (folder / "lab07_report/reconcile.sql").read_text(), conn, dsn)


@contextmanager
def unchanged_session(conn: psycopg.Connection) -> Iterator[None]:
    """Fail unless the connection is left as it was: mode, transaction, settings, session locks."""
    state = conn.info.transaction_status
    before = _session(conn)
    try:
        yield
    finally:
        assert conn.autocommit
        assert conn.info.transaction_status is state
        # Inside the caller's transaction a SET LOCAL lasts until that ends, and so may a lock.
        assert state is not TransactionStatus.IDLE or _session(conn) == before


def _session(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    settings = conn.execute(
        "SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'lock_timeout',"
        " 'default_transaction_isolation', 'statement_timeout', 'search_path') ORDER BY name"
    ).fetchall()
    return (
        settings
        + conn.execute(
            "SELECT classid, objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchall()
    )


def everything(conn: psycopg.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of track A's tables."""
    return {
        table: conn.execute(f"SELECT * FROM {table} ORDER BY 1, {columns}").fetchall()
        for table, columns in TABLES.items()
    }


@contextmanager
def refused(kit: Kit, error: type[Exception], *names: int) -> Iterator[None]:
    """Fail unless the block raises `error`, naming the order IDs, and changes nothing."""
    before = everything(kit.conn)
    with pytest.raises(error) as raised:
        yield
    assert everything(kit.conn) == before
    assert [name for name in names if str(name) not in str(raised.value)] == []


def approve(kit: Kit, count: int) -> list[ApprovedOrder]:
    """Empty the tables, add `count` orders and as many others beside them; return the approval."""
    for table in reversed(TABLES):
        kit.conn.execute(f"DELETE FROM {table}")
    kit.conn.execute(
        "INSERT INTO orders (order_id, tenant, qty, revision)"
        " SELECT 3000000000 + g * 7 + k, CASE k WHEN 1 THEN %s ELSE %s END, 1 + g %% 4, 1 + g %% 3"
        " FROM generate_series(1, %s) AS g, generate_series(0, 2) AS k",
        (OTHER, TENANT, count),
    )
    rows = kit.conn.execute(
        "SELECT order_id, revision, qty FROM orders WHERE order_id %% 7 = %s ORDER BY order_id",
        (3000000000 % 7,),
    ).fetchall()
    assert len(rows) == count
    return [ApprovedOrder(*row) for row in rows]


def register(kit: Kit, job_id: str, count: int, chunk_size: int) -> list[ApprovedOrder]:
    """Approve and register `count` orders."""
    approval = approve(kit, count)
    kit.register_job(job_id, TENANT, approval, chunk_size)
    return approval


def ids_of(approval: list[ApprovedOrder]) -> tuple[int, ...]:
    """Return the order IDs."""
    return tuple(item.order_id for item in approval)


def edit(kit: Kit, order_id: int, assignment: str = "revision = revision + 1") -> None:
    """Change an order as another owner would."""
    kit.conn.execute(f"UPDATE orders SET {assignment} WHERE order_id = %s", (order_id,))


# --- nothing goes wrong ---------------------------------------------------------------------------


def freeze(kit: Kit) -> None:
    """Lab 1: one list in ID order; the same request again; another one is refused."""
    approval = approve(kit, 12)
    for bad in ([], [*approval, approval[3]], [*approval, ApprovedOrder(5, 1, 0)]):
        with refused(kit, ValueError):
            kit.register_job("Störung ☂", TENANT, bad, 5)
    with refused(kit, ValueError):
        kit.register_job("Störung ☂", TENANT, approval, 0)
    with kit.conn.transaction(force_rollback=True):
        kit.register_job("Störung ☂", TENANT, approval, 5)
    assert everything(kit.conn)["jobs"] == []
    kit.register_job("Störung ☂", TENANT, iter(approval[::-1]), 5)
    stored = kit.conn.execute(
        "SELECT position, order_id, revision, qty FROM job_items ORDER BY position"
    ).fetchall()
    expected = [(n, i.order_id, i.revision, i.qty) for n, i in enumerate(approval)]
    assert stored == expected
    kit.run_chunk("Störung ☂")
    before = everything(kit.conn)
    kit.register_job("Störung ☂", TENANT, [*approval[5:], *approval[:5]], 5)
    assert everything(kit.conn) == before
    first = approval[0]
    others = (
        (TENANT, approval[:-1], 5),
        (TENANT, approval, 6),
        (OTHER, approval, 5),
        (TENANT, [ApprovedOrder(first.order_id, first.revision + 1, first.qty), *approval[1:]], 5),
        (TENANT, [ApprovedOrder(first.order_id, first.revision, first.qty + 1), *approval[1:]], 5),
        (TENANT, [ApprovedOrder(first.order_id + 1, 1, 1), *approval[1:]], 5),
    )
    for other in others:
        with refused(kit, Conflict):
            kit.register_job("Störung ☂", *other)


def change(kit: Kit) -> None:
    """Lab 2: the approved version changes; anything else is refused as a whole."""
    approval = approve(kit, 9)
    assert kit.cancel_orders(TENANT, []) == []
    before = everything(kit.conn)
    with kit.conn.transaction(force_rollback=True):
        kit.cancel_orders(TENANT, approval)
    assert everything(kit.conn) == before
    bad = [
        ApprovedOrder(approval[6].order_id, approval[6].revision + 1, approval[6].qty),
        ApprovedOrder(approval[7].order_id, approval[7].revision, approval[7].qty + 1),
        ApprovedOrder(5, 1, 1),
    ]
    for wrong in ([bad[0]], [bad[1]], [bad[2]], bad):
        with refused(kit, Conflict, *ids_of(wrong)):
            kit.cancel_orders(TENANT, [*approval[:6], *wrong])
    with refused(kit, Conflict, approval[0].order_id):
        kit.cancel_orders(OTHER, approval[:1])
    for order in (approval[8], approval[7]):
        edit(kit, order.order_id, "state = 'cancelled'")
    with refused(kit, Conflict, approval[7].order_id, approval[8].order_id):
        kit.cancel_orders(TENANT, approval)
    with kit.conn.transaction(force_rollback=True):
        edit(kit, approval[8].order_id)
        with refused(kit, Conflict, approval[7].order_id):
            kit.cancel_orders(TENANT, approval[:8])
    cancelled = kit.cancel_orders(TENANT, approval[:7][::-1])
    seen = sorted((c.order_id, c.revision_before, c.revision_after, c.qty) for c in cancelled)
    assert seen == [(i.order_id, i.revision, i.revision + 1, i.qty) for i in approval[:7]]
    now = kit.conn.execute(
        "SELECT order_id, state, revision FROM orders WHERE state = 'cancelled' ORDER BY order_id"
    ).fetchall()
    assert now[:7] == [(i.order_id, "cancelled", i.revision + 1) for i in approval[:7]]
    assert len(now) == 9


def chunk(kit: Kit) -> None:
    """Lab 3: chunk after chunk of the list, with audit and checkpoint, to the short last one."""
    for count, size in ((23, 10), (20, 10), (1, 1), (3, 100)):
        job = f"chunk-{count}-{size}"
        approval = register(kit, job, count, size)
        done = 0
        while done < count:
            expected = approval[done : done + size]
            result = kit.run_chunk(job)
            done += len(expected)
            seen = (tuple(result.processed), result.next_index, result.complete)
            assert seen == (ids_of(expected), done, done == count)
            assert_progress(kit, approval, done)
        result = kit.run_chunk(job)
        assert (tuple(result.processed), result.next_index, result.complete) == ((), count, True)
    with refused(kit, UnknownJob):
        kit.run_chunk("nobody's")
    register(kit, "nested", 4, 2)
    before = everything(kit.conn)
    with kit.conn.transaction(force_rollback=True):
        kit.run_chunk("nested")
        kit.run_chunk("nested")
    assert everything(kit.conn) == before


def assert_progress(kit: Kit, approval: list[ApprovedOrder], done: int) -> None:
    """Fail unless orders, audit and checkpoint all say that the first `done` are done."""
    rows = everything(kit.conn)
    cancelled = [row[0] for row in rows["orders"] if row[3] == "cancelled"]
    assert cancelled == [item.order_id for item in approval[:done]]
    audit = [row[1:6] for row in rows["job_audit"]]
    assert audit == [
        (n, i.order_id, i.revision, i.revision + 1, i.qty) for n, i in enumerate(approval[:done])
    ]
    assert [row[3] for row in rows["jobs"]] == [done]


#: Damage that a job of 23 in tens, two chunks done, must be refused for.
DAMAGE = (
    "DELETE FROM job_audit",
    "DELETE FROM job_audit WHERE position = 4",
    "DELETE FROM job_audit WHERE position = 19",
    "UPDATE job_audit SET qty = qty + 1 WHERE position = 2",
    "UPDATE job_audit SET revision_before = revision_before + 1 WHERE position = 19",
    "UPDATE job_audit SET revision_after = revision_after + 1 WHERE position = 0",
    "UPDATE job_audit SET order_id = order_id + 1 WHERE position = 15",
    "UPDATE job_audit SET position = 20 WHERE position = 19",
    "INSERT INTO job_audit SELECT job_id, position, order_id, revision, revision + 1, qty"
    " FROM job_items WHERE position = 20",
    "UPDATE jobs SET next_index = 0",
    "UPDATE jobs SET next_index = 10",
    "UPDATE jobs SET next_index = 23",
    "UPDATE jobs SET next_index = 24",
    "UPDATE job_audit SET position = CASE position WHEN 3 THEN 104 ELSE 103 END"
    " WHERE position IN (3, 4); UPDATE job_audit SET position = position - 100 WHERE position > 99",
    "DELETE FROM job_audit WHERE position >= 15; UPDATE jobs SET next_index = 15",
    "DELETE FROM job_audit WHERE position > 0; UPDATE jobs SET next_index = 10;"
    "UPDATE job_audit SET position = 9",
)


def doubt(kit: Kit) -> None:
    """Lab 4: sound progress is confirmed at every chunk, every damage refused."""
    register(kit, "doubt", 23, 10)
    for done in (0, 10, 20, 23):
        before = everything(kit.conn)
        assert kit.verify_progress("doubt") == done
        assert everything(kit.conn) == before
        result = kit.resume_chunk("doubt")
        assert result.next_index == min(done + 10, 23)
    for function in (kit.verify_progress, kit.resume_chunk):
        with refused(kit, UnknownJob):
            function("nobody's")
    register(kit, "damaged", 23, 10)
    kit.run_chunk("damaged")
    kit.run_chunk("damaged")
    for damage in DAMAGE:
        with kit.conn.transaction(force_rollback=True):
            kit.conn.execute(damage)
            for function in (kit.verify_progress, kit.resume_chunk):
                with refused(kit, DamagedProgress):
                    function("damaged")
    kit.run_chunk("damaged")
    with kit.conn.transaction(force_rollback=True):
        kit.conn.execute("UPDATE jobs SET next_index = 24")
        for function in (kit.verify_progress, kit.resume_chunk):
            with refused(kit, DamagedProgress):
                function("damaged")
    assert kit.resume_chunk("damaged").complete


def drain(kit: Kit) -> None:
    """Lab 5: within the bound, to the end and no further, from where the last one stopped."""
    ids = ids_of(register(kit, "drain", 33, 10))
    for bound, expected in ((1, (ids[:10], 1, False)), (2, (ids[10:30], 2, False))):
        result = kit.drain("drain", bound)
        assert (tuple(result.processed), result.chunks, result.complete) == expected
    result = kit.drain("drain", 1)
    assert (tuple(result.processed), result.chunks, result.complete) == (ids[30:], 1, True)
    result = kit.drain("drain", 50)
    assert (tuple(result.processed), result.complete) == ((), True)
    assert result.chunks in (0, 1)
    ids = ids_of(register(kit, "again", 20, 10))
    result = kit.drain("again", 9)
    assert (tuple(result.processed), result.chunks, result.complete) == (ids, 2, True)
    with refused(kit, UnknownJob):
        kit.drain("nobody's", 3)
    register(kit, "damaged", 20, 10)
    kit.conn.execute("UPDATE jobs SET next_index = 10")
    with refused(kit, DamagedProgress):
        kit.drain("damaged", 3)


def worker(kit: Kit) -> None:
    """Lab 6: lines on stdout and exit statuses, also when the next process goes on."""
    ids = list(ids_of(register(kit, "worker", 23, 10)))
    status, lines = run_worker(kit, "--job", "worker", "--max-chunks", "1")
    assert (status, lines) == (10, [(ids[:10], 10, False)])
    status, lines = run_worker(kit, "--job", "worker", "--lock-timeout-ms", "500")
    assert (status, lines) == (0, [(ids[10:20], 20, False), (ids[20:], 23, True)])
    status, lines = run_worker(kit, "--job", "worker")
    assert (status, lines) in ((0, []), (0, [([], 23, True)]))
    assert run_worker(kit, "--job", "nobody's") == (22, [])
    assert run_worker(kit) == (2, [])
    assert run_worker(kit, "--job", "worker", dsn="host=127.0.0.1 port=1") == (31, [])
    kit.conn.execute("DELETE FROM job_audit WHERE position = 3")
    assert run_worker(kit, "--job", "worker") == (21, [])


def run_worker(kit: Kit, *argv: str, dsn: str | None = None) -> tuple[int, list[tuple]]:
    """Run the worker's main in this process; return its exit status and its lines."""
    out = io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            status = kit.functions["main"](["--dsn", dsn or kit.dsn, *argv])
    except SystemExit as end:
        status = end.code
    finally:
        signal.signal(signal.SIGTERM, handler)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    return status, [(line["processed"], line["next_index"], line["complete"]) for line in lines]


def report(kit: Kit) -> None:
    """Lab 7: the groups of a job at every stage; damage and unknown jobs are refused."""
    ids = ids_of(register(kit, "report", 23, 10))
    for done in (0, 10, 20, 23):
        assert groups(kit, "report") == (ids, ids[:done], ids[done:], ids[:done], (), ())
        assert discrepancies(kit, "report") == 0
        kit.run_chunk("report")
    with refused(kit, UnknownJob):
        kit.report("nobody's")
    register(kit, "damaged", 23, 10)
    kit.run_chunk("damaged")
    kit.run_chunk("damaged")
    for damage in DAMAGE:
        with kit.conn.transaction(force_rollback=True):
            kit.conn.execute(damage)
            with refused(kit, DamagedProgress):
                kit.report("damaged")
            assert discrepancies(kit, "damaged") > 0


def groups(kit: Kit, job_id: str) -> tuple[tuple[int, ...], ...]:
    """Return the six groups of the report."""
    seen = kit.report(job_id)
    names = ("approved", "committed", "unprocessed", "matching", "drifted", "missing")
    return tuple(tuple(getattr(seen, name)) for name in names)


def discrepancies(kit: Kit, job_id: str) -> int:
    """Return the number of rows that reconcile.sql finds."""
    with unchanged_session(kit.conn):
        return len(kit.conn.execute(kit.reconcile, {"job_id": job_id}).fetchall())


# --- somebody else writes between two calls -------------------------------------------------------


def freeze_rival(kit: Kit) -> None:
    """Lab 1: an order edited after the approval is frozen as it was approved."""
    approval = approve(kit, 3)
    edit(kit, approval[1].order_id)
    kit.conn.execute("DELETE FROM orders WHERE order_id = %s", (approval[2].order_id,))
    kit.register_job("late", TENANT, approval, 5)
    stored = kit.conn.execute("SELECT order_id, revision, qty FROM job_items ORDER BY position")
    assert [ApprovedOrder(*row) for row in stored] == approval


def change_rival(kit: Kit) -> None:
    """Lab 2: an order that somebody else cancelled is a conflict, not our work."""
    approval = approve(kit, 3)
    edit(kit, approval[1].order_id, "state = 'cancelled', revision = revision + 1")
    with refused(kit, Conflict, approval[1].order_id):
        kit.cancel_orders(TENANT, approval)


#: What another owner may do to order 15 between two chunks.
EDITS = (
    "UPDATE orders SET revision = revision + 1 WHERE order_id = %s",
    "UPDATE orders SET state = 'cancelled', revision = revision + 1 WHERE order_id = %s",
    "UPDATE orders SET qty = qty + 1, revision = revision + 1 WHERE order_id = %s",
    "DELETE FROM orders WHERE order_id = %s",
)


def chunk_rival(kit: Kit) -> None:
    """Lab 3: an order changed between two chunks refuses its whole chunk, again and again."""
    for number, rival in enumerate(EDITS):
        approval = register(kit, f"rival-{number}", 23, 10)
        kit.run_chunk(f"rival-{number}")
        kit.conn.execute(rival, (approval[15].order_id,))
        for _ in range(2):
            with refused(kit, Conflict, approval[15].order_id):
                kit.run_chunk(f"rival-{number}")
    approval = register(kit, "undone", 23, 10)
    edit(kit, approval[3].order_id)
    with refused(kit, Conflict, approval[3].order_id):
        kit.run_chunk("undone")
    edit(kit, approval[3].order_id, "revision = revision - 1")
    assert kit.run_chunk("undone").next_index == 10
    assert_progress(kit, approval, 10)


def drain_rival(kit: Kit) -> None:
    """Lab 5: a conflict reaches the caller at once, and the chunks before it stay."""
    approval = register(kit, "drain", 33, 10)
    edit(kit, approval[25].order_id)
    with pytest.raises(Conflict, match=str(approval[25].order_id)):
        kit.drain("drain", 9)
    assert everything(kit.conn)["jobs"][0][3] == 20


def worker_rival(kit: Kit) -> None:
    """Lab 6: a conflict is exit status 20, after the lines of the chunks before it."""
    approval = register(kit, "worker", 23, 10)
    edit(kit, approval[15].order_id)
    assert run_worker(kit, "--job", "worker") == (20, [(list(ids_of(approval[:10])), 10, False)])


def report_rival(kit: Kit) -> None:
    """Lab 7: edited, moved and recreated orders are drifted, deleted ones missing, all committed."""
    ids = ids_of(register(kit, "report", 23, 10))
    kit.run_chunk("report")
    edit(kit, ids[1])
    edit(kit, ids[2], "qty = qty + 1")
    edit(kit, ids[3], f"tenant = '{OTHER}'")
    edit(kit, ids[4], "state = 'pending'")
    kit.conn.execute(
        "INSERT INTO orders SELECT order_id + 3, tenant, qty, state, revision FROM orders"
        " WHERE order_id = %s",
        (ids[6],),
    )
    kit.conn.execute("DELETE FROM orders WHERE order_id IN (%s, %s)", (ids[6], ids[15]))
    matching = tuple(i for n, i in enumerate(ids[:10]) if n not in (1, 2, 3, 4, 6))
    expected = (ids, ids[:10], ids[10:], matching, ids[1:5], (ids[6],))
    assert groups(kit, "report") == expected
    assert discrepancies(kit, "report") == 5


# --- two at once ----------------------------------------------------------------------------------


def freeze_two(kit: Kit) -> None:
    """Lab 1: whoever is second waits for the first one's commit, then compares."""
    approval = approve(kit, 5)
    for end, second, expected in (
        ("COMMIT", 5, None),
        ("COMMIT", 6, Conflict),
        ("ROLLBACK", 6, None),
    ):
        job = f"two-{end}-{second}"
        register = kit.functions["register_job"]
        first = (job, TENANT, approval, 5)
        outcome = overlap(kit, register, first, (job, TENANT, approval[::-1], second), end)
        if expected is None:
            assert outcome is None
        else:
            assert isinstance(outcome, expected)


def chunk_two(kit: Kit) -> None:
    """Lab 3: whoever is second waits for the first one's chunk, then runs the next one."""
    approval = register(kit, "two", 30, 10)
    run_chunk = kit.functions["run_chunk"]
    for end, done in (("COMMIT", 20), ("ROLLBACK", 30)):
        result = overlap(kit, run_chunk, ("two",), ("two",), end)
        assert not isinstance(result, Exception), repr(result)
        expected = ids_of(approval[done - 10 : done])
        assert (tuple(result.processed), result.next_index) == (expected, done)
        assert_progress(kit, approval, done)


def overlap(
    kit: Kit, function: Callable[..., Any], first: tuple, second: tuple, end: str
) -> object:
    """Call `function` in a transaction, again on another connection, and end the first with `end`.

    The end comes when the second call waits for the first one's transaction, or has ended. Returns
    what the second call returned or raised.
    """
    kit.conn.execute("BEGIN")
    function(kit.conn, *first)
    with psycopg.connect(kit.dsn, autocommit=True) as other, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(function, other, *second)
        blocked = "SELECT pg_backend_pid() = ANY(pg_blocking_pids(%s))"

        def waits_or_ended() -> bool:
            row = kit.conn.execute(blocked, (other.info.backend_pid,)).fetchone()
            return answer.done() or row == (True,)

        try:
            wait_until(waits_or_ended, "the second call waits or has ended", wait_s=HOLD_WAIT_S)
        finally:
            kit.conn.execute(end)
        error = answer.exception(timeout=10)
        return answer.result() if error is None else error


PLAIN = {1: freeze, 2: change, 3: chunk, 4: doubt, 5: drain, 6: worker, 7: report}
RIVAL = {
    1: freeze_rival,
    2: change_rival,
    3: chunk_rival,
    5: drain_rival,
    6: worker_rival,
    7: report_rival,
}
TWO = {1: freeze_two, 3: chunk_two, 6: chunk_two}
