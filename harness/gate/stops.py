"""When a stop is reached: pure questions about boundaries."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Boundary, Stop


def is_reached(stop: Stop | None, boundaries: Sequence[Boundary], boundary: Boundary) -> bool:
    """Tell whether `boundary`, one of the lane's `boundaries`, is where `stop` holds a client.

    A stop `before` a unit is never reached here: its unit has not been carried out.
    """
    if stop is None or stop.before:
        return False
    if stop.boundary is not None:
        return stop.boundary == boundary.number
    if stop.point not in boundary.points:
        return False
    times = sum(stop.point in past.points for past in boundaries[: boundary.number])
    return times == stop.nth


def checked(stop: Stop | None) -> Stop | None:
    """Return the stop.

    Raises:
        ValueError: If it could never be reached, so that its fault would seem to have missed.
    """
    if stop is None:
        return None
    if (stop.boundary is None) == (stop.point is None):
        raise ValueError(f"a stop needs a boundary or a point: {stop}")
    if stop.before and stop.boundary is None:
        raise ValueError(
            f"a stop before a unit needs a number, what it does is known later: {stop}"
        )
    if stop.nth < 1 or (stop.boundary is not None and stop.boundary < 1):
        raise ValueError(f"boundaries and times are counted from 1: {stop}")
    return stop
