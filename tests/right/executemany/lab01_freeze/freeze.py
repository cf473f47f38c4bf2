"""Registration with executemany."""

from __future__ import annotations

from harness.contract import Conflict


def register_job(conn, job_id, tenant, orders, chunk_size):
    """Freeze an approval."""
    orders = sorted(orders, key=lambda order: order.order_id)
    if not orders or chunk_size < 1 or any(order.qty < 1 for order in orders):
        raise ValueError("an empty list, or something below 1")
    if len({order.order_id for order in orders}) < len(orders):
        raise ValueError("an order twice")
    rows = [(n, order.order_id, order.revision, order.qty) for n, order in enumerate(orders)]
    with conn.transaction(), conn.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs (job_id, tenant, chunk_size) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING RETURNING job_id",
            (job_id, tenant, chunk_size),
        )
        if cursor.fetchone():
            cursor.executemany(
                "INSERT INTO job_items VALUES (%s, %s, %s, %s, %s)",
                [(job_id, *row) for row in rows],
            )
            return
        cursor.execute("SELECT tenant, chunk_size FROM jobs WHERE job_id = %s", (job_id,))
        same = cursor.fetchone() == (tenant, chunk_size)
        cursor.execute(
            "SELECT position, order_id, revision, qty FROM job_items WHERE job_id = %s"
            " ORDER BY position",
            (job_id,),
        )
        stored = cursor.fetchall()
        if not same or stored != rows:
            differ = sorted({row[1] for row in {*stored} ^ {*rows}})
            raise Conflict(f"{job_id} is another request: {differ}")
