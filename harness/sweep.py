"""The sweep: kill at every boundary in turn, each time in a clean database, until none is left.

Four kill points show the idea; "it survives a kill anywhere" needs all of them. A clean run is
recorded first. Then, for k = 1, 2, 3 ..., a client is killed at boundary k, the judge reads what is
there, one healthy client finishes, and the judge reads again. The loop ends when the fault no longer
fires, not at a number that was computed before. With `double` the recovering client is killed as
well, at each of its own boundaries.

    sweep = run_sweep(workshop, impl, activity)
    print(sweep.verdict, sweep.coverage)

A client that does not send the same messages each time cannot be told by numbers. The sweep says so
and goes on by points, which have a meaning in any run: the third time `audit` is reached.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.activity import Activity, judged_by_state
from harness.faults import KINDS_WITH_POLICY, Fault, Kind
from harness.inject import run_fault
from harness.limits import SWEEP_BOUNDARIES_MAX
from harness.records import COMMIT_POINT, Boundary, Policy, Raised, Stop, Verdict
from harness.run import Play, Run, play_clean
from harness.workshop import Workshop


@dataclass(frozen=True)
class Cell:
    """One run of a sweep: where the fault was (`then`: where the recovery's was), and what came of it."""

    fault: Fault
    then: Fault | None
    boundary: int  # where the client was held, by number
    run: Run

    @property
    def line(self) -> str:
        """Return the line that repeats this run."""
        return f"{self.fault},{self.then}" if self.then is not None else str(self.fault)


@dataclass(frozen=True)
class Sweep:
    """Everything a sweep found. `notes` are what a reader has to know about how it was done."""

    activity: Activity
    kind: Kind
    record: Run
    cells: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()
    double: bool = False
    policy: Policy = Policy.ABORT
    seconds: float = 0.0
    interrupted: bool = False
    started: bool = True  # False when the lab is not filled in yet

    @property
    def kills(self) -> int:
        """Return how many kills landed."""
        return sum(kill.landed for cell in self.cells for kill in cell.run.kills)

    @property
    def failures(self) -> tuple[Cell, ...]:
        """Return the cells whose run broke a promise, in order."""
        return tuple(cell for cell in self.cells if cell.run.verdict is Verdict.FAIL)

    @property
    def verdict(self) -> Verdict:
        """Return fail if a promise broke anywhere, else what is worst; skip when nothing was started."""
        if not self.started:
            return Verdict.SKIP
        possible = [cell.run.verdict for cell in self.cells if cell.run.possible]
        verdicts = {self.record.verdict, *(possible or [Verdict.VOID])}
        order = (Verdict.FAIL, Verdict.ERROR, Verdict.VOID)
        return next((worst for worst in order if worst in verdicts), Verdict.PASS)

    @property
    def commits(self) -> tuple[int, int]:
        """Return how many commits were seen from both sides (killed before and after), and how many there are."""
        seen = {0} | {cell.boundary for cell in self.cells if cell.run.verdict is not Verdict.VOID}
        numbers = [b.number for b in self.record.boundaries if b.committed]
        return sum({n, n - 1} <= seen for n in numbers), len(numbers)

    @property
    def covered(self) -> tuple[int, int]:
        """Return at how many of the recorded boundaries the fault landed, and how many there are."""
        landed = {c.boundary for c in self.cells if c.run.verdict is not Verdict.VOID}
        numbers = {b.number for b in self.record.boundaries}
        return len(landed & numbers), len(numbers)


Progress = Callable[[int, int, str], None]


@dataclass
class _Sweeper:
    """One sweep in progress; what it has found stays when it is interrupted."""

    crew: Sequence[Workshop]
    impl: Path
    activity: Activity
    kind: Kind
    policy: Policy
    double: bool
    progress: Progress
    record: Run
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    over: bool = False

    def sweep(self) -> None:
        """Sweep by number; by points where numbers mean nothing."""
        self._by_number()
        if self.notes:
            self.cells.clear()
            self._by_points()
        self.cells.sort(
            key=lambda cell: (cell.boundary, cell.then.stop.boundary if cell.then else 0)
        )

    def _by_number(self) -> None:
        """Put the fault at boundary 1, 2, 3 ..., each workshop taking the next, until it is not reached."""
        numbers = iter(range(1, SWEEP_BOUNDARIES_MAX + 1))
        taking = threading.Lock()

        def work(workshop: Workshop) -> None:
            while not self.over:
                with taking:
                    number = next(numbers, None)
                if number is None:
                    return
                total = len(self.record.boundaries)
                self.progress(number - 1, total, f"{self.kind} at boundary {number}")
                run = self._put(workshop, Stop(boundary=number))
                if self._differs(number, run) or not run.reached:
                    self.over = True

        if len(self.crew) == 1:
            work(self.crew[0])
        else:
            self._together(work)

    def _together(self, work: Callable[[Workshop], None]) -> None:
        """Let every workshop work in a thread of its own; the first error ends them all."""
        with ThreadPoolExecutor(len(self.crew)) as threads:
            futures = [threads.submit(work, workshop) for workshop in self.crew]
            try:
                for future in as_completed(futures):
                    future.result()
            finally:  # also on Ctrl-C: what is being played is played to its end, and no more is begun
                self.over = True

    def _by_points(self) -> None:
        """Put the fault at every point, each time it is reached."""
        counts = Counter(name for b in self.record.boundaries for name in b.points)
        places = [Stop(point=name, nth=n) for name in counts for n in range(1, counts[name] + 1)]
        for done, stop in enumerate(places):
            self.progress(done, len(places), f"{self.kind} at {stop.point}#{stop.nth}")
            self._put(self.crew[0], stop)

    def _put(self, workshop: Workshop, stop: Stop) -> Run:
        """Play one fault, and with `double` every fault in the recovery after it."""
        fault = Fault(self.kind, stop, self.policy)
        run = self._once(workshop, fault)
        if self.double and run.verdict is Verdict.PASS:
            for number in range(1, SWEEP_BOUNDARIES_MAX + 1):
                then = Fault(self.kind, Stop(boundary=number), self.policy)
                if not self._once(workshop, fault, then).reached:
                    break
        return run

    def _once(self, workshop: Workshop, fault: Fault, then: Fault | None = None) -> Run:
        run = self._play(workshop, fault, then)
        if run.reached:
            if run.verdict is Verdict.VOID and self.kind is Kind.KILL:
                run = self._play(workshop, fault, then)  # tried once more, then reported as ours
            self.cells.append(Cell(fault, then, _held_at(run, fault), _light(run)))
        return run

    def _play(self, workshop: Workshop, fault: Fault, then: Fault | None) -> Run:
        record = self.record.boundaries
        return run_fault(workshop, self.impl, self.activity, fault, then=then, record=record)

    def _differs(self, number: int, run: Run) -> bool:
        """Tell whether the client sent other messages than in the record, and say so."""
        pairs = zip(self.record.boundaries, run.boundaries[:number], strict=False)
        odd = next((b for a, b in pairs if (a.unit, a.sql) != (b.unit, b.sql)), None)
        if odd is None and not run.reached and number <= len(self.record.boundaries):
            missing = len(run.boundaries) + 1
            odd = self.record.boundaries[min(missing, len(self.record.boundaries)) - 1]
        if odd is None:
            return False
        self.notes.append(
            f"the client's messages differ from its recorded run at boundary {odd.number}, so "
            "boundary numbers mean nothing here; swept by points instead"
        )
        return True


def run_sweep(
    workshop: Workshop,
    impl: Path,
    activity: Activity,
    *,
    kind: Kind = Kind.KILL,
    policy: Policy = Policy.ABORT,
    double: bool = False,
    progress: Progress = lambda done, total, text: None,
    beside: Sequence[Workshop] = (),
) -> Sweep:
    """Record a clean run of the activity, then put the fault at each boundary in turn.

    Args:
        kind: Which fault; the sweep of a fault that a client survives works the same way.
        double: Kill the recovering client too, at each of its boundaries.
        progress: Told how many boundaries are done, of how many, and what comes now.
        beside: More workshops, each with a database of its own: they share the boundaries.

    Returns:
        What was found. After Ctrl-C that is a part, and `interrupted` says so.
    """
    assert not double or kind in KINDS_WITH_POLICY
    started = time.perf_counter()
    progress(0, 0, "clean run, recorded")
    record = play_clean(Play(workshop, impl, activity))
    judged = judge_kills_of(activity, record)
    sweeper = _Sweeper((workshop, *beside), impl, judged, kind, policy, double, progress, record)
    result = Sweep(activity, kind, record, double=double, policy=policy)
    if not is_started(record):
        return replace(result, started=False)
    interrupted = False
    if not _failed_by_itself(record):
        try:
            sweeper.sweep()
        except KeyboardInterrupt:
            interrupted = True
    return replace(
        result,
        cells=tuple(sweeper.cells),
        notes=tuple(sweeper.notes),
        seconds=time.perf_counter() - started,
        interrupted=interrupted,
    )


def judge_kills_of(activity: Activity, record: Run) -> Activity:
    """Return the activity as its kills are judged.

    A client that commits apart what belongs together breaks its promise without any fault. Its clean
    run says so; its kills are then judged by what state they leave, which shows where it hurts.
    """
    return judged_by_state(activity) if record.verdict is Verdict.FAIL else activity


def is_started(record: Run) -> bool:
    """Tell whether the lab is filled in: its stub raises NotImplementedError."""
    for _, result in record.calls:
        if isinstance(result, Raised) and result.is_a("NotImplementedError"):
            return False
    return not any("NotImplementedError" in finding.seen for finding in record.findings)


def chunk_of(record: Sequence[Boundary]) -> dict[int, int]:
    """Return for each boundary's number the chunk it belongs to.

    A chunk ends with the commit before its work is repeated: a client that commits orders, audit and
    checkpoint apart makes three commits a chunk, and the fourth begins the next one.
    """
    points: dict[int, set[str]] = {}
    for boundary in record:
        for touch in boundary.touches:
            points.setdefault(touch.xid, set()).add(touch.point)
    chunks, chunk, seen = {}, 1, set[str]()
    pending: list[int] = []
    for boundary in record:
        pending.append(boundary.number)
        if not boundary.committed:
            continue
        done = set().union(*(points.get(xid, set()) for xid in boundary.committed))
        if done & seen:
            chunk, seen = chunk + 1, set()
        seen |= done
        chunks.update(dict.fromkeys(pending, chunk))
        pending.clear()
    chunks.update(dict.fromkeys(pending, chunk if not seen else chunk + 1))
    return chunks


def by_point(fault: Fault, record: Sequence[Boundary]) -> Fault:
    """Return the same fault named by its point, where the boundary has one; else as it is."""
    number = fault.stop.boundary
    boundary = next((b for b in record if b.number == number), None)
    if boundary is None or not boundary.points:
        return fault
    point = COMMIT_POINT if boundary.committed and boundary.points[-1:] == (COMMIT_POINT,) and (
        len(boundary.points) == 1
    ) else boundary.points[0]  # fmt: skip
    nth = sum(1 for b in record if b.number <= boundary.number and point in b.points)
    return replace(fault, stop=Stop(point=point, nth=nth))


def _held_at(run: Run, fault: Fault) -> int:
    if fault.stop.boundary is not None:
        return fault.stop.boundary
    hold = run.kill.hold if run.kill is not None else None
    return hold.boundary.number if hold is not None else 0


def _failed_by_itself(record: Run) -> bool:
    """Tell whether the clean run got nowhere, so that a fault would prove nothing."""
    return bool(record.findings) and record.findings[0].promise == "liveness"


def _light(run: Run) -> Run:
    """Drop the wire log of a run that needs no explanation: thousands of runs are kept."""
    if run.verdict is Verdict.FAIL:
        return run
    return replace(run, events=(), boundaries=(), resume_events=(), resume_boundaries=())
