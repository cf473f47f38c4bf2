"""The judge of track B: evidence in, findings out.

Pure, like `judge.py`: one small function per promise. Each compares what one snapshot holds, and
which transaction made which change, with the scenario; an empty list means that the promise was kept
as far as this evidence goes.

    findings = judge_ledger_safety(scenario, evidence) or judge_ledger_finished(scenario, evidence)

Safety holds at every moment, under every fault. Liveness is asked once the faults are healed. The
evidence holds the clients' changes only; what the harness wrote itself was taken out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from harness.ledger_history import (
    SHOWN,
    ChildStep,
    child_steps,
    children_of,
    counted_totals,
    name_of,
    parent_of,
    same_json,
    show,
    totals_text,
)
from harness.ledger_scenario import (
    LedgerScenario,
    ParentSeed,
    ending_of,
    is_well_formed,
    moment,
)
from harness.records import Change, ChildRow, Evidence, Finding, ParentRow

READ = {
    "enumerated": "labs/lab08_decompose/README.md",
    "one live claim": "labs/lab09_claim/README.md",
    "one-way": "labs/lab10_finish/README.md",
    "parent failure is not child completion": "labs/lab11_resume/README.md",
    "the ledger wins": "labs/lab12_reconcile/README.md",
}
#: `now()` is the transaction's start, `clock_timestamp()` the moment: a claim may mix the two.
CLOCK_SLACK = timedelta(seconds=1)
MARKS = ("processed_at", "failed_at", "skipped_at")

Promise = Callable[[LedgerScenario, Evidence], list[Finding]]


def judge_ledger_safety(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Return the broken safety promises: what must hold at every moment, under every fault."""
    return [finding for promise in SAFETY for finding in promise(scenario, evidence)]


def judge_ledger_finished(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Return what keeps the parents from being finished: liveness, once the faults are healed."""
    return every_child_ended(scenario, evidence) or every_parent_completed(scenario, evidence)


# --- one function per promise -----------------------------------------------------------------------


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
            findings.append(_finding(
                "enumerated", f"read the parent {seed.parent_id!r}, whose payload has no list of events",
                "it is ended (failed_at, completed_at, failure), and decomposed_at stays NULL",
                "decomposed_at is set", "Nothing was decomposed, so the mark says something untrue.",
            ))  # fmt: skip
        else:
            findings += _whole_set(seed, children) or _one_commit(seed, evidence)
    return findings


def one_live_claim(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Only an open child without a live claim is claimed, and each claim counts one attempt more."""
    findings = []
    for step in child_steps(evidence):
        old, new = step.old, step.new
        if old is None or new is None or not _claims(old, new):
            continue
        problem = ""
        if _marks(old):
            problem = f"it had ended already ({', '.join(_marks(old))})"
        elif int(new["attempts"]) != int(old["attempts"]) + 1:
            problem = f"attempts went from {old['attempts']} to {new['attempts']}"
        elif old["processing_started_at"] is not None:
            held = _time(new["processing_started_at"]) - _time(old["processing_started_at"])
            if held < scenario.lease - CLOCK_SLACK:
                problem = f"another claim was {held} old, and live for {scenario.lease}"
        if problem:
            findings.append(_finding(
                "one live claim", f"followed the claims of {step.name} (transaction {step.xid})",
                "a claim takes an open child with no live claim, and counts one attempt",
                problem, "The choice of rows must ask for the three marks and for the claim's age.",
            ))  # fmt: skip
    return findings


def one_way(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """A child ends once and stays so; its effect is committed with its end, one child a transaction."""
    return (
        ended_once(scenario, evidence)
        + effect_with_its_end(scenario, evidence)
        + one_child_a_transaction(scenario, evidence)
    )


def ended_once(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """No child has two marks, and no mark or outcome changes once one is set."""
    findings = [
        _finding("one-way", f"read {name_of(row.parent_id, row.sequence)}",
                 "one mark: processed, failed or skipped", f"marked {row.state}",
                 "The guard of the UPDATE must name all three marks.")
        for row in evidence.children if "+" in row.state
    ]  # fmt: skip
    for step in child_steps(evidence):
        if step.old is None or not _marks(step.old):
            continue
        kept = step.new is not None and all(
            step.old[key] == step.new[key] for key in (*MARKS, "outcome")
        )
        if not kept:
            findings.append(_finding(
                "one-way", f"followed {step.name} after its end (transaction {step.xid})",
                f"it stays as it was: {_end_text(step.old)}",
                _end_text(step.new) if step.new is not None else "the row was deleted",
                "An UPDATE without a guard overwrites the end that another worker set.",
            ))  # fmt: skip
    return findings


def effect_with_its_end(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Each processed child has exactly one effect, by the transaction that ended it; no other has one."""
    findings = []
    effects, ends = _effect_xids(evidence), _end_xids(evidence)
    stored = Counter((row.parent_id, row.sequence) for row in evidence.effects)
    before = {
        (seed.parent_id, child.sequence)
        for seed in scenario.parents for child in seed.children
        if child.ending is not None and child.ending.state == "processed"
    }  # fmt: skip
    for row in evidence.children:
        key = (row.parent_id, row.sequence)
        seen, end = effects.pop(key, []), ends.get(key)
        wanted = [end] if row.processed_at is not None and key not in before else []
        if seen != wanted or stored[key] != (row.processed_at is not None):
            findings.append(_finding(
                "one-way", f"followed {name_of(*key)}, which is {row.state}, and its effects",
                f"one effect, in the transaction of its end ({end})" if wanted else "no new effect",
                _effects_text(seen), "Mark and effect belong into one transaction, after the guard.",
            ))  # fmt: skip
    findings += [
        _finding("one-way", "looked for effects without a child", "none",
                 f"an effect of {name_of(*key)} in {_effects_text(xids)}")
        for key, xids in effects.items()
    ]  # fmt: skip
    return findings or _effect_values(evidence)


def one_child_a_transaction(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """A transaction ends one child, which was claimed in an earlier one: a kill loses one child's work."""
    findings = []
    ended: dict[int, list[ChildStep]] = {}
    claimed: dict[int, set[tuple[str, int]]] = {}
    for step in child_steps(evidence):
        if step.old is None or step.new is None:
            continue
        if _claims(step.old, step.new):
            claimed.setdefault(step.xid, set()).add(step.key)
        if _ends(step.old, step.new) and is_well_formed(step.new["event"]):
            ended.setdefault(step.xid, []).append(step)
    for xid, steps in ended.items():
        if len(steps) > 1:
            names = ", ".join(step.name for step in steps[:SHOWN])
            findings.append(_finding(
                "one-way", f"read which children transaction {xid} ended", "one child", names,
                "A kill at the last of them undoes the others; a bad one takes all down with it.",
            ))  # fmt: skip
        elif steps[0].key in claimed.get(xid, set()):
            findings.append(_finding(
                "one-way", f"read what transaction {xid} did to {steps[0].name}",
                "the claim is committed before its work starts", "claim and end in one transaction",
                "A kill takes the claim back as well, and no attempt is ever counted.",
            ))  # fmt: skip
    return findings


def judged_by_event(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Each child ended as its event says: the subject is judged first, then the time."""
    seeded = {
        (seed.parent_id, child.sequence)
        for seed in scenario.parents for child in seed.children if child.ending is not None
    }  # fmt: skip
    findings = []
    for row in evidence.children:
        if row.state == "pending" or (row.parent_id, row.sequence) in seeded:
            continue
        wanted = ending_of(row.event, scenario.subjects)
        malformed = not is_well_formed(row.event)
        right = row.state == wanted.state and (
            bool(row.outcome) if malformed else row.outcome == wanted.reason
        )
        if not right:
            findings.append(_finding(
                "one-way", f"read how {name_of(row.parent_id, row.sequence)} ended; its event is {_brief(row.event)}",
                f"{wanted.state}, outcome {wanted.reason!r}", f"{row.state}, outcome {row.outcome!r}",
                "The subject is judged before the time, and a time is ISO 8601 with an offset.",
            ))  # fmt: skip
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


def ledger_wins(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Counters and completion of every decomposed parent are what its rows say; the rows did not move."""
    return untouched_rows(scenario, evidence) + counters_counted(scenario, evidence)


def counters_counted(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Counters and completion of every decomposed parent are what its rows say."""
    findings = []
    for row in evidence.parents:
        if row.decomposed_at is None:
            continue
        counted = counted_totals(children_of(evidence, row.parent_id))
        stored = (row.total, row.processed, row.failed, row.skipped, row.completed_at is not None)
        if stored != counted:
            findings.append(_finding(
                "the ledger wins", f"repaired {row.parent_id!r}, then counted its rows",
                totals_text(counted), totals_text(stored),
                "The counters are counted from the rows, never adjusted.",
            ))  # fmt: skip
    return findings


def untouched_rows(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """No child and no effect was changed."""
    moved = [c for c in evidence.changes if c.table in ("child_work", "event_effects")]
    if not moved:
        return []
    tables = ", ".join(dict.fromkeys(f"{c.operation} of {c.table}" for c in moved))
    return [_finding("the ledger wins", "read which rows of the ledger were changed", "none", tables,
                     "The rows are the facts; only the parent's projection follows.")]  # fmt: skip


SAFETY: tuple[Promise, ...] = (
    enumerated,
    one_live_claim,
    one_way,
    judged_by_event,
    parent_failure,
)


def unfinished(promise: str, did: str, expected: str, seen: str) -> Finding:
    """Return the finding that a healthy client, with the faults healed, did not get something done."""
    return _finding(promise, did, expected, seen)


# --- details: enumerated ------------------------------------------------------------------------------


def _nothing_yet(seed: ParentSeed, row: ParentRow, children: list[ChildRow]) -> list[Finding]:
    """Judge a parent without the mark: it has no children, and it is whole in its end, if it has one."""
    if children:
        return [_finding(
            "enumerated", f"read the parent {seed.parent_id!r}, which has no decomposed_at",
            "no children: rows and mark are committed together",
            f"{len(children)} children, at sequences {show(c.sequence for c in children)}",
            "Rows and mark are separate commits; a kill in between leaves a middle.",
        )]  # fmt: skip
    ended = (row.completed_at is not None, row.failed_at is not None, bool(row.failure))
    if seed.listed is None and row.completed_at is not None and not all(ended):
        return [_finding(
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
        return [_finding(
            "enumerated", did, f"sequences 0 to {len(events) - 1}, each once" if events else "none",
            f"{len(seen)} children; missing: {show(missing)}; not in the list: {show(extra)}",
            "Every event becomes one row, in the order of the payload, counted from 0.",
        )]  # fmt: skip
    for event, row in zip(events, children, strict=True):
        if not same_json(event, row.event):
            return [_finding("enumerated", did, f"at sequence {row.sequence}: {_brief(event)}",
                             _brief(row.event), "The element is stored as it is, in its place.")]  # fmt: skip
        if not is_well_formed(event) and not (row.state == "skipped" and row.outcome):
            return [_finding(
                "enumerated", f"{did}; {_brief(event)} at sequence {row.sequence} is malformed",
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
        return [_finding(
            "enumerated", did, "one transaction with all rows and the mark",
            f"rows in transactions {show(rows)}, the mark in {show(marks)}",
            "A kill between two commits leaves rows without the mark, or the mark without rows.",
        )]  # fmt: skip
    last = [c.new for c in own if c.table == "parent_work" and c.xid == marks[0]][-1]
    total = last["total"] if last else None
    if total != len(seed.listed or []):
        return [_finding("enumerated", f"{did}, and the total it set",
                         f"total {len(seed.listed or [])}, the number of rows", f"total {total}",
                         "Malformed events are children, too.")]  # fmt: skip
    return []


def _belongs(change: Change, parent_id: str) -> bool:
    row: Mapping[str, Any] = change.new or change.old or {}
    return change.table in ("parent_work", "child_work") and row.get("parent_id") == parent_id


# --- details: claims and ends ----------------------------------------------------------------------------


def _claims(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    stamp = new["processing_started_at"]
    moved = stamp is not None and stamp != old["processing_started_at"]
    return moved or int(new["attempts"]) > int(old["attempts"])


def _ends(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return not _marks(old) and bool(_marks(new))


def _marks(row: Mapping[str, Any]) -> list[str]:
    return [mark for mark in MARKS if row[mark] is not None]


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _end_text(row: Mapping[str, Any]) -> str:
    return f"{', '.join(_marks(row)) or 'open'}, outcome {row['outcome']!r}"


def _end_xids(evidence: Evidence) -> dict[tuple[str, int], int]:
    """Return for each child the transaction that ended it; the first, if several did."""
    ends: dict[tuple[str, int], int] = {}
    for step in child_steps(evidence):
        if step.new is not None and _marks(step.new) and not (step.old and _marks(step.old)):
            ends.setdefault(step.key, step.xid)
    return ends


def _effect_xids(evidence: Evidence) -> dict[tuple[str, int], list[int]]:
    """Return for each child the transactions that wrote its effects, once an effect."""
    effects: dict[tuple[str, int], list[int]] = {}
    for change in evidence.changes:
        if change.table == "event_effects" and change.operation == "insert" and change.new:
            key = (str(change.new["parent_id"]), int(change.new["sequence"]))
            effects.setdefault(key, []).append(change.xid)
    return effects


def _effects_text(xids: Sequence[int]) -> str:
    if not xids:
        return "no effect"
    return f"{len(xids)} effect{'s' if len(xids) > 1 else ''}, in transactions {', '.join(map(str, xids))}"


def _effect_values(evidence: Evidence) -> list[Finding]:
    """Judge that each effect says what its child's event says."""
    events = {(row.parent_id, row.sequence): row.event for row in evidence.children}
    for effect in evidence.effects:
        event = events.get((effect.parent_id, effect.sequence))
        if not isinstance(event, dict):
            continue
        wanted = (event.get("subject"), moment(str(event.get("occurred_at"))))
        if (effect.subject, effect.occurred_at) != wanted:
            return [_finding(
                "one-way", f"compared the effect of {name_of(effect.parent_id, effect.sequence)} with its event",
                f"subject {wanted[0]!r} at {wanted[1]}",
                f"subject {effect.subject!r} at {effect.occurred_at}",
                "The offset belongs to the moment: 18:00+02:00 is 16:00 in UTC.",
            )]  # fmt: skip
    return []


# --- details: parents -------------------------------------------------------------------------------------


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
        and step.old is not None and step.new is not None and _ends(step.old, step.new)
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


# --- words ------------------------------------------------------------------------------------------------


def _finding(promise: str, did: str, expected: str, seen: str, cause: str = "") -> Finding:
    return Finding(promise, did, expected, seen, cause, READ[promise])


def _resume(did: str, expected: str, seen: str, cause: str = "") -> Finding:
    return _finding("parent failure is not child completion", did, expected, seen, cause)


def _brief(event: Any, most: int = 120) -> str:
    text = json.dumps(event, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 3] + "..."
