"""Place a fault by meaning: "after the audit, in the second chunk", whatever the client's style.

One client writes ten audit rows with one statement, another with ten. So "the second chunk" is not
"the second time the point is reached". A clean run is recorded first; its boundaries tell which
transactions touched the table, and the nth of those is the nth chunk of any client that commits
chunk by chunk. The answer is a boundary's number, and a fault line that says the same by point.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.faults import Fault, Kind
from harness.records import COMMIT_POINT, Boundary, Policy, Stop

#: The table whose transactions are counted for the point `commit`.
COMMIT_TABLE_POINT = "orders"


def place_kill(
    record: Sequence[Boundary], point: str, chunk: int, policy: Policy = Policy.ABORT
) -> Fault | None:
    """Return the kill that lands when the client has just done `point` for chunk number `chunk`.

    Args:
        record: The boundaries of a clean run of the same client on the same scenario.
        point: A point's name; `commit` means the commit of the chunk's order update.
        chunk: Counted from 1.

    Returns:
        The fault, by point and count, or None when the record never gets there.
    """
    boundary = _boundary(record, point, chunk)
    if boundary is None:
        return None
    reached = [b.number for b in record if point in b.points]
    return Fault(Kind.KILL, Stop(point=point, nth=reached.index(boundary.number) + 1), policy)


def _boundary(record: Sequence[Boundary], point: str, chunk: int) -> Boundary | None:
    counted = COMMIT_TABLE_POINT if point == COMMIT_POINT else point
    xids = list(dict.fromkeys(xid for b in record for xid in _xids(b, counted)))
    if chunk > len(xids):
        return None
    xid = xids[chunk - 1]
    if point == COMMIT_POINT:
        return next((b for b in record if xid in b.committed), None)
    return [b for b in record if xid in _xids(b, point)][-1]


def _xids(boundary: Boundary, point: str) -> tuple[int, ...]:
    """Return the transactions whose touches give this boundary the point's name."""
    return tuple(touch.xid for touch in boundary.touches if point in touch.points)
