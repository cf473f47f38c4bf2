"""Lab 1: store the approval once, in ID order, and never touch it again.

Everything later trusts this list. A chunk is "positions 20 to 29 of the approved list", a checkpoint
is "the first 20 are done": both only mean something while the list stands still. So one request is
stored under one job ID, the same request again is quietly accepted, and a different request under
that ID is refused before anything is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import psycopg

from harness.contract import ApprovedOrder, Conflict

CLAIM_ID = """
    INSERT INTO jobs (job_id, tenant, chunk_size)
    VALUES (%s, %s, %s)
    ON CONFLICT (job_id) DO NOTHING
"""

# One statement for the whole list, however long. The arrays arrive in ID order, so the ordinality,
# which counts from 1, is the position plus one.
STORE_LIST = """
    INSERT INTO job_items (job_id, position, order_id, revision, qty)
    SELECT %s, a.ordinality - 1, a.order_id, a.revision, a.qty
    FROM unnest(%s::bigint[], %s::int[], %s::int[])
         WITH ORDINALITY AS a (order_id, revision, qty, ordinality)
"""

READ_JOB = "SELECT tenant, chunk_size FROM jobs WHERE job_id = %s"
READ_LIST = "SELECT order_id, revision, qty FROM job_items WHERE job_id = %s ORDER BY position"


def register_job(
    conn: psycopg.Connection,
    job_id: str,
    tenant: str,
    orders: Iterable[ApprovedOrder],
    chunk_size: int,
) -> None:
    """Freeze an approval under `job_id`; the same approval again, in any order, changes nothing.

    Raises:
        ValueError: If the list is empty, an ID appears twice, or a qty or `chunk_size` is below 1.
        Conflict: If `job_id` stands for another request already. Nothing is changed.
    """
    approved = _in_id_order(orders, chunk_size)
    with conn.transaction():
        # The primary key decides who registers. If someone else is inserting the same ID right now,
        # this statement waits for them: they commit and we insert nothing, or they fail and we are
        # first. "SELECT, and INSERT if there is none" has a gap in which both see nothing.
        claimed = conn.execute(CLAIM_ID, (job_id, tenant, chunk_size)).rowcount == 1
        if claimed:
            columns = [list(column) for column in zip(*approved, strict=True)]
            conn.execute(STORE_LIST, (job_id, *columns))
        else:
            # Each statement of a READ COMMITTED transaction sees what was committed before it began,
            # so this one sees all that the winner wrote: row and list were one commit.
            _refuse_another_request(conn, job_id, tenant, approved, chunk_size)


def _in_id_order(orders: Iterable[ApprovedOrder], chunk_size: int) -> list[tuple[int, int, int]]:
    """Return the approval as (order_id, revision, qty) by ID. Refuse it before the database is asked."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1: {chunk_size}")
    approved = sorted((order.order_id, order.revision, order.qty) for order in orders)
    if not approved:
        raise ValueError("the approval lists no order")
    ids = [order_id for order_id, _, _ in approved]
    twice = [order_id for order_id, count in Counter(ids).items() if count > 1]
    if twice:
        raise ValueError(f"approved more than once: {twice}")
    below_one = [order_id for order_id, _, qty in approved if qty < 1]
    if below_one:
        raise ValueError(f"qty must be at least 1: orders {below_one}")
    return approved


def _refuse_another_request(
    conn: psycopg.Connection,
    job_id: str,
    tenant: str,
    approved: list[tuple[int, int, int]],
    chunk_size: int,
) -> None:
    """Raise Conflict unless what is stored under `job_id` is this very request."""
    stored_tenant, stored_chunk_size = conn.execute(READ_JOB, (job_id,)).fetchone()
    stored = conn.execute(READ_LIST, (job_id,)).fetchall()
    differences = []
    if stored_tenant != tenant:
        differences.append(f"tenant is {stored_tenant!r}, not {tenant!r}")
    if stored_chunk_size != chunk_size:
        differences.append(f"chunk_size is {stored_chunk_size}, not {chunk_size}")
    if stored != approved:  # whole lines are compared: a revision or a qty may be all that differs
        ids = sorted({line[0] for line in set(stored) ^ set(approved)})
        differences.append(f"orders differ: {ids}")
    if differences:
        raise Conflict(f"job {job_id!r} is already another request: {'; '.join(differences)}")
