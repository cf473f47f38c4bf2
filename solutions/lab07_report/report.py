"""Lab 7: tell what was committed then apart from what the orders are now.

That order 15 was cancelled by this job stays true for ever; the audit holds it. What order 15 looks
like today is another question: it may have been edited, deleted or created anew since. An honest
report answers both and never lets one stand in for the other.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from harness.contract import DamagedProgress, Report, UnknownJob

# One statement, hence one snapshot: under READ COMMITTED a second SELECT could see a chunk, or an
# edit, that the first did not. Orders are found by ID alone; whether tenant, state, revision and qty
# are right is judged afterwards, so that a changed order is drifted and not missing.
EVERYTHING = """
    SELECT j.tenant, j.chunk_size, j.next_index, position,
           i.order_id, i.revision, i.qty,
           a.order_id AS audit_order_id, a.revision_before, a.revision_after, a.qty AS audit_qty,
           o.order_id AS found, o.tenant AS now_tenant, o.state AS now_state,
           o.revision AS now_revision, o.qty AS now_qty
    FROM jobs AS j
    LEFT JOIN (
        (SELECT * FROM job_items WHERE job_id = %(job_id)s) AS i
        FULL JOIN (SELECT * FROM job_audit WHERE job_id = %(job_id)s) AS a USING (position)
    ) ON true
    LEFT JOIN orders AS o ON o.order_id = i.order_id
    WHERE j.job_id = %(job_id)s
    ORDER BY position
"""


def report(conn: psycopg.Connection, job_id: str) -> Report:
    """Return the job at one moment, in order IDs. Read only.

    Raises:
        UnknownJob: If no job has this ID.
        DamagedProgress: If audit or checkpoint contradict the approved list.
    """
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        rows = cursor.execute(EVERYTHING, {"job_id": job_id}).fetchall()
    if not rows:
        raise UnknownJob(f"no job is registered as {job_id!r}")
    _refuse_damage(rows)
    next_index = rows[0].next_index
    groups: dict[str, list[int]] = {"matching": [], "drifted": [], "missing": []}
    for row in rows[:next_index]:
        groups[_state_now(row)].append(row.order_id)
    approved = tuple(row.order_id for row in rows)
    return Report(
        approved=approved,
        committed=approved[:next_index],
        unprocessed=approved[next_index:],
        **{name: tuple(ids) for name, ids in groups.items()},
    )


def _state_now(row: Any) -> str:
    """Judge one committed order as it is now against what the job left behind."""
    if row.found is None:
        return "missing"  # whatever else looks like it has another ID, and is another order
    left = (row.tenant, "cancelled", row.revision_after, row.audit_qty)
    now = (row.now_tenant, row.now_state, row.now_revision, row.now_qty)
    return "matching" if now == left else "drifted"


def _refuse_damage(rows: list[Any]) -> None:
    """Raise DamagedProgress by the rules of lab 4, in the snapshot that the report is made of."""
    chunk_size, next_index = rows[0].chunk_size, rows[0].next_index
    total = sum(row.order_id is not None for row in rows)
    if next_index > total:
        raise DamagedProgress(f"checkpoint {next_index} lies past the end of the list, {total}")
    if next_index % chunk_size and next_index != total:
        raise DamagedProgress(f"checkpoint {next_index} lies inside a chunk of {chunk_size}")
    nothing = (None, None, None, None)
    for row in rows:
        audited = (row.audit_order_id, row.revision_before, row.revision_after, row.audit_qty)
        expected = nothing
        if row.order_id is not None and row.position < next_index:
            expected = (row.order_id, row.revision, row.revision + 1, row.qty)
        if audited != expected:
            raise DamagedProgress(f"position {row.position}: {audited} instead of {expected}")
