"""The judge of track B, about children: claims, ends and effects.

Pure, as `judge_ledger.py` says. What one statement did to one child comes from `ledger_history.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from harness.ledger.findings import brief, finding
from harness.ledger.history import (
    MARKS,
    SHOWN,
    ChildStep,
    child_steps,
    claims,
    ends,
    marks_of,
    name_of,
)
from harness.ledger.scenario import LedgerScenario, ending_of, is_well_formed, moment
from harness.records import Evidence, Finding

#: `now()` is the transaction's start, `clock_timestamp()` the moment: a claim may mix the two.
CLOCK_SLACK = timedelta(seconds=1)


def one_live_claim(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Only an open child without a live claim is claimed, and each claim counts one attempt more."""
    findings = []
    for step in child_steps(evidence):
        old, new = step.old, step.new
        if old is None or new is None or not claims(old, new):
            continue
        problem = ""
        if marks_of(old):
            problem = f"it had ended already ({', '.join(marks_of(old))})"
        elif int(new["attempts"]) != int(old["attempts"]) + 1:
            problem = f"attempts went from {old['attempts']} to {new['attempts']}"
        elif old["processing_started_at"] is not None:
            held = _time(new["processing_started_at"]) - _time(old["processing_started_at"])
            if held < scenario.lease - CLOCK_SLACK:
                problem = f"another claim was {held} old, and live for {scenario.lease}"
        if problem:
            findings.append(finding(
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
        finding("one-way", f"read {name_of(row.parent_id, row.sequence)}",
                 "one mark: processed, failed or skipped", f"marked {row.state}",
                 "The guard of the UPDATE must name all three marks.")
        for row in evidence.children if "+" in row.state
    ]  # fmt: skip
    for step in child_steps(evidence):
        if step.old is None or not marks_of(step.old):
            continue
        kept = step.new is not None and all(
            step.old[key] == step.new[key] for key in (*MARKS, "outcome")
        )
        if not kept:
            findings.append(finding(
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
            findings.append(finding(
                "one-way", f"followed {name_of(*key)}, which is {row.state}, and its effects",
                f"one effect, in the transaction of its end ({end})" if wanted else "no new effect",
                _effects_text(seen), "Mark and effect belong into one transaction, after the guard.",
            ))  # fmt: skip
    findings += [
        finding("one-way", "looked for effects without a child", "none",
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
        if claims(step.old, step.new):
            claimed.setdefault(step.xid, set()).add(step.key)
        if ends(step.old, step.new) and is_well_formed(step.new["event"]):
            ended.setdefault(step.xid, []).append(step)
    for xid, steps in ended.items():
        if len(steps) > 1:
            names = ", ".join(step.name for step in steps[:SHOWN])
            findings.append(finding(
                "one-way", f"read which children transaction {xid} ended", "one child", names,
                "A kill at the last of them undoes the others; a bad one takes all down with it.",
            ))  # fmt: skip
        elif steps[0].key in claimed.get(xid, set()):
            findings.append(finding(
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
            findings.append(finding(
                "one-way", f"read how {name_of(row.parent_id, row.sequence)} ended; its event is {brief(row.event)}",
                f"{wanted.state}, outcome {wanted.reason!r}", f"{row.state}, outcome {row.outcome!r}",
                "The subject is judged before the time, and a time is ISO 8601 with an offset.",
            ))  # fmt: skip
    return findings


# --- details ----------------------------------------------------------------------------------------


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _end_text(row: Mapping[str, Any]) -> str:
    return f"{', '.join(marks_of(row)) or 'open'}, outcome {row['outcome']!r}"


def _end_xids(evidence: Evidence) -> dict[tuple[str, int], int]:
    """Return for each child the transaction that ended it; the first, if several did."""
    ends: dict[tuple[str, int], int] = {}
    for step in child_steps(evidence):
        if step.new is not None and marks_of(step.new) and not (step.old and marks_of(step.old)):
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
            return [finding(
                "one-way", f"compared the effect of {name_of(effect.parent_id, effect.sequence)} with its event",
                f"subject {wanted[0]!r} at {wanted[1]}",
                f"subject {effect.subject!r} at {effect.occurred_at}",
                "The offset belongs to the moment: 18:00+02:00 is 16:00 in UTC.",
            )]  # fmt: skip
    return []
