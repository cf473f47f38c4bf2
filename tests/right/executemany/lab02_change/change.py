"""executemany with RETURNING: one result set an order."""

from __future__ import annotations

from harness.contract import CancelledOrder, Conflict

CANCEL = """
    UPDATE orders SET state = 'cancelled', revision = revision + 1
    WHERE tenant = %s AND order_id = %s AND revision = %s AND qty = %s AND state = 'pending'
    RETURNING order_id, revision - 1, revision, qty
"""


def cancel_orders(conn, tenant, items):
    """Cancel all items or none."""
    items = sorted(items, key=lambda item: item.order_id)
    if not items:
        return []
    with conn.transaction(), conn.cursor() as cursor:
        cursor.executemany(
            CANCEL,
            [(tenant, item.order_id, item.revision, item.qty) for item in items],
            returning=True,
        )
        results = []
        while True:
            results.append(cursor.fetchone())
            if not cursor.nextset():
                break
        unmatched = [i.order_id for i, row in zip(items, results, strict=True) if row is None]
        if unmatched:
            raise Conflict(f"orders {unmatched}")
    return [CancelledOrder(*row) for row in results]
