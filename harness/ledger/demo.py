"""The demo of track B: 1,000 events, 600 dispatched, a killed worker, and a counter that is one off.

One story in six acts, on one database: decompose, dispatch and kill, the counter against the ledger,
resume, reconcile, proof. Every process in it is a real one, and the kill is a real SIGKILL, between an
effect and its commit. What only the harness plays is said: the supervisor that wrote down a counter
and a timeout, and the hours that pass until the dead worker's claims are over.

The judge reads along. At the first broken promise the story ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.healthy import judge_calls
from harness.ledger.history import children_of, counted_totals, effects_of, parent_of, show
from harness.ledger.judge import (
    Promise,
    counters_counted,
    enumerated,
    judge_ledger_finished,
    judge_ledger_safety,
)
from harness.ledger.scenario import (
    PARENT,
    STRANGER,
    LedgerScenario,
    ending_of,
    is_well_formed,
    one,
    scan,
    unread,
)
from harness.ledger.seeding import age_claims
from harness.records import ChildRow, Evidence, Finding, Kill, Returned, Stop, Verdict
from harness.script import Call, Script
from harness.workshop import Actor, Scene, Workshop

EVENTS, DISPATCHED = 1_000, 600
#: Children a claim takes, and how long it is live.
LIMIT, LEASE = 50, timedelta(minutes=5)
#: The worker is killed when it has written this event's effect and not yet committed it.
KILLED_AT = 588
#: What the supervisor's counter says: it counted the effect that the kill took back.
COUNTER = (EVENTS, 573, 12, 4)
#: Which events of the list are no good: every 49th has an impossible date, these name strangers, and
#: these are malformed, as in the lesson.
BAD_DATE_EVERY, STRANGERS, NULL, NUMBER = 49, (100, 250, 400, 550, 700, 850), 641, 702


@dataclass(frozen=True)
class Table:
    """A small table of an act."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Act:
    """One act: what was done and what is there now, in sentences, and perhaps a table."""

    title: str
    text: tuple[str, ...]
    table: Table | None = None


@dataclass(frozen=True)
class LedgerDemo:
    """The story as far as it went, and what was broken in its last act."""

    scenario: LedgerScenario
    acts: tuple[Act, ...]
    kill: Kill | None = None
    findings: tuple[Finding, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Return fail if a promise broke, void if the kill did not land, else pass."""
        if self.findings:
            return Verdict.FAIL
        return Verdict.PASS if self.kill is not None and self.kill.landed else Verdict.VOID


def demo_scenario(seed: int = 0) -> LedgerScenario:
    """Return the list of the story; `seed` moves subjects and times, never what is wrong with which."""
    return one(
        unread([_event(n, seed) for n in range(EVENTS)]), limit=LIMIT, lease=LEASE, seed=seed
    )


def _event(number: int, seed: int) -> Any:
    event = scan(number + seed)
    if number == NULL:
        return None
    if number == NUMBER:
        return {**event, "subject": number}
    if number in STRANGERS:
        return {**event, "subject": STRANGER}
    if number % BAD_DATE_EVERY == BAD_DATE_EVERY - 1:
        return {**event, "occurred_at": "2026-02-30T18:02:11+02:00"}
    return event


def run_ledger_demo(
    workshop: Workshop,
    impl: Path,
    scenario: LedgerScenario,
    progress: Callable[[str], None] = lambda text: None,
) -> LedgerDemo:
    """Play the story with the labs 8 to 12 of `impl`; a broken promise ends it."""
    with workshop.scene(scenario) as scene:
        story = _Story(scene, impl, scenario, progress)
        try:
            for act in (
                story.decompose,
                story.dispatch,
                story.count,
                story.resume,
                story.reconcile,
            ):
                act()
            story.prove()
        except _Ended as ended:
            story.findings = ended.findings
    return LedgerDemo(
        scenario, tuple(story.acts), story.kill, tuple(story.findings), story.counts
    )  # fmt: skip


class _Ended(Exception):
    """The story cannot go on; `findings` say why, and are empty when the kill missed."""

    def __init__(self, findings: Sequence[Finding] = ()) -> None:
        super().__init__()
        self.findings = tuple(findings)


class _Story:
    """The acts, in order. Each tells what it did, then lets the judge look."""

    def __init__(
        self, scene: Scene, impl: Path, scenario: LedgerScenario, progress: Callable[[str], None]
    ) -> None:
        self.scene, self.impl, self.scenario, self.progress = scene, impl, scenario, progress
        self.acts: list[Act] = []
        self.findings: Sequence[Finding] = ()
        self.kill: Kill | None = None
        self.counts: dict[str, int] = {}

    def decompose(self) -> None:
        """Act 1: the list becomes rows."""
        self.progress("a client decomposes the list")
        client, _ = self.play(Call(8, "decompose", (PARENT,)))
        evidence = self.judged(enumerated)
        rows = children_of(evidence, PARENT)
        bad = [row.sequence for row in rows if row.state == "skipped"]
        self.tell(
            "1. The list becomes rows",
            f"A list of {EVENTS:,} scanner events has arrived as one parent, {PARENT!r}. Process "
            f"{client.client.pid} decomposed it: {len(rows):,} child rows and the mark, in one transaction.",
            f"Events {show(bad)} are malformed. They are kept, and skipped with a reason.",
        )

    def dispatch(self) -> None:
        """Act 2: a worker is killed in the middle."""
        self.progress(f"a worker runs, and is killed at event {KILLED_AT}")
        events = self.scenario.parent.listed or []
        nth = sum(ending_of(event).state == "processed" for event in events[: KILLED_AT + 1])
        stop = Stop(point="event_effects.insert", nth=nth)
        worker = self.scene.actor(self.impl, stop=stop)
        hold = worker.follow(_calls(Call(11, "run_parent", (PARENT, LIMIT, LEASE))))
        if hold is None:
            raise _Ended(judge_calls(worker.calls))
        self.kill = worker.kill(f"kill@{stop.point}#{nth}", hold)
        if not self.kill.landed:
            raise _Ended
        rows = children_of(self.judged(judge_ledger_safety), PARENT)
        ended, open_claims = _worked(rows), _claimed(rows)
        self.tell(
            "2. The worker is killed",
            f"Process {worker.client.pid} claimed {LIMIT} children at a time, {ended + len(open_claims)} in "
            f"all, and ended one after another. It was stopped when the effect of its {nth}th processed event "
            f"was written and not yet committed. There it was killed: {self.kill.exit}.",
            f"A fresh connection sees {ended} children ended, and {len(open_claims)} claimed and open: "
            f"sequences {_span(open_claims)}. The effect in flight is gone with its transaction.",
        )

    def count(self) -> None:
        """Act 3: what the counter says, and what the ledger says."""
        total, processed, failed, skipped = COUNTER
        self.scene.rival(
            "UPDATE parent_work SET total = %s, processed = %s, failed = %s, skipped = %s,"
            " failed_at = now(), failure = 'timeout' WHERE parent_id = %s",
            (*COUNTER, PARENT),
        )
        rows = children_of(self.scene.evidence(), PARENT)
        counted = counted_totals(rows)
        left = Counter(row.state for row in rows)["pending"]
        off = {"processed": processed - counted[1], "failed": failed - counted[2],
               "skipped": skipped - counted[3]}  # fmt: skip
        wrong = " and ".join(f"{name} by {n:+}" for name, n in off.items() if n) or "nothing"
        self.tell(
            "3. The counter against the ledger",
            "A supervisor noted `timeout` on the parent, and its own counter. (The harness plays it.) It had "
            "counted each event before the event's commit.",
            f"The counter is off, {wrong}, and nobody can ask it which events it means. The ledger can be "
            f"asked: every row that ended has its effect or its reason, and {left} rows are open.",
            table=Table(
                ("", "total", "processed", "failed", "skipped", "open"),
                (
                    ("counter", *map(str, (total, processed, failed, skipped)), "?"),
                    ("ledger", *map(str, counted[:4]), str(left)),
                ),
            ),
        )

    def resume(self) -> None:
        """Act 4: a new process goes on, twice."""
        self.progress("a new process resumes from the ledger")
        first, said = self.play(
            Call(11, "resumable"), Call(11, "run_parent", (PARENT, LIMIT, LEASE))
        )
        rows = children_of(self.judged(judge_ledger_safety), PARENT)
        waiting = [row.sequence for row in rows if row.state == "pending"]
        steps = [f"{step.parent_id}: {step.action}" for step in said[0]]
        age_claims(self.scene.laboratory.control)
        again, _ = self.play(Call(11, "run_parent", (PARENT, LIMIT, LEASE)))
        evidence = self.judged(judge_ledger_safety, judge_ledger_finished)
        row = parent_of(evidence, PARENT)
        twice = [c.sequence for c in children_of(evidence, PARENT) if c.attempts > 1]
        self.tell(
            "4. A new process goes on",
            f"Process {first.client.pid} asked what is left ({', '.join(steps)}) and ran the parent. Nothing was "
            f"parsed again. It left {len(waiting)} children alone, {_span(waiting)}: for all it knows, their "
            f"worker lives, and its lease of {LEASE.seconds // 60} minutes was not over.",
            f"Then the lease was over. (The harness made the claims two hours older; nobody slept.) Process "
            f"{again.client.pid} claimed exactly these for the second time: {_span(twice)}.",
            f"No child is open, so the parent is complete. That a run of it failed stays in its row: "
            f"{row.failure if row else None}.",
        )

    def reconcile(self) -> None:
        """Act 5: a dry run first, then the repair."""
        self.progress("the counters are reconciled")
        before = self.scene.evidence()
        _, (dry,) = self.play(Call(12, "reconcile", (PARENT,)))
        if self.scene.evidence().parents != before.parents:
            raise _Ended([Finding("the ledger wins", "made a dry run", "nothing is written",
                                  "the parent changed", read="labs/lab12_reconcile/README.md")])  # fmt: skip
        client, (done,) = self.play(Call(12, "reconcile", (PARENT, False)))
        self.judged(counters_counted, judge_ledger_safety)
        self.tell(
            "5. The counter follows the ledger",
            f"Process {client.client.pid} looked first: the dry run wrote nothing and said what would change. "
            "Then it repaired. The rows did not move; the counter did.",
            table=Table(
                ("", "total", "processed", "failed", "skipped", "complete"),
                (("before", *_totals(dry.before)), ("would be", *_totals(dry.after)),
                 ("is now", *_totals(done.after))),
            ),
        )  # fmt: skip

    def prove(self) -> None:
        """Act 6: every event is accounted for."""
        evidence = self.judged(judge_ledger_safety, judge_ledger_finished, counters_counted)
        rows = children_of(evidence, PARENT)
        effects = Counter(effect.sequence for effect in effects_of(evidence, PARENT))
        reasons = Counter(_account(row, effects[row.sequence]) for row in rows)
        self.counts = dict(reasons)
        lines = [(account, str(number)) for account, number in reasons.most_common()]
        missing = EVENTS - len(rows)
        self.tell(
            "6. Every event is accounted for",
            f"{sum(effects.values())} effects, of {len(effects)} different events: none is there twice. Each was "
            "committed by the transaction that ended its child; the witness recorded both.",
            table=Table(("each event is", "events"), (*lines, ("not in the ledger", str(missing)))),
        )

    # --- the parts of an act ------------------------------------------------------------------------

    def play(self, *calls: Call) -> tuple[Actor, list[Any]]:
        """Let a new process make these calls; return it and what they returned. All must return."""
        actor = self.scene.actor(self.impl)
        actor.follow(_calls(*calls))
        findings = judge_calls(actor.calls)
        if findings:
            raise _Ended(findings)
        return actor, [r.value for _, r in actor.calls if isinstance(r, Returned)]

    def judged(self, *promises: Promise) -> Evidence:
        """Read what is there through a fresh connection, and end the story if a promise is broken."""
        evidence = self.scene.evidence()
        for promise in promises:
            findings = promise(self.scenario, evidence)
            if findings:
                raise _Ended(findings)
        return evidence

    def tell(self, title: str, *text: str, table: Table | None = None) -> None:
        """Add an act."""
        self.acts.append(Act(title, text, table))


def _calls(*wanted: Call) -> Script:
    for call in wanted:  # noqa: UP028  (a script is sent each result; `yield from` a tuple takes none)
        yield call


def _span(sequences: Sequence[int]) -> str:
    """Spell out sequences; as a span where they are consecutive."""
    if len(sequences) > 2 and sequences[-1] - sequences[0] == len(sequences) - 1:
        return f"{sequences[0]} to {sequences[-1]}"
    return show(sequences)


def _worked(rows: Sequence[ChildRow]) -> int:
    """Count the children that a worker ended; malformed ones were ended by no worker."""
    return sum(row.state != "pending" and is_well_formed(row.event) for row in rows)


def _claimed(rows: Sequence[ChildRow]) -> list[int]:
    return [row.sequence for row in rows if row.state == "pending" and row.processing_started_at]


def _totals(totals: Any) -> tuple[str, ...]:
    names = ("total", "processed", "failed", "skipped")
    return (*(str(getattr(totals, name)) for name in names), "yes" if totals.complete else "no")


def _account(row: ChildRow, effects: int) -> str:
    if row.state == "processed":
        return (
            "processed, with one effect" if effects == 1 else f"processed, with {effects} effects"
        )
    if not is_well_formed(row.event):
        return f"{row.state}: malformed"
    return f"{row.state}: {row.outcome}"
