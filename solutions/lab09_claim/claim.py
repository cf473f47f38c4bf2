"""Lab 9, worked: take a few units of work, for a limited time.

A claim is a time stamp on a row: "somebody started on this at 10:15". It is live while less than the
lease has passed. A worker that dies cannot give its claims back, so time does it: after the lease
the same row may be claimed again, and `attempts` counts one more.

What a claim is not: proof that the first worker is dead. It may be slow, or frozen, and wake up.
Lab 10 is what makes that harmless.
"""

from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ClaimedChild

# One statement, so it is its own transaction on an autocommit connection: when `claim` returns, the
# claim is committed, and only then does work start. Inside a caller's transaction it nests as it is.
#
# The rows are chosen in a materialized CTE, which runs once. As `where child_id in (select ... limit
# ... skip locked)` the planner may run the choice again for every row it updates; rows that are
# locked by then are skipped, others take their place, and a claim of 10 takes more than 10.
#
# `skip locked`: a row that another worker is claiming at this moment is passed over without waiting.
# Where the other was faster and has committed already, the conditions are checked again on the new
# row, its fresh stamp is seen, and the row is passed over as well.
#
# The clock is the server's: workers' clocks disagree. And it is `clock_timestamp()`: `now()` stands
# still in a transaction, so inside a long one a new claim would be born old.
CLAIM = """
    WITH chosen AS MATERIALIZED (
        SELECT child_id
        FROM child_work
        WHERE parent_id = %(parent_id)s
          AND processed_at IS NULL
          AND failed_at IS NULL
          AND skipped_at IS NULL
          AND (processing_started_at IS NULL
               OR processing_started_at <= clock_timestamp() - %(lease)s)
        ORDER BY sequence
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE child_work c
        SET processing_started_at = clock_timestamp(),
            attempts = attempts + 1
        FROM chosen
        WHERE c.child_id = chosen.child_id
        RETURNING c.child_id, c.sequence, c.event, c.attempts
    )
    SELECT child_id, sequence, event, attempts
    FROM claimed
    ORDER BY sequence  -- an UPDATE returns its rows in any order
"""


def claim(
    conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta
) -> list[ClaimedChild]:
    """Claim up to `limit` children of the parent that are open and free, lowest sequences first."""
    rows = conn.execute(CLAIM, {"parent_id": parent_id, "limit": limit, "lease": lease})
    return [ClaimedChild(*row) for row in rows]
