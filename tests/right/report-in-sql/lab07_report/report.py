"""Lab 7 with the work done in SQL: one row comes back, with one array a group."""

from __future__ import annotations

import psycopg

from harness.contract import DamagedProgress, Report, UnknownJob

REPORT = """
    WITH job AS (SELECT * FROM jobs WHERE job_id = %(job_id)s),
    list AS (
        SELECT i.*, i.position < job.next_index AS done
        FROM job JOIN job_items AS i USING (job_id)
    ),
    proof AS (
        SELECT position, order_id, revision, revision + 1, qty FROM list WHERE done
    ),
    audit AS (
        SELECT position, order_id, revision_before, revision_after, qty
        FROM job_audit WHERE job_id = %(job_id)s
    ),
    damage AS ((TABLE proof EXCEPT TABLE audit) UNION (TABLE audit EXCEPT TABLE proof)),
    judged AS (
        SELECT l.order_id, l.position, l.done,
               CASE WHEN o.order_id IS NULL THEN 'missing'
                    WHEN o.tenant = job.tenant AND o.state = 'cancelled'
                         AND o.revision = l.revision + 1 AND o.qty = l.qty THEN 'matching'
                    ELSE 'drifted' END AS now
        FROM job CROSS JOIN list AS l LEFT JOIN orders AS o USING (order_id)
    )
    SELECT
        ARRAY(SELECT order_id FROM judged ORDER BY order_id),
        ARRAY(SELECT order_id FROM judged WHERE done ORDER BY order_id),
        ARRAY(SELECT order_id FROM judged WHERE NOT done ORDER BY order_id),
        ARRAY(SELECT order_id FROM judged WHERE done AND now = 'matching' ORDER BY order_id),
        ARRAY(SELECT order_id FROM judged WHERE done AND now = 'drifted' ORDER BY order_id),
        ARRAY(SELECT order_id FROM judged WHERE done AND now = 'missing' ORDER BY order_id),
        (SELECT min(position) FROM damage),
        job.next_index, job.chunk_size
    FROM job
"""


def report(conn: psycopg.Connection, job_id: str) -> Report:
    """Return the job at one moment, in order IDs. Read only."""
    row = conn.execute(REPORT, {"job_id": job_id}).fetchone()
    if row is None:
        raise UnknownJob(job_id)
    *groups, damaged, next_index, chunk_size = row
    if damaged is not None:
        raise DamagedProgress(f"audit and approval differ at position {damaged}")
    total = len(groups[0])
    if next_index > total or (next_index % chunk_size and next_index < total):
        raise DamagedProgress(f"no chunk of {chunk_size} ends at {next_index} of {total}")
    return Report(*(tuple(group) for group in groups))
