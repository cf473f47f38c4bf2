"""The child ledger: a list of 1,000 events that stopped in the middle, without a ledger and with one.

Without one there is a counter, and five histories that end with the same counter. With one, a killed
worker leaves a row for every event, and whoever comes next reads from the rows what is left.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from harness.explore.shown import BLUE, GREEN, GREY, LIGHT, ORANGE, PURPLE, Shown, plot, table
from harness.explore.stage import implementation, the_workshop
from harness.ledger.scenario import LedgerScenario, ParentSeed, mixed_scans, one, scan, unread
from harness.records import Evidence, Kill, ParentRow, Returned, Stop
from harness.script import Call, Script

EVENTS, COUNTED, FAILED, SKIPPED = 1000, 573, 12, 4
#: The failed and skipped events of the histories: the last of the first 600.
_BAD = range(584, 600)
_COLUMNS = 50
LEASE = timedelta(hours=1)


@dataclass(frozen=True, repr=False)
class History(Shown):
    """One way in which the counter came to be. `effects` says how often each event took effect."""

    title: str
    parent: ParentRow
    effects: Counter[int]

    @property
    def once(self) -> int:
        """Return how many events took effect exactly once."""
        return sum(times == 1 for times in self.effects.values())

    @property
    def twice(self) -> int:
        """Return how many events took effect two times."""
        return sum(times == 2 for times in self.effects.values())

    @property
    def words(self) -> str:
        """Say what the counter says, and what happened."""
        return (
            f"{self.title}: counter {self.parent.processed}; {self.once} once, {self.twice} twice"
        )

    def repaired(self, again: range) -> tuple[int, int]:
        """Return how many events are double and how many missing, when `again` is processed now."""
        total = self.effects + Counter(n for n in again if n not in _BAD)
        double = sum(times > 1 for times in total.values())
        missing = sum(total[n] == 0 for n in range(EVENTS) if n not in _BAD)
        return double, missing

    def _repr_html_(self) -> str:
        return Histories((self,))._repr_html_()


@dataclass(frozen=True, repr=False)
class Histories(Shown):
    """Histories side by side."""

    each: tuple[History, ...]

    @property
    def counters(self) -> frozenset[tuple[int | None, int, int, int]]:
        """Return the different counters: one, if nobody can tell the histories apart by it."""
        return frozenset(
            (h.parent.total, h.parent.processed, h.parent.failed, h.parent.skipped)
            for h in self.each
        )

    @property
    def words(self) -> str:
        """Say each history."""
        return "\n".join(history.words for history in self.each)

    def _repr_html_(self) -> str:
        def draw(panels: Any) -> None:
            for axes, history in zip(
                panels if len(self.each) > 1 else [panels], self.each, strict=True
            ):
                values = [min(history.effects[n], 2) for n in range(EVENTS)]
                _grid(axes, values, (LIGHT, BLUE, ORANGE))
                axes.set_title(f"{history.once} once\n{history.twice} twice")
                axes.set_xlabel(history.title, fontsize=8)
            _key(axes, {"took no effect": LIGHT, "once": BLUE, "twice": ORANGE})

        return plot(draw, self.words, (2.4 * len(self.each), 2.3), panels=len(self.each))

    def repairs(self) -> Repairs:
        """Return what each obvious repair would do to each history."""
        return Repairs(self.each)


@dataclass(frozen=True, repr=False)
class Repairs(Shown):
    """Two repairs for each history: go on behind the counter, or start again."""

    each: tuple[History, ...]

    @property
    def rows(self) -> list[tuple[str, tuple[int, int], tuple[int, int], tuple[int, int]]]:
        """Return for each history (double, missing): going on, starting again, leaving it alone."""
        return [
            (h.title, h.repaired(range(COUNTED, EVENTS)), h.repaired(range(EVENTS)), h.repaired(range(0)))
            for h in self.each
        ]  # fmt: skip

    @property
    def words(self) -> str:
        """Say each row."""
        return "\n".join(
            f"{title}: go on {on}, again {again}, nothing {nothing} (double, missing)"
            for title, on, again, nothing in self.rows
        )

    def _repr_html_(self) -> str:
        head = ("history", f"go on at event {COUNTED}", "start again", "leave it alone")
        rows = [
            (title, *(f"{double} double, {missing} missing" for double, missing in repairs))
            for title, *repairs in self.rows
        ]
        return table(head, rows)


@dataclass(frozen=True, repr=False)
class Ledger(Shown):
    """The ledger of one parent at one moment."""

    title: str
    evidence: Evidence

    @property
    def parent(self) -> ParentRow:
        """Return the parent's row."""
        return self.evidence.parents[0]

    @property
    def states(self) -> tuple[str, ...]:
        """Return each child's state in sequence order; an open one is 'claimed' or 'pending'."""
        return tuple(
            "claimed" if child.state == "pending" and child.processing_started_at else child.state
            for child in self.evidence.children
        )

    @property
    def counts(self) -> dict[str, int]:
        """Return how many children are in which state."""
        found = Counter(self.states)
        return {state: found[state] for state in _STATE_COLOURS if found[state]}

    @property
    def effects(self) -> dict[int, int]:
        """Return how many processed children took effect how often: ``{1: 573}``."""
        times = Counter(effect.sequence for effect in self.evidence.effects)
        done = [child.sequence for child in self.evidence.children if child.state == "processed"]
        stray = sum(times.values()) - sum(times[n] for n in done)
        return dict(Counter(times[n] for n in done)) | ({-1: stray} if stray else {})

    @property
    def words(self) -> str:
        """Say the counts."""
        counts = ", ".join(f"{n} {state}" for state, n in self.counts.items()) or "no children"
        done = "complete" if self.parent.completed_at else "not complete"
        return f"{self.title}: {counts}; parent {done}"

    def _repr_html_(self) -> str:
        return _ledgers([self], self.words)


@dataclass(frozen=True, repr=False)
class Interrupted(Shown):
    """A parent whose worker was killed, and how it was brought to its end.

    `moments` are ledgers: after the kill, after the next worker, after the leases, at the end.
    """

    kill: Kill
    moments: tuple[Ledger, ...]

    @property
    def words(self) -> str:
        """Say each moment."""
        return "\n".join(moment.words for moment in self.moments)

    @property
    def end(self) -> Ledger:
        """Return the ledger at the end."""
        return self.moments[-1]

    def _repr_html_(self) -> str:
        return _ledgers(self.moments, self.words)


@dataclass(frozen=True, repr=False)
class Counters(Shown):
    """A parent's counters before and after `reconcile`, with the ledger beside them."""

    claimed: tuple[int | None, int, int, int, bool]
    counted: tuple[int | None, int, int, int, bool]
    dry_run_wrote: int
    wrote: int

    @property
    def words(self) -> str:
        """Say both."""
        return (
            f"the parent said {self.claimed}, the ledger says {self.counted}; rows written by the dry "
            f"run: {self.dry_run_wrote}, by the repair: {self.wrote}"
        )

    def _repr_html_(self) -> str:
        head = ("", "total", "processed", "failed", "skipped", "complete")
        rows = [("the parent said", *self.claimed), ("counted in the ledger", *self.counted)]
        wrote = (
            f"<p>rows written by the dry run: {self.dry_run_wrote}; by the repair: {self.wrote}</p>"
        )
        return table(head, rows) + wrote


def five_histories(seed: int = 0) -> Histories:
    """Write five histories that end with the same counter into the database, and read them back."""
    chance = random.Random(f"histories {seed}")
    good = [n for n in range(600) if n not in _BAD]
    mixed = chance.sample(good, COUNTED + 1)
    doubled = chance.sample(mixed[:560], 13)
    return Histories((
        _history("1: the first 573, in order", list(range(COUNTED))),
        _history("2: 573 of the first 600", mixed[:COUNTED]),
        _history("3: one done, not counted", mixed[: COUNTED + 1]),
        _history("4: one counted, rolled back", mixed[: COUNTED - 1]),
        _history("5: started twice", mixed[:560] + doubled),
    ))  # fmt: skip


def interrupt(
    events: int = EVENTS, processed: int = COUNTED, *, limit: int = 50, impl: str = "solutions"
) -> Interrupted:
    """Kill a worker in the middle of its list, and let others finish.

    Args:
        events: Length of the list; a few events of every kind of trouble are in it.
        processed: The worker is killed when so many effects are committed and one more is written.
        limit: Children a worker claims at a time.
    """
    folder = implementation(impl)
    scenario = one(unread(mixed_scans(events)), limit=limit, lease=LEASE)
    with the_workshop().scene(scenario) as scene:
        worker = scene.actor(folder, stop=Stop(point="event_effects.insert", nth=processed + 1))
        hold = worker.follow(_run(scenario))
        if hold is None:
            raise ValueError(f"the list ends before {processed + 1} events are processed")
        kill = worker.kill(f"kill@event_effects.insert#{processed + 1}", hold)
        moments = [Ledger("1: the worker is killed", scene.evidence())]
        scene.actor(folder).follow(_run(scenario))
        moments.append(Ledger("2: the next worker", scene.evidence()))
        # Nobody waits an hour here: the claims are made an hour older.
        scene.rival(
            "UPDATE child_work SET processing_started_at = processing_started_at - %s", (LEASE,)
        )
        scene.actor(folder).follow(_run(scenario))
        moments.append(Ledger("3: the leases are over", scene.evidence()))
    return Interrupted(kill, tuple(moments))


def reconciled(ended: int = 900, *, events: int = EVENTS, impl: str = "solutions") -> Counters:
    """Repair the counters (573, 12, 4) of a parent of whose children `ended` have ended.

    The parent is marked complete, whether that is right or not.
    """
    from harness.ledger.scenario import ledger

    counters = (EVENTS, COUNTED, FAILED, SKIPPED)
    parent = ledger(mixed_scans(events), ended=range(ended), counters=counters, completed=True)
    with the_workshop().scene(one(parent)) as scene:
        actor = scene.actor(implementation(impl))
        dry = actor.call(12, "reconcile", parent.parent_id)
        wrote_dry = len(scene.evidence().changes)
        actor.call(12, "reconcile", parent.parent_id, dry_run=False)
        wrote = len(scene.evidence().changes) - wrote_dry
    if not isinstance(dry, Returned):
        raise ValueError(f"reconcile did not return: {dry}")
    return Counters(_totals(dry.value.before), _totals(dry.value.after), wrote_dry, wrote)


def _history(title: str, effects: Sequence[int]) -> History:
    events = [scan(n) for n in range(EVENTS)]
    counters = (EVENTS, COUNTED, FAILED, SKIPPED)
    parent = ParentSeed("scans-sunday", {"events": events}, counters=counters, failure="timeout")

    def write(connection: psycopg.Connection[Any]) -> None:
        LedgerScenario((parent,))(connection)
        connection.execute(
            "INSERT INTO event_effects (parent_id, sequence, subject, occurred_at) "
            "SELECT 'scans-sunday', n, 'ticket-0001', now() FROM unnest(%s::int[]) AS n",
            (list(effects),),
        )

    with the_workshop().scene(write) as scene:
        seen = scene.evidence()
    return History(title, seen.parents[0], Counter(effect.sequence for effect in seen.effects))


def _run(scenario: LedgerScenario) -> Script:
    yield Call(11, "run_parent", (scenario.parent.parent_id, scenario.limit, scenario.lease))


def _totals(totals: Any) -> tuple[int | None, int, int, int, bool]:
    return totals.total, totals.processed, totals.failed, totals.skipped, totals.complete


# --- drawing ------------------------------------------------------------------------------------------

_STATE_COLOURS = {
    "processed": BLUE, "failed": ORANGE, "skipped": PURPLE, "claimed": GREEN, "pending": LIGHT,
}  # fmt: skip


def _ledgers(ledgers: Sequence[Ledger], words: str) -> str:
    def draw(panels: Any) -> None:
        for axes, ledger in zip(panels if len(ledgers) > 1 else [panels], ledgers, strict=True):
            order = list(_STATE_COLOURS)
            _grid(
                axes, [order.index(state) for state in ledger.states], list(_STATE_COLOURS.values())
            )
            axes.set_title(ledger.title)
            lines = [f"{n} {state}" for state, n in ledger.counts.items()]
            done = "complete" if ledger.parent.completed_at else "not complete"
            axes.set_xlabel("\n".join([*lines, f"parent: {done}"]), fontsize=8)
        _key(axes, _STATE_COLOURS)

    return plot(draw, words, (3.4 * len(ledgers), 3.6), panels=len(ledgers))


def _grid(axes: Any, values: Sequence[int], colours: Sequence[str]) -> None:
    """Draw one square an event, in list order, row by row."""
    from matplotlib.colors import ListedColormap

    rows = [list(values[n : n + _COLUMNS]) for n in range(0, len(values), _COLUMNS)]
    rows[-1] += [-1] * (_COLUMNS - len(rows[-1]))
    colormap = ListedColormap(["white", *colours])
    axes.pcolormesh(
        rows, cmap=colormap, vmin=-1, vmax=len(colours) - 1, edgecolors="white", linewidth=0.3
    )
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _key(axes: Any, colours: dict[str, str]) -> None:
    """Say above the plot which colour is what."""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=c, edgecolor=GREY, label=name) for name, c in colours.items()]
    title = f"one square an event, in the order of the list, {_COLUMNS} a row"
    axes.figure.legend(handles=patches, loc="outside upper left", ncols=len(patches), title=title)
