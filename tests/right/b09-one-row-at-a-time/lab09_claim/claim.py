from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ClaimedChild

ONE = """
    UPDATE child_work SET processing_started_at = clock_timestamp(), attempts = attempts + 1
     WHERE child_id = (SELECT child_id FROM child_work
                        WHERE parent_id = %s AND NOT child_id = ANY (%s::bigint[])
                          AND processed_at IS NULL AND failed_at IS NULL AND skipped_at IS NULL
                          AND (processing_started_at IS NULL
                               OR processing_started_at <= clock_timestamp() - %s)
                        ORDER BY sequence LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING child_id, sequence, event, attempts
"""


def claim(
    conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta
) -> list[ClaimedChild]:
    claimed: list[ClaimedChild] = []
    with conn.transaction():
        while len(claimed) < limit:
            mine = [child.child_id for child in claimed]  # a lease of nothing has ended already
            row = conn.execute(ONE, (parent_id, mine, lease)).fetchone()
            if row is None:
                break
            claimed.append(ClaimedChild(*row))
    return claimed
