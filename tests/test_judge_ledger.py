"""The judge of track B on hand-made evidence: each promise kept once, and broken in each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from ledger_evidence import (
    CLAIMED,
    COMPLETED,
    DECOMPOSED,
    ENDED,
    NOW,
    appended,
    change,
    correct_ledger,
    edited,
    with_child,
    with_parent,
)

from harness.ledger import judge
from harness.ledger.scenario import (
    LONG_AGO,
    PARENT,
    STRANGER,
    Ending,
    LedgerScenario,
    ledger,
    mixed_scans,
    odd_payload,
    one,
    scan,
    scans,
    unread,
)
from harness.records import Change, Evidence

EVENTS = [scan(0), scan(1, subject=STRANGER), scan(2, occurred_at="soon"), None, scan(4)]
LISTED = one(unread(EVENTS, failure="timeout"))
HALF = one(ledger(EVENTS, ended=[0, 1], claimed={2: LONG_AGO}, failure="timeout"))


@pytest.mark.parametrize(
    "scenario",
    [LISTED, HALF, one(unread(mixed_scans(60))), one(ledger(scans(3), ended=range(3))),
     LedgerScenario((unread(scans(3)), ledger(scans(3), "scans-friday", first_id=90)))],
)  # fmt: skip
def test_a_correct_run_breaks_nothing(scenario):
    evidence = correct_ledger(scenario)
    assert judge.judge_ledger_safety(scenario, evidence) == []
    assert judge.judge_ledger_finished(scenario, evidence) == []


def test_an_untouched_scenario_is_safe_and_unfinished():
    for scenario in (LISTED, HALF):
        evidence = untouched(scenario)
        assert judge.judge_ledger_safety(scenario, evidence) == []
        assert judge.judge_ledger_finished(scenario, evidence) != []


def untouched(scenario: LedgerScenario) -> Evidence:
    """Return the evidence of a run that has not begun: the first old state of every row."""
    done = correct_ledger(scenario)
    first: dict[int, dict] = {}
    for c in done.changes:
        if c.table == "child_work" and c.old:
            first.setdefault(c.old["sequence"], c.old)
    inserted = {
        c.new["sequence"]
        for c in done.changes
        if c.operation == "insert" and c.table == "child_work"
    }
    children = tuple(
        replace(
            row, processed_at=None, failed_at=None, skipped_at=None, outcome=None,
            attempts=first[row.sequence]["attempts"],
        ) if row.sequence in first else row
        for row in done.children if row.sequence not in inserted
    )  # fmt: skip
    new = {c.new["sequence"] for c in done.changes if c.table == "event_effects"}
    parent = replace(done.parents[0], completed_at=None)
    if not scenario.parent.decomposed:
        parent = replace(parent, decomposed_at=None, total=None)
    effects = tuple(e for e in done.effects if e.sequence not in new)
    return Evidence(parents=(parent,), children=children, effects=effects, subjects=done.subjects)


# --- broken, one way at a time ----------------------------------------------------------------------


def rows_in_another_transaction(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda c: replace(c, xid=899) if c.operation == "insert"
                  and c.table == "child_work" and c.new["sequence"] == 4 else c)  # fmt: skip


def mark_in_another_transaction(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda c: replace(c, xid=899)
                  if c.table == "parent_work" and c.xid == DECOMPOSED else c)  # fmt: skip


def an_event_is_missing(evidence: Evidence) -> Evidence:
    return replace(evidence, children=evidence.children[:-1])


def counted_from_one(evidence: Evidence) -> Evidence:
    rows = tuple(replace(row, sequence=row.sequence + 1) for row in evidence.children)
    return replace(evidence, children=rows)


def an_event_is_changed(evidence: Evidence) -> Evidence:
    return with_child(evidence, 0, event={**scan(0), "extra": True})


def malformed_left_open(evidence: Evidence) -> Evidence:
    return with_child(evidence, 3, skipped_at=None, outcome=None)


def malformed_without_a_reason(evidence: Evidence) -> Evidence:
    return with_child(evidence, 3, outcome=None)


def a_total_without_the_malformed(evidence: Evidence) -> Evidence:
    def smaller(c: Change) -> Change:
        mark = c.table == "parent_work" and c.xid == DECOMPOSED
        return replace(c, new={**c.new, "total": 4}) if mark else c

    return edited(evidence, smaller)


def rows_without_a_mark(evidence: Evidence) -> Evidence:
    return with_parent(evidence, decomposed_at=None, completed_at=None)


def claim(evidence: Evidence, edit: Callable[[dict, dict], None]) -> Evidence:
    """Edit old and new of the claim of sequence 2."""

    def one_claim(c: Change) -> Change:
        if c.xid != CLAIMED or c.new["sequence"] != 2:
            return c
        old, new = dict(c.old), dict(c.new)
        edit(old, new)
        return replace(c, old=old, new=new)

    return edited(evidence, one_claim)


def a_live_claim_taken(evidence: Evidence) -> Evidence:
    held = (NOW - timedelta(minutes=30)).isoformat()
    return claim(evidence, lambda old, new: old.update(processing_started_at=held))


def an_ended_child_claimed(evidence: Evidence) -> Evidence:
    return claim(evidence, lambda old, new: old.update(skipped_at=NOW.isoformat()))


def an_attempt_not_counted(evidence: Evidence) -> Evidence:
    return claim(evidence, lambda old, new: new.update(attempts=old["attempts"]))


def two_attempts_counted(evidence: Evidence) -> Evidence:
    return claim(evidence, lambda old, new: new.update(attempts=old["attempts"] + 2))


def two_marks(evidence: Evidence) -> Evidence:
    return with_child(evidence, 4, failed_at=NOW)


def an_end_overwritten(evidence: Evidence) -> Evidence:
    row = next(r for r in evidence.children if r.sequence == 2)
    new = replace(row, outcome="another reason")
    return with_child(
        appended(evidence, change(1000, "child_work", row, new)), 2, outcome=new.outcome
    )


def an_ended_child_deleted(evidence: Evidence) -> Evidence:
    row = next(r for r in evidence.children if r.sequence == 4)
    return appended(evidence, change(1000, "child_work", row, None))


def no_effect(evidence: Evidence) -> Evidence:
    fewer = edited(
        evidence, lambda c: None if c.table == "event_effects" and c.xid == ENDED + 4 else c
    )
    return replace(fewer, effects=tuple(e for e in fewer.effects if e.sequence != 4))


def two_effects(evidence: Evidence) -> Evidence:
    effect = next(e for e in evidence.effects if e.sequence == 4)
    more = appended(evidence, change(1000, "event_effects", None, effect))
    return replace(more, effects=(*more.effects, replace(effect, effect_id=77)))


def an_effect_deleted(evidence: Evidence) -> Evidence:
    return replace(evidence, effects=tuple(e for e in evidence.effects if e.sequence != 0))


def the_effect_apart(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda c: replace(c, xid=998)
                  if c.table == "event_effects" and c.xid == ENDED + 4 else c)  # fmt: skip


def an_effect_of_a_failed_child(evidence: Evidence) -> Evidence:
    effect = replace(evidence.effects[0], effect_id=77, sequence=2)
    more = appended(evidence, change(ENDED + 2, "event_effects", None, effect))
    return replace(more, effects=(*more.effects, effect))


def an_effect_hours_off(evidence: Evidence) -> Evidence:
    first, *rest = evidence.effects
    moved = replace(first, occurred_at=first.occurred_at + timedelta(hours=2))
    return replace(evidence, effects=(moved, *rest))


def two_children_a_transaction(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda c: replace(c, xid=ENDED + 2) if c.xid == ENDED + 4 else c)


def claimed_and_ended_at_once(evidence: Evidence) -> Evidence:
    return edited(evidence, lambda c: replace(c, xid=CLAIMED) if c.xid == ENDED + 4 else c)


def judged_wrongly(evidence: Evidence) -> Evidence:
    return with_child(evidence, 2, outcome="unknown local subject")


def reparsed(evidence: Evidence) -> Evidence:
    rows = tuple(replace(row, child_id=row.child_id + 1000) for row in evidence.children)
    return replace(evidence, children=rows)


def the_mark_is_gone(evidence: Evidence) -> Evidence:
    return with_parent(evidence, decomposed_at=None)


def completed_over_an_open_child(evidence: Evidence) -> Evidence:
    fewer = edited(evidence, lambda c: None if c.xid == ENDED + 4 else c)
    fewer = replace(fewer, effects=tuple(e for e in fewer.effects if e.sequence != 4))
    return with_child(fewer, 4, processed_at=None)


def completed_too_early(evidence: Evidence) -> Evidence:
    """The stamp came before the last child's end; afterwards everything looks right."""
    stamp = next(c for c in evidence.changes if c.xid == COMPLETED)
    others = [c for c in evidence.changes if c.xid != COMPLETED]
    at = next(n for n, c in enumerate(others) if c.xid == ENDED + 4)
    return appended(replace(evidence, changes=()), *others[:at], stamp, *others[at:])


def the_failure_is_forgotten(evidence: Evidence) -> Evidence:
    return with_parent(evidence, failure=None)


def the_failure_time_is_forgotten(evidence: Evidence) -> Evidence:
    return with_parent(evidence, failed_at=None)


LIVE, WAY = "one live claim", "one-way"
RESUME = "parent failure is not child completion"
BROKEN: list[tuple[Callable[[Evidence], Evidence], LedgerScenario, str]] = [
    *((f, LISTED, "enumerated") for f in (
        rows_in_another_transaction, mark_in_another_transaction, an_event_is_missing, counted_from_one,
        an_event_is_changed, malformed_left_open, malformed_without_a_reason,
        a_total_without_the_malformed, rows_without_a_mark)),
    *((f, HALF, LIVE) for f in (
        a_live_claim_taken, an_ended_child_claimed, an_attempt_not_counted, two_attempts_counted)),
    *((f, HALF, WAY) for f in (
        two_marks, an_end_overwritten, an_ended_child_deleted, no_effect, two_effects, an_effect_deleted,
        the_effect_apart, an_effect_of_a_failed_child, an_effect_hours_off, two_children_a_transaction,
        claimed_and_ended_at_once, judged_wrongly)),
    *((f, HALF, RESUME) for f in (
        reparsed, the_mark_is_gone, completed_over_an_open_child, completed_too_early,
        the_failure_is_forgotten, the_failure_time_is_forgotten)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "scenario", "promise"), BROKEN, ids=[b[0].__name__ for b in BROKEN]
)
def test_a_broken_promise_is_found_and_named(broken, scenario, promise):
    found = judge.judge_ledger_safety(scenario, broken(correct_ledger(scenario)))
    assert promise in {finding.promise for finding in found}
    assert all(finding.expected != finding.seen for finding in found)


def test_a_payload_without_a_list_has_no_ledger():
    scenario = one(odd_payload({"events": 5}))
    row = correct_ledger(scenario).parents[0]
    ended = replace(row, decomposed_at=None, total=None, failed_at=NOW, failure="no list")
    assert judge.judge_ledger_safety(scenario, Evidence(parents=(ended,))) == []
    for wrong in (
        replace(ended, decomposed_at=NOW),
        replace(ended, failure=None),
        replace(ended, failed_at=None),
    ):
        (finding,) = judge.enumerated(scenario, Evidence(parents=(wrong,)))
        assert finding.promise == "enumerated"


def test_the_ledger_wins_or_it_is_said():
    ends = {0: Ending("processed"), 1: Ending("failed", "x"), 2: Ending("skipped", "y")}
    scenario = one(ledger(scans(3), ended=ends, counters=(3, 1, 1, 1), completed=True))
    right = correct_ledger(scenario)
    assert judge.ledger_wins(scenario, right) == []
    for wrong in (
        {"total": 99},
        {"processed": 2},
        {"failed": 0},
        {"skipped": 0},
        {"completed_at": None},
    ):
        (finding,) = judge.ledger_wins(scenario, with_parent(right, **wrong))
        assert finding.promise == "the ledger wins"
    moved = appended(right, change(1000, "child_work", right.children[0], right.children[1]))
    assert judge.ledger_wins(scenario, moved) != []


def test_an_open_child_or_parent_is_unfinished():
    done = correct_ledger(HALF)
    assert judge.judge_ledger_finished(HALF, with_child(done, 4, processed_at=None)) != []
    assert judge.judge_ledger_finished(HALF, with_parent(done, completed_at=None)) != []
    assert judge.judge_ledger_finished(LISTED, replace(correct_ledger(LISTED), children=())) != []
    assert HALF.parent.parent_id == PARENT
