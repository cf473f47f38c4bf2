"""Named tuples, and a Conflict that knows more."""

from __future__ import annotations

from typing import NamedTuple

from psycopg.rows import class_row

from harness.contract import Conflict


class Cancelled(NamedTuple):
    """What happened to one order."""

    order_id: int
    revision_before: int
    revision_after: int
    qty: int


class OrdersChanged(Conflict):
    """Some orders are not what they were."""

    def __init__(self, order_ids):
        super().__init__(f"{len(order_ids)} orders changed: {', '.join(map(str, order_ids))}")
        self.order_ids = order_ids


def cancel_orders(conn, tenant, items):
    """Cancel all items or none."""
    wanted = [(item.order_id, item.revision, item.qty) for item in items]
    if not wanted:
        return []
    columns = [list(column) for column in zip(*sorted(wanted), strict=True)]
    with conn.transaction(), conn.cursor(row_factory=class_row(Cancelled)) as cursor:
        cursor.execute(
            "SELECT 1 AS order_id, 1 AS revision_before, 1 AS revision_after, 1 AS qty"
            " FROM orders WHERE order_id = ANY(%s) ORDER BY orders.order_id FOR UPDATE",
            columns[:1],
        )
        cursor.execute(
            "UPDATE orders SET state = 'cancelled', revision = orders.revision + 1"
            " FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS w (id, rev, n)"
            " WHERE order_id = id AND revision = rev AND qty = n"
            " AND tenant = %s AND state = 'pending'"
            " RETURNING order_id, rev AS revision_before, revision AS revision_after, qty",
            [*columns, tenant],
        )
        cancelled = cursor.fetchall()
        left = [order_id for order_id, _, _ in wanted]
        for order in cancelled:
            left.remove(order.order_id)
        if left:
            raise OrdersChanged(left)
    return cancelled
