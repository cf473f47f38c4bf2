"""Approvals: the rows a run starts from, as plain data.

A scenario says which orders exist, which of them were approved, and how far the job is. It is data
only: `seeding.py` writes it, the judge compares with it. The same arguments always make the same
scenario; `seed` moves the IDs and the neighbours, never the meaning.

The story behind `festival` is the course's: a festival is cancelled, a customer asks to cancel 40
unpaid orders, and the owner approves committing 10 at a time. Beside the approved orders stand
others that must not be touched: of other tenants with IDs in between, and lookalikes of the same
tenant with the same quantity that were never approved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from harness.contract import ApprovedOrder
from harness.records import AuditRow, JobRow, OrderRow

#: The job of the story.
FESTIVAL_JOB = "festival-cancellation"
FESTIVAL_TENANT = "umbra-events"
#: Tenants whose orders stand between the approved ones.
NEIGHBOURS = ("aurora-catering", "basalt-tours")
#: One lookalike (same tenant, never approved) for every so many approved orders.
LOOKALIKE_EVERY = 5


@dataclass(frozen=True)
class Scenario:
    """What the database holds when a run starts, and what was approved.

    `approval` is in ID order. With `registered`, the harness has stored the job itself, `next_index`
    orders of it done, with their audit; otherwise the learner's code registers it.
    """

    job_id: str
    tenant: str
    chunk_size: int
    approval: tuple[ApprovedOrder, ...]
    others: tuple[OrderRow, ...] = ()
    registered: bool = True
    next_index: int = 0
    seed: int = 0
    approved_orders: tuple[OrderRow, ...] = field(default=(), repr=False)

    @property
    def approved_ids(self) -> tuple[int, ...]:
        """Return the approved order IDs in ID order."""
        return tuple(item.order_id for item in self.approval)

    @property
    def chunks(self) -> int:
        """Return how many chunks the whole list takes."""
        return -(-len(self.approval) // self.chunk_size)

    def chunk_ids(self, number: int) -> tuple[int, ...]:
        """Return the order IDs of chunk `number`, counted from 1."""
        start = (number - 1) * self.chunk_size
        return self.approved_ids[start : start + self.chunk_size]

    @property
    def orders(self) -> tuple[OrderRow, ...]:
        """Return every order row at the start, those already done by the job included."""
        return (*self.approved_orders, *self.others)

    @property
    def job(self) -> JobRow:
        """Return the job's row at the start."""
        return JobRow(self.job_id, self.tenant, self.chunk_size, self.next_index)

    @property
    def audit(self) -> tuple[AuditRow, ...]:
        """Return the audit rows of what is already done."""
        return tuple(
            AuditRow(self.job_id, n, o.order_id, o.revision, o.revision + 1, o.qty)
            for n, o in enumerate(self.approval[: self.next_index])
        )


def make_scenario(
    approval: tuple[ApprovedOrder, ...],
    *,
    job_id: str = FESTIVAL_JOB,
    tenant: str = FESTIVAL_TENANT,
    chunk_size: int = 10,
    others: tuple[OrderRow, ...] = (),
    registered: bool = True,
    done_chunks: int = 0,
    seed: int = 0,
) -> Scenario:
    """Build a scenario around an approval; the approved orders exist as they were approved.

    Args:
        approval: The approved orders; sorted here into ID order.
        done_chunks: How many chunks the job has already run, correctly.

    Raises:
        ValueError: If the approval is empty or the chunk size is below 1.
    """
    if not approval:
        raise ValueError("an approval needs at least one order")
    if chunk_size < 1:
        raise ValueError(f"chunk size must be at least 1, not {chunk_size}")
    ordered = tuple(sorted(approval, key=lambda item: item.order_id))
    next_index = min(done_chunks * chunk_size, len(ordered))
    rows = tuple(
        OrderRow(item.order_id, tenant, item.qty, "cancelled", item.revision + 1)
        if position < next_index
        else OrderRow(item.order_id, tenant, item.qty, "pending", item.revision)
        for position, item in enumerate(ordered)
    )
    return Scenario(
        job_id, tenant, chunk_size, ordered, others, registered, next_index, seed, rows
    )  # fmt: skip


def festival(
    orders: int = 40,
    chunk_size: int = 10,
    *,
    seed: int = 0,
    registered: bool = True,
    done_chunks: int = 0,
    first_id: int = 1001,
    job_id: str = FESTIVAL_JOB,
    tenant: str = FESTIVAL_TENANT,
) -> Scenario:
    """Make the course's story with `orders` approved orders, `chunk_size` a chunk.

    IDs are not contiguous; neighbours and lookalikes stand in the gaps. Revisions and quantities
    differ from order to order, so that a wrong column shows.

    Raises:
        ValueError: If `orders` or `chunk_size` is below 1.
    """
    if orders < 1:
        raise ValueError(f"an approval needs at least one order, not {orders}")
    chance = random.Random(f"festival-{seed}")
    approval: list[ApprovedOrder] = []
    others: list[OrderRow] = []
    next_id = first_id
    for number in range(orders):
        qty, revision = chance.randint(1, 9), chance.randint(1, 4)
        approval.append(ApprovedOrder(next_id, revision, qty))
        if number % LOOKALIKE_EVERY == 1:
            others.append(OrderRow(next_id + 1, tenant, qty, "pending", revision))
        else:
            neighbour = NEIGHBOURS[number % len(NEIGHBOURS)]
            others.append(OrderRow(next_id + 1, neighbour, qty, "pending", revision))
        next_id += chance.randint(2, 7)
    return make_scenario(
        tuple(approval),
        job_id=job_id,
        tenant=tenant,
        chunk_size=chunk_size,
        others=tuple(others),
        registered=registered,
        done_chunks=done_chunks,
        seed=seed,
    )


def unregistered(scenario: Scenario) -> Scenario:
    """Return the same scenario before registration: the orders exist as approved, the job does not."""
    orders = tuple(
        OrderRow(item.order_id, scenario.tenant, item.qty, "pending", item.revision)
        for item in scenario.approval
    )
    return replace(scenario, registered=False, next_index=0, approved_orders=orders)
