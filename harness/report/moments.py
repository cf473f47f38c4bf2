"""Moments: what happened in a story, in order, as plain values.

A finished run and a live board tell their story in the same few words: somebody *worked* (a boundary),
somebody's transaction was *committed* (where nobody watched the wire), somebody *ended*, something
*happened* from outside, and a fresh connection *looked*. `steps.py` turns them into what a page shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.faults import Fault, FaultLineError, Kind, parse_fault
from harness.records import Boundary, Evidence, Kill, WireEvent
from harness.run import Run
from harness.story import shorten

#: Faults after which the client's transaction is over, whatever the client does next.
ENDING = (Kind.LOSE_REQUEST, Kind.LOSE_REPLY, Kind.TERMINATE, Kind.CRASH)


@dataclass(frozen=True, slots=True)
class Worked:
    """A client reached a boundary. `told` is False where its answer never got to the client."""

    who: int
    boundary: Boundary
    told: bool = True
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction of a client whose wire was not kept; the witness has its changes."""

    who: int
    xid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A client is no more. With `sessions_stay` the server does not know (a zombie)."""

    who: int
    words: str
    fault: bool = False
    sessions_stay: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """Something from outside: another owner's write, a freeze, a server crash."""

    words: str
    fault: bool = True


@dataclass(frozen=True, slots=True)
class Looked:
    """A fresh connection read everything. `name` is after-fault, after-resume or now.

    With `over`, no client is left, and so no open transaction.
    """

    name: str
    words: str
    evidence: Evidence
    over: bool = False


Moment = Worked | Committed | Ended | Happened | Looked


def moments_of(run: Run, record: Sequence[Boundary] = ()) -> tuple[list[Moment], list[str]]:
    """Tell a run as moments.

    Args:
        record: The boundaries of a clean run of the same client. A sweep keeps no wire of the runs
            that passed; up to its kill such a client did what the record says.

    Returns:
        The moments, and the name of each client by its number.
    """
    actors = [_name(run)]
    moments: list[Moment] = []
    boundaries = run.boundaries or _rebuilt(run, record)
    untold = boundaries[-1].number if boundaries and _is_untold(run) else None
    times = unit_times(boundaries, run.events)
    if run.kill is None and run.fault and run.after_resume is None:
        # Another owner wrote before the client started.
        moments.append(Happened(f"another owner edits an approved order ({run.fault})"))
    moments += [
        Worked(0, b, b.number != untold, at_s) for b, at_s in zip(boundaries, times, strict=True)
    ]
    for number, kill in enumerate(run.kills):
        if number == 1:
            actors.append("the client that resumed")
        moments.append(ended_by(min(number, 1), kill))
    if run.fault and not run.kills and run.after_resume is not None:
        words = run.note or run.fault
        moments.append(Ended(0, words, True) if _kind(run) in ENDING else Happened(words))
    if run.after_fault is not None:
        what = "the client was gone" if run.kills else "the client had ended"
        moments.append(Looked("after-fault", f"a fresh connection, once {what}", run.after_fault))
    if run.after_resume is not None:
        if run.fault:
            actors.append(
                f"client {run.resumed_by} (resumes)" if run.resumed_by else "a healthy client"
            )
            moments += _resumed(run, len(actors) - 1)
        what = "the resumed client" if run.fault else "the client"
        words = f"a fresh connection, once {what} had finished"
        moments.append(Looked("after-resume", words, run.after_resume, over=True))
    return moments, actors


def _name(run: Run) -> str:
    ended = run.kill.exit if run.kill else None
    pid = ended.pid if ended else run.resumed_by if not run.fault else None
    return f"client {pid}" if pid else "client"


def ended_by(who: int, kill: Kill) -> Ended:
    """Tell a kill: how the client died, where, and what the server knows of it."""
    stays = kill.policy == "leave-open"
    how = (
        f"killed by {kill.exit}" if kill.exit and kill.landed else "not killed: " + kill.void_reason
    )
    if kill.landed and kill.hold:
        how += f" at boundary {kill.hold.boundary.number}, {_after(kill.hold.boundary)}"
        how += "; the server still believes in it" if stays else "; its server session is gone"
    return Ended(who, how, kill.landed, stays)


def _after(boundary: Boundary) -> str:
    names = [p for p in boundary.points if "." not in p]
    return f"after {names[-1]}" if names else f"after {shorten(boundary.sql, 40) or boundary.unit}"


def _resumed(run: Run, who: int) -> list[Moment]:
    """Tell the client that finished: boundary by boundary, or where no wire was kept by commits."""
    if run.resume_boundaries:
        times = unit_times(run.resume_boundaries, run.resume_events)
        pairs = zip(run.resume_boundaries, times, strict=True)
        return [Worked(who, b, True, at_s) for b, at_s in pairs]
    early = {c.xid for c in run.after_fault.changes} if run.after_fault else set()
    changes = run.after_resume.changes if run.after_resume else ()
    return [
        Committed(who, xid) for xid in dict.fromkeys(c.xid for c in changes) if xid not in early
    ]


def _rebuilt(run: Run, record: Sequence[Boundary]) -> tuple[Boundary, ...]:
    """Take the boundaries up to the fault from the record, under this run's own transactions."""
    hold = run.kill.hold if run.kill else None
    last = hold.boundary.number if hold else _place(run, record)
    ours = list(dict.fromkeys(c.xid for c in run.after_fault.changes)) if run.after_fault else []
    theirs = list(dict.fromkeys(t.xid for b in record for t in b.touches))
    # A transaction that was rolled back gets a number that no server gives.
    new = {xid: ours[n] if n < len(ours) else -xid for n, xid in enumerate(theirs)}
    before = tuple(
        replace(
            b,
            touches=tuple(replace(t, xid=new[t.xid]) for t in b.touches),
            committed=tuple(new.get(xid, xid) for xid in b.committed),
        )
        for b in record
        if b.number < last or (b.number == last and hold is None)
    )
    return (*before, hold.boundary) if hold else before


def _place(run: Run, record: Sequence[Boundary]) -> int:
    """Return the number of the last boundary before a fault that is no kill; 0 when it has no place."""
    fault = _fault(run)
    if fault is None:
        return 0
    stop, number = fault.stop, fault.stop.boundary
    if number is None:
        reached = [b.number for b in record if stop.point in b.points]
        number = reached[stop.nth - 1] if stop.nth <= len(reached) else 0
    return number - 1 if fault.kind is Kind.LOSE_REQUEST else number


def _fault(run: Run) -> Fault | None:
    try:
        return parse_fault(run.fault.partition(",")[0], any_table=True)
    except FaultLineError:
        return None  # such as a rival's edit before the start


def _kind(run: Run) -> Kind | None:
    fault = _fault(run)
    return fault.kind if fault else None


def _is_untold(run: Run) -> bool:
    """Tell whether the answer at the last boundary never got to the client."""
    held = run.kill is not None and run.kill.hold is not None
    return held or (_kind(run) is Kind.LOSE_REPLY and not run.boundaries)


def unit_times(boundaries: Sequence[Boundary], events: Sequence[WireEvent]) -> list[float | None]:
    """Return when each boundary's unit was forwarded, in seconds of the monotonic clock."""
    sent = iter(e for e in events if e.who == "client")
    times: list[float | None] = []
    for boundary in boundaries:
        wanted = (boundary.session, str(boundary.unit))
        found = next((e for e in sent if (e.session, e.message) == wanted), None)
        times.append(found.at_s if found else None)
    return times
