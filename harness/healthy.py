"""What a healthy client must say: the other half of liveness.

The judge looks at what the database holds. Here it is what the client itself said: a call that must
return, a program that must end with status 0. Pure, like the judge: values in, findings out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.history import order_moves, show_ids
from harness.records import (
    CallResult,
    ClientExit,
    Died,
    EndKind,
    Evidence,
    Finding,
    Raised,
    Returned,
)
from harness.scenario import Scenario
from harness.script import Call

#: The worker's exit statuses that this file speaks of; the contract of lab 6 has all of them.
COMPLETE, CONFLICT, BUSY, LOST = 0, 20, 30, 31


@dataclass(frozen=True)
class Heard:
    """What one client said: the results of its calls, or the end and the output of a program."""

    calls: tuple[tuple[Call, CallResult], ...] = ()
    exit: ClientExit | None = None
    lines: tuple[str, ...] = ()

    @property
    def error(self) -> Raised | Died | None:
        """Return the first call that did not return; None when all did, or for a program."""
        failed = (result for _, result in self.calls if not isinstance(result, Returned))
        return next(failed, None)

    @property
    def status(self) -> int | None:
        """Return a program's exit status; None when it did not exit, or for calls."""
        return self.exit.code if self.exit and self.exit.kind is EndKind.EXITED else None


#: What it means for a learner that a client ran into a limit.
LIMIT_WORDS = {
    "wall": "no answer in time, so the kit ended it: does it wait for something that never comes?",
    "cpu": "its CPU time was used up, so the kit ended it: is there a loop that never ends?",
    "memory": "its memory was used up, so the kit ended it",
    "processes": "it started too many processes, so the kit ended it",
    "output": "it printed without end, so the kit ended it",
}


def judge_calls(calls: Sequence[tuple[Call, CallResult]]) -> list[Finding]:
    """A healthy client must not raise: an error here is a finding, with the learner's own lines."""
    for call, result in calls:
        if not isinstance(result, Returned):
            return [Finding(
                "liveness",
                f"called {call} in a healthy client, with no fault",
                "a result",
                describe_failure(result),
            )]  # fmt: skip
    return []


def describe_failure(result: Raised | Died) -> str:
    """Say how a call failed: the error and the learner's own frames, or how the process ended."""
    if isinstance(result, Died):
        limit = LIMIT_WORDS.get(result.exit.limit or "")
        return limit or f"the process ended before it answered: {result.exit}"
    return "\n".join([f"{result.type_name}: {result.text}", *result.traceback])


# --- answers of one activity: what was there before, and what the healthy client said ---------------


def every_call_returns(scenario: Scenario, before: Evidence | None, heard: Heard) -> list[Finding]:
    """Demand that no call failed; `before` does not matter."""
    return judge_calls(heard.calls)


def cancelled_once(scenario: Scenario, before: Evidence | None, heard: Heard) -> list[Finding]:
    """Lab 2: the call returns, or refuses with Conflict because all of it was done already.

    `cancel_orders` keeps no progress: to its second caller, cancelled orders are not as approved.
    """
    error = heard.error
    done = before is not None and any(move.cancels for move in order_moves(before.changes))
    if done and isinstance(error, Raised) and error.is_a("Conflict"):
        return []
    if done:
        return [Finding(
            "approved version",
            "called cancel_orders again after its orders had been cancelled",
            "Conflict: no order is as approved any more",
            describe_failure(error) if error is not None else "it returned",
            "The UPDATE must ask for the approved revision and for pending.",
            "labs/lab02_change/README.md",
        )]  # fmt: skip
    return judge_calls(heard.calls)


def returns_or_conflicts(
    scenario: Scenario, before: Evidence | None, heard: Heard
) -> list[Finding]:
    """Lab 2, beside a rival: one of two calls finds its orders cancelled, and says Conflict."""
    error = heard.error
    if isinstance(error, Raised) and error.is_a("Conflict"):
        return []
    return judge_calls(heard.calls)


def completes_or_busy(scenario: Scenario, before: Evidence | None, heard: Heard) -> list[Finding]:
    """Lab 6, beside a rival: the program completes the job, or says that it is busy."""
    if heard.status == BUSY:
        return []
    return completes(scenario, before, heard)


def completes(scenario: Scenario, before: Evidence | None, heard: Heard) -> list[Finding]:
    """Lab 6: the program ends with status 0."""
    if heard.status == COMPLETE:
        return []
    return [Finding(
        "liveness",
        "started the program again, healthy, with no fault",
        f"exit status {COMPLETE}: the job is complete",
        describe_exit(heard),
        read="labs/lab06_takeover/README.md",
    )]  # fmt: skip


def same_report(scenario: Scenario, before: Evidence | None, heard: Heard) -> list[Finding]:
    """Lab 7: the report says what the scenario made, whatever happened to an earlier reader."""
    findings = judge_calls(heard.calls)
    if findings:
        return findings
    ids, done = scenario.approved_ids, scenario.next_index
    expected = {
        "approved": ids, "committed": ids[:done], "unprocessed": ids[done:],
        "matching": ids[:done], "drifted": (), "missing": (),
    }  # fmt: skip
    value = heard.calls[-1][1].value if isinstance(heard.calls[-1][1], Returned) else None
    for name, wanted in expected.items():
        seen = tuple(getattr(value, name, None) or ())
        if seen != wanted:
            return [Finding(
                "honest report", "read the report of a half-done job",
                f"{name}: {show_ids(wanted)}", f"{name}: {show_ids(seen)}",
                read="labs/lab07_report/README.md",
            )]  # fmt: skip
    return []


def true_lines(evidence: Evidence, heard: Heard) -> list[Finding]:
    """Every chunk that a program announced is committed; a missing line is allowed."""
    done = {move.order_id for move in order_moves(evidence.changes) if move.cancels}
    for line in heard.lines:
        try:
            announced = set(json.loads(line)["processed"])
        except (ValueError, TypeError, KeyError):
            announced = set()
        if announced - done:
            return [Finding(
                "one at a time", f"read the line {line!r} and what is committed",
                "a line is printed after its chunk was committed",
                f"announced and not committed: {show_ids(announced - done)}",
                "The line is printed before the commit, or the commit was assumed.",
                "labs/lab06_takeover/README.md", tuple(sorted(announced - done)),
            )]  # fmt: skip
    return []


def describe_exit(heard: Heard) -> str:
    """Say how a program ended and what it printed last."""
    if heard.exit is None:
        return "it has not ended"
    shown = "\n".join(heard.exit.output[-5:])
    how = f"exit status {heard.status}" if heard.status is not None else f"{heard.exit}"
    return f"{how}\n{shown}" if shown else how
