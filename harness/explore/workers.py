"""Two workers: one holds row locks, the other waits for it, and the wire log tells when.

The first worker is held in the middle of a chunk, the second is started, and then both go on. Each
statement is a span between two moments of the wire: the client sent it, the server finished it. A
transaction holds row locks from the end of its locking statement to the end of its COMMIT.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness.explore.chunks import three_records
from harness.explore.shown import BLACK, GREY, ORANGE, SKY, Shown, plot, table
from harness.explore.stage import implementation, the_workshop
from harness.history import order_moves, transactions
from harness.judge import judge_finished, judge_safety
from harness.records import Evidence, Stop
from harness.scenario import Scenario, festival
from harness.script import drain, run_chunks
from harness.workshop import Actor

#: Milliseconds that a worker behind a frozen one is willing to wait.
PATIENCE_MS = 300


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time: `what` is waits, holds or stands; milliseconds from the start."""

    worker: str
    what: str
    start_ms: float
    end_ms: float
    committed: bool = False


@dataclass(frozen=True, repr=False)
class Duet(Shown):
    """Two workers on one job: who waited, who ran which chunk, and what became of the orders."""

    scenario: Scenario
    spans: tuple[Span, ...]
    chunks: tuple[tuple[str, int], ...]  # worker and chunk number, in the order of commits
    waited_first: bool
    evidence: Evidence

    @property
    def runs_of_each_chunk(self) -> dict[int, int]:
        """Return how often each chunk was committed: 1 everywhere, if the promise was kept."""
        return dict(sorted(Counter(chunk for _, chunk in self.chunks).items()))

    @property
    def times_cancelled(self) -> dict[int, int]:
        """Return how many orders were cancelled how often, as the witness saw it."""
        per_order = Counter(m.order_id for m in order_moves(self.evidence.changes) if m.cancels)
        return dict(Counter(per_order[order_id] for order_id in self.scenario.approved_ids))

    @property
    def kept(self) -> bool:
        """Tell whether the judge found every promise kept."""
        found = judge_safety(self.scenario, self.evidence) or judge_finished(
            self.scenario, self.evidence
        )
        return not found

    @property
    def words(self) -> str:
        """Say who waited and who ran what."""
        order = ", ".join(f"{worker} chunk {chunk}" for worker, chunk in self.chunks)
        waited = "waited for A's lock" if self.waited_first else "did not wait"
        return f"B {waited}; commits in order: {order}; all promises kept: {self.kept}"

    def _repr_html_(self) -> str:
        return f"<p>{self.words}</p>" + plot(self._draw, self.words, (9.0, 2.6))

    def _draw(self, axes: Any) -> None:
        looks: dict[str, dict[str, Any]] = {
            "holds": {"color": SKY, "label": "holds row locks"},
            "waits": {
                "color": ORANGE,
                "hatch": "////",
                "edgecolor": "white",
                "label": "waits for the lock",
            },
            "stands": {"color": GREY, "label": "held still by the harness"},
        }
        tracks = {"A": 1, "B": 0}
        for what, look in looks.items():
            thin = what == "stands"
            for span in (s for s in self.spans if s.what == what):
                y = tracks[span.worker] + (0.33 if thin else 0)
                axes.barh(
                    y,
                    span.end_ms - span.start_ms,
                    left=span.start_ms,
                    height=0.1 if thin else 0.5,
                    **look,
                )
                look.pop("label", None)
        for worker, y in tracks.items():
            ends = [span.end_ms for span in self.spans if span.committed and span.worker == worker]
            chunks = [chunk for who, chunk in self.chunks if who == worker]
            # One more transaction may follow: the look that finds the job complete.
            for end, chunk in zip(ends, chunks, strict=False):
                axes.annotate(str(chunk), (end, y - 0.42), ha="center", color=BLACK)
        axes.set_yticks([0, 1], ["worker B", "worker A"])
        axes.set(
            xlabel="milliseconds (numbers: the chunk that was committed there)",
            xlim=(0, None),
            ylim=(-0.6, 1.5),
        )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=3)


@dataclass(frozen=True, repr=False)
class Busy(Shown):
    """A worker behind a frozen one: how it ended, and what became of the frozen one."""

    patience_ms: int
    status: int | None
    lines: tuple[str, ...]
    while_frozen: tuple[int, int, int]
    in_the_end: tuple[int, int, int]

    @property
    def words(self) -> str:
        """Say how it ended."""
        return (
            f"A is frozen with the lock; B waits at most {self.patience_ms} ms, then ends with exit "
            f"status {self.status} and {len(self.lines)} lines of output; checkpoint {self.while_frozen[2]}. "
            f"A is thawed and finishes: checkpoint {self.in_the_end[2]}"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("while A is frozen", *self.while_frozen, f"B ended with {self.status}"),
            ("A thawed and done", *self.in_the_end, ""),
        ]
        return table(("", "cancelled", "audit rows", "checkpoint", ""), rows)


def two_workers(
    orders: int = 40,
    chunk_size: int = 10,
    *,
    hold_at: str = "audit",
    chunk: int = 1,
    impl: str = "solutions",
) -> Duet:
    """Hold worker A at a point of a chunk, start worker B, let both go on to the end.

    Args:
        hold_at: A point: orders, audit, checkpoint, commit.
        chunk: The how-manieth time that point is reached.
    """
    scenario = festival(orders, chunk_size)
    with the_workshop().scene(scenario) as scene:
        a = scene.actor(implementation(impl), stop=Stop(point=hold_at, nth=chunk))
        a.follow(run_chunks(scenario))
        b = scene.actor(implementation(impl))
        b.start(run_chunks(scenario))
        b.go_on(until=lambda: scene.blocked(b, *a.lane.backend_pids))
        waited = b.busy
        if a.lane.holding:
            a.lane.release()
        _play_both(a, b)
        evidence = scene.evidence()
    return Duet(scenario, _spans(a, b), _commits(scenario, evidence, a), waited, evidence)


def behind_a_frozen_one(patience_ms: int = PATIENCE_MS, *, impl: str = "solutions") -> Busy:
    """Freeze worker A (SIGSTOP) with the job's row locked, run lab 6's program beside it, thaw A."""
    scenario = festival()
    folder = implementation(impl)
    arguments = ("--dsn", "{dsn}", "--job", scenario.job_id, "--lock-timeout-ms", str(patience_ms))
    with the_workshop().scene(scenario) as scene:
        a = scene.actor(folder, stop=Stop(point="audit", nth=2))
        a.follow(drain(scenario))
        a.client.freeze()
        b = scene.program(folder, 6, arguments)
        ended = b.client.wait()
        frozen = three_records(scenario, scene.evidence())
        a.client.thaw()
        a.lane.release()
        a.go_on()
        a.close()
        return Busy(
            patience_ms,
            ended.code,
            tuple(b.client.lines()),
            frozen,
            three_records(scenario, scene.evidence()),
        )


def wire_ms(actor: Actor, first: int = 0) -> tuple[float, int]:
    """Return the milliseconds that a client's statements took, and how many there are so far.

    Args:
        first: Statements that are left out at the beginning.
    """
    done = _statements(actor)
    return sum(s.end - s.start for s in done[first:]) * 1000, len(done)


def lock_spans(actor: Actor) -> list[float]:
    """Return for how many milliseconds each committed transaction of a client held row locks."""
    return [(end - start) * 1000 for start, end, done in _holds(_statements(actor)) if done]


def _play_both(a: Actor, b: Actor) -> None:
    """Play both to the end at once: each gets its next call as soon as it has answered the last."""
    while a.busy or b.busy:
        a.go_on(until=lambda: b.busy and b.client.answered())
        b.go_on(until=lambda: a.busy and a.client.answered())
    a.close()
    b.close()


def _commits(scenario: Scenario, evidence: Evidence, a: Actor) -> tuple[tuple[str, int], ...]:
    """Return worker and chunk number of every committed chunk, in the order of the checkpoint."""
    of_a = {xid for boundary in a.lane.boundaries for xid in boundary.committed}
    parts = [p for p in transactions(scenario, evidence.changes) if p.first_index is not None]
    parts.sort(key=lambda part: part.last_index or 0)
    return tuple(
        ("A" if part.xid in of_a else "B", (part.first_index or 0) // scenario.chunk_size + 1)
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class _Statement:
    sql: str
    start: float
    end: float


def _spans(a: Actor, b: Actor) -> tuple[Span, ...]:
    """Return when each worker held row locks, waited for one, and stood still."""
    statements = {"A": _statements(a), "B": _statements(b)}
    zero = statements["A"][0].start
    holds = {worker: _holds(found) for worker, found in statements.items()}
    holds = {w: _trimmed(holds[w], holds[rival]) for w, rival in (("A", "B"), ("B", "A"))}
    raw = [(w, "holds", *hold) for w, found in holds.items() for hold in found]
    for worker, rival in (("A", "B"), ("B", "A")):
        for locking in (s for s in statements[worker] if _locks(s)):
            # It waited for as long as the rival held the row.
            met = [(max(locking.start, s), min(locking.end, e)) for s, e, _ in holds[rival]]
            raw += [(worker, "waits", start, end, False) for start, end in met if start < end]
    raw += [("A", "stands", *span, False) for span in _stood(a)]
    return tuple(
        Span(w, what, (s - zero) * 1000, (e - zero) * 1000, done) for w, what, s, e, done in raw
    )


def _statements(actor: Actor) -> list[_Statement]:
    """Return each statement with the moment it was sent and the moment the server had done it."""
    done, sent = [], ("", 0.0)
    for event in actor.lane.events:
        if event.who == "client" and event.message in ("Query", "Execute"):
            sent = (event.text, event.at_s)
        elif event.who == "server" and event.message in ("CommandComplete", "ErrorResponse"):
            done.append(_Statement(*sent, event.at_s))
    return done


def _holds(statements: list[_Statement]) -> list[tuple[float, float, bool]]:
    """Return the spans from the end of a locking statement to the end of its transaction; was it a commit?"""
    spans, since = [], None
    for statement in statements:
        if _locks(statement) and since is None:
            since = statement.end
        elif statement.sql.startswith(("COMMIT", "ROLLBACK")) and "TO" not in statement.sql:
            if since is not None:
                spans.append((since, statement.end, statement.sql.startswith("COMMIT")))
            since = None
    return spans


def _trimmed(
    own: list[tuple[float, float, bool]], rivals: list[tuple[float, float, bool]]
) -> list[tuple[float, float, bool]]:
    """End a hold where the rival has got the lock: a commit lets go before it is answered."""
    starts = [start for start, _, _ in rivals]
    return [
        (start, min([end, *(s for s in starts if start < s < end)]), done)
        for start, end, done in own
    ]


def _locks(statement: _Statement) -> bool:
    return "FOR UPDATE" in statement.sql


def _stood(actor: Actor) -> list[tuple[float, float]]:
    marks = [
        e.at_s for e in actor.lane.events if e.who == "harness" and e.message in ("hold", "release")
    ]
    return list(zip(marks[::2], marks[1::2], strict=False))
