"""The bench: what a graded check works with.

It plays scenes with the learner's code and turns what comes back into findings. The rule for every
helper: it raises `PromiseBroken` only for what the learner's code did, and says so with values.

    def test_short_last_chunk(bench):
        with bench.scene(festival(23, 10, done_chunks=2)) as scene:
            actor = bench.actor(scene)
            result = bench.call(actor, "run_chunk", scenario.job_id)
            bench.equal("bound", "ran the last chunk", (..., 23, True), (result.processed, ...))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.client import ClientLimits
from harness.course import COURSE, Lab
from harness.faults import Fault
from harness.grading.check import (
    Check,
    EarlierLabMissing,
    FaultMissed,
    NotStarted,
    PromiseBroken,
)
from harness.history import show_ids
from harness.limits import HURRIED_CPU_S, HURRIED_WALL_S, PATIENT_CPU_S, PATIENT_WALL_S
from harness.place import place_kill
from harness.records import (
    Boundary,
    CallResult,
    ClientExit,
    Died,
    Evidence,
    Finding,
    Hold,
    Kill,
    Policy,
    Raised,
    Returned,
    Stop,
    Verdict,
)
from harness.run import Run, describe_failure, run_clean, run_with_fault
from harness.scenario import Scenario
from harness.script import Call, Script, ScriptMaker
from harness.workshop import Actor, Scene, Workshop, open_workshop

_LAB_FOLDER = re.compile(r"lab(\d\d)_\w+")
#: What a session may not carry away from a call: settings it changed, and session-level locks.
_SETTINGS = (
    "SELECT name, setting FROM pg_settings WHERE context IN ('user', 'superuser') ORDER BY name"
)
_ADVISORY_LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND granted"


@dataclass(frozen=True)
class SessionBefore:
    """What a connection was like before a call, to compare with afterwards."""

    settings: dict[str, str | None]


class Bench:
    """Everything a check needs, for one lab of one implementation."""

    def __init__(self, workshop: Workshop, impl: Path, lab: Lab, check: Check) -> None:
        self.workshop = workshop
        self.impl = impl
        self.lab = lab
        self.check = check
        self.output: list[str] = []

    def hurry(self, hurried: bool) -> None:
        """Give the clients of this check less when an earlier one of the lab ran into a limit."""
        less = ClientLimits(wall_s=HURRIED_WALL_S, cpu_s=HURRIED_CPU_S)
        self.workshop.limits = less if hurried else ClientLimits()

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Give the clients of one long play more time: it is the size that is checked, not the speed."""
        usual = self.workshop.limits
        self.workshop.limits = ClientLimits(wall_s=PATIENT_WALL_S, cpu_s=PATIENT_CPU_S)
        try:
            yield
        finally:
            self.workshop.limits = usual

    # --- playing ------------------------------------------------------------------------------------

    def scene(self, scenario: Scenario | None = None) -> AbstractContextManager[Scene]:
        """Open a scene on clean rows with the scenario in them."""
        return self.workshop.scene(scenario)

    def actor(self, scene: Scene, *, stop: Stop | None = None) -> Actor:
        """Start a client process of the learner's code, with its stop armed."""
        return scene.actor(self.impl, stop=stop)

    def stages(self, scenarios: Iterable[Scenario]) -> Iterator[tuple[Scene, Actor, Scenario]]:
        """Yield one scene after another with one client for all, for checks of many small calls.

        A client that left a transaction open is replaced, so that it cannot spoil the next scene.
        """
        with self.scene() as scene:
            actor = self.actor(scene)
            actor.wait_connected()
            for scenario in scenarios:
                if not actor.lane.idle:
                    actor.close()
                    self.workshop.laboratory.clear()
                    actor = self.actor(scene)
                    actor.wait_connected()
                scene.restage(scenario)
                yield scene, actor, scenario

    def result(self, actor: Actor, function: str, *args: Any, **kwargs: Any) -> CallResult:
        """Call a function of this lab and return its result or error; unstarted labs end the check."""
        return self.admit(actor.call(self.lab.number, function, *args, **kwargs))

    def call(self, actor: Actor, function: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of this lab that must return; anything else is a broken promise."""
        shown = f"{function}({', '.join(_brief(a) for a in args)})"
        result = actor.call(self.lab.number, function, *args, **kwargs)
        return self.returned(result, f"called {shown}")

    def returned(self, result: CallResult, did: str, *, cause: str = "") -> Any:
        """Demand that a call returned, and return its value."""
        self.admit(result)
        if isinstance(result, Returned):
            return result.value
        raise self.broken(did, "it returns", describe_failure(result), cause=cause)

    def inside(self, actor: Actor, function: str, *args: Any) -> Any:
        """Call a function of this lab inside an outer transaction that is rolled back; it must return."""
        result = actor.call_inside(self.lab.number, function, *args)
        return self.returned(result, f"called {function} inside an open transaction")

    def around(
        self, actor: Actor, function: str, *args: Any, before: str, after: str
    ) -> CallResult:
        """Call a function of this lab inside an outer transaction that has work of its own.

        The statement `before` runs before the call and `after` after it, also when the call raised;
        then the outer transaction is committed.
        """
        around = (before, after)
        result = actor.call_inside(self.lab.number, function, *args, around=around)
        self.admit(result)
        return result

    def script(self, function: str, *args: Any) -> Script:
        """Return a script of one call of this lab, for an actor that is held or meets a lock."""
        yield Call(self.lab.number, function, args)

    def record(self, scenario: Scenario, function: str, *args: Any) -> tuple[Boundary, ...]:
        """Make one call without a fault and return its boundaries: where it can be interrupted."""
        with self.scene(scenario) as scene:
            actor = self.actor(scene)
            self.call(actor, function, *args)
            return actor.lane.boundaries

    def held(self, scene: Scene, number: int, function: str, *args: Any) -> tuple[Actor, Hold]:
        """Start a client on one call and hold it at boundary `number`."""
        actor = self.actor(scene, stop=Stop(boundary=number))
        hold = actor.follow(self.script(function, *args))
        if hold is None and actor.calls:
            self.admit(actor.calls[-1][1])
        return actor, self.landed(hold, f"hold at boundary {number}")

    def finish(self, actor: Actor) -> CallResult:
        """Let a client that was held, or that waited for a lock, end its call; return the result."""
        if actor.lane.holding:
            actor.lane.release()
        actor.go_on()
        result = actor.calls[-1][1]
        self.admit(result)
        return result

    def admit(self, result: CallResult) -> CallResult:
        """Keep what the call printed; end the check when the lab, or an earlier one, is not started."""
        printed = result.exit.output if isinstance(result, Died) else result.output
        self.output.extend(printed)
        if isinstance(result, Raised):
            self._ask_whether_started(result)
        return result

    def program_started(self, end: ClientExit, errors: Sequence[str]) -> None:
        """End the check when the lab's program, or an earlier lab that it calls, is not started."""
        self.output.extend(errors)
        if end.code == 0 or not any("NotImplementedError" in line for line in errors):
            return
        number = _lab_of([line for line in errors if not line.startswith("NotImpl")])
        self._not_started(number or self.lab.number, errors[-1])

    def _ask_whether_started(self, raised: Raised) -> None:
        if raised.type_name == "NotImplementedError":
            number = _lab_of(raised.traceback) or self.lab.number
        elif raised.phase in ("import", "lookup") and _missing_lab(raised) is not None:
            number = _missing_lab(raised) or self.lab.number
        else:
            return
        self._not_started(number, raised.text)

    def _not_started(self, number: int, text: str) -> None:
        if number < self.lab.number:
            raise EarlierLabMissing(
                number, f"lab {number} comes first: this lab calls it, and it is not done yet"
            )
        raise NotStarted(f"{self.lab.file} is not started yet: {text}")

    # --- saying -------------------------------------------------------------------------------------

    def broken(
        self,
        did: str,
        expected: str,
        seen: str,
        *,
        cause: str = "",
        promise: str = "",
        ids: Iterable[int] = (),
    ) -> PromiseBroken:
        """Make the exception for a broken promise; the caller raises it."""
        finding = Finding(
            promise or self.check.promise,
            did,
            expected,
            seen,
            cause,
            f"labs/{self.lab.folder}/README.md",
            tuple(ids),
        )
        return PromiseBroken([finding], self.output)

    def equal(
        self, did: str, expected: Any, seen: Any, *, cause: str = "", promise: str = ""
    ) -> None:
        """Compare two values; IDs are spelled out in the message.

        Lists and tuples are the same here: the learner's values arrive by value.
        """
        if _plain(expected) != _plain(seen):
            # Both by value: what was a tuple in the learner's code is a list here, and no mistake.
            texts = (_brief(_plain(expected)), _brief(_plain(seen)))
            raise self.broken(did, *texts, cause=cause, promise=promise)

    def fields(self, did: str, value: Any, *names: str) -> tuple[Any, ...]:
        """Return these attributes of a returned value; one that is missing is a broken promise."""
        absent = [name for name in names if not hasattr(value, name)]
        if absent:
            seen = f"{_brief(value)}, which has no {', '.join(absent)}"
            raise self.broken(did, f"a result with {', '.join(names)}", seen)
        return tuple(getattr(value, name) for name in names)

    def shows(self, did: str, value: Any, *, cause: str = "", **expected: Any) -> None:
        """Compare attributes of a returned value; one that is missing is a broken promise."""
        seen = dict(zip(expected, self.fields(did, value, *expected), strict=True))
        self.equal(did, expected, seen, cause=cause)

    def judged(self, findings: Sequence[Finding], did: str = "") -> None:
        """Raise when the judge found something; `did` is put before what the judge did."""
        if findings:
            told = [replace(f, did=f"{did}; {f.did}" if did else f.did) for f in findings]
            raise PromiseBroken(told, self.output)

    def raises(
        self,
        result: CallResult,
        error: str,
        did: str,
        *,
        naming: Iterable[int] = (),
        cause: str = "",
    ) -> Raised:
        """Demand an error of the contract by its class's name, with these IDs in its text."""
        ids = tuple(naming)
        wanted = f"{error}{f' naming {show_ids(ids)}' if ids else ''}"
        if not isinstance(result, Raised) or not result.is_a(error):
            seen = (
                f"it returned {_brief(result.value)}"
                if isinstance(result, Returned)
                else describe_failure(result)
            )
            raise self.broken(did, wanted, seen, cause=cause, ids=ids)
        unnamed = [i for i in ids if not re.search(rf"(?<!\d){i}(?!\d)", result.text)]
        if unnamed:
            raise self.broken(
                did,
                wanted,
                f"{error}: {result.text!r}; it does not name {show_ids(unnamed)}",
                ids=ids,
            )
        return result

    # --- whole runs ---------------------------------------------------------------------------------

    def clean(self, scenario: Scenario, maker: ScriptMaker) -> Run:
        """Play a script without a fault; it must keep every promise. Its record places the faults."""
        run = run_clean(self.workshop, self.impl, scenario, maker)
        for _, result in run.calls:
            self.admit(result)
        self.judged(run.findings, f"ran {_told(scenario)} without a fault")
        return run

    def place(self, record: Sequence[Boundary], point: str, chunk: int) -> Fault:
        """Return the kill after `point` in this chunk; a client that never gets there is broken."""
        fault = place_kill(record, point, chunk)
        if fault is None:
            raise self.broken(
                f"looked for {point} in chunk {chunk} of a run without a fault",
                f"a transaction of chunk {chunk} that reaches {point}",
                "no such transaction",
                cause="A chunk is one transaction that writes orders, audit and checkpoint.",
            )
        return fault

    def killed_everywhere(
        self, scenario: Scenario, maker: ScriptMaker, points: Sequence[str], chunks: Iterable[int]
    ) -> None:
        """Kill at every point in every named chunk; each time a new client must finish the job."""
        record = self.clean(scenario, maker).boundaries
        for chunk in chunks:
            for point in points:
                fault = self.place(record, point, chunk)
                run = run_with_fault(self.workshop, self.impl, scenario, maker, fault)
                if run.verdict is Verdict.VOID:
                    raise FaultMissed(f"{fault}: {run.kill.void_reason if run.kill else ''}")
                where = f"killed the client after {point} in chunk {chunk} ({fault})"
                self.judged(
                    run.findings, f"{where} of {_told(scenario)}, then let a new one finish"
                )

    # --- faults -------------------------------------------------------------------------------------

    def landed(self, hold: Hold | None, fault: str) -> Hold:
        """Demand that the client was held; otherwise the fault missed and the check is void."""
        if hold is None:
            raise FaultMissed(f"{fault}: the client ended without reaching the place")
        return hold

    def kill(self, actor: Actor, hold: Hold, fault: str, policy: Policy = Policy.ABORT) -> Kill:
        """Kill the held client; a kill that cannot be proven makes the check void."""
        kill = actor.kill(fault, hold, policy)
        if not kill.landed:
            raise FaultMissed(f"{fault}: {kill.void_reason}")
        return kill

    @contextmanager
    def crashable(self) -> Iterator[Workshop]:
        """Yield a workshop whose server may be crashed; it is this check's own, and gone afterwards.

        It is always the embedded server: another source's server is not ours to crash.
        """
        with open_workshop(source="embedded", private=True, host=self.workshop.host) as workshop:
            yield workshop

    # --- hygiene ------------------------------------------------------------------------------------

    def session(self, actor: Actor) -> SessionBefore:
        """Remember a connection's settings before a call."""
        actor.wait_connected()
        return SessionBefore({str(name): value for name, value in actor.lane.ask(_SETTINGS)})

    def hygiene(
        self, actor: Actor, before: SessionBefore, result: CallResult, did: str, ended: str = ""
    ) -> None:
        """Demand that a call left the connection as it got it: idle, no lock, settings unchanged.

        The call must have ended as it should, with a result or with the error `ended`: a function
        that does nothing leaves everything as it was, and has kept no promise by it.
        """
        if ended:
            self.raises(result, ended, did)
        else:
            self.returned(result, did)
        state = None if isinstance(result, Died) else result.connection
        seen = ""
        if state is None or state.closed:
            seen = "the connection is closed"
        elif state.transaction != "IDLE":
            seen = f"a transaction is still open ({state.transaction})"
        elif not state.autocommit:
            seen = "autocommit was turned off"
        if seen:
            raise self.broken(did, "the connection idle, autocommit on", seen, promise="hygiene",
                              cause="A transaction was opened and not closed on this path.")  # fmt: skip
        (count,) = actor.lane.ask(_ADVISORY_LOCKS)[0]
        if count != "0":
            raise self.broken(did, "no session lock", f"{count} advisory locks held", promise="hygiene",
                              cause="A session-level lock outlives the transaction; a transaction-level one does not.")  # fmt: skip
        after = self.session(actor).settings
        # A setting that was not there before came with a module that the server loaded meanwhile, as
        # it loads PL/pgSQL for the witness's first trigger.
        changed = [
            f"{name} was {before.settings[name]!r} and is {value!r}"
            for name, value in after.items()
            if name in before.settings and before.settings[name] != value
        ]
        if changed:
            raise self.broken(did, "every setting as it was", "; ".join(changed), promise="hygiene",
                              cause="SET changes the session; SET LOCAL ends with the transaction.")  # fmt: skip

    def durable(self, evidence: Evidence) -> None:
        """Demand that no commit traded durability for speed."""
        if not evidence.changes:
            did = "called it and read what was committed"
            raise self.broken(did, "the work of the call", "nothing", promise="hygiene")
        lax = sorted({c.xid for c in evidence.changes if c.synchronous_commit == "off"})
        if lax:
            raise self.broken(
                "read under which setting each transaction was committed",
                "synchronous_commit as it was: a reported commit survives a server crash",
                f"synchronous_commit off in transactions {', '.join(map(str, lax))}",
                promise="hygiene",
                cause="With synchronous_commit off, a commit is reported before it is on disk.",
            )


def _told(scenario: Scenario) -> str:
    """Name a scenario in a few words."""
    orders = len(scenario.approval)
    return f"a job of {orders} order{'s' if orders > 1 else ''}, {scenario.chunk_size} a chunk"


def _plain(value: Any) -> Any:
    """Make tuples and lists alike, through and through."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _brief(value: Any, most: int = 400) -> str:
    if isinstance(value, (list, tuple)) and value and all(isinstance(i, int) for i in value):
        return f"({show_ids(value)})" if list(value) == sorted(value) else str(tuple(value))[:most]
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= most else text[: most - 3] + "..."


def _lab_of(traceback: Sequence[str]) -> int | None:
    """Return the lab of the innermost frame of the learner's."""
    numbers = [int(m[1]) for line in traceback for m in _LAB_FOLDER.finditer(line)]
    return numbers[-1] if numbers else None


def _missing_lab(raised: Raised) -> int | None:
    """Return the lab whose folder or file an import did not find."""
    if not raised.is_a("ModuleNotFoundError") and raised.phase != "lookup":
        return None
    match = _LAB_FOLDER.search(raised.text)
    known = {lab.number for lab in COURSE}
    return int(match[1]) if match and int(match[1]) in known else None
