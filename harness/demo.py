"""The demo of track A: the main job, once for each of the four points, and once with a rival.

A clean run is recorded first. Then a client that runs chunk after chunk (lab 3) is killed at each
point in the second chunk (in the first, when there is only one), a new process drains the rest
(lab 5, which doubts the progress first), and the judge reads both moments through fresh connections.
Last, another owner edits an approved order before the run: the client must refuse that chunk and
name the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.place import place_kill
from harness.records import Finding, Verdict
from harness.run import Run, run_clean, run_rival_edit, run_with_fault
from harness.scenario import Scenario
from harness.script import drain, run_chunks
from harness.workshop import Workshop

#: The four points of the course, in the order in which the worked answer reaches them.
DEMO_POINTS = ("orders", "audit", "checkpoint", "commit")
#: The chunk in whose middle the client is killed: one chunk is safe before it, the others come after.
DEMO_CHUNK = 2


@dataclass(frozen=True)
class DemoRow:
    """One scene of the demo: what was done to the client, and the run that came of it."""

    title: str
    run: Run


@dataclass(frozen=True)
class Demo:
    """All scenes. The verdict is the worst of them: fail before void before pass."""

    scenario: Scenario
    rows: tuple[DemoRow, ...]

    @property
    def verdict(self) -> Verdict:
        """Return fail if a promise broke anywhere, void if a fault did not land, else pass."""
        verdicts = {row.run.verdict for row in self.rows}
        for worst in (Verdict.FAIL, Verdict.ERROR, Verdict.VOID):
            if worst in verdicts:
                return worst
        return Verdict.PASS

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return every finding, in the order of the scenes."""
        return tuple(finding for row in self.rows for finding in row.run.findings)


def run_demo(
    workshop: Workshop,
    impl: Path,
    scenario: Scenario,
    points: Sequence[str] = DEMO_POINTS,
    progress: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Play all scenes; a scene that fails does not keep the next from being played.

    Args:
        impl: The folder whose labs 3 and 5 (and what they import) run.
        points: Which of the four points to kill at.
        progress: Told the title of each scene before it is played.
    """
    progress("clean run, recorded")
    clean = run_clean(workshop, impl, scenario, run_chunks)
    rows = [DemoRow("no fault", clean)]
    chunk = min(DEMO_CHUNK, scenario.chunks)
    for point in points:
        progress(f"kill at {point}, chunk {chunk}")
        fault = place_kill(clean.boundaries, point, chunk)
        if fault is None:
            continue  # a client that never reaches the point has failed its clean run already
        run = run_with_fault(workshop, impl, scenario, run_chunks, fault, recovery=drain)
        rows.append(DemoRow(f"after {point}", run))
    progress("another owner edits an approved order")
    rows.append(DemoRow("rival edit", run_rival_edit(workshop, impl, scenario, drain, chunk)))
    return Demo(scenario, tuple(rows))
