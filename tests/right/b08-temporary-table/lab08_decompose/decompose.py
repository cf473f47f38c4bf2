from __future__ import annotations

import psycopg
from psycopg.types.json import Jsonb

from harness.contract import UnknownParent


def decompose(conn: psycopg.Connection, parent_id: str) -> int:
    with conn.transaction(), conn.cursor() as cur:
        cur.execute(
            "SELECT payload, decomposed_at, completed_at FROM parent_work WHERE parent_id = %s FOR UPDATE",
            (parent_id,),
        )
        parent = cur.fetchone()
        if parent is None:
            raise UnknownParent(parent_id)
        payload, decomposed_at, completed_at = parent
        if decomposed_at or completed_at:
            cur.execute("SELECT count(*) FROM child_work WHERE parent_id = %s", (parent_id,))
            return cur.fetchone()[0]
        events = payload.get("events") if isinstance(payload, dict) else None
        if not isinstance(events, list):
            cur.execute(
                "UPDATE parent_work SET failed_at = now(), completed_at = now(), failure = %s"
                " WHERE parent_id = %s",
                ("no list of events", parent_id),
            )
            return 0
        cur.execute(
            "CREATE TEMPORARY TABLE staged (sequence int, event jsonb, reason text) ON COMMIT DROP"
        )
        cur.execute(
            "INSERT INTO staged SELECT position - 1, event"
            " FROM jsonb_array_elements(%s) WITH ORDINALITY AS e (event, position)",
            (Jsonb(events),),
        )
        cur.execute(
            "UPDATE staged SET reason = 'malformed' WHERE jsonb_typeof(event) <> 'object'"
            " OR coalesce(jsonb_typeof(event -> 'subject'), '') <> 'string'"
            " OR coalesce(jsonb_typeof(event -> 'occurred_at'), '') <> 'string'"
        )
        cur.execute(
            "INSERT INTO child_work (parent_id, sequence, event, skipped_at, outcome)"
            " SELECT %s, sequence, event, CASE WHEN reason IS NOT NULL THEN now() END, reason"
            " FROM staged ORDER BY sequence",
            (parent_id,),
        )
        cur.execute("DROP TABLE staged")
        cur.execute(
            "UPDATE parent_work SET total = %s, decomposed_at = now() WHERE parent_id = %s",
            (len(events), parent_id),
        )
        return len(events)
