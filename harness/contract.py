"""What your functions take, return and raise.

Both tracks speak in these values. They are frozen: a function answers with a new value instead of
changing one it was given. IDs in results are tuples of int, in ID order.

Every function of the labs receives `conn`, a psycopg 3 connection with ``autocommit=True``. You open
the outer transaction yourself, with ``conn.transaction()`` or with SQL. A function that is called
inside an open transaction nests in it as a savepoint and never commits the whole. A function leaves
the connection as it found it: autocommit on, no transaction of its own open, no session lock held,
settings as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# --- Track A: resume an interrupted batch ---------------------------------------------------------


@dataclass(frozen=True)
class ApprovedOrder:
    """One line of an approval: cancel this order, in this version, with this quantity."""

    order_id: int
    revision: int
    qty: int


@dataclass(frozen=True)
class CancelledOrder:
    """One order that was cancelled, with the values the database returned for it."""

    order_id: int
    revision_before: int
    revision_after: int
    qty: int


@dataclass(frozen=True)
class ChunkResult:
    """What one call advanced.

    `processed` holds the order IDs of this chunk; it is empty when the job was complete already.
    `next_index` is the checkpoint after the call. `complete` is True as soon as the checkpoint
    equals the length of the approved list.
    """

    processed: tuple[int, ...]
    next_index: int
    complete: bool


@dataclass(frozen=True)
class DrainResult:
    """What one drain advanced: the order IDs, the number of chunk calls, and whether all is done."""

    processed: tuple[int, ...]
    chunks: int
    complete: bool


@dataclass(frozen=True)
class Report:
    """A job at one moment, in order IDs.

    `approved` splits into `committed` and `unprocessed`. `committed` splits into `matching` (the
    order is still as the job left it), `drifted` (it exists with other values) and `missing`.
    """

    approved: tuple[int, ...]
    committed: tuple[int, ...]
    unprocessed: tuple[int, ...]
    matching: tuple[int, ...]
    drifted: tuple[int, ...]
    missing: tuple[int, ...]


class Conflict(Exception):
    """The database no longer agrees with what was approved.

    The one argument is a text that contains the ID of every order that did not match.
    """


class DamagedProgress(Exception):
    """Checkpoint and audit contradict the approved list. The text says what is wrong, and where."""


class UnknownJob(LookupError):
    """No job is registered under this ID."""


# --- Track B: the child ledger --------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimedChild:
    """One unit of work that this worker may process until its lease ends."""

    child_id: int
    sequence: int
    event: Any
    attempts: int


@dataclass(frozen=True)
class Outcome:
    """How a child ended: `state` is 'processed', 'failed' or 'skipped'; `reason` explains the last two."""

    state: str
    reason: str | None = None


@dataclass(frozen=True)
class ParentStep:
    """What an unfinished parent needs next: `action` is 'decompose' or 'dispatch'."""

    parent_id: str
    action: str


@dataclass(frozen=True)
class Totals:
    """A parent's counters. `total` is None until the parent has been decomposed."""

    total: int | None
    processed: int
    failed: int
    skipped: int
    complete: bool


@dataclass(frozen=True)
class Reconciliation:
    """The counters before and after, and whether they differ. In a dry run `after` is what would be written."""

    before: Totals
    after: Totals
    changed: bool


class UnknownParent(LookupError):
    """No parent has this ID."""
