"""Lost messages: the connection breaks around COMMIT, and the client cannot tell on which side.

The proxy stands between client and server. It cuts the connection when COMMIT has arrived at it and
before the server gets it (the request is lost), or when the server has carried it out and before the
client is told (the answer is lost).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.activity import activities, sized
from harness.explore.chunks import three_records
from harness.explore.shown import BLUE, ORANGE, Shown, board, legend, plot, strip, table
from harness.explore.stage import implementation, the_workshop
from harness.faults import parse_fault
from harness.inject import run_fault
from harness.records import Finding, Raised
from harness.report.board import count_words, order_states
from harness.run import Run

REQUEST, ANSWER = "request lost", "answer lost"
_KINDS = {REQUEST: "lose-request", ANSWER: "lose-reply"}


@dataclass(frozen=True, repr=False)
class Lost(Shown):
    """One story of a connection that broke around a COMMIT."""

    what: str
    run: Run

    @property
    def exception(self) -> str:
        """Return what the client's caller caught: the type and the text."""
        error = self.run.calls[-1][1] if self.run.calls else None
        return f"{error.type_name}: {error.text}" if isinstance(error, Raised) else "nothing"

    @property
    def truth(self) -> tuple[int, int, int]:
        """Return cancelled orders, audit rows and checkpoint, read when the client was gone."""
        assert self.run.after_fault is not None
        return three_records(self.run.scenario, self.run.after_fault)

    @property
    def in_the_end(self) -> tuple[int, int, int]:
        """Return the same when the next client had finished the job."""
        assert self.run.after_resume is not None
        return three_records(self.run.scenario, self.run.after_resume)

    @property
    def words(self) -> str:
        """Say what was caught and what was true."""
        return (
            f"{self.what}: caught {self.exception!r}; the database says checkpoint {self.truth[2]}; "
            f"the next client ends at {self.in_the_end[2]}; verdict {self.run.verdict}"
        )

    @property
    def picture(self) -> str:
        """Return the board as a fresh connection saw it when the client was gone."""
        assert self.run.after_fault is not None
        states = order_states(self.run.scenario, self.run.after_fault)
        return board(self.run.scenario, states, count_words(states))

    def _repr_html_(self) -> str:
        return _compared([self])


@dataclass(frozen=True, repr=False)
class TwoStories(Shown):
    """The same commit, its request lost in one run and its answer lost in another."""

    request: Lost
    answer: Lost

    @property
    def same_exception(self) -> bool:
        """Tell whether both clients caught word for word the same."""
        return self.request.exception == self.answer.exception

    @property
    def words(self) -> str:
        """Say both stories, and whether the client could tell them apart."""
        same = "the same" if self.same_exception else "another"
        return f"{self.request}\n{self.answer}\nboth caught {same} exception"

    def _repr_html_(self) -> str:
        stories = [self.request, self.answer]
        boards = strip([(f"{s.what}: the truth", s.picture) for s in stories])
        seen = self.request.run.after_fault
        assert seen is not None
        states = order_states(self.request.run.scenario, seen)
        return _compared(stories) + boards + legend(states)


@dataclass(frozen=True, repr=False)
class EveryCommit(Shown):
    """Both stories at each commit of a job."""

    stories: tuple[TwoStories, ...]

    @property
    def exceptions(self) -> frozenset[str]:
        """Return every text that any client caught."""
        return frozenset(
            x for two in self.stories for x in (two.request.exception, two.answer.exception)
        )

    @property
    def words(self) -> str:
        """Say how many runs, exceptions and truths there were."""
        truths = {s.truth for two in self.stories for s in (two.request, two.answer)}
        return (
            f"{2 * len(self.stories)} runs: {len(self.exceptions)} exception, {len(truths)} truths"
        )

    def _repr_html_(self) -> str:
        def draw(axes: Any) -> None:
            x = range(1, len(self.stories) + 1)
            lost = [two.request.truth[0] for two in self.stories]
            done = [two.answer.truth[0] for two in self.stories]
            axes.vlines(x, lost, done, color="#767676", lw=1, ls=":")
            axes.plot(x, lost, "v", color=ORANGE, ms=9, label=REQUEST)
            axes.plot(x, done, "^", color=BLUE, ms=9, label=ANSWER)
            axes.set_xticks(list(x))
            axes.set(xlabel="commit at which the connection broke", ylabel="orders cancelled")
            axes.set_title("one exception, two truths")
            axes.legend()

        return f"<p>{self.words}</p>" + plot(draw, self.words, (6.5, 3.0))


@dataclass(frozen=True, repr=False)
class Guess(Shown):
    """A worker that assumes, in one of the two stories, and what the judge found."""

    guess: str
    lost: Lost

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the broken promises; none where the guess happened to be right."""
        return self.lost.run.findings

    @property
    def right(self) -> bool:
        """Tell whether the guess did no harm."""
        return not self.findings

    @property
    def words(self) -> str:
        """Say what came of the guess."""
        found = f": {self.findings[0].seen}" if self.findings else ""
        return f"{self.lost.what}, the worker {self.guess}: {self.lost.run.verdict}{found}"

    def _repr_html_(self) -> str:
        return _guesses([self])


@dataclass(frozen=True, repr=False)
class Guesses(Shown):
    """Several guesses in both stories."""

    guesses: tuple[Guess, ...]

    @property
    def words(self) -> str:
        """Say what came of each."""
        return "\n".join(guess.words for guess in self.guesses)

    def _repr_html_(self) -> str:
        return _guesses(self.guesses)


def lose(
    what: str, commit: int = 2, *, orders: int = 40, chunk_size: int = 10, impl: str = "solutions"
) -> Lost:
    """Break the connection around the nth commit of a drain: `REQUEST` or `ANSWER` is lost."""
    return _lose(what, commit, 5, orders, chunk_size, impl)


def two_stories(
    commit: int = 2, *, orders: int = 40, chunk_size: int = 10, impl: str = "solutions"
) -> TwoStories:
    """Break the connection around the nth commit, once on each side of it."""
    request, answer = (_lose(w, commit, 5, orders, chunk_size, impl) for w in (REQUEST, ANSWER))
    return TwoStories(request, answer)


def every_commit(orders: int = 40, chunk_size: int = 10, *, impl: str = "solutions") -> EveryCommit:
    """Tell both stories at every commit of the job."""
    commits = range(1, -(-orders // chunk_size) + 1)
    return EveryCommit(tuple(
        two_stories(n, orders=orders, chunk_size=chunk_size, impl=impl) for n in commits
    ))  # fmt: skip


def guesses(*impls: str, commit: int = 2) -> Guesses:
    """Run workers in both stories: the worked one, or ones with a mistake such as 'assumes success'."""
    return Guesses(tuple(
        Guess("reads the database" if impl == "solutions" else impl, _lose(what, commit, 6, 40, 10, impl))
        for impl in impls
        for what in (REQUEST, ANSWER)
    ))  # fmt: skip


def _lose(what: str, commit: int, lab: int, orders: int, chunk_size: int, impl: str) -> Lost:
    activity = sized(activities(lab)[0], orders, chunk_size, 0)
    fault = parse_fault(f"{_KINDS[what]}@commit#{commit}")
    return Lost(what, run_fault(the_workshop(), implementation(impl), activity, fault))


def _compared(stories: Sequence[Lost]) -> str:
    rows = [(s.what, s.exception, *s.truth, s.in_the_end[2], s.run.verdict) for s in stories]
    head = (
        "what happened", "what the client caught", "cancelled", "audit rows", "checkpoint",
        "checkpoint in the end", "verdict",
    )  # fmt: skip
    return table(head, rows)


def _guesses(guesses: Sequence[Guess]) -> str:
    rows = []
    for guess in guesses:
        broken = guess.findings[0] if guess.findings else None
        rows.append((
            guess.guess, guess.lost.what, guess.lost.run.verdict,
            broken.promise if broken else "none", broken.seen if broken else "",
        ))  # fmt: skip
    return table(("the worker", "what happened", "verdict", "broken promise", "seen"), rows)
