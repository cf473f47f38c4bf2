"""Kills: what is left after four of them, and after one at every boundary.

The four points show the idea. The map of a sweep shows the whole: one square for each boundary, and in
it how much of the job a fresh connection saw when the client had been killed there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from harness.activity import activities, sized
from harness.demo import DEMO_POINTS, Demo, run_demo
from harness.explore.chunks import three_records
from harness.explore.shown import BLACK, RED, Shown, board, legend, plot, strip, table
from harness.explore.stage import implementation, the_workshop
from harness.history import order_moves
from harness.records import COMMIT_POINT, POINT_ALIASES, Verdict
from harness.report.board import count_words, order_states, touched_orders
from harness.run import Run
from harness.scenario import Scenario, festival
from harness.sweep import Sweep, chunk_of, run_sweep


@dataclass(frozen=True, repr=False)
class Killed(Shown):
    """One kill: the two moments at which a fresh connection looked."""

    title: str
    run: Run

    @property
    def after_kill(self) -> tuple[int, int, int]:
        """Return cancelled orders, audit rows and checkpoint after the kill."""
        assert self.run.after_fault is not None
        return three_records(self.run.scenario, self.run.after_fault)

    @property
    def after_resume(self) -> tuple[int, int, int]:
        """Return the same after a new process had finished the job."""
        assert self.run.after_resume is not None
        return three_records(self.run.scenario, self.run.after_resume)

    @property
    def times_cancelled(self) -> dict[int, int]:
        """Return how many orders were cancelled how often, as the witness saw it: ``{1: 40}``."""
        assert self.run.after_resume is not None
        moves = order_moves(self.run.after_resume.changes)
        per_order = Counter(move.order_id for move in moves if move.cancels)
        return dict(Counter(per_order[order_id] for order_id in self.run.scenario.approved_ids))

    @property
    def words(self) -> str:
        """Say how it died and what was there."""
        kill = self.run.kill
        died = f"{kill.exit} at {kill.fault}" if kill and kill.landed else self.run.note
        return (
            f"{self.title}: {died}; then {self.after_kill[0]} cancelled; after the resume "
            f"{self.after_resume[0]}; verdict {self.run.verdict}"
        )

    def _repr_html_(self) -> str:
        return f"<p>{self.words}</p>" + strip(self.boards)

    @property
    def boards(self) -> list[tuple[str, str]]:
        """Return the board after the kill and the one after the resume, with titles."""
        pictures = []
        for name, seen in (("kill", self.run.after_fault), ("resume", self.run.after_resume)):
            assert seen is not None
            states = order_states(self.run.scenario, seen)
            picture = board(self.run.scenario, states, count_words(states))
            pictures.append((f"{self.title}: after the {name}", picture))
        return pictures


@dataclass(frozen=True, repr=False)
class Kills(Shown):
    """The four kills of the course."""

    demo: Demo

    @property
    def kills(self) -> tuple[Killed, ...]:
        """Return the kills in the order of their points."""
        return tuple(Killed(row.title, row.run) for row in self.demo.rows if row.run.kill)

    @property
    def words(self) -> str:
        """Say what each kill left."""
        return "\n".join(kill.words for kill in self.kills)

    def __getitem__(self, point: str) -> Killed:
        """Return the kill after `point`."""
        return next(kill for kill in self.kills if kill.title == f"after {point}")

    def _repr_html_(self) -> str:
        rows = []
        for kill in self.kills:
            touched = touched_orders(kill.run.scenario, _after(kill.run))
            often = "; ".join(f"{n} of them {times}x" for times, n in kill.times_cancelled.items())
            rows.append((
                kill.title, kill.run.fault, *kill.after_kill, *kill.after_resume,
                often, len(touched), kill.run.verdict,
            ))  # fmt: skip
        head = (
            "killed", "fault line", "cancelled", "audit", "checkpoint", "cancelled at the end",
            "audit at the end", "checkpoint at the end", "each cancelled", "others touched", "verdict",
        )  # fmt: skip
        return table(head, rows)

    def boards(self) -> KillBoards:
        """Return the boards after each kill."""
        return KillBoards(self.kills)


@dataclass(frozen=True, repr=False)
class KillBoards(Shown):
    """What a fresh connection saw right after each kill."""

    kills: tuple[Killed, ...]

    @property
    def words(self) -> str:
        """Say what each board shows."""
        return "; ".join(f"{kill.title}: {kill.after_kill[0]} cancelled" for kill in self.kills)

    def _repr_html_(self) -> str:
        states = order_states(self.kills[0].run.scenario, _before(self.kills[0].run))
        return strip([kill.boards[0] for kill in self.kills]) + legend(states)


@dataclass(frozen=True, repr=False)
class KillMap(Shown):
    """A sweep as a map: a row for each chunk, a square for each boundary in it.

    `rows` holds lists of squares; a square is its letter (the boundary's point), the orders that were
    cancelled after the kill there, and whether a promise broke.
    """

    sweep: Sweep
    scenario: Scenario

    @property
    def rows(self) -> list[list[tuple[str, int, bool]]]:
        """Return the squares, chunk by chunk."""
        record = self.sweep.record.boundaries
        cells = {cell.boundary: cell.run for cell in self.sweep.cells if not cell.then}
        chunks = chunk_of(record)
        rows = []
        for _, group in groupby(record, key=lambda b: chunks[b.number]):
            squares = []
            for b in group:
                run = cells.get(b.number)
                if run is not None and run.after_fault is not None:
                    seen = three_records(self.scenario, run.after_fault)[0]
                    letter = next((_LETTERS[p] for p in b.points if p in _LETTERS), "")
                    squares.append((letter, seen, run.verdict is Verdict.FAIL))
            rows.append(squares)
        return [row for row in rows if row]

    @property
    def broken(self) -> int:
        """Return at how many boundaries a kill broke a promise."""
        return len(self.sweep.failures)

    @property
    def totals(self) -> list[int]:
        """Return the numbers of cancelled orders that were ever found after a kill."""
        return sorted({seen for row in self.rows for _, seen, _ in row})

    @property
    def words(self) -> str:
        """Say how many kills there were and what they left."""
        return (
            f"{self.sweep.kills} kills at {self.sweep.covered[0]} of {self.sweep.covered[1]} boundaries; "
            f"cancelled orders found after a kill: {', '.join(map(str, self.totals))}; "
            f"broken at {self.broken}; verdict {self.sweep.verdict}"
        )

    def _repr_html_(self) -> str:
        rows = self.rows
        height = 1.3 + 0.42 * len(rows)
        return f"<p>{self.words}</p>" + plot(self._draw, self.words, (9.5, height))

    def _draw(self, axes: Any) -> None:
        rows, most = self.rows, len(self.scenario.approval)
        width = max(len(row) for row in rows)
        grid = [[row[x][1] if x < len(row) else float("nan") for x in range(width)] for row in rows]
        mesh = axes.pcolormesh(
            grid, cmap="cividis", vmin=0, vmax=most, edgecolors="white", linewidth=1.5
        )
        for y, row in enumerate(rows):
            for x, (letter, seen, broken) in enumerate(row):
                ink = "white" if seen < most * 0.55 else BLACK
                axes.text(
                    x + 0.5, y + 0.5, letter, ha="center", va="center", color=ink, weight="bold"
                )
                for ends in ((0.1, 0.9), (0.9, 0.1)) if broken else ():
                    line = ((x + ends[0], x + ends[1]), (y + 0.1, y + 0.9))
                    axes.plot(*line, color="white", lw=3.5)
                    axes.plot(*line, color=RED, lw=1.8)
        axes.invert_yaxis()
        axes.set_yticks(
            [y + 0.5 for y in range(len(rows))], [f"chunk {y + 1}" for y in range(len(rows))]
        )
        axes.set_xticks([x + 0.5 for x in range(0, width, 2)], range(1, width + 1, 2))
        letters = ", ".join(f"{letter} {point}" for point, letter in _LETTERS.items())
        axes.set(xlabel=f"boundary within the chunk ({letters})")
        if self.broken:
            axes.set_title("crossed out: a kill here breaks a promise")
        axes.figure.colorbar(mesh, ax=axes, label="cancelled orders\nafter the kill")


#: The points' letters, as in `lab sweep`.
_LETTERS = dict(zip(POINT_ALIASES.values(), "oap", strict=True)) | {COMMIT_POINT: "C"}


def four_kills(
    orders: int = 40, chunk_size: int = 10, *, seed: int = 0, impl: str = "solutions"
) -> Kills:
    """Kill a drain at the four points of its second chunk; a new process finishes each time."""
    scenario = festival(orders, chunk_size, seed=seed)
    demo = run_demo(the_workshop(), implementation(impl), scenario, DEMO_POINTS)
    return Kills(demo)


def kill_everywhere(
    orders: int = 23, chunk_size: int = 10, *, lab: int = 3, seed: int = 0, impl: str = "solutions"
) -> KillMap:
    """Kill a client at every boundary in turn, each time on clean rows; a new one finishes."""
    activity = sized(activities(lab)[0], orders, chunk_size, seed)
    sweep = run_sweep(the_workshop(), implementation(impl), activity)
    return KillMap(replace(sweep, activity=activity), activity.scenario)


def _before(run: Run) -> Any:
    assert run.after_fault is not None
    return run.after_fault


def _after(run: Run) -> Any:
    assert run.after_resume is not None
    return run.after_resume
