"""The judge of track B, about parents: the set that a list becomes, resuming, and completion.

Pure, as `judge_ledger.py` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.ledger.findings import brief, finding
from harness.ledger.history import child_steps, children_of, ends, parent_of, same_json, show
from harness.ledger.scenario import LedgerScenario, ParentSeed, is_well_formed
from harness.records import Change, ChildRow, Evidence, Finding, ParentRow


def enumerated(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """A parent has all of its children and the mark, from one transaction, or it has neither."""
    findings = []
    for seed in scenario.parents:
        row, children = parent_of(evidence, seed.parent_id), children_of(evidence, seed.parent_id)
        if seed.decomposed or row is None:
            continue
        if row.decomposed_at is None:
            findings += _nothing_yet(seed, row, children)
        elif seed.listed is None:
            findings.append(finding(
                "enumerated", f"read the parent {seed.parent_id!r}, whose payload has no list of events",
                "it is ended (failed_at, completed_at, failure), and decomposed_at stays NULL",
                "decomposed_at is set", "Nothing was decomposed, so the mark says something untrue.",
            ))  # fmt: skip
        else:
            findings += _whole_set(seed, children) or _one_commit(seed, evidence)
    return findings


def parent_failure(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """A parent with a ledger goes on from it; it is complete when no child is open; history stays."""
    findings = []
    for seed in scenario.parents:
        row = parent_of(evidence, seed.parent_id)
        if row is None:
            findings.append(
                _resume(f"read the parent {seed.parent_id!r}", "it is there", "it is gone")
            )
            continue
        if seed.decomposed:
            findings += _never_reparsed(seed, row, evidence)
        findings += _completed_when_none_is_open(seed, row, evidence) + _history_kept(seed, row)
    return findings


def every_child_ended(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """With the faults healed, no child is open."""
    findings = []
    for seed in scenario.parents:
        expected = seed.events or []
        rows = children_of(evidence, seed.parent_id)
        open_now = [row.sequence for row in rows if row.state == "pending"]
        if open_now or len(rows) < len(expected):
            seen = f"still open: {show(open_now)}; {len(rows)} children"
            findings.append(_resume(
                f"let a healthy worker go on with {seed.parent_id!r} when every old claim was over",
                f"all {len(expected)} children have ended", seen,
            ))  # fmt: skip
    return findings


def every_parent_completed(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """With the faults healed, every parent is complete."""
    late = [p.parent_id for p in evidence.parents if p.completed_at is None]
    if not late:
        return []
    return [_resume("let a healthy worker run until nothing could be claimed",
                    "completed_at is set: every child has ended", f"not completed: {', '.join(late)}",
                    "Whoever ends the last child, or comes after it, has to ask whether one is open.")]  # fmt: skip


# --- details: the set -------------------------------------------------------------------------------


def _nothing_yet(seed: ParentSeed, row: ParentRow, children: list[ChildRow]) -> list[Finding]:
    """Judge a parent without the mark: it has no children, and it is whole in its end, if it has one."""
    if children:
        return [finding(
            "enumerated", f"read the parent {seed.parent_id!r}, which has no decomposed_at",
            "no children: rows and mark are committed together",
            f"{len(children)} children, at sequences {show(c.sequence for c in children)}",
            "Rows and mark are separate commits; a kill in between leaves a middle.",
        )]  # fmt: skip
    ended = (row.completed_at is not None, row.failed_at is not None, bool(row.failure))
    if seed.listed is None and row.completed_at is not None and not all(ended):
        return [finding(
            "enumerated", f"read the parent {seed.parent_id!r}, whose payload has no list of events",
            "failed_at, completed_at and failure are all set",
            f"failed_at {row.failed_at}, completed_at {row.completed_at}, failure {row.failure!r}",
        )]  # fmt: skip
    return []


def _whole_set(seed: ParentSeed, children: list[ChildRow]) -> list[Finding]:
    """Judge the children of a decomposed parent against its list."""
    events = seed.listed or []
    did = (
        f"compared the children of {seed.parent_id!r} with the {len(events)} events of its payload"
    )
    seen = [row.sequence for row in children]
    if seen != list(range(len(events))):
        missing = set(range(len(events))) - set(seen)
        extra = [n for n in seen if n not in range(len(events))]
        return [finding(
            "enumerated", did, f"sequences 0 to {len(events) - 1}, each once" if events else "none",
            f"{len(seen)} children; missing: {show(missing)}; not in the list: {show(extra)}",
            "Every event becomes one row, in the order of the payload, counted from 0.",
        )]  # fmt: skip
    for event, row in zip(events, children, strict=True):
        if not same_json(event, row.event):
            return [finding("enumerated", did, f"at sequence {row.sequence}: {brief(event)}",
                             brief(row.event), "The element is stored as it is, in its place.")]  # fmt: skip
        if not is_well_formed(event) and not (row.state == "skipped" and row.outcome):
            return [finding(
                "enumerated", f"{did}; {brief(event)} at sequence {row.sequence} is malformed",
                "stored, and marked skipped with a reason", f"{row.state}, outcome {row.outcome!r}",
                "A malformed event is kept, and ended at once: no worker can do anything with it.",
            )]  # fmt: skip
    return []


def _one_commit(seed: ParentSeed, evidence: Evidence) -> list[Finding]:
    """Judge that rows, total and mark were committed by the same transaction."""
    own = [c for c in evidence.changes if _belongs(c, seed.parent_id)]
    marks = [
        c.xid for c in own
        if c.table == "parent_work" and c.old and c.new
        and c.old["decomposed_at"] is None and c.new["decomposed_at"] is not None
    ]  # fmt: skip
    rows = {c.xid for c in own if c.table == "child_work" and c.operation == "insert"}
    did = f"read which transactions made the ledger of {seed.parent_id!r}"
    if len(marks) != 1 or rows - set(marks):
        return [finding(
            "enumerated", did, "one transaction with all rows and the mark",
            f"rows in transactions {show(rows)}, the mark in {show(marks)}",
            "A kill between two commits leaves rows without the mark, or the mark without rows.",
        )]  # fmt: skip
    last = [c.new for c in own if c.table == "parent_work" and c.xid == marks[0]][-1]
    total = last["total"] if last else None
    if total != len(seed.listed or []):
        return [finding("enumerated", f"{did}, and the total it set",
                         f"total {len(seed.listed or [])}, the number of rows", f"total {total}",
                         "Malformed events are children, too.")]  # fmt: skip
    return []


def _belongs(change: Change, parent_id: str) -> bool:
    row: Mapping[str, Any] = change.new or change.old or {}
    return change.table in ("parent_work", "child_work") and row.get("parent_id") == parent_id


# --- details: resuming and completion ---------------------------------------------------------------


def _never_reparsed(seed: ParentSeed, row: ParentRow, evidence: Evidence) -> list[Finding]:
    rows = children_of(evidence, seed.parent_id)
    before = [(child.child_id, child.sequence) for child in seed.children]
    now = [(child.child_id, child.sequence) for child in rows]
    same = now == before and all(
        same_json(a.event, b.event) for a, b in zip(seed.children, rows, strict=True)
    )
    if same and row.decomposed_at is not None:
        return []
    return [_resume(
        f"compared the ledger of {seed.parent_id!r} with what it was",
        f"the same {len(before)} rows, with their child IDs and events, and the mark",
        f"{len(now)} rows, of which {len(set(now) & set(before))} are old ones; "
        f"decomposed_at is {row.decomposed_at}",
        "A parent with a ledger is never parsed again: the mark is set, the rows decide.",
    )]  # fmt: skip


def _completed_when_none_is_open(
    seed: ParentSeed, row: ParentRow, evidence: Evidence
) -> list[Finding]:
    """Judge a completion stamp that a client set, as of the moment it was set."""
    if seed.completed or (seed.listed is None and not seed.decomposed):
        return []
    stamped = [
        c for c in evidence.changes
        if c.table == "parent_work" and c.old and c.new and c.new["parent_id"] == seed.parent_id
        and c.old["completed_at"] is None and c.new["completed_at"] is not None
    ]  # fmt: skip
    late = {
        step.key[1]
        for change in stamped for step in child_steps(evidence)
        if step.key[0] == seed.parent_id and step.xid != change.xid and step.seq > change.seq
        and step.old is not None and step.new is not None and ends(step.old, step.new)
    }  # fmt: skip
    rows = children_of(evidence, seed.parent_id)
    still = {child.sequence for child in rows if child.state == "pending"}
    open_then = late | still if row.completed_at is not None else late
    whole = bool(seed.decomposed or row.decomposed_at)
    if (row.completed_at is None and not late) or (whole and not open_then):
        return []
    return [_resume(
        f"read when {seed.parent_id!r} was completed", "completed_at is set when no child is open",
        f"set while these were open: {show(open_then)}" if whole else "set before it was decomposed",
        "Completion is asked of the rows: nothing to claim, or a counter that fits, is no proof.",
    )]  # fmt: skip


def _history_kept(seed: ParentSeed, row: ParentRow) -> list[Finding]:
    if seed.failure is None or (seed.listed is None and not seed.decomposed):
        return []
    if row.failed_at is not None and row.failure == seed.failure:
        return []
    return [_resume(
        f"read the earlier failure of {seed.parent_id!r}",
        f"failed_at as it was, failure {seed.failure!r}",
        f"failed_at {row.failed_at}, failure {row.failure!r}",
        "That a run of the parent stopped is history: it decides nothing, and it is not erased.",
    )]  # fmt: skip


def _resume(did: str, expected: str, seen: str, cause: str = "") -> Finding:
    return finding("parent failure is not child completion", did, expected, seen, cause)
