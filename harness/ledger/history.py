"""A ledger's history: the evidence of track B in the words of the ledger.

The witness records every committed row change with its transaction. The judge asks for more: what one
statement did to one child, which children a parent has, what its counters should be. Pure, like the
judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import ChildRow, EffectRow, Evidence, ParentRow

#: The three marks of a child; at most one is ever set.
MARKS = ("processed_at", "failed_at", "skipped_at")
#: Sequences spelled out in one sentence.
SHOWN = 12


@dataclass(frozen=True, slots=True)
class ChildStep:
    """What one statement did to one child."""

    xid: int
    seq: int
    key: tuple[str, int]
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        """Return the child's name in sentences."""
        return name_of(*self.key)


def child_steps(evidence: Evidence) -> list[ChildStep]:
    """Return every committed change of a child, in the order in which they were made."""
    steps = []
    for change in evidence.changes:
        if change.table == "child_work" and (change.old or change.new):
            row: Mapping[str, Any] = change.old or change.new or {}
            key = (str(row["parent_id"]), int(row["sequence"]))
            steps.append(ChildStep(change.xid, change.seq, key, change.old, change.new))
    return steps


def parent_of(evidence: Evidence, parent_id: str) -> ParentRow | None:
    """Return the parent's row, or None."""
    return next((row for row in evidence.parents if row.parent_id == parent_id), None)


def children_of(evidence: Evidence, parent_id: str) -> list[ChildRow]:
    """Return the parent's children in sequence order."""
    rows = [row for row in evidence.children if row.parent_id == parent_id]
    return sorted(rows, key=lambda row: row.sequence)


def effects_of(evidence: Evidence, parent_id: str) -> list[EffectRow]:
    """Return the parent's effects in sequence order."""
    rows = [row for row in evidence.effects if row.parent_id == parent_id]
    return sorted(rows, key=lambda row: row.sequence)


def counted_totals(rows: Sequence[ChildRow]) -> tuple[int, int, int, int, bool]:
    """Return total, processed, failed, skipped and complete, counted from the rows."""
    ends = [row.state for row in rows]
    counts = [ends.count(state) for state in ("processed", "failed", "skipped")]
    return (len(rows), counts[0], counts[1], counts[2], "pending" not in ends)


def totals_text(totals: tuple[int | None, int, int, int, bool]) -> str:
    """Say totals in words."""
    total, processed, failed, skipped, complete = totals
    counts = f"total {total}, processed {processed}, failed {failed}, skipped {skipped}"
    return f"{counts}, {'complete' if complete else 'not complete'}"


def show(sequences: Iterable[int]) -> str:
    """Spell out sequences, the first dozen; 'none' when there are none."""
    ordered = sorted(sequences)
    text = ", ".join(map(str, ordered[:SHOWN])) or "none"
    return text if len(ordered) <= SHOWN else f"{text} and {len(ordered) - SHOWN} more"


def name_of(parent_id: str, sequence: int) -> str:
    """Return a child's name in sentences."""
    return f"child {sequence} of {parent_id!r}"


def same_json(left: Any, right: Any) -> bool:
    """Tell whether two JSON values are equal; to Python alone, 1 and true are."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def marks_of(row: Mapping[str, Any]) -> list[str]:
    """Return the marks that are set in a witness's row of a child."""
    return [mark for mark in MARKS if row[mark] is not None]


def claims(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether an update of a child claimed it."""
    stamp = new["processing_started_at"]
    moved = stamp is not None and stamp != old["processing_started_at"]
    return moved or int(new["attempts"]) > int(old["attempts"])


def ends(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether an update of a child ended it."""
    return not marks_of(old) and bool(marks_of(new))
