"""From a fault to its player: one table, and what cannot be combined.

run = run_fault(workshop, impl, activity, parse_fault("freeze@audit#2"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness import living
from harness.activity import Activity
from harness.faults import Fault, FaultLineError, Kind
from harness.records import Boundary
from harness.run import Play, Run, play_clean, play_kill
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

    Raises:
        FaultLineError: If two faults are given that cannot follow each other.
        DatabaseProblem: If the fault crashes the server and the workshop's server is not private.
    """
    if then is not None and {fault.kind, then.kind} != {Kind.KILL}:
        raise FaultLineError(f"{fault},{then}: only a kill can follow a kill")
    if fault.kind in PLACED and not record:
        record = play_clean(Play(workshop, impl, activity)).boundaries
    play = Play(workshop, impl, activity, fault, record)
    if fault.kind is Kind.KILL:
        return play_kill(play, then)
    return PLAYERS[fault.kind](play)


#: The faults that are placed, or judged, by what a clean run does.
PLACED = frozenset({Kind.LOSE_REQUEST, Kind.TERMINATE, Kind.CRASH})
PLAYERS: Mapping[Kind, Player] = {
    Kind.LOSE_REQUEST: living.lose_request,
    Kind.LOSE_REPLY: living.lose_reply,
    Kind.FREEZE: living.freeze,
    Kind.TERMINATE: living.terminate,
    Kind.RIVAL_WRITE: living.rival_write,
    Kind.RIVAL_WORKER: living.rival_worker,
    Kind.DEADLOCK: living.deadlock,
    Kind.LOCK_TIMEOUT: living.lock_timeout,
    Kind.SERIALIZATION: living.serialization,
    Kind.CRASH: living.crash,
}
