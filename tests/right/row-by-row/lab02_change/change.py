"""One UPDATE an order."""

from __future__ import annotations

from harness.contract import CancelledOrder, Conflict


def cancel_orders(conn, tenant, items):
    """Cancel all items or none."""
    cancelled = []
    unmatched = []
    with conn.transaction():
        for item in sorted(items, key=lambda item: item.order_id):
            row = conn.execute(
                "UPDATE orders SET state = 'cancelled', revision = revision + 1"
                " WHERE order_id = %s AND tenant = %s AND revision = %s AND qty = %s"
                " AND state = 'pending' RETURNING order_id, revision - 1, revision, qty",
                (item.order_id, tenant, item.revision, item.qty),
            ).fetchone()
            if row is None:
                unmatched.append(item.order_id)
            else:
                cancelled.append(CancelledOrder(*row))
        if unmatched:
            raise Conflict(f"orders {unmatched}")
    return cancelled
