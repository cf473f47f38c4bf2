"""Fault lines: one line names a fault and repeats it.

    kill@audit#3               SIGKILL at the third time the point `audit` is reached
    kill@17                    SIGKILL at boundary 17
    kill@commit:leave-open     the same at the first commit; the server never learns
    lose-reply@commit#2        the second COMMIT is carried out, its answer never arrives
    lose-request@commit#2      the second COMMIT never arrives

The grammar is ``KIND@PLACE[#N][:POLICY]``. PLACE is a boundary number or a point: `orders`, `audit`,
`checkpoint`, `commit`, or `table.operation`. Kills are played in `run.py`, the others in `living.py`; this file only reads
and writes the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from harness.records import COMMIT_POINT, POINT_ALIASES, Policy, Stop


class Kind(StrEnum):
    """The faults a line can name."""

    KILL = "kill"
    LOSE_REQUEST = "lose-request"
    LOSE_REPLY = "lose-reply"
    FREEZE = "freeze"
    TERMINATE = "terminate"
    RIVAL_WRITE = "rival-write"
    RIVAL_WORKER = "rival-worker"
    DEADLOCK = "deadlock"
    LOCK_TIMEOUT = "lock-timeout"
    SERIALIZATION = "serialization"
    CRASH = "crash"


#: The tables that the witness watches, in the order of `labs/schema.sql`.
TABLES = (
    "orders", "jobs", "job_items", "job_audit",
    "parent_work", "child_work", "subjects", "event_effects",
)  # fmt: skip
OPERATIONS = ("insert", "update", "delete", "truncate")
#: Every name a point may have.
POINTS = (
    *POINT_ALIASES.values(),
    COMMIT_POINT,
    *(f"{table}.{operation}" for table in TABLES for operation in OPERATIONS),
)
#: The only fault that chooses how the connection is let go of.
KINDS_WITH_POLICY = frozenset({Kind.KILL})

E = TypeVar("E", bound=StrEnum)

_LINE = re.compile(
    r"^(?P<kind>[a-z-]+)@(?P<place>[a-z_][a-z0-9_.]*|\d+)(#(?P<nth>\d+))?(:(?P<policy>[a-z-]+))?$"
)


class FaultLineError(ValueError):
    """The line names no fault; the text says which part is wrong and what it may be."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens, where, and how the connection is let go of."""

    kind: Kind
    stop: Stop
    policy: Policy = Policy.ABORT

    def __str__(self) -> str:
        """Return the line that `parse_fault` reads back."""
        stop = self.stop
        place = str(stop.boundary) if stop.boundary is not None else str(stop.point)
        nth = f"#{stop.nth}" if stop.boundary is None and stop.nth != 1 else ""
        policy = f":{self.policy}" if self.policy is not Policy.ABORT else ""
        return f"{self.kind}@{place}{nth}{policy}"


def parse_fault(line: str, *, any_table: bool = False) -> Fault:
    """Read a fault line.

    Args:
        any_table: Take points of tables that are not the labs' own, for a program of somebody else.

    Raises:
        FaultLineError: If the line is not of the grammar, or names an unknown kind, point or policy,
            or combines what cannot be combined.
    """
    match = _LINE.match(line.strip())
    if match is None:
        raise FaultLineError(
            f"{line!r} is no fault line: write KIND@PLACE[#N][:POLICY], for example kill@audit#3"
        )
    kind = _one_of(Kind, match["kind"], "fault")
    policy = _one_of(Policy, match["policy"], "policy") if match["policy"] else Policy.ABORT
    if match["policy"] and kind not in KINDS_WITH_POLICY:
        raise FaultLineError(f"{kind} takes no policy: only kill does")
    return Fault(kind, _stop(line, match, any_table), policy)


def _stop(line: str, match: re.Match[str], any_table: bool) -> Stop:
    place = match["place"]
    if place.isdigit():
        if match["nth"]:
            raise FaultLineError(f"{line!r}: a boundary number has no #N, it is reached once")
        if int(place) < 1:
            raise FaultLineError(f"{line!r}: boundaries are counted from 1")
        return Stop(boundary=int(place))
    foreign = any_table and place.rpartition(".")[2] in OPERATIONS
    if place not in POINTS and not foreign:
        raise FaultLineError(
            f"{place!r} is no point: use orders, audit, checkpoint, commit, or table.operation "
            f"with a table of {', '.join(TABLES)}"
        )
    nth = int(match["nth"] or 1)
    if nth < 1:
        raise FaultLineError(f"{line!r}: times are counted from 1")
    return Stop(point=place, nth=nth)


def _one_of(names: type[E], text: str, what: str) -> E:
    try:
        return names(text)
    except ValueError:
        raise FaultLineError(f"{text!r} is no {what}: use one of {', '.join(names)}") from None
