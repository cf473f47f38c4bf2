"""A temporary table stands in for the parameters."""

from __future__ import annotations

from harness.contract import CancelledOrder, Conflict


def cancel_orders(conn, tenant, items):
    """Cancel all items or none."""
    with conn.transaction(), conn.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE staged (order_id bigint, revision int, qty int)")
        with cursor.copy("COPY staged FROM STDIN") as copy:
            for item in items:
                copy.write_row((item.order_id, item.revision, item.qty))
        cursor.execute(
            "SELECT FROM orders WHERE order_id IN (SELECT order_id FROM staged)"
            " ORDER BY order_id FOR UPDATE"
        )
        cursor.execute(
            """
            UPDATE orders AS o SET state = 'cancelled', revision = o.revision + 1
            FROM staged AS s
            WHERE (o.order_id, o.revision, o.qty, o.tenant, o.state)
                = (s.order_id, s.revision, s.qty, %s, 'pending')
            RETURNING o.order_id, o.revision - 1, o.revision, o.qty
            """,
            (tenant,),
        )
        cancelled = [CancelledOrder(*row) for row in cursor]
        cursor.execute(
            "SELECT order_id FROM staged EXCEPT ALL SELECT unnest(%s::bigint[]) ORDER BY 1",
            ([order.order_id for order in cancelled],),
        )
        unmatched = [order_id for (order_id,) in cursor]
        if unmatched:
            raise Conflict(f"changed since the approval: {unmatched}")
        cursor.execute("DROP TABLE staged")
    return cancelled
