"""Scripts: what one client is asked to do, call after call.

A script is a generator: it yields a `Call`, is sent the call's result, and yields the next one. It
knows nothing of processes or faults, so the same script serves a clean run, a run that is killed in
the middle (the script is simply dropped), and the healthy client that finishes the work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from harness.records import CallResult, Returned
from harness.scenario import Scenario

#: Calls one script makes at most. A healthy client needs one a chunk and one more; the rest is a loop.
CALLS_MAX_EXTRA = 3


@dataclass(frozen=True)
class Call:
    """One contract function to call, without `conn`, which the client's process adds."""

    lab: int
    function: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the call as Python would show it, long lists cut."""
        parts = [_short(repr(a)) for a in self.args]
        parts += [f"{name}={_short(repr(value))}" for name, value in self.kwargs.items()]
        return f"{self.function}(conn, {', '.join(parts)})"


Script = Generator[Call, CallResult, None]
ScriptMaker = Callable[[Scenario], Script]


def register(scenario: Scenario) -> Script:
    """Lab 1: register the approval."""
    s = scenario
    yield Call(1, "register_job", (s.job_id, s.tenant, list(s.approval), s.chunk_size))


def cancel(scenario: Scenario) -> Script:
    """Lab 2: cancel the first chunk's orders, with no job around them."""
    yield Call(
        2, "cancel_orders", (scenario.tenant, list(scenario.approval[: scenario.chunk_size]))
    )


def run_chunks(scenario: Scenario) -> Script:
    """Lab 3: run chunk after chunk until one says complete."""
    yield from _until_complete(scenario, Call(3, "run_chunk", (scenario.job_id,)))


def resume_chunks(scenario: Scenario) -> Script:
    """Lab 4: the same, with the progress doubted each time."""
    yield from _until_complete(scenario, Call(4, "resume_chunk", (scenario.job_id,)))


def drain(scenario: Scenario) -> Script:
    """Lab 5: one drain that is allowed all the chunks it needs."""
    yield Call(5, "drain", (scenario.job_id, scenario.chunks + 1))


def read_report(scenario: Scenario) -> Script:
    """Lab 7: one report."""
    yield Call(7, "report", (scenario.job_id,))


def _until_complete(scenario: Scenario, call: Call) -> Script:
    for _ in range(scenario.chunks + CALLS_MAX_EXTRA):
        result = yield call
        if not isinstance(result, Returned) or getattr(result.value, "complete", True):
            return


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
