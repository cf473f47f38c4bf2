"""Lab 11: resume from the ledger.

A parent that stopped in the middle is continued from its rows. The lesson is in README.md beside
this file, the tables are in ../schema.sql.

Check your work with:  uv run lab check 11
"""

from __future__ import annotations

from datetime import timedelta

import psycopg

from harness.contract import ParentStep

from ..lab08_decompose.decompose import decompose  # noqa: F401  (you will need it)
from ..lab10_finish.finish import process  # noqa: F401  (and this, or what it is made of)


def resumable(conn: psycopg.Connection) -> list[ParentStep]:
    """List the parents that still need work, each with its next step.

    A completed parent needs none. Of the others, a parent that has been decomposed is dispatched from
    its ledger, whether or not a run of it failed. A parent without that mark is decomposed; a legacy
    parent, which failed before there was a ledger, is one of them.

    Args:
        conn: An autocommit connection. Nothing is changed.

    Returns:
        One step a parent, in any order. `action` is 'decompose' or 'dispatch'.
    """
    # TODO: Which column says that a parent is over? Which says that it has a ledger?
    raise NotImplementedError("lab11: resumable")


def run_parent(conn: psycopg.Connection, parent_id: str, limit: int, lease: timedelta) -> None:
    """Bring a parent as far as this worker can.

    A parent without a ledger is decomposed first; one with a ledger is never parsed again. Then chunk
    after chunk is claimed and processed until nothing can be claimed. Children under another worker's
    live claim are left to it, without waiting.

    Afterwards `completed_at` is set if, and only if, every child has ended (or the payload ended the
    parent). `failed_at` and `failure` from earlier runs stay as they were.

    Args:
        conn: An autocommit connection, outside any transaction.
        parent_id: A parent that is not complete.
        limit: How many children to claim at a time, 1 or more.
        lease: How long the claims stay live.

    Raises:
        UnknownParent: No parent has this ID.
    """
    # TODO: Make sure that there is a ledger.
    # TODO: Chunk after chunk, until nothing can be claimed.
    # TODO: Complete the parent. Who may say that every child has ended?
    raise NotImplementedError("lab11: run_parent")
