"""Track B's activities: what a sweep of labs 8 to 12 puts under fault.

A dead worker's claims are live until their lease is over. So whoever resumes comes later: `Later`
makes every claim old, by the database's clock, before it starts its client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.activity import Activity, Calls
from harness.healthy import Heard, judge_calls
from harness.ledger.findings import finding
from harness.ledger.history import children_of, parent_of, show
from harness.ledger.judge import (
    enumerated,
    every_child_ended,
    judge_ledger_finished,
    judge_ledger_safety,
    judged_by_event,
    ledger_wins,
    one_live_claim,
    one_way,
    untouched_rows,
)
from harness.ledger.scenario import PARENT, LedgerScenario, ledger, mixed_scans, one, unread
from harness.ledger.seeding import age_claims, seed_ledger
from harness.limits import SWEEP_CHUNK, SWEEP_ORDERS
from harness.records import Evidence, Finding, Returned, Stop
from harness.script import CALLS_MAX_EXTRA, Call, Script
from harness.workshop import Actor, Scene


@dataclass(frozen=True)
class Later(Calls):
    """A script that is played when every earlier claim is over."""

    def start(
        self,
        scene: Scene,
        impl: Path,
        scenario: Any,
        *,
        stop: Stop | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Make all claims old, start a client, and send the first call."""
        age_claims(scene.laboratory.control)
        return super().start(scene, impl, scenario, stop=stop, settings=settings)


# --- scripts ----------------------------------------------------------------------------------------


def decompose(scenario: LedgerScenario) -> Script:
    """Lab 8: decompose the parent."""
    yield Call(8, "decompose", (PARENT,))


def claim_all(scenario: LedgerScenario) -> Script:
    """Lab 9: claim until nothing is free."""
    yield from _until_empty(scenario, Call(9, "claim", (PARENT, scenario.limit, scenario.lease)))


def process_all(scenario: LedgerScenario) -> Script:
    """Lab 10: process until nothing is left."""
    yield from _until_empty(scenario, Call(10, "process", (PARENT, scenario.limit, scenario.lease)))


def run_parent(scenario: LedgerScenario) -> Script:
    """Lab 11: run the parent, then ask what is left."""
    yield Call(11, "run_parent", (PARENT, scenario.limit, scenario.lease))
    yield Call(11, "resumable")


def repair(scenario: LedgerScenario) -> Script:
    """Lab 12: repair the counters."""
    yield Call(12, "reconcile", (PARENT, False))


def _until_empty(scenario: LedgerScenario, call: Call) -> Script:
    """Call until the answer is empty; a client that never gets there is stopped."""
    for _ in range(len(scenario.parent.children) + CALLS_MAX_EXTRA):
        result = yield call
        if not isinstance(result, Returned) or not result.value:
            return


# --- judges of single labs --------------------------------------------------------------------------


def decomposed(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Lab 8: the mark is set; `enumerated` judges what is behind it."""
    row = parent_of(evidence, PARENT)
    if row is not None and row.decomposed_at is not None:
        return []
    return [finding("enumerated", "let one healthy client decompose the parent",
                       "decomposed_at is set", "decomposed_at is NULL")]  # fmt: skip


def all_claimed(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Lab 9: every open child has been claimed."""
    rows = children_of(evidence, PARENT)
    free = [row.sequence for row in rows if row.state == "pending" and row.attempts == 0]
    if not free:
        return []
    return [finding("one live claim", "let one healthy client claim until nothing was free",
                       "every open child is claimed", f"never claimed: {show(free)}")]  # fmt: skip


def safe_processing(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Lab 10: claims are single, ends are one-way and as the events say."""
    promises = (one_live_claim, one_way, judged_by_event)
    return [finding for promise in promises for finding in promise(scenario, evidence)]


def old_or_new(scenario: LedgerScenario, evidence: Evidence) -> list[Finding]:
    """Lab 12: the counters are as they were or as the rows say, and the rows did not move."""
    seed, row = scenario.parent, parent_of(evidence, PARENT)
    assert row is not None
    seen = (row.total, row.processed, row.failed, row.skipped, row.completed_at is not None)
    if seen == (*seed.counters, seed.completed):
        return untouched_rows(scenario, evidence)
    return ledger_wins(scenario, evidence)


def nothing_left(scenario: LedgerScenario, before: Evidence | None, heard: Heard) -> list[Finding]:
    """Lab 11: no call failed, and when the parent was run it is on nobody's list."""
    findings = judge_calls(heard.calls)
    last = heard.calls[-1] if heard.calls else None
    if findings or last is None or not isinstance(last[1], Returned):
        return findings
    listed = [getattr(step, "parent_id", step) for step in last[1].value or ()]
    if last[0].function == "resumable" and PARENT in listed:
        return [finding("parent failure is not child completion",
                           "let a healthy client run the parent, then asked what is left",
                           "nothing", f"resumable lists {PARENT!r}")]  # fmt: skip
    return []


# --- the table ----------------------------------------------------------------------------------------


def _claimable(count: int, limit: int, seed: int) -> LedgerScenario:
    return one(ledger(mixed_scans(count, seed), seed=seed), limit=limit, seed=seed)


def _listed(count: int, limit: int, seed: int) -> LedgerScenario:
    failed = unread(mixed_scans(count, seed), failure="timeout")
    return one(failed, limit=limit, seed=seed)


def _miscounted(count: int, limit: int, seed: int) -> LedgerScenario:
    """A ledger of which all children have ended, under counters that say something else."""
    events = mixed_scans(count, seed)
    done = ledger(events, ended=range(count), counters=(count + 96, 1, 0, 0), seed=seed)
    return one(done, limit=limit, seed=seed)


#: Makes a lab's scenario from the number of events, the limit of a claim and a seed.
MAKERS: Mapping[int, Callable[[int, int, int], LedgerScenario]] = {
    8: _listed,
    9: _claimable,
    10: _claimable,
    11: _listed,
    12: _miscounted,
}


def sized_ledger(activity: Activity, events: int, limit: int, seed: int) -> Activity:
    """Return a lab's activity on a scenario of another size or seed."""
    return replace(activity, scenario=MAKERS[activity.lab](events, limit, seed))


# Beside another worker's live claims a call returns when nothing can be claimed, and that is right.
_row = partial(Activity, rivals=False, returns_when_done=False, seed=seed_ledger, attempts=2)
_scenario = {lab: make(SWEEP_ORDERS, SWEEP_CHUNK, 0) for lab, make in MAKERS.items()}

#: What is swept of track B.
LEDGER_ACTIVITIES: tuple[Activity, ...] = (
    _row(8, "decompose", _scenario[8], Calls(decompose), enumerated, decomposed,
         promise="enumerated"),
    _row(9, "claim", _scenario[9], Calls(claim_all), one_live_claim, all_claimed,
         resume=Later(claim_all), promise="one live claim"),
    _row(10, "process", _scenario[10], Calls(process_all), safe_processing, every_child_ended,
         resume=Later(process_all), promise="one-way"),
    _row(11, "run_parent", _scenario[11], Calls(run_parent), judge_ledger_safety,
         judge_ledger_finished, nothing_left, resume=Later(run_parent),
         promise="parent failure is not child completion"),
    _row(12, "reconcile", _scenario[12], Calls(repair), old_or_new, ledger_wins,
         promise="the ledger wins"),
)  # fmt: skip
