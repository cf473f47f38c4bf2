"""What another owner may do to an approved order between approval and execution."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One edit: what it does, in words, and the statement with the order's ID as its parameter."""

    words: str
    sql: str


EDITS: tuple[Edit, ...] = (
    Edit("raise the revision of", "UPDATE orders SET revision = revision + 1 WHERE order_id = %s"),
    Edit(
        "change the quantity (and so the revision) of",
        "UPDATE orders SET qty = qty + 1, revision = revision + 1 WHERE order_id = %s",
    ),
    Edit("change only the quantity of", "UPDATE orders SET qty = qty + 1 WHERE order_id = %s"),
    Edit("delete", "DELETE FROM orders WHERE order_id = %s"),
    Edit(
        "move to another tenant", "UPDATE orders SET tenant = 'aurora-catering' WHERE order_id = %s"
    ),
    Edit(
        "cancel by hand, revision unchanged,",
        "UPDATE orders SET state = 'cancelled' WHERE order_id = %s",
    ),
)
