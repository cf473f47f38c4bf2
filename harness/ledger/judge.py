"""The judge of track B: evidence in, findings out.

Pure, like `judge.py`: one small function per promise. Each compares what one snapshot holds, and
which transaction made which change, with the scenario; an empty list means that the promise was kept
as far as this evidence goes.

    findings = judge_ledger_safety(scenario, evidence) or judge_ledger_finished(scenario, evidence)

Safety holds at every moment, under every fault. Liveness is asked once the faults are healed. The
evidence holds the clients' changes only; what the harness wrote itself was taken out.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.ledger.children import judged_by_event, one_live_claim, one_way
from harness.ledger.findings import finding
from harness.ledger.history import children_of, counted_totals, totals_text
from harness.ledger.parents import (
    enumerated,
    every_child_ended,
    every_parent_completed,
    parent_failure,
)
from harness.ledger.scenario import LedgerScenario
from harness.records import Evidence, Finding

__all__ = [
    "Promise", "counters_counted", "enumerated", "every_child_ended", "every_parent_completed",
    "judge_ledger_finished", "judge_ledger_safety", "judged_by_event", "ledger_wins",
    "one_live_claim", "one_way", "parent_failure", "untouched_rows",
]  # fmt: skip

Promise = Callable[[LedgerScenario, Evidence], list[Finding]]


def judge_ledger_safety(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Return the broken safety promises: what must hold at every moment, under every fault."""
    return [finding for promise in SAFETY for finding in promise(scenario, evidence)]


def judge_ledger_finished(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Return what keeps the parents from being finished: liveness, once the faults are healed."""
    return every_child_ended(scenario, evidence) or every_parent_completed(scenario, evidence)


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
            findings.append(finding(
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
    return [finding("the ledger wins", "read which rows of the ledger were changed", "none", tables,
                     "The rows are the facts; only the parent's projection follows.")]  # fmt: skip


#: What must hold at every moment.
SAFETY: tuple[Promise, ...] = (
    enumerated,
    one_live_claim,
    one_way,
    judged_by_event,
    parent_failure,
)
