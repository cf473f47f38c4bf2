"""Hand-made evidence of track B: what a correct worker leaves, to be broken one value at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.ledger.scenario import (
    LedgerScenario,
    ParentSeed,
    ending_of,
    is_well_formed,
    moment,
)
from harness.records import Change, ChildRow, EffectRow, Evidence, ParentRow

NOW = datetime(2026, 9, 20, 22, 0, tzinfo=UTC)
#: The transactions of a correct run: one decomposes, one claims, then one ends each child.
DECOMPOSED, CLAIMED, ENDED = 900, 901, 910
COMPLETED = 999


def correct_ledger(scenario: LedgerScenario) -> Evidence:
    """Return what a correct worker leaves that decomposed, claimed, ended and completed everything."""
    evidence = Evidence(subjects=scenario.subjects)
    for parent in scenario.parents:
        evidence = _worked_off(evidence, scenario, parent)
    changes = tuple(replace(c, seq=n) for n, c in enumerate(evidence.changes, 1))
    return replace(evidence, changes=changes)


def _worked_off(evidence: Evidence, scenario: LedgerScenario, seed: ParentSeed) -> Evidence:
    changes: list[Change] = []
    parent = _parent(seed)
    if not seed.decomposed:
        new = replace(parent, total=len(seed.listed or ()), decomposed_at=NOW)
        rows = [_new_child(seed, n, event) for n, event in enumerate(seed.listed or ())]
        changes += [change(DECOMPOSED, "child_work", None, row) for row in rows]
        changes.append(change(DECOMPOSED, "parent_work", parent, new))
        parent = new
    else:
        rows = [_old_child(seed, n) for n in range(len(seed.children))]
    first_end = ENDED + 30 * len(evidence.parents)
    effects = list(evidence.effects)
    effects += [_effect(row) for row in rows if row.processed_at is not None]
    for n, row in enumerate(rows):
        if row.state == "pending":
            claimed = replace(row, processing_started_at=NOW, attempts=row.attempts + 1)
            changes.append(change(CLAIMED, "child_work", row, claimed))
            rows[n] = claimed
    for n, row in enumerate(rows):
        if row.state == "pending":
            end = ending_of(row.event, scenario.subjects)
            ended = replace(row, **{f"{end.state}_at": NOW, "outcome": end.reason})  # type: ignore[arg-type]
            changes.append(change(first_end + n, "child_work", row, ended))
            rows[n] = ended
            if end.state == "processed":
                effects.append(_effect(ended))
                changes.append(change(first_end + n, "event_effects", None, effects[-1]))
    if not seed.completed:
        done = replace(parent, completed_at=NOW)
        changes.append(change(COMPLETED, "parent_work", parent, done))
        parent = done
    return replace(
        evidence,
        parents=(*evidence.parents, parent),
        children=(*evidence.children, *rows),
        effects=tuple(effects),
        changes=(*evidence.changes, *changes),
    )


def _parent(seed: ParentSeed) -> ParentRow:
    past = NOW - timedelta(days=1)
    return ParentRow(
        seed.parent_id, seed.payload, *seed.counters, past if seed.decomposed else None,
        past if seed.completed else None, past if seed.failure is not None else None, seed.failure,
    )  # fmt: skip


def _new_child(seed: ParentSeed, sequence: int, event: Any) -> ChildRow:
    bad = None if is_well_formed(event) else NOW
    why = "malformed" if bad else None
    return ChildRow(100 + sequence, seed.parent_id, sequence, event, None, 0, None, None, bad, why)


def _old_child(seed: ParentSeed, sequence: int) -> ChildRow:
    child = seed.child(sequence)
    claimed = NOW - child.claimed_ago if child.claimed_ago is not None else None
    row = ChildRow(
        child.child_id, seed.parent_id, sequence, child.event, claimed, child.attempts, None, None, None, None
    )  # fmt: skip
    if child.ending is None:
        return row
    past = NOW - timedelta(days=1)
    return replace(row, **{f"{child.ending.state}_at": past, "outcome": child.ending.reason})  # type: ignore[arg-type]


def _effect(row: ChildRow) -> EffectRow:
    at = moment(row.event["occurred_at"])
    assert at is not None
    return EffectRow(row.child_id, row.parent_id, row.sequence, row.event["subject"], at)


def change(xid: int, table: str, old: Any | None, new: Any | None) -> Change:
    """Return one witness row; times are texts, as in the witness's JSON."""
    operation = "insert" if old is None else "delete" if new is None else "update"
    return Change(0, xid, 4242, table, operation, _json(old), _json(new))


def _json(row: Any | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in asdict(row).items()
    }


def with_child(evidence: Evidence, sequence: int, **new: Any) -> Evidence:
    """Return the evidence with other values in one child's row."""
    rows = tuple(replace(r, **new) if r.sequence == sequence else r for r in evidence.children)
    return replace(evidence, children=rows)


def with_parent(evidence: Evidence, **new: Any) -> Evidence:
    """Return the evidence with other values in the first parent's row."""
    first, *rest = evidence.parents
    return replace(evidence, parents=(replace(first, **new), *rest))


def edited(evidence: Evidence, edit: Callable[[Change], Change | None]) -> Evidence:
    """Return the evidence with each witness row edited, or left out where `edit` returns None."""
    kept = [edit(c) for c in evidence.changes]
    return replace(evidence, changes=tuple(c for c in kept if c is not None))


def appended(evidence: Evidence, *extra: Change) -> Evidence:
    """Return the evidence with more witness rows at the end."""
    start = len(evidence.changes) + 1
    more = tuple(replace(c, seq=n) for n, c in enumerate(extra, start))
    return replace(evidence, changes=(*evidence.changes, *more))
