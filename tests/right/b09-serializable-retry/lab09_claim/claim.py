from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ClaimedChild

CLAIM = """
    WITH chosen AS MATERIALIZED (
        SELECT child_id FROM child_work
         WHERE parent_id = %s AND processed_at IS NULL AND failed_at IS NULL AND skipped_at IS NULL
           AND (processing_started_at IS NULL OR processing_started_at <= clock_timestamp() - %s)
         ORDER BY sequence LIMIT %s FOR UPDATE SKIP LOCKED)
    UPDATE child_work c
       SET processing_started_at = clock_timestamp(), attempts = attempts + 1
      FROM chosen WHERE c.child_id = chosen.child_id
    RETURNING c.child_id, c.sequence, c.event, c.attempts
"""
TRIES = 20


def claim(
    conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta
) -> list[ClaimedChild]:
    nested = conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    for number in range(1, TRIES + 1):
        try:
            with conn.transaction():
                if not nested:
                    conn.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
                rows = conn.execute(CLAIM, (parent_id, lease, limit)).fetchall()
            return sorted((ClaimedChild(*row) for row in rows), key=lambda child: child.sequence)
        except psycopg.errors.SerializationFailure:
            if nested or number == TRIES:
                raise
    return []
