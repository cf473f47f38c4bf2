"""Mistakes to explore: the worked answer with a few lines changed, one mistake each.

A mistake is a file and what is replaced in it; each piece occurs there exactly once. Pass its name as
`impl` to any exploration.
"""

from __future__ import annotations

from collections.abc import Mapping

_ADVANCE = "        result = advance(conn, options.job)\n"

MISTAKES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    # No transaction around the three records: each statement commits by itself.
    "three commits": (
        "lab03_chunk/chunk.py",
        {
            "    with conn.transaction():\n        job = conn": "    if True:\n        job = conn",
            'WHERE job_id = %s FOR UPDATE"': 'WHERE job_id = %s"',
        },
    ),
    # Two workers read the same checkpoint, because reading it reserves nothing.
    "no lock": (
        "lab03_chunk/chunk.py",
        {'WHERE job_id = %s FOR UPDATE"': 'WHERE job_id = %s"'},
    ),
    # The connection broke, so the commit failed: put the chunk's orders back.
    "assumes failure": (
        "lab06_takeover/worker.py",
        {
            _ADVANCE: """\
        rows = conn.execute(NEXT, (options.job,)).fetchall()
        try:
            result = advance(conn, options.job)
        except psycopg.OperationalError:
            with psycopg.connect(options.dsn, autocommit=True) as again:
                again.execute(UNDO, ([order_id for _, order_id, _ in rows],))
            raise
""",
            "\n\n\ndef main(": '''


NEXT = """
    SELECT position, order_id, (SELECT count(*) FROM job_items AS a WHERE a.job_id = j.job_id)
    FROM jobs AS j JOIN job_items USING (job_id)
    WHERE job_id = %s AND position >= next_index AND position < next_index + chunk_size
"""
UNDO = """
    UPDATE orders SET state = 'pending', revision = revision + 1
    WHERE order_id = ANY(%s) AND state = 'cancelled'
"""


def main(''',
        },
    ),
    # The connection broke, but COMMIT had been sent: say that the chunk is done.
    "assumes success": (
        "lab06_takeover/worker.py",
        {
            _ADVANCE: """\
        rows = conn.execute(NEXT, (options.job,)).fetchall()
        try:
            result = advance(conn, options.job)
        except psycopg.OperationalError:
            ids = tuple(order_id for _, order_id, _ in rows)
            announce(ChunkResult(ids, rows[-1][0] + 1, rows[-1][0] + 1 == rows[-1][2]))
            raise
""",
            "\n\n\ndef main(": '''


NEXT = """
    SELECT position, order_id, (SELECT count(*) FROM job_items AS a WHERE a.job_id = j.job_id)
    FROM jobs AS j JOIN job_items USING (job_id)
    WHERE job_id = %s AND position >= next_index AND position < next_index + chunk_size
    ORDER BY position
"""


def main(''',
        },
    ),
}
