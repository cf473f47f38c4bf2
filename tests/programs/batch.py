"""The batch of this folder in Python: `batch.py apart` commits the three records apart, `batch.py bound` together."""

import contextlib
import os
import sys

import psycopg

CHUNK = 10


def main(style: str) -> None:
    """Run chunk after chunk until the list is done."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        while True:
            bound = conn.transaction() if style == "bound" else contextlib.nullcontext()
            with bound:
                (start,) = conn.execute("SELECT next_index FROM progress").fetchone()
                items = conn.execute(
                    "SELECT position, order_id FROM approved WHERE position >= %s ORDER BY position LIMIT %s",
                    (start, CHUNK),
                ).fetchall()
                if not items:
                    return
                ids = [order_id for _, order_id in items]
                conn.execute(
                    "UPDATE orders SET state = 'cancelled', revision = revision + 1 WHERE order_id = ANY(%s)",
                    (ids,),
                )
                with conn.cursor() as cursor:
                    cursor.executemany("INSERT INTO audit VALUES (%s, %s)", items)
                conn.execute("UPDATE progress SET next_index = %s", (start + len(items),))


if __name__ == "__main__":
    main(sys.argv[1])
