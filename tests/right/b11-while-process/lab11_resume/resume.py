from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ParentStep

from ..lab08_decompose.decompose import decompose
from ..lab10_finish.finish import process


def resumable(conn: psycopg.Connection) -> list[ParentStep]:
    steps = []
    for parent_id, decomposed_at, completed_at in conn.execute(
        "SELECT parent_id, decomposed_at, completed_at FROM parent_work"
    ).fetchall():
        if completed_at is None:
            steps.append(ParentStep(parent_id, "dispatch" if decomposed_at else "decompose"))
    return steps


def run_parent(conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta) -> None:
    decompose(conn, parent_id)
    while process(conn, parent_id, limit, lease):
        pass
    ends = conn.execute(
        "SELECT processed_at, failed_at, skipped_at FROM child_work WHERE parent_id = %s",
        (parent_id,),
    ).fetchall()
    if all(any(child) for child in ends):
        conn.execute(
            "UPDATE parent_work SET completed_at = now()"
            " WHERE parent_id = %s AND completed_at IS NULL AND decomposed_at IS NOT NULL",
            (parent_id,),
        )
