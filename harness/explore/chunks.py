"""Chunks on a board: a job is held after each of its steps, and a stranger looks at the database.

The client does not know that it is held. What it has written is told by the wire; what everybody
else sees is read by a connection that was opened at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.explore.shown import BLUE, LIGHT, ORANGE, Shown, board, legend, plot, strip, table
from harness.explore.stage import implementation, the_workshop
from harness.records import COMMIT_POINT, POINT_ALIASES, Boundary, Evidence, Hold, Stop
from harness.report.board import CellState, count_words, order_states
from harness.scenario import Scenario, festival
from harness.script import drain
from harness.workshop import Actor

_STEPS = (*POINT_ALIASES.values(), COMMIT_POINT)


@dataclass(frozen=True, repr=False)
class Step(Shown):
    """The client stands still after `point` of chunk `chunk`; a stranger has just looked.

    `written` are the orders that the client has changed and not committed. `seen` is what the
    stranger read: how many orders are cancelled, how many audit rows there are, the checkpoint.
    """

    scenario: Scenario
    chunk: int
    point: str
    written: tuple[int, ...]
    evidence: Evidence

    @property
    def seen(self) -> tuple[int, int, int]:
        """Return cancelled orders, audit rows and checkpoint, as the stranger read them."""
        return three_records(self.scenario, self.evidence)

    @property
    def mine(self) -> tuple[CellState, ...]:
        """Return the board as the client believes it to be."""
        return tuple(
            CellState.WRITTEN if order_id in self.written else state
            for order_id, state in zip(self.scenario.approved_ids, self.everybodys, strict=True)
        )

    @property
    def everybodys(self) -> tuple[CellState, ...]:
        """Return the board as everybody else sees it."""
        return order_states(self.scenario, self.evidence)

    @property
    def words(self) -> str:
        """Say what the client has written, and what is seen."""
        return (
            f"{self.point} of chunk {self.chunk}: the client has {len(self.written)} orders written "
            f"and not committed; a stranger sees {_three_words(self.seen)}"
        )

    def _repr_html_(self) -> str:
        boards = [
            ("written by the client", board(self.scenario, self.mine, count_words(self.mine))),
            (
                "seen by everybody else",
                board(self.scenario, self.everybodys, count_words(self.everybodys)),
            ),
        ]
        return f"<p>{self.words}</p>{strip(boards)}{legend((*self.mine, *self.everybodys))}"


@dataclass(frozen=True, repr=False)
class Film(Shown):
    """Every step of a job, in order."""

    scenario: Scenario
    steps: tuple[Step, ...]

    def step(self, chunk: int, point: str) -> Step:
        """Return one step: of chunk 1, 2, 3 ..., after orders, audit, checkpoint or commit.

        Raises:
            LookupError: If the job did not get there.
        """
        for step in self.steps:
            if (step.chunk, step.point) == (chunk, point):
                return step
        raise LookupError(f"the job has no {point} in chunk {chunk}")

    @property
    def totals(self) -> tuple[tuple[int, int, int], ...]:
        """Return what a stranger can ever see, without repetition, in order."""
        return tuple(dict.fromkeys(step.seen for step in self.steps))

    @property
    def words(self) -> str:
        """Say how many steps there were, and the totals."""
        seen = "; ".join(_three_words(total) for total in self.totals)
        return f"{len(self.steps)} steps; a stranger sees, one after the other: {seen}"

    def _repr_html_(self) -> str:
        rows = [(s.chunk, s.point, len(s.written), *s.seen) for s in self.steps]
        head = (
            "chunk", "the client has done", "written, not committed",
            "cancelled, seen", "audit rows, seen", "checkpoint, seen",
        )  # fmt: skip
        return table(head, rows)

    def staircase(self) -> Staircase:
        """Return the steps as two lines: what the client has written, what everybody else sees."""
        return Staircase(self)

    def commits(self) -> Boards:
        """Return the board after each commit."""
        return Boards(tuple(step for step in self.steps if step.point == COMMIT_POINT))


@dataclass(frozen=True, repr=False)
class Staircase(Shown):
    """A film as two lines over its steps."""

    film: Film

    @property
    def words(self) -> str:
        """Say how the two lines differ."""
        most = max(len(step.written) for step in self.film.steps)
        return f"what is seen rises only at a commit; before it, up to {most} orders are written and unseen"

    def _repr_html_(self) -> str:
        def draw(axes: Any) -> None:
            steps = self.film.steps
            x = range(1, len(steps) + 1)
            seen = [step.seen[0] for step in steps]
            written = [step.seen[0] + len(step.written) for step in steps]
            axes.step(
                x, written, where="post", color=ORANGE, ls="--", label="written by the client"
            )
            axes.step(x, seen, where="post", color=BLUE, lw=2, label="seen by everybody else")
            for n, step in enumerate(steps, 1):
                if step.point == COMMIT_POINT:
                    axes.axvline(n, color=LIGHT, lw=1, zorder=0)
            axes.set_xticks(x, [step.point for step in steps], rotation=60, ha="right")
            axes.set(ylabel="orders cancelled", xlabel="step of the client", ylim=(0, None))
            axes.legend(loc="upper left")

        return plot(draw, self.words)


@dataclass(frozen=True, repr=False)
class Boards(Shown):
    """Steps as everybody sees them, side by side."""

    steps: tuple[Step, ...]

    @property
    def words(self) -> str:
        """Say what each board shows."""
        return "; ".join(f"after chunk {s.chunk}: {count_words(s.everybodys)}" for s in self.steps)

    def _repr_html_(self) -> str:
        items = [
            (
                f"chunk {s.chunk} committed",
                board(s.scenario, s.everybodys, count_words(s.everybodys)),
            )
            for s in self.steps
        ]
        return strip(items) + legend([state for s in self.steps for state in s.everybodys])


def watch_job(
    orders: int = 40, chunk_size: int = 10, *, seed: int = 0, impl: str = "solutions"
) -> Film:
    """Run a job with the client held after every write and every commit; look each time."""
    scenario = festival(orders, chunk_size, seed=seed)
    steps: list[Step] = []
    with the_workshop().scene(scenario) as scene:
        actor = scene.actor(implementation(impl), stop=Stop(boundary=1))
        hold = actor.follow(drain(scenario))
        while hold is not None:
            point = next((p for p in _STEPS if p in hold.boundary.points), "")
            if point:
                steps.append(_step(scenario, actor, point, scene.evidence(), steps))
            hold = _on(actor, hold)
    return Film(scenario, tuple(steps))


def three_records(scenario: Scenario, evidence: Evidence) -> tuple[int, int, int]:
    """Return how many approved orders are cancelled, how many audit rows there are, the checkpoint."""
    cancelled = order_states(scenario, evidence).count(CellState.CANCELLED)
    job = evidence.job(scenario.job_id)
    return cancelled, len(evidence.audit), job.next_index if job else 0


def _step(
    scenario: Scenario, actor: Actor, point: str, evidence: Evidence, before: list[Step]
) -> Step:
    chunk = 1 + sum(step.point == COMMIT_POINT for step in before)
    done = three_records(scenario, evidence)[0]
    count = _open_rows(actor.lane.boundaries)
    return Step(scenario, chunk, point, scenario.approved_ids[done : done + count], evidence)


def _open_rows(boundaries: tuple[Boundary, ...]) -> int:
    """Return how many order rows the open transaction has changed, as the wire told."""
    committed = {xid for boundary in boundaries for xid in boundary.committed}
    return sum(
        touch.rows
        for boundary in boundaries
        for touch in boundary.touches
        if touch.table == "orders" and touch.xid not in committed
    )


def _on(actor: Actor, hold: Hold) -> Hold | None:
    actor.lane.release(Stop(boundary=hold.boundary.number + 1))
    return actor.go_on()


def _three_words(seen: tuple[int, int, int]) -> str:
    cancelled, audited, checkpoint = seen
    return f"{cancelled} cancelled, {audited} audit rows, checkpoint {checkpoint}"
