"""Lab 9: Claim in bounds.

The lesson is in README.md beside this file. The tables are in labs/schema.sql.
"""

from __future__ import annotations

from datetime import timedelta

from psycopg import Connection

from harness.contract import ClaimedChild


def claim(conn: Connection, parent_id: str, limit: int, lease: timedelta) -> list[ClaimedChild]:
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
    # TODO
    raise NotImplementedError("lab09: claim is still to be written")
