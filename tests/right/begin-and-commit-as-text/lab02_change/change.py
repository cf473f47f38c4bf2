"""The nesting is written out: a savepoint inside the caller's transaction, else BEGIN and COMMIT."""

from __future__ import annotations

from contextlib import contextmanager

from psycopg.pq import TransactionStatus

from harness.contract import CancelledOrder, Conflict


@contextmanager
def unit(conn, name):
    """Do all of the block or nothing."""
    if conn.info.transaction_status == TransactionStatus.IDLE:
        begin, commit, rollback = "BEGIN", "COMMIT", "ROLLBACK"
    else:
        begin, commit = f"SAVEPOINT {name}", f"RELEASE {name}"
        rollback = f"ROLLBACK TO {name}; RELEASE {name}"
    conn.execute(begin)
    try:
        yield
    except BaseException:
        if not conn.closed:
            conn.execute(rollback)
        raise
    conn.execute(commit)


def cancel_orders(conn, tenant, items):
    """Cancel all items or none."""
    items = list(items)
    done = []
    with unit(conn, "cancel_orders"):
        for start in range(0, len(items), 500):
            part = items[start : start + 500]
            values = ", ".join(["(%s::bigint, %s::int, %s::int)"] * len(part))
            done += conn.execute(
                f"""
                WITH wanted (order_id, revision, qty) AS (VALUES {values}),
                locked AS (
                    SELECT orders.order_id FROM orders JOIN wanted USING (order_id, revision, qty)
                    WHERE tenant = %s AND state = 'pending'
                    ORDER BY orders.order_id FOR UPDATE OF orders
                )
                UPDATE orders SET state = 'cancelled', revision = orders.revision + 1
                FROM wanted
                WHERE orders.order_id = wanted.order_id AND orders.revision = wanted.revision
                  AND orders.qty = wanted.qty AND tenant = %s AND state = 'pending'
                  AND (SELECT count(*) FROM locked) >= 0
                RETURNING orders.order_id, wanted.revision, orders.revision, orders.qty
                """,
                [
                    *(v for item in part for v in (item.order_id, item.revision, item.qty)),
                    tenant,
                    tenant,
                ],
            ).fetchall()
        bad = {item.order_id for item in items} - {row[0] for row in done}
        if bad or len(done) < len(items):
            raise Conflict(f"no match: {sorted(bad)} of {[item.order_id for item in items]}")
    return [CancelledOrder(*row) for row in done]
