"""What a kill costs, beside its floor, in one run.

A *kill* is everything from clean rows to a verdict: rows, a client held at a point of its first chunk,
SIGKILL, the session gone, a fresh connection's evidence, the judge. Its *floor* is what no harness
can do without: clean rows, the same client connecting and running the same chunk with no fault.
The two take turns, so that a machine that slows down slows both; the ratio is what to compare.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.judge import judge_safety
from harness.records import Stop, Verdict
from harness.scenario import Scenario, festival
from harness.script import Call, Script
from harness.workshop import Workshop

POINTS = ("orders", "audit", "checkpoint", "commit")


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each kill and each floor run, in the order in which they were made."""

    kills_ms: tuple[float, ...]
    floors_ms: tuple[float, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def ratio(self) -> float:
        """Return the median of kill divided by floor, pair by pair."""
        return statistics.median(
            kill / floor for kill, floor in zip(self.kills_ms, self.floors_ms, strict=True)
        )


def measure_kills(
    workshop: Workshop, impl: Path, kills: int, progress: Callable[[int], None] = lambda done: None
) -> Timing:
    """Make `kills` kills over the four points, each after one floor run."""
    scenario = festival()
    kills_ms, floors_ms, verdicts = [], [], []
    one_chunk(workshop, impl, scenario)  # the first client warms every cache; it is not counted
    for number in range(kills):
        floors_ms.append(_timed(lambda: one_chunk(workshop, impl, scenario)))
        stop = Stop(point=POINTS[number % len(POINTS)])
        started = time.perf_counter()
        verdicts.append(one_kill(workshop, impl, scenario, stop))
        kills_ms.append((time.perf_counter() - started) * 1000)
        progress(number + 1)
    return Timing(tuple(kills_ms), tuple(floors_ms), tuple(verdicts))


def one_chunk(workshop: Workshop, impl: Path, scenario: Scenario) -> None:
    """Run the first chunk on clean rows without a fault: the floor."""
    with workshop.scene(scenario) as scene:
        scene.actor(impl).follow(_chunk(scenario))


def one_kill(workshop: Workshop, impl: Path, scenario: Scenario, stop: Stop) -> Verdict:
    """Kill a client at a point of its first chunk on clean rows, and judge what is left."""
    with workshop.scene(scenario) as scene:
        actor = scene.actor(impl, stop=stop)
        hold = actor.follow(_chunk(scenario))
        if hold is None or not actor.kill(f"kill@{stop.point}", hold).landed:
            return Verdict.VOID
        broken = judge_safety(scenario, scene.evidence())
    return Verdict.FAIL if broken else Verdict.PASS


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the values lie."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _chunk(scenario: Scenario) -> Script:
    yield Call(3, "run_chunk", (scenario.job_id,))


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000
