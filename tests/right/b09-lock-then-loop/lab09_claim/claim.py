from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ClaimedChild

CHOOSE = """
    SELECT child_id, sequence, event, attempts
      FROM child_work
     WHERE parent_id = %(parent_id)s
       AND processed_at IS NULL AND failed_at IS NULL AND skipped_at IS NULL
       AND (processing_started_at IS NULL OR clock_timestamp() - processing_started_at >= %(lease)s)
     ORDER BY sequence
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
"""


def claim(
    conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta
) -> list[ClaimedChild]:
    claimed = []
    with conn.transaction():
        wanted = {"parent_id": parent_id, "limit": limit, "lease": lease}
        for child_id, sequence, event, attempts in conn.execute(CHOOSE, wanted).fetchall():
            conn.execute(
                "UPDATE child_work SET processing_started_at = clock_timestamp(), attempts = %s"
                " WHERE child_id = %s",
                (attempts + 1, child_id),
            )
            claimed.append(ClaimedChild(child_id, sequence, event, attempts + 1))
    return claimed
