"""From a fault to its player: one table, and what cannot be combined.

run = run_fault(workshop, impl, activity, parse_fault("freeze@audit#2"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness.activity import Activity
from harness.faults import Fault, Kind
from harness.records import Boundary
from harness.run import Play, Run, play_kill
from harness.workshop import Workshop

Player = Callable[[Play], Run]


def run_fault(
    workshop: Workshop,
    impl: Path,
    activity: Activity,
    fault: Fault,
    *,
    then: Fault | None = None,
    record: tuple[Boundary, ...] = (),
) -> Run:
    """Play one fault, let a healthy client finish, judge.

    Args:
        then: For a kill, a second kill in the recovery.
        record: The boundaries of a clean run; recorded here when the fault needs them and there are none.
    """
    play = Play(workshop, impl, activity, fault, record)
    if fault.kind is Kind.KILL:
        return play_kill(play, then)
    return PLAYERS[fault.kind](play)


PLAYERS: Mapping[Kind, Player] = {}
