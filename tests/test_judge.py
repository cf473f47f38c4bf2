"""The judge of track A on hand-made evidence: each promise kept once, and broken in each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from evidence_maker import change, checkpoint_move, correct_evidence, order_change, with_changes

from harness import judge
from harness.records import Evidence, Raised, Returned
from harness.scenario import Scenario, festival

JOB = festival(23, 10, seed=3)
FIRST, SECOND = JOB.approved_ids[0], JOB.approved_ids[1]


def row(scenario: Scenario, order_id: int):
    return next(r for r in scenario.orders if r.order_id == order_id)


@pytest.mark.parametrize(
    "scenario", [JOB, festival(1), festival(40), festival(5, 100), festival(20, 1)]
)
def test_a_correct_run_breaks_nothing_after_any_number_of_chunks(scenario):
    for chunks in range(scenario.chunks + 1):
        assert judge.judge_safety(scenario, correct_evidence(scenario, chunks)) == []
    assert judge.judge_finished(scenario, correct_evidence(scenario)) == []


@pytest.mark.parametrize("style", ["checkpoint first", "checkpoint in steps", "audit last"])
def test_the_order_of_writes_inside_a_transaction_does_not_matter(style):
    evidence = correct_evidence(JOB)
    if style == "checkpoint in steps":
        moves = [checkpoint_move(JOB, 801, n, n + 1) for n in range(10)]
        others = [c for c in evidence.changes if not (c.xid == 801 and c.table == "jobs")]
        changes = [*others[:20], *moves, *others[20:]]
    else:
        rank = {"jobs": 0, "orders": 1, "job_audit": 2}
        changes = sorted(evidence.changes, key=lambda c: (c.xid, rank[c.table]))
        if style == "audit last":
            changes = sorted(evidence.changes, key=lambda c: (c.xid, -rank[c.table]))
    assert judge.judge_safety(JOB, replace(evidence, changes=tuple(changes))) == []


def test_progress_made_before_the_run_is_no_second_execution():
    scenario = festival(30, 10, done_chunks=2)
    done = correct_evidence(scenario)
    own = tuple(c for c in done.changes if c.xid == 803)
    assert judge.judge_safety(scenario, replace(done, changes=own)) == []
    assert judge.judge_finished(scenario, replace(done, changes=own)) == []


# --- broken, one way at a time ----------------------------------------------------------------------


def items_swapped(evidence: Evidence) -> Evidence:
    first, second, *rest = evidence.items
    return replace(evidence, items=(replace(first, order_id=second.order_id),
                                    replace(second, order_id=first.order_id), *rest))  # fmt: skip


def chunk_size_rewritten(evidence: Evidence) -> Evidence:
    return replace(evidence, jobs=(replace(evidence.jobs[0], chunk_size=7),))


def item_lost(evidence: Evidence) -> Evidence:
    return replace(evidence, items=evidence.items[:-1])


def lookalike_cancelled(evidence: Evidence) -> Evidence:
    other = JOB.others[1]
    return with_changes(
        evidence, order_change(other, 803, state="cancelled", revision=other.revision + 1)
    )


def order_deleted(evidence: Evidence) -> Evidence:
    return with_changes(evidence, change(803, "orders", row(JOB, FIRST), None))


def wrong_version_cancelled(evidence: Evidence) -> Evidence:
    edited = replace(row(JOB, FIRST), revision=row(JOB, FIRST).revision + 1)
    moved = order_change(edited, 801, state="cancelled", revision=edited.revision + 1)
    return replace(evidence, changes=(moved, *evidence.changes[1:]))


def wrong_quantity_cancelled(evidence: Evidence) -> Evidence:
    edited = replace(row(JOB, FIRST), qty=row(JOB, FIRST).qty + 1)
    moved = order_change(edited, 801, state="cancelled", revision=edited.revision + 1)
    return replace(evidence, changes=(moved, *evidence.changes[1:]))


def other_tenant_cancelled(evidence: Evidence) -> Evidence:
    edited = replace(row(JOB, FIRST), tenant="aurora-catering")
    moved = order_change(edited, 801, state="cancelled", revision=edited.revision + 1)
    return replace(evidence, changes=(moved, *evidence.changes[1:]))


def revision_not_raised(evidence: Evidence) -> Evidence:
    moved = order_change(row(JOB, FIRST), 801, state="cancelled")
    return replace(evidence, changes=(moved, *evidence.changes[1:]))


def audit_in_its_own_transaction(evidence: Evidence) -> Evidence:
    return replace(evidence, changes=tuple(
        replace(c, xid=901) if c.table == "job_audit" and c.xid == 801 else c for c in evidence.changes
    ))  # fmt: skip


def checkpoint_in_its_own_transaction(evidence: Evidence) -> Evidence:
    return replace(evidence, changes=tuple(
        replace(c, xid=901) if c.table == "jobs" and c.xid == 801 else c for c in evidence.changes
    ))  # fmt: skip


def audit_missing(evidence: Evidence) -> Evidence:
    return replace(
        evidence, audit=(), changes=tuple(c for c in evidence.changes if c.table != "job_audit")
    )


def audit_of_another_version(evidence: Evidence) -> Evidence:
    first, *rest = evidence.audit
    return replace(
        evidence, audit=(replace(first, revision_before=first.revision_before + 1), *rest)
    )


def chunk_skipped(evidence: Evidence) -> Evidence:
    return replace(evidence, changes=tuple(c for c in evidence.changes if c.xid != 801))


def two_chunks_at_once(evidence: Evidence) -> Evidence:
    return replace(evidence, changes=tuple(
        replace(c, xid=801) if c.xid == 802 else c for c in evidence.changes
    ))  # fmt: skip


def chunk_replayed(evidence: Evidence) -> Evidence:
    again = tuple(
        replace(c, xid=904) for c in evidence.changes if c.xid == 801 and c.table == "orders"
    )
    return with_changes(evidence, *again)


BROKEN: list[tuple[str, Callable[[Evidence], Evidence], tuple[int, ...]]] = [
    ("frozen", items_swapped, (FIRST, SECOND)),
    ("frozen", chunk_size_rewritten, ()),
    ("frozen", item_lost, (JOB.approved_ids[-1],)),
    ("approved version", lookalike_cancelled, (JOB.others[1].order_id,)),
    ("approved version", order_deleted, (FIRST,)),
    ("approved version", wrong_version_cancelled, (FIRST,)),
    ("approved version", wrong_quantity_cancelled, (FIRST,)),
    ("approved version", other_tenant_cancelled, (FIRST,)),
    ("approved version", revision_not_raised, (FIRST,)),
    ("bound", audit_in_its_own_transaction, JOB.chunk_ids(1)),
    ("bound", checkpoint_in_its_own_transaction, JOB.chunk_ids(1)),
    ("bound", audit_missing, JOB.chunk_ids(1)),
    ("bound", audit_of_another_version, (FIRST,)),
    ("in order", chunk_skipped, JOB.chunk_ids(2)),
    ("in order", two_chunks_at_once, (*JOB.chunk_ids(1), *JOB.chunk_ids(2))),
    ("exactly once", chunk_replayed, JOB.chunk_ids(1)),
]


@pytest.mark.parametrize(("promise", "damage", "ids"), BROKEN, ids=[b[1].__name__ for b in BROKEN])
def test_each_broken_promise_is_named_with_its_order_ids(promise, damage, ids):
    findings = judge.judge_safety(JOB, damage(correct_evidence(JOB)))
    named = [f for f in findings if f.promise == promise]
    assert named, f"only found {[f.promise for f in findings]}"
    assert set(ids) <= set(named[0].order_ids) or all(str(i) in named[0].seen for i in ids)
    assert named[0].did
    assert named[0].expected != named[0].seen
    assert named[0].read.startswith("labs/lab0")


def test_unfinished_work_is_named_by_its_order_ids():
    findings = judge.judge_finished(JOB, correct_evidence(JOB, 2))
    assert [f.promise for f in findings] == ["exactly once"]
    assert findings[0].order_ids == JOB.chunk_ids(3)


def test_a_checkpoint_short_of_the_end_is_unfinished():
    evidence = correct_evidence(JOB)
    stale = replace(evidence, jobs=(replace(evidence.jobs[0], next_index=20),))
    assert [f.promise for f in judge.judge_finished(JOB, stale)] == ["in order"]


def test_a_refusal_must_keep_the_earlier_chunks_and_name_the_order():
    edited = JOB.chunk_ids(2)[5]
    conflict = Raised("Conflict", ("Exception",), f"does not match: {edited}", None, ())
    assert judge.judge_refusal(JOB, correct_evidence(JOB, 1), edited, 2, conflict) == []
    silent = replace(conflict, text="something did not match")
    assert judge.judge_refusal(JOB, correct_evidence(JOB, 1), edited, 2, silent)
    assert judge.judge_refusal(JOB, correct_evidence(JOB, 0), edited, 2, conflict)
    assert judge.judge_refusal(JOB, correct_evidence(JOB, 2), edited, 2, conflict)
    assert judge.judge_refusal(JOB, correct_evidence(JOB, 1), edited, 2, None)
    returned = Returned(None, None)  # type: ignore[arg-type]
    assert judge.judge_refusal(JOB, correct_evidence(JOB, 1), edited, 2, returned)
