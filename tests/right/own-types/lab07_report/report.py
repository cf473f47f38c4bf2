"""The six lists are made by the database."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import dict_row

from harness.contract import DamagedProgress, UnknownJob


@dataclass
class Lists:
    """Order IDs by what became of them."""

    approved: list[int]
    committed: list[int]
    unprocessed: list[int]
    matching: list[int]
    drifted: list[int]
    missing: list[int]


QUERY = """
    WITH job AS (SELECT * FROM jobs WHERE job_id = %(job_id)s),
    line AS (
        SELECT i.position, i.order_id, i.position < job.next_index AS committed,
               o.order_id IS NULL AS missing,
               (o.tenant, o.state, o.revision, o.qty)
               IS NOT DISTINCT FROM (job.tenant, 'cancelled', a.revision_after, a.qty) AS matching,
               (a.order_id, a.revision_before, a.revision_after, a.qty)
               IS NOT DISTINCT FROM (i.order_id, i.revision, i.revision + 1, i.qty) AS proven
        FROM job JOIN job_items AS i USING (job_id)
        LEFT JOIN job_audit AS a USING (job_id, position)
        LEFT JOIN orders AS o ON o.order_id = i.order_id
    )
    SELECT next_index, chunk_size,
           (SELECT count(*) FROM line) AS total,
           (SELECT count(*) FROM job_audit WHERE job_id = %(job_id)s) AS audited,
           (SELECT min(position) FROM line WHERE committed AND NOT proven) AS unproven,
           (SELECT jsonb_build_object(
                'approved', jsonb_agg(order_id ORDER BY position),
                'committed', jsonb_agg(order_id ORDER BY position) FILTER (WHERE committed),
                'unprocessed', jsonb_agg(order_id ORDER BY position) FILTER (WHERE NOT committed),
                'matching', jsonb_agg(order_id ORDER BY position)
                            FILTER (WHERE committed AND matching),
                'drifted', jsonb_agg(order_id ORDER BY position)
                           FILTER (WHERE committed AND NOT matching AND NOT missing),
                'missing', jsonb_agg(order_id ORDER BY position)
                           FILTER (WHERE committed AND missing)
            ) FROM line) AS lists
    FROM job
"""


def report(conn, job_id):
    """Describe the job at one moment."""
    with conn.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(QUERY, {"job_id": job_id}).fetchone()
    if row is None:
        raise UnknownJob(job_id)
    done = row["next_index"]
    if done > row["total"] or (done != row["total"] and done % row["chunk_size"]):
        raise DamagedProgress(f"checkpoint {done} of {row['total']}")
    if row["unproven"] is not None:
        raise DamagedProgress(f"audit at position {row['unproven']}")
    if row["audited"] != done:
        raise DamagedProgress(f"{row['audited']} audit rows, checkpoint {done}")
    return Lists(**{name: ids or [] for name, ids in row["lists"].items()})
