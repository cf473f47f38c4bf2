from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ClaimedChild


def claim(
    conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta
) -> list[ClaimedChild]:
    rows = conn.execute(
        """
        UPDATE child_work
           SET processing_started_at = now(), attempts = attempts + 1
         WHERE child_id = ANY (ARRAY(
                   SELECT child_id FROM child_work
                    WHERE parent_id = %s
                      AND coalesce(processed_at, failed_at, skipped_at) IS NULL
                      AND coalesce(processing_started_at + %s <= now(), true)
                    ORDER BY sequence
                    LIMIT %s
                      FOR NO KEY UPDATE SKIP LOCKED))
        RETURNING child_id, sequence, event, attempts
        """,
        (parent_id, lease, limit),
    ).fetchall()
    return [ClaimedChild(*row) for row in sorted(rows, key=lambda row: row[1])]
