"""Lab 2: cancel exactly the orders that were approved, in the version that was approved.

The approval names an order, a revision and a quantity. By the time the batch runs, someone may have
edited, cancelled, deleted or moved any of them. Whether an order still is what was approved must be
asked in the statement that changes it: an answer read earlier may be out of date.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psycopg

from harness.contract import ApprovedOrder, CancelledOrder, Conflict

# An UPDATE over many rows locks them in whatever order the plan finds them, so two calls with orders
# in common could wait for each other in a circle. Taking the locks in ID order first makes one call
# wait behind the other instead.
LOCK_IN_ID_ORDER = """
    SELECT FROM orders
    WHERE tenant = %s AND order_id = ANY(%s::bigint[])
    ORDER BY order_id
    FOR UPDATE
"""

# Every condition of the approval stands here. RETURNING gives the values as they are now; the
# revision before is the approved one, because the WHERE clause insisted on it.
CANCEL_APPROVED = """
    UPDATE orders AS o
    SET state = 'cancelled', revision = o.revision + 1
    FROM unnest(%s::bigint[], %s::int[], %s::int[]) AS a (order_id, revision, qty)
    WHERE o.order_id = a.order_id
      AND o.revision = a.revision
      AND o.qty = a.qty
      AND o.tenant = %s
      AND o.state = 'pending'
    RETURNING o.order_id, a.revision, o.revision, o.qty
"""


def cancel_orders(
    conn: psycopg.Connection, tenant: str, items: Iterable[ApprovedOrder]
) -> list[CancelledOrder]:
    """Cancel every order of `items`, or none. Return what the database says it changed.

    Raises:
        Conflict: If any order is no longer as approved; the text names each of them.
    """
    approved = list(items)
    if not approved:
        return []
    ids = [item.order_id for item in approved]
    revisions = [item.revision for item in approved]
    quantities = [item.qty for item in approved]
    # Outermost, this block is a transaction; inside the caller's transaction it is a savepoint.
    # Either way an exception that leaves the block takes the call's changes with it, and the
    # caller's own work is left for the caller to decide about.
    with conn.transaction():
        conn.execute(LOCK_IN_ID_ORDER, (tenant, ids))
        rows = conn.execute(CANCEL_APPROVED, (ids, revisions, quantities, tenant)).fetchall()
        cancelled = [CancelledOrder(*row) for row in rows]
        _refuse_unmatched(ids, cancelled)
    return cancelled


def _refuse_unmatched(ids: list[int], cancelled: list[CancelledOrder]) -> None:
    """Raise Conflict for every ID that was asked for and not changed.

    To SQL an UPDATE that matches nothing is a success, so the missing rows must be counted here. An
    ID that was asked for twice can be cancelled once: the second is unmatched, too.
    """
    unmatched = Counter(ids) - Counter(order.order_id for order in cancelled)
    if unmatched:
        raise Conflict(f"not as approved any more: orders {sorted(unmatched)}")
