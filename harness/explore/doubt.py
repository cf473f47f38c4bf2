"""Doubt: damage the records of a healthy job by hand, and see whether the job refuses to go on.

The damage is done by the tables' owner, with SQL of your own. What the client says about it, and what
it changed (nothing, if it is right), is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.explore.shown import Shown, table
from harness.explore.stage import implementation, the_workshop
from harness.grading.damage import DAMAGE, HEALTHY
from harness.records import CallResult, Evidence, Raised, Returned
from harness.scenario import Scenario


@dataclass(frozen=True, repr=False)
class Doubted(Shown):
    """One damage, and what the client answered when it was asked to go on.

    `before` was read after the damage, `after` when the client had answered.
    """

    damage: str
    answer: CallResult
    before: Evidence
    after: Evidence

    @property
    def refused(self) -> bool:
        """Tell whether the client raised DamagedProgress."""
        return isinstance(self.answer, Raised) and self.answer.is_a("DamagedProgress")

    @property
    def said(self) -> str:
        """Return what the client said."""
        if isinstance(self.answer, Raised):
            return f"{self.answer.type_name}: {self.answer.text}"
        if isinstance(self.answer, Returned):
            return f"went on to {self.answer.value.next_index}"
        return f"died: {self.answer.exit}"

    @property
    def changed(self) -> int:
        """Return how many rows the client changed."""
        return len(self.after.changes)

    @property
    def words(self) -> str:
        """Say what was damaged, what was said, what was changed."""
        return f"{self.damage}: {self.said}; rows changed: {self.changed}"

    def _repr_html_(self) -> str:
        return _rows([self])


@dataclass(frozen=True, repr=False)
class Doubts(Shown):
    """Many damages."""

    each: tuple[Doubted, ...]

    @property
    def refused(self) -> int:
        """Return how many were refused."""
        return sum(doubted.refused for doubted in self.each)

    @property
    def changed(self) -> int:
        """Return how many rows were changed in all."""
        return sum(doubted.changed for doubted in self.each)

    @property
    def words(self) -> str:
        """Say how many were refused."""
        return f"{self.refused} of {len(self.each)} damages refused; rows changed: {self.changed}"

    def _repr_html_(self) -> str:
        return f"<p>{self.words}</p>" + _rows(self.each)


@dataclass(frozen=True, repr=False)
class Records(Shown):
    """A few positions of a job: what was approved, what the audit says, what the order is now."""

    scenario: Scenario
    evidence: Evidence
    positions: range

    @property
    def rows(self) -> list[tuple[object, ...]]:
        """Return one row a position."""
        audit = {row.position: row for row in self.evidence.audit}
        found: list[tuple[object, ...]] = []
        for position in self.positions:
            item = self.scenario.approval[position]
            line, order = audit.get(position), self.evidence.order(item.order_id)
            written = (
                f"{line.order_id}, revision {line.revision_before} to {line.revision_after}, qty {line.qty}"
                if line
                else "nothing"
            )
            now = f"{order.state}, revision {order.revision}, qty {order.qty}" if order else "gone"
            approved = f"{item.order_id}, revision {item.revision}, qty {item.qty}"
            found.append((position, approved, written, now))
        return found

    @property
    def words(self) -> str:
        """Say the rows."""
        job = self.evidence.job(self.scenario.job_id)
        lines = "\n".join(" | ".join(map(str, row)) for row in self.rows)
        return f"checkpoint {job.next_index if job else 'gone'}\n{lines}"

    def _repr_html_(self) -> str:
        job = self.evidence.job(self.scenario.job_id)
        said = f"<p>checkpoint {job.next_index if job else 'gone'}</p>"
        return said + table(("position", "approved", "in the audit", "the order now"), self.rows)


def records(*sql: str, first: int = 0, last: int = 22) -> Records:
    """Return the three records of the healthy job, after `sql` where any is given."""
    with the_workshop().scene(HEALTHY) as scene:
        for statement in sql:
            scene.rival(statement)
        return Records(HEALTHY, scene.evidence(), range(first, last + 1))


def damage(
    *sql: str, words: str = "", scenario: Scenario = HEALTHY, impl: str = "solutions"
) -> Doubted:
    """Run `sql` on a healthy job (23 orders, 10 a chunk, two chunks done), then ask to go on.

    Raises:
        psycopg.Error: If the SQL is wrong, or a constraint of the tables refuses it.
    """
    with the_workshop().scene(scenario) as scene:
        for statement in sql:
            scene.rival(statement)
        before = scene.evidence()
        actor = scene.actor(implementation(impl))
        answer = actor.call(4, "resume_chunk", scenario.job_id)
        return Doubted(words or "; ".join(sql) or "no damage", answer, before, scene.evidence())


def all_damages(*, impl: str = "solutions") -> Doubts:
    """Try every damage that the graded checks of lab 4 know."""
    return Doubts(tuple(
        damage(*entry.sql, words=entry.words, scenario=entry.scenario, impl=impl) for entry in DAMAGE
    ))  # fmt: skip


def _rows(doubts: Sequence[Doubted]) -> str:
    rows = [(d.damage, "refused" if d.refused else "accepted", d.said, d.changed) for d in doubts]
    return table(("damage", "", "the client said", "rows it changed"), rows)
