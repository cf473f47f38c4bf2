"""The judge of track A: evidence in, findings out.

Pure: no socket, no clock, no database. One small function per promise, named like the promise in the
lessons. Each compares what one snapshot holds, and which transaction made which change, with the
approval; an empty list means the promise was kept as far as this evidence goes.

Safety comes first: under any fault, at any moment, what is committed must be whole chunks in order.
Liveness comes second: with the faults healed, one healthy client must finish the list.

    findings = judge_safety(scenario, evidence) or judge_finished(scenario, evidence)

The evidence holds the clients' changes only; `run.py` takes out what the harness wrote itself, so a
rival's edit is never held against the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.history import TransactionPart, order_moves, show_ids, transactions
from harness.records import CallResult, Evidence, Finding, Raised
from harness.scenario import Scenario

#: Orders whose story is spelled out in one sentence; the finding's IDs and the JSON have all.
SHOWN = 4


def judge_safety(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Return the broken safety promises: what must hold at every moment, under every fault."""
    return [finding for promise in SAFETY for finding in promise(scenario, evidence)]


def judge_finished(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Return what keeps the job from being finished: liveness, once the faults are healed."""
    return _exactly_once(scenario, evidence, finished=True) or _checkpoint_at_end(
        scenario, evidence
    )


def judge_refusal(
    scenario: Scenario, evidence: Evidence, edited: int, chunk: int, last: CallResult | None
) -> list[Finding]:
    """Another owner changed order `edited` after the approval: its chunk must be refused as a whole.

    Args:
        chunk: The number of the edited order's chunk, counted from 1.
        last: The result of the client's last call; it must be a Conflict that names the order.
    """
    did = f"let another owner raise the revision of order {edited} after the approval"
    committed = frozenset(m.order_id for m in order_moves(evidence.changes) if m.cancels)
    expected = frozenset(scenario.approved_ids[: (chunk - 1) * scenario.chunk_size])
    read = "labs/lab02_change/README.md"
    findings = []
    if committed != expected:
        findings.append(Finding(
            "approved version", did,
            f"the chunks before it committed ({show_ids(expected)}) and nothing of chunk {chunk}",
            f"committed: {show_ids(committed)}",
            "The chunks before it were undone, too: something around the chunk calls opened one "
            "transaction for all of them."
            if committed < expected
            else "An order that does not match must roll back its whole chunk and stop the job.",
            read, tuple(sorted(committed ^ expected)),
        ))  # fmt: skip
    if not (isinstance(last, Raised) and last.is_a("Conflict") and str(edited) in last.text):
        seen = f"{last.type_name}: {last.text}" if isinstance(last, Raised) else f"{last}"
        findings.append(Finding(
            "approved version", did, f"Conflict, with {edited} in its text", seen,
            "An UPDATE that matches no row is no error in SQL; the program has to count.",
            read, (edited,),
        ))  # fmt: skip
    return findings


# --- one function per promise -----------------------------------------------------------------------


def frozen(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """The approved list is stored in ID order and never changes."""
    if not scenario.registered and evidence.job(scenario.job_id) is None:
        return []
    expected = [
        (n, item.order_id, item.revision, item.qty) for n, item in enumerate(scenario.approval)
    ]
    seen = [
        (row.position, row.order_id, row.revision, row.qty)
        for row in evidence.items
        if row.job_id == scenario.job_id
    ]
    job = evidence.job(scenario.job_id)
    findings = []
    if job is None or (job.tenant, job.chunk_size) != (scenario.tenant, scenario.chunk_size):
        findings.append(Finding(
            "frozen",
            f"read the row of {scenario.job_id!r} in jobs",
            f"tenant {scenario.tenant!r} and chunk size {scenario.chunk_size}, as approved",
            f"tenant {job.tenant!r} and chunk size {job.chunk_size}" if job else "no such row",
            "The approval was rewritten; it is written once, at registration.",
            "labs/lab01_freeze/README.md",
        ))  # fmt: skip
    if seen != expected:
        findings.append(Finding(
            "frozen",
            f"compared the rows of {scenario.job_id!r} in job_items with the approval",
            f"{len(expected)} items in ID order: {_first_difference(expected, seen)[0]}",
            _first_difference(expected, seen)[1],
            "Items are out of ID order, missing, or changed after registration.",
            "labs/lab01_freeze/README.md",
            tuple(sorted({i for _, i, _, _ in set(expected) ^ set(seen)})),
        ))  # fmt: skip
    return findings


def approved_version(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """An order changes only from the approved version, to cancelled, with its revision one higher."""
    approved = {item.order_id: item for item in scenario.approval}
    findings = []
    for move in order_moves(evidence.changes):
        item = approved.get(move.order_id)
        if item is None:
            problem, cause = (
                "was never approved", "The orders are found by a query, not by the approved IDs.",
            )  # fmt: skip
        elif move.old is None or move.new is None:
            problem, cause = (
                "was inserted or deleted",
                "Cancelling is an UPDATE of state and revision.",
            )
        else:
            problem, cause = _version_problem(scenario, item.revision, item.qty, move.old, move.new)
        if problem:
            findings.append(Finding(
                "approved version",
                f"followed every committed change of order {move.order_id} (transaction {move.xid})",
                _expected_version(scenario, move.order_id),
                f"order {move.order_id} {problem}",
                cause,
                "labs/lab02_change/README.md",
                (move.order_id,),
            ))  # fmt: skip
    return findings


def bound(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Orders, audit and checkpoint of a chunk are in one transaction, and the audit tells the truth."""
    findings = []
    for part in transactions(scenario, evidence.changes):
        if part.cancelled == part.audited == part.checkpointed:
            continue
        ids = sorted(part.cancelled | part.audited | part.checkpointed)
        findings.append(Finding(
            "bound",
            f"looked at what transaction {part.xid} committed",
            "the same order IDs in orders, in job_audit and behind the checkpoint",
            f"orders {show_ids(part.cancelled)}; audit {show_ids(part.audited)}; "
            f"checkpoint {part.checkpoint_text}{_elsewhere(scenario, evidence, part)}",
            "The three records are committed in separate transactions, or one of them is missing.",
            "labs/lab03_chunk/README.md",
            tuple(ids),
        ))  # fmt: skip
    return findings + _audit_truth(scenario, evidence)


def in_order(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Each transaction advances the frozen list by exactly the next chunk."""
    findings = []
    expected_start = scenario.next_index
    for part in transactions(scenario, evidence.changes):
        if part.first_index is None or part.last_index is None:
            continue
        start, end = part.first_index, part.last_index
        whole = min(expected_start + scenario.chunk_size, len(scenario.approval))
        if (start, end) != (expected_start, whole):
            findings.append(Finding(
                "in order",
                f"followed the checkpoint through transaction {part.xid}",
                f"it moves from {expected_start} to {whole} "
                f"(orders {show_ids(scenario.approved_ids[expected_start:whole])})",
                f"it moved from {start} to {end} (orders {show_ids(part.checkpointed)})",
                _why_not_in_order(scenario, expected_start, start, end),
                "labs/lab03_chunk/README.md",
                tuple(sorted(part.checkpointed)),
            ))  # fmt: skip
        expected_start = max(end, expected_start)
    return findings


def _why_not_in_order(scenario: Scenario, expected_start: int, start: int, end: int) -> str:
    if start == expected_start and end - start > scenario.chunk_size:
        return "Several chunks share one transaction: something around the chunk calls opened it."
    if start < expected_start:
        return "A chunk was chosen that another transaction had committed already."
    return "A chunk is not the next `chunk_size` items of the frozen list."


def exactly_once(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """No approved order is cancelled by more than one committed transaction."""
    return _exactly_once(scenario, evidence, finished=False)


SAFETY: tuple[Callable[[Scenario, Evidence], list[Finding]], ...] = (
    frozen,
    approved_version,
    bound,
    in_order,
    exactly_once,
)


# --- words and details ----------------------------------------------------------------------------------


def _exactly_once(scenario: Scenario, evidence: Evidence, *, finished: bool) -> list[Finding]:
    done_before = set(scenario.approved_ids[: scenario.next_index])
    runs: dict[int, list[int]] = {order_id: [] for order_id in scenario.approved_ids}
    for move in order_moves(evidence.changes):
        if move.cancels and move.order_id in runs:
            runs[move.order_id].append(move.xid)
    twice = {i: xids for i, xids in runs.items() if len(xids) > 1 or (xids and i in done_before)}
    never = [i for i, xids in runs.items() if not xids and i not in done_before]
    findings = []
    if twice:
        shown = "; ".join(
            f"{i} in transactions {', '.join(map(str, x))}" for i, x in list(twice.items())[:SHOWN]
        )
        shown += f" and {len(twice) - SHOWN} more orders" if len(twice) > SHOWN else ""
        findings.append(Finding(
            "exactly once",
            "counted, for every approved order, the committed transactions that cancelled it",
            "one transaction for each approved order",
            f"cancelled more than once: {shown}",
            "A chunk was replayed that had been committed already.",
            "labs/lab03_chunk/README.md",
            tuple(sorted(twice)),
        ))  # fmt: skip
    if finished and never:
        findings.append(Finding(
            "exactly once",
            "let one healthy client run until it said it was done",
            f"all {len(scenario.approval)} approved orders cancelled by the job",
            f"never cancelled: {show_ids(never)}",
            "The job skipped these orders, or stopped before the end of the list.",
            "labs/lab03_chunk/README.md",
            tuple(never),
        ))  # fmt: skip
    return findings


def _checkpoint_at_end(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    job = evidence.job(scenario.job_id)
    total = len(scenario.approval)
    if job is not None and job.next_index == total:
        return []
    return [Finding(
        "in order",
        "let one healthy client run until it said it was done",
        f"the checkpoint at the end of the list, {total}",
        f"the checkpoint at {job.next_index}" if job else "no row in jobs",
        "The work is done but the checkpoint does not say so.",
        "labs/lab03_chunk/README.md",
    )]  # fmt: skip


def _audit_truth(scenario: Scenario, evidence: Evidence) -> list[Finding]:
    """Compare every audit row with the approval at its position."""
    findings = []
    for row in evidence.audit:
        if row.job_id != scenario.job_id:
            continue
        seen = (row.order_id, row.revision_before, row.revision_after, row.qty)
        if 0 <= row.position < len(scenario.approval):
            item = scenario.approval[row.position]
            expected = (item.order_id, item.revision, item.revision + 1, item.qty)
        else:
            expected = None
        if seen != expected:
            findings.append(Finding(
                "bound",
                f"compared the audit row at position {row.position} with the approved list",
                _audit_text(expected) if expected else "no such position in the approved list",
                _audit_text(seen),
                "The audit does not take its values from the rows that really changed.",
                "labs/lab03_chunk/README.md",
                (row.order_id,),
            ))  # fmt: skip
    return findings


def _audit_text(values: tuple[int, int, int, int]) -> str:
    order_id, before, after, qty = values
    return f"order {order_id}, revision {before} to {after}, quantity {qty}"


def _expected_version(scenario: Scenario, order_id: int) -> str:
    item = next((i for i in scenario.approval if i.order_id == order_id), None)
    if item is None:
        return f"order {order_id} untouched: it is not in the approved list"
    return (
        f"tenant {scenario.tenant!r}, quantity {item.qty}, pending at revision {item.revision}, "
        f"then cancelled at revision {item.revision + 1}"
    )


def _version_problem(
    scenario: Scenario, revision: int, qty: int, old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[str, str]:
    """Return what is wrong with one order's move and the likely cause; two empty texts when nothing is."""
    if old["tenant"] != scenario.tenant:
        return (f"belongs to tenant {old['tenant']!r}", "The UPDATE does not ask for the tenant.")
    if old["revision"] != revision:
        return (
            f"was changed from revision {old['revision']}, but revision {revision} was approved",
            "The UPDATE does not ask for the approved revision.",
        )
    if old["qty"] != qty:
        return (
            f"had quantity {old['qty']}, but {qty} was approved",
            "The UPDATE does not ask for the approved quantity.",
        )
    if old["state"] != "pending":
        return (f"was {old['state']} already", "The UPDATE does not ask for pending orders.")
    wanted = {**old, "state": "cancelled", "revision": revision + 1}
    if dict(new) != wanted:
        return (
            f"became {new['state']} at revision {new['revision']} with quantity {new['qty']}",
            "Cancelling sets the state and raises the revision by one, nothing else.",
        )
    return ("", "")


def _elsewhere(scenario: Scenario, evidence: Evidence, part: TransactionPart) -> str:
    """Name the other transactions that hold the missing records: the story in one clause."""
    ids = part.cancelled | part.audited | part.checkpointed
    clauses = []
    for other in transactions(scenario, evidence.changes):
        if other.xid == part.xid:
            continue
        for name, there, here in (
            ("cancelled", other.cancelled, part.cancelled),
            ("audited", other.audited, part.audited),
            ("checkpointed", other.checkpointed, part.checkpointed),
        ):
            moved = (ids & there) - here
            if moved:
                clauses.append(f"transaction {other.xid} {name} {show_ids(moved)}")
    return f" ({'; '.join(clauses)})" if clauses else ""


def _first_difference(expected: Sequence[Any], seen: Sequence[Any]) -> tuple[str, str]:
    """Return the first position at which two lists of items differ, as two texts."""
    for n in range(max(len(expected), len(seen))):
        left = expected[n] if n < len(expected) else None
        right = seen[n] if n < len(seen) else None
        if left != right:
            return (_item_text(n, left), _item_text(n, right))
    return ("the same items", "the same items")


def _item_text(position: int, item: tuple[int, int, int, int] | None) -> str:
    if item is None:
        return f"nothing at position {position}"
    stored, order_id, revision, qty = item
    return f"order {order_id} at position {stored} (revision {revision}, quantity {qty})"
