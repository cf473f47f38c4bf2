"""The list arrives by COPY."""

from __future__ import annotations

from harness.contract import Conflict


def register_job(conn, job_id, tenant, orders, chunk_size):
    """Freeze an approval."""
    lines = sorted((order.order_id, order.revision, order.qty) for order in orders)
    if not lines or min(chunk_size, *(line[2] for line in lines)) < 1:
        raise ValueError("nothing to do, or a number below 1")
    if len({line[0] for line in lines}) != len(lines):
        raise ValueError("the same order twice")
    with conn.transaction(), conn.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs VALUES (%s, %s, %s) ON CONFLICT (job_id) DO NOTHING",
            (job_id, tenant, chunk_size),
        )
        if cursor.rowcount:
            with cursor.copy("COPY job_items FROM STDIN") as copy:
                for position, line in enumerate(lines):
                    copy.write_row((job_id, position, *line))
            return
        stored = cursor.execute(
            "SELECT tenant, chunk_size, order_id, revision, qty"
            " FROM jobs JOIN job_items USING (job_id) WHERE job_id = %s ORDER BY position",
            (job_id,),
        ).fetchall()
        if stored != [(tenant, chunk_size, *line) for line in lines]:
            ids = sorted({row[2] for row in stored} | {line[0] for line in lines})
            raise Conflict(f"{job_id} is another request; the orders of both: {ids}")
