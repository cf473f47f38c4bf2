from __future__ import annotations

from datetime import UTC, datetime

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
        with cur.copy(
            "COPY child_work (parent_id, sequence, event, skipped_at, outcome) FROM STDIN"
        ) as copy:
            for sequence, event in enumerate(events):
                why = reason(event)
                skipped_at = datetime.now(UTC) if why else None
                copy.write_row((parent_id, sequence, Jsonb(event), skipped_at, why))
        cur.execute(
            "UPDATE parent_work SET total = %s, decomposed_at = now() WHERE parent_id = %s",
            (len(events), parent_id),
        )
        return len(events)


def reason(event):
    """Say what makes an event malformed; None if it is well-formed."""
    if not isinstance(event, dict):
        return "not an object"
    wrong = [key for key in ("subject", "occurred_at") if not isinstance(event.get(key), str)]
    return f"no text in {', '.join(wrong)}" if wrong else None
