"""Hand-made evidence: a correct run's rows and witness changes, to be broken one value at a time."""

from __future__ import annotations

from dataclasses import asdict, replace

from harness.records import AuditRow, Change, Evidence, ItemRow, JobRow, OrderRow
from harness.scenario import Scenario

CLIENT_PID = 4242


def correct_evidence(
    scenario: Scenario, chunks: int | None = None, first_xid: int = 801
) -> Evidence:
    """Return what a correct client leaves after `chunks` chunks (default: all), one transaction each."""
    chunks = scenario.chunks if chunks is None else chunks
    orders = {row.order_id: row for row in scenario.orders}
    audit, changes, checkpoint = [], [], 0
    for number in range(chunks):
        xid = first_xid + number
        items = scenario.approval[number * scenario.chunk_size :][: scenario.chunk_size]
        for position, item in enumerate(items, checkpoint):
            old = OrderRow(item.order_id, scenario.tenant, item.qty, "pending", item.revision)
            new = replace(old, state="cancelled", revision=old.revision + 1)
            orders[item.order_id] = new
            changes.append(change(xid, "orders", old, new))
            row = AuditRow(
                scenario.job_id, position, item.order_id, old.revision, new.revision, item.qty
            )
            audit.append(row)
            changes.append(change(xid, "job_audit", None, row))
        changes.append(checkpoint_move(scenario, xid, checkpoint, checkpoint + len(items)))
        checkpoint += len(items)
    return Evidence(
        orders=tuple(sorted(orders.values(), key=lambda row: row.order_id)),
        jobs=(JobRow(scenario.job_id, scenario.tenant, scenario.chunk_size, checkpoint),),
        items=tuple(
            ItemRow(scenario.job_id, n, i.order_id, i.revision, i.qty)
            for n, i in enumerate(scenario.approval)
        ),
        audit=tuple(audit),
        changes=tuple(replace(c, seq=n) for n, c in enumerate(changes, 1)),
    )


def change(xid: int, table: str, old: object | None, new: object | None) -> Change:
    """Return one witness row."""
    operation = "insert" if old is None else "delete" if new is None else "update"
    as_map = [None if row is None else asdict(row) for row in (old, new)]  # type: ignore[call-overload]
    return Change(0, xid, CLIENT_PID, table, operation, as_map[0], as_map[1])


def checkpoint_move(scenario: Scenario, xid: int, start: int, end: int) -> Change:
    """Return the witness row of a checkpoint that moved from `start` to `end`."""
    job = JobRow(scenario.job_id, scenario.tenant, scenario.chunk_size, start)
    return change(xid, "jobs", job, replace(job, next_index=end))


def order_change(row: OrderRow, xid: int, **new: object) -> Change:
    """Return the witness row of one order's update."""
    return change(xid, "orders", row, replace(row, **new))  # type: ignore[arg-type]


def with_changes(evidence: Evidence, *extra: Change) -> Evidence:
    """Return the evidence with more witness rows at the end."""
    return replace(evidence, changes=(*evidence.changes, *extra))
