"""Evidence: what the database holds, read through one fresh connection.

The reader is opened after the client's server session is gone (or while the client stands still), so
that nothing it sees can still change under it. Everything is read in one REPEATABLE READ snapshot.
The witness's rows come along: they tell which transaction made which change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from harness.records import (
    AuditRow,
    Change,
    ChildRow,
    EffectRow,
    Evidence,
    ItemRow,
    JobRow,
    OrderRow,
    ParentRow,
)

T = TypeVar("T")

_BEGIN = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"

#: What is read, in this order; each row becomes one record.
_QUERIES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("orders", "SELECT order_id, tenant, qty, state, revision FROM orders ORDER BY order_id", OrderRow),
    ("jobs", "SELECT job_id, tenant, chunk_size, next_index FROM jobs ORDER BY job_id", JobRow),
    ("items", "SELECT job_id, position, order_id, revision, qty FROM job_items ORDER BY job_id, position", ItemRow),
    ("audit", "SELECT job_id, position, order_id, revision_before, revision_after, qty FROM job_audit ORDER BY job_id, position", AuditRow),
    ("parents", "SELECT parent_id, payload, total, processed, failed, skipped, decomposed_at, completed_at, failed_at, failure FROM parent_work ORDER BY parent_id", ParentRow),
    ("children", "SELECT child_id, parent_id, sequence, event, processing_started_at, attempts, processed_at, failed_at, skipped_at, outcome FROM child_work ORDER BY parent_id, sequence", ChildRow),
    ("subjects", "SELECT subject FROM subjects ORDER BY subject", str),
    ("effects", "SELECT effect_id, parent_id, sequence, subject, occurred_at FROM event_effects ORDER BY effect_id", EffectRow),
    ("changes", """
        SELECT c.seq, c.xid::text::bigint, c.backend_pid, c.tbl, c.op, c.old, c.new,
               coalesce(s.synchronous_commit, c.synchronous_commit)
        FROM witness.change c LEFT JOIN witness.commit_setting s USING (xid)
        ORDER BY c.seq
        """, Change),
)  # fmt: skip


#: What only track B has.
_LEDGER = frozenset({"parents", "children", "subjects", "effects"})


def read_evidence(connection: psycopg.Connection[Any], *, ledger: bool = True) -> Evidence:
    """Read everything in one snapshot.

    Args:
        connection: A fresh harness connection with autocommit on and nothing open; left so.
        ledger: Whether to read the tables of track B, too; a fresh session pays for each table.
    """
    queries = [query for query in _QUERIES if ledger or query[0] not in _LEDGER]
    with connection.pipeline():
        connection.execute(_BEGIN)
        cursors = {name: connection.execute(sql) for name, sql, _ in queries}
        connection.execute("COMMIT")
    return Evidence(
        **{name: tuple(record(*row) for row in cursors[name]) for name, _, record in queries}
    )
