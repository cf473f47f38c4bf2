"""What it costs: a chunk's size against speed, lock time and loss, and the price of doubt.

Every run goes through the kit's proxy, which looks at each statement; that costs a fraction of a
millisecond a statement, about what a network in one building costs. Compare numbers of one run with
each other. They are no promise about another machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.explore.chunks import three_records
from harness.explore.shown import BLUE, ORANGE, RED, Shown, plot, table
from harness.explore.stage import implementation, the_workshop
from harness.explore.workers import lock_spans, wire_ms
from harness.records import Raised, Returned
from harness.scenario import Scenario, festival
from harness.script import Call, Script
from harness.workshop import Actor

SIZES = (2, 10, 50, 250)
ORDERS = 500
#: Jobs whose verification is timed, and how often each.
LENGTHS = (1000, 2000, 4000, 8000, 16000)
REPEATS = 7


@dataclass(frozen=True, slots=True)
class Cost:
    """What one chunk size costs. `lock_ms` is the median time for which a chunk holds its locks.

    `kept` and `undone` are of a second run, in which one order had been edited: orders committed
    before the conflict, and orders of the refused chunk that were as approved and stay pending.
    """

    chunk_size: int
    orders: int
    seconds: float
    lock_ms: float
    kept: int
    undone: int

    @property
    def per_second(self) -> float:
        """Return orders cancelled a second."""
        return self.orders / self.seconds


@dataclass(frozen=True, repr=False)
class Costs(Shown):
    """Several chunk sizes on the same list."""

    each: tuple[Cost, ...]
    edited: int  # position of the order that was edited for the conflict

    @property
    def words(self) -> str:
        """Say each size's costs."""
        return "\n".join(
            f"chunks of {c.chunk_size}: {c.per_second:.0f} orders a second, locks for {c.lock_ms:.1f} ms; "
            f"conflict at position {self.edited}: {c.kept} kept, {c.undone} good orders not done"
            for c in self.each
        )

    def _repr_html_(self) -> str:
        head = (
            "chunk size", "orders a second", "locks held, median ms",
            "kept at a conflict", "good orders refused with it",
        )  # fmt: skip
        rows = [
            (c.chunk_size, round(c.per_second), f"{c.lock_ms:.1f}", c.kept, c.undone)
            for c in self.each
        ]
        return plot(self._draw, self.words, (10.0, 2.9), panels=3) + table(head, rows)

    def _draw(self, panels: Sequence[Any]) -> None:
        sizes = [c.chunk_size for c in self.each]
        series: list[tuple[str, list[float], str, str]] = [
            ("throughput (orders a second)", [c.per_second for c in self.each], BLUE, "o-"),
            ("locks held by a chunk (ms)", [c.lock_ms for c in self.each], ORANGE, "s--"),
            (
                "good orders refused\nwith one bad one",
                [float(c.undone) for c in self.each],
                RED,
                "^:",
            ),
        ]
        for axes, (label, values, colour, style) in zip(panels, series, strict=True):
            axes.plot(sizes, values, style, color=colour)
            axes.set_xscale("log")
            axes.set_xticks(sizes, [str(size) for size in sizes])
            axes.minorticks_off()
            axes.set(xlabel="chunk size (orders)", ylabel=label, ylim=(0, None))
            axes.grid(axis="y", alpha=0.3)


@dataclass(frozen=True, repr=False)
class DoubtCosts(Shown):
    """How long one verification takes, in milliseconds, by the orders that are done already: the best of a few."""

    chunk_size: int
    each: tuple[tuple[int, float], ...]  # orders done, milliseconds

    @property
    def whole_job_s(self) -> tuple[tuple[int, float], ...]:
        """Return for each length the seconds that verifying before every chunk adds up to.

        One verification grows with what is done, so the average one costs half of the last.
        """
        return tuple((done, ms / 2 * (done / self.chunk_size) / 1000) for done, ms in self.each)

    @property
    def words(self) -> str:
        """Say each length's costs."""
        return "\n".join(
            f"{done} orders done: one verification {ms:.1f} ms; before every chunk of "
            f"{self.chunk_size}: about {whole:.1f} s in all"
            for (done, ms), (_, whole) in zip(self.each, self.whole_job_s, strict=True)
        )

    def _repr_html_(self) -> str:
        def draw(panels: Sequence[Any]) -> None:
            done = [n for n, _ in self.each]
            panels[0].plot(done, [ms for _, ms in self.each], "o-", color=BLUE)
            panels[0].set(ylabel="one verification (ms)")
            panels[1].plot(done, [s for _, s in self.whole_job_s], "s--", color=ORANGE)
            panels[1].set(ylabel=f"one before every chunk of {self.chunk_size},\nin all (s)")
            for axes in panels:
                axes.set(xlabel="orders done", ylim=(0, None))
                axes.grid(axis="y", alpha=0.3)

        return plot(draw, self.words, (8.5, 2.9), panels=2)


def chunk_costs(
    sizes: Sequence[int] = SIZES,
    orders: int = ORDERS,
    *,
    edited: int = 310,
    impl: str = "solutions",
) -> Costs:
    """Run the same list in chunks of several sizes: once in peace, once with one order edited.

    Args:
        edited: Position of the order that another owner edits before the second run.
    """
    return Costs(tuple(_cost(festival(orders, size), edited, impl) for size in sizes), edited)


def doubt_costs(
    lengths: Sequence[int] = LENGTHS, chunk_size: int = 10, *, impl: str = "solutions"
) -> DoubtCosts:
    """Time `verify_progress` on complete jobs of several lengths."""
    return DoubtCosts(
        chunk_size, tuple((n, _verification_ms(n, chunk_size, impl)) for n in lengths)
    )


def _cost(scenario: Scenario, edited: int, impl: str) -> Cost:
    workshop, folder = the_workshop(), implementation(impl)
    with workshop.scene(scenario) as scene:
        actor = scene.actor(folder)
        actor.wait_connected()
        started = time.perf_counter()
        actor.follow(_chunks(scenario))
        seconds = time.perf_counter() - started
        held = lock_spans(actor)
    with workshop.scene(scenario) as scene:
        bad = scenario.approved_ids[edited]
        scene.rival("UPDATE orders SET revision = revision + 1 WHERE order_id = %s", (bad,))
        actor = scene.actor(folder)
        actor.follow(_chunks(scenario))
        kept = three_records(scenario, scene.evidence())[0]
        assert isinstance(actor.calls[-1][1], Raised)
    refused = min(scenario.chunk_size, len(scenario.approval) - kept)
    return Cost(
        scenario.chunk_size, len(scenario.approval), seconds, statistics.median(held), kept, refused - 1
    )  # fmt: skip


def _chunks(scenario: Scenario) -> Script:
    """Lab 3, chunk after chunk, as often as the list needs."""
    for _ in range(scenario.chunks):
        result = yield Call(3, "run_chunk", (scenario.job_id,))
        if not isinstance(result, Returned):
            return


def _verification_ms(orders: int, chunk_size: int, impl: str) -> float:
    scenario = festival(orders, chunk_size, done_chunks=-(-orders // chunk_size))
    with the_workshop().scene(scenario) as scene:
        # A table that was filled a moment ago has no statistics; a table in use has.
        scene.rival("ANALYZE job_items, job_audit")
        actor = scene.actor(implementation(impl))
        _verify(actor, scenario)  # the first call loads the learner's file
        # The best: whatever else the machine does can only make it slower.
        return min(_verify(actor, scenario) for _ in range(REPEATS))


def _verify(actor: Actor, scenario: Scenario) -> float:
    """Return the milliseconds that the statements of one verification took."""
    _, before = wire_ms(actor)
    result = actor.call(4, "verify_progress", scenario.job_id)
    assert isinstance(result, Returned), result
    return wire_ms(actor, before)[0]
