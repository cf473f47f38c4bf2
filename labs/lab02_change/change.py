"""Lab 2: change only what was approved.

Between the approval and this call, anyone may have edited, cancelled or deleted an order. The lesson
is in README.md beside this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 2
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from harness.contract import ApprovedOrder, CancelledOrder, Conflict  # noqa: F401


def cancel_orders(
    conn: psycopg.Connection, tenant: str, items: Sequence[ApprovedOrder]
) -> list[CancelledOrder]:
    """Cancel every order of `items` in the version that was approved, or cancel none.

    Args:
        conn: A psycopg connection with autocommit on. The caller may have a transaction open; then
            your work is part of it, and whether it is committed is up to the caller.
        tenant: The customer whose orders they must be.
        items: The approved orders, each with `order_id`, `revision` and `qty`.

    Returns:
        One CancelledOrder for each order, in any order, with the values that the database returned:
        `revision_after` is `revision_before` plus one. An empty `items` gives an empty list.

    An order is changed only if tenant, ID, revision and qty are as approved and its state is
    'pending'. It then gets state 'cancelled', and its revision goes up by one, as with every normal
    write.

    Raises:
        Conflict: If any order is not as approved (it may not even exist). Its one argument is a text
            with the ID of every such order. Nothing that this call did remains, also when the
            caller catches the error and goes on.
    """
    # TODO: Change the orders, each under all the conditions of the approval.
    # TODO: Find out which orders were changed, and to what.
    # TODO: What if fewer were changed than were asked for? Does SQL tell you?
    # TODO: What is left in the database when you raise? And in the caller's open transaction?
    raise NotImplementedError("lab02: cancel_orders")
