"""History: the witness's changes, grouped into what each transaction did.

The witness records every committed row change with its transaction. The judge thinks in larger
steps: what one transaction did to one order, and which part of the job it committed. Both are
derived here, once, for the judge, the story and the board. Pure, like the judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import Change
from harness.scenario import Scenario

#: At most this many IDs are spelled out in one sentence; the rest is counted, and the evidence has all.
IDS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class OrderMove:
    """What one transaction did to one order: the first old and the last new values."""

    xid: int
    order_id: int
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None

    @property
    def cancels(self) -> bool:
        """Tell whether the order was pending before and cancelled after."""
        return (self.old or {}).get("state") == "pending" and (
            (self.new or {}).get("state") == "cancelled"
        )


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """The three records as one transaction committed them, in order IDs."""

    xid: int
    cancelled: frozenset[int]
    audited: frozenset[int]
    first_index: int | None
    last_index: int | None
    checkpointed: frozenset[int]

    @property
    def checkpoint_text(self) -> str:
        """Return the checkpoint's move in words."""
        if self.first_index is None:
            return "did not move"
        return f"moved from {self.first_index} to {self.last_index}"


def order_moves(changes: Sequence[Change]) -> list[OrderMove]:
    """Fold the changes of `orders` to one move for each transaction and order, in first-seen order."""
    moves: dict[tuple[int, int], OrderMove] = {}
    for change in changes:
        if change.table != "orders":
            continue
        order_id = int((change.new or change.old or {})["order_id"])
        key = (change.xid, order_id)
        first = moves.get(key)
        moves[key] = OrderMove(change.xid, order_id, first.old if first else change.old, change.new)
    return list(moves.values())


def transactions(scenario: Scenario, changes: Sequence[Change]) -> list[TransactionPart]:
    """Return what each transaction committed of this job, in the order of its first change.

    Transactions that touched none of the three records are left out.
    """
    parts = []
    for xid in dict.fromkeys(change.xid for change in changes):
        own = [change for change in changes if change.xid == xid]
        cancelled = frozenset(m.order_id for m in order_moves(own) if m.cancels)
        audited = frozenset(
            int(c.new["order_id"])
            for c in own
            if c.table == "job_audit" and c.operation == "insert" and c.new
            and c.new["job_id"] == scenario.job_id
        )  # fmt: skip
        steps = [
            (int(c.old["next_index"]), int(c.new["next_index"]))
            for c in own
            if c.table == "jobs" and c.old and c.new and c.new["job_id"] == scenario.job_id
        ]
        # Within one transaction the checkpoint may move in steps: its first and last value count.
        first, last = (steps[0][0], steps[-1][1]) if steps else (0, 0)
        moved = first != last
        span = frozenset(scenario.approved_ids[min(first, last) : max(first, last)])
        if cancelled or audited or moved:
            start, end = (first, last) if moved else (None, None)
            parts.append(TransactionPart(xid, cancelled, audited, start, end, span))
    return parts


def show_ids(ids: Iterable[int]) -> str:
    """Spell out order IDs in ID order, the first dozen; 'none' when there are none."""
    ordered = sorted(ids)
    if not ordered:
        return "none"
    text = ", ".join(map(str, ordered[:IDS_SHOWN]))
    return text if len(ordered) <= IDS_SHOWN else f"{text} and {len(ordered) - IDS_SHOWN} more"
