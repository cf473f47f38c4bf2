"""Write a scenario into a clean database.

The harness stores jobs and approvals itself, so that a later lab can be checked without trusting the
learner's earlier ones. What seeding changes is not evidence: the witness keeps quiet meanwhile.
"""

from __future__ import annotations

from typing import Any

import psycopg

from harness.scenario import Scenario


def seed(connection: psycopg.Connection[Any], scenario: Scenario) -> None:
    """Write `scenario` in one transaction; the lab tables must be empty before.

    The witness has seen nothing of it, so every change in it was made by a client or a rival.
    """
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL witness.quiet = 'on'")
        _insert(cursor, "orders", "order_id, tenant, qty, state, revision", [
            (o.order_id, o.tenant, o.qty, o.state, o.revision) for o in scenario.orders
        ])  # fmt: skip
        if scenario.registered:
            _seed_job(cursor, scenario)


def _seed_job(cursor: psycopg.Cursor[Any], scenario: Scenario) -> None:
    job = scenario.job
    _insert(cursor, "jobs", "job_id, tenant, chunk_size, next_index", [
        (job.job_id, job.tenant, job.chunk_size, job.next_index)
    ])  # fmt: skip
    _insert(cursor, "job_items", "job_id, position, order_id, revision, qty", [
        (job.job_id, n, o.order_id, o.revision, o.qty) for n, o in enumerate(scenario.approval)
    ])  # fmt: skip
    _insert(cursor, "job_audit", "job_id, position, order_id, revision_before, revision_after, qty", [
        (a.job_id, a.position, a.order_id, a.revision_before, a.revision_after, a.qty)
        for a in scenario.audit
    ])  # fmt: skip


def _insert(
    cursor: psycopg.Cursor[Any], table: str, columns: str, rows: list[tuple[Any, ...]]
) -> None:
    """Insert rows with one multi-row COPY; table and columns are the kit's own words, never input."""
    if not rows:
        return
    with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
