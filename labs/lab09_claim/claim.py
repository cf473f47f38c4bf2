"""Lab 9: claim in bounds.

A worker takes a few units of work, for a limited time. The lesson is in README.md beside this file,
the tables are in ../schema.sql.

Check your work with:  uv run lab check 9
"""

from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ClaimedChild


def claim(
    conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta
) -> list[ClaimedChild]:
    """Claim up to `limit` children of a parent for this worker.

    A child can be claimed when it is open (not processed, failed or skipped) and has no live claim. A
    claim is live while less than `lease` has passed since `processing_started_at`, by the database's
    clock. Rows that another worker is claiming at this moment are passed over without waiting.

    Afterwards each child that is returned has a new `processing_started_at` and one attempt more, and
    no other row has changed. Outside a transaction the claim is committed when this call returns.

    Args:
        conn: An autocommit connection. Inside an open transaction this call nests in it.
        parent_id: The parent whose children are wanted.
        limit: How many children to claim at most, 1 or more.
        lease: How long a claim stays live.

    Returns:
        The claimed children, lowest sequences first. `attempts` counts this claim, so a first claim
        has 1. The list is empty when nothing can be claimed or the parent is unknown.
    """
    # TODO: Which rows can be claimed? Whose clock says when a claim has ended?
    # TODO: Choose at most `limit` of them. What should happen to a row that a rival is choosing right now?
    # TODO: Stamp exactly the chosen rows, count the attempt, and return them in order.
    raise NotImplementedError("lab09: claim")
