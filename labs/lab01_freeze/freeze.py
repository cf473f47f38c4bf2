"""Lab 1: freeze the approval.

Everything later trusts the list that you store here: a chunk is a slice of it, a checkpoint is a
place in it. The lesson is in README.md beside this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 1
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from harness.contract import ApprovedOrder, Conflict  # noqa: F401  (you will need Conflict)


def register_job(
    conn: psycopg.Connection,
    job_id: str,
    tenant: str,
    orders: Sequence[ApprovedOrder],
    chunk_size: int,
) -> None:
    """Store an approval under `job_id`, once.

    Args:
        conn: A psycopg connection with autocommit on, perhaps inside a transaction of the caller.
        job_id: The name of the request; any text.
        tenant: The customer whose orders they are.
        orders: The approved orders, in any order, each with `order_id`, `revision` and `qty`.
        chunk_size: How many orders the customer lets us commit at a time.

    Afterwards `jobs` has one row (with `next_index` 0) and `job_items` one row an order, with
    positions 0, 1, 2, ... in the order of the order IDs.

    The same request again (same tenant, orders, revisions, quantities and chunk size, the orders in
    whatever order) changes nothing and raises nothing, however far the job has got. Two callers may
    register at the same moment, with the same request or with different ones.

    Raises:
        ValueError: If `orders` is empty, an ID appears twice, or a qty or `chunk_size` is below 1.
        Conflict: If `job_id` already stands for a different request. Nothing is changed. The text
            names the orders that differ, if any do.
    """
    # TODO: Put the orders into ID order, and refuse what can never be a request.
    # TODO: In one transaction, store the job and its list ...
    # TODO: ... or, if the ID is taken, find out whether it is by this very request.
    # TODO: Two callers at once: which statement decides who is first?
    raise NotImplementedError("lab01: register_job")
