"""Identifiers and literals are composed, not written."""

from __future__ import annotations

from psycopg import sql
from psycopg.rows import dict_row

from harness.contract import CancelledOrder, Conflict

ORDERS = sql.Identifier("orders")


def cancel_orders(conn, tenant, items):
    """Cancel all items or none."""
    wanted = {}
    for item in items:
        if item.order_id in wanted:
            raise Conflict(f"order {item.order_id} was asked for twice")
        wanted[item.order_id] = item
    if not wanted:
        return []
    values = sql.SQL(", ").join(
        sql.SQL("({})").format(
            sql.SQL(", ").join(
                (
                    sql.SQL("{}::bigint").format(sql.Literal(item.order_id)),
                    sql.Literal(item.revision),
                    sql.Literal(item.qty),
                )
            )
        )
        for item in wanted.values()
    )
    statement = sql.SQL(
        "UPDATE {orders} SET {state} = 'cancelled', revision = {orders}.revision + 1"
        " FROM (VALUES {values}) AS wanted (order_id, revision, qty)"
        " WHERE {orders}.order_id = wanted.order_id AND {orders}.revision = wanted.revision"
        " AND {orders}.qty = wanted.qty AND tenant = {tenant} AND {state} = 'pending'"
        " RETURNING {orders}.order_id, wanted.revision AS revision_before,"
        " {orders}.revision AS revision_after, {orders}.qty"
    ).format(
        orders=ORDERS, state=sql.Identifier("state"), tenant=sql.Literal(tenant), values=values
    )
    lock = sql.SQL("SELECT order_id FROM {} WHERE order_id = ANY({}) ORDER BY 1 FOR UPDATE")
    with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
        cursor.execute(lock.format(ORDERS, sql.Literal(list(wanted))))
        cursor.execute(statement)
        changed = [CancelledOrder(**row) for row in cursor]
        unmatched = wanted.keys() - {order.order_id for order in changed}
        if unmatched:
            raise Conflict(", ".join(f"order {order_id}" for order_id in unmatched))
    return changed
