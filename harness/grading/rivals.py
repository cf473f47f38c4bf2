"""What another owner may do to an approved order between approval and execution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records import CallResult, Raised


@dataclass(frozen=True)
class Edit:
    """One edit: in words, the statement with the order's ID as its parameter, what it spoils."""

    words: str
    sql: str
    spoils: str


EDITS: tuple[Edit, ...] = (
    Edit(
        "raise the revision of",
        "UPDATE orders SET revision = revision + 1 WHERE order_id = %s",
        "revision",
    ),
    Edit(
        "change the quantity (and so the revision) of",
        "UPDATE orders SET qty = qty + 1, revision = revision + 1 WHERE order_id = %s",
        "quantity and revision",
    ),
    Edit(
        "change only the quantity of",
        "UPDATE orders SET qty = qty + 1 WHERE order_id = %s",
        "quantity",
    ),
    Edit("delete", "DELETE FROM orders WHERE order_id = %s", "row"),
    Edit(
        "move to another tenant",
        "UPDATE orders SET tenant = 'aurora-catering' WHERE order_id = %s",
        "tenant",
    ),
    Edit(
        "cancel by hand, revision unchanged,",
        "UPDATE orders SET state = 'cancelled' WHERE order_id = %s",
        "state",
    ),
)


def why_changed(
    changed: Iterable[int], spoiled: Iterable[int], result: CallResult, spoils: str = ""
) -> str:
    """Return the likely cause when a call that should have been refused changed orders."""
    let_through = sorted(set(changed) & set(spoiled))
    if let_through:
        what = spoils or "approved values"
        return (
            f"Order {let_through[0]} did not match and was changed all the same: "
            f"the UPDATE itself did not ask for its {what}."
        )
    if isinstance(result, Raised):
        return (
            f"{result.type_name} came too late: what the call had changed was committed already. "
            "Raise it inside the transaction, so that it undoes the call."
        )
    return "One order that does not match must undo the whole call."
