"""Lab 10: finish one way.

A unit of work ends once, together with its effect. The lesson is in README.md beside this file, the
tables are in ../schema.sql.

Check your work with:  uv run lab check 10
"""

from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import Outcome

from ..lab09_claim.claim import claim  # noqa: F401  (you will need it)


def finish(conn: psycopg.Connection, child_id: int, outcome: Outcome) -> bool:
    """End a child, once.

    The child gets the time stamp of its state (`processed_at`, `failed_at` or `skipped_at`) and the
    reason as its `outcome`, which stays NULL for a processed child. A processed child also leaves its
    effect: one row in `event_effects` with the subject and time of its event. Mark and effect are
    committed together or not at all.

    A child that ended earlier keeps its end, and this call leaves no effect.

    Args:
        conn: An autocommit connection. Inside an open transaction this call nests in it.
        child_id: A row of `child_work`.
        outcome: How the child ended. Its `state` is 'processed', 'failed' or 'skipped'.

    Returns:
        True if this call ended the child; False if the child had ended before or does not exist.

    Raises:
        ValueError: The outcome has another state. Nothing changes.
    """
    # TODO: Refuse an outcome that is none of the three.
    # TODO: End the child, if it is still open. How do you learn that it was not?
    # TODO: When does the effect belong to this call, and in which transaction?
    raise NotImplementedError("lab10: finish")


def process(conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta) -> list[int]:
    """Claim children of a parent, decide how each ends, and end it.

    A subject that is not in `subjects` makes a child skipped, with 'unknown local subject'. Else a
    time that is not ISO 8601 with an offset makes it failed, with 'invalid timestamp'. Else the child
    is processed.

    Each child ends in a transaction of its own. A worker that is killed in the middle keeps every
    child that it ended before.

    Args:
        conn: An autocommit connection, outside any transaction.
        parent_id: The parent whose children are wanted.
        limit: How many children to claim at most, 1 or more.
        lease: How long the claims stay live.

    Returns:
        The IDs of the children that this call ended; empty when nothing could be claimed or the
        parent is unknown.
    """
    # TODO: Claim, then decide and end each child. Where does one transaction end and the next begin?
    raise NotImplementedError("lab10: process")
