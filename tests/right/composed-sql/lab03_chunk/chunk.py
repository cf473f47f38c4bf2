"""One helper composes every statement of the chunk."""

from __future__ import annotations

from psycopg import sql
from psycopg.rows import dict_row

from harness.contract import ApprovedOrder, ChunkResult, UnknownJob

from ..lab02_change.change import cancel_orders


def insert(table, columns):
    """Compose an INSERT with named placeholders."""
    return sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(map(sql.Placeholder, columns)),
    )


def run_chunk(conn, job_id):
    """Advance the job by its next chunk."""
    columns = ("job_id", "position", "order_id", "revision_before", "revision_after", "qty")
    audit = insert("job_audit", columns)
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT * FROM jobs WHERE job_id = %(id)s FOR UPDATE", {"id": job_id})
        job = cursor.fetchone()
        if job is None:
            raise UnknownJob(job_id)
        cursor.execute("SELECT * FROM job_items WHERE job_id = %(id)s", {"id": job_id})
        lines = sorted(cursor, key=lambda line: line["position"])
        start = job["next_index"]
        chunk = lines[start : start + job["chunk_size"]]
        end = start + len(chunk)
        approved = [ApprovedOrder(i["order_id"], i["revision"], i["qty"]) for i in chunk]
        position = {line["order_id"]: line["position"] for line in chunk}
        for change in cancel_orders(conn, job["tenant"], approved):
            values = (
                job_id,
                position[change.order_id],
                change.order_id,
                change.revision_before,
                change.revision_after,
                change.qty,
            )
            cursor.execute(audit, dict(zip(columns, values, strict=True)))
        if chunk:
            cursor.execute(
                sql.SQL("UPDATE {} SET next_index = {} WHERE job_id = {}").format(
                    sql.Identifier("jobs"), sql.Literal(end), sql.Literal(job_id)
                )
            )
    return ChunkResult(tuple(position), end, end == len(lines))
