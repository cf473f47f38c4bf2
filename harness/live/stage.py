"""The stage: real clients that a person steps from boundary to boundary.

A client on the stage is always held at a boundary, or on its way to the next one, or done. A *step*
releases it with the next boundary as its stop. A step may not come to its end: the client waits for a
lock that another one holds, or is frozen. Then it is *busy*, and `look` takes it up when it arrives.

    stage = Stage(workshop)
    stage.start(Choice(activity, "solutions", impl))
    stage.step(1)
    stage.kill(1)
    print(stage.view()["workers"])

One thread uses a stage. Nothing here knows of pages or sockets.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

from harness import limits
from harness.activity import Activity, Calls, Program
from harness.client import ClientLimits
from harness.faults import Fault, Kind
from harness.gate.stops import is_reached
from harness.records import Evidence, Finding, Hold, Policy, Raised, Returned, Stop
from harness.report.moments import Ended, Happened, Looked, Moment, Worked
from harness.report.page import board_data, story_data
from harness.report.steps import steps_of
from harness.run import Play
from harness.scenario import Scenario
from harness.workshop import Actor, Scene, Workshop

#: On the board a client may stand still as long as somebody talks, in a transaction, too.
_SETTINGS = {"idle_in_transaction_session_timeout": "0", "lock_timeout": "0"}
_LIMITS = ClientLimits(wall_s=limits.BOARD_WALL_S)
#: The faults that are played on the board. The others need a rival of their own: `lab sweep` has them.
BOARD_KINDS = (Kind.KILL, Kind.LOSE_REPLY, Kind.FREEZE)


class NotNow(Exception):
    """What was asked for cannot be done in this state; the text says why, for people."""


@dataclass(frozen=True)
class Choice:
    """What is played: a lab's work, whose code, and the fault that meets the first client."""

    activity: Activity
    impl_name: str
    impl: Path
    fault: Fault | None = None


@dataclass
class Worker:
    """One client on the stage. `seen` is how many of its boundaries have been told."""

    number: int
    actor: Actor
    fault: Fault | None = None
    hold: Hold | None = None
    seen: int = 0
    running: bool = False  # is let go from boundary to boundary until the end
    frozen: bool = False
    waits_for: str = ""  # the client whose lock it waits for
    ended: str = ""

    @property
    def name(self) -> str:
        """Return what the page calls it."""
        return f"client {self.actor.client.pid}"

    @property
    def state(self) -> str:
        """Return its state in words."""
        if self.ended:
            return self.ended
        frozen = "frozen, " if self.frozen else ""
        if self.hold is not None:
            return f"{frozen}held at boundary {self.hold.boundary.number}"
        if self.waits_for:
            return f"{frozen}waits for a lock that {self.waits_for} holds"
        return f"{frozen}on its way to the next boundary"


@dataclass
class Stage:
    """One scene, its clients, and what has happened so far."""

    workshop: Workshop
    choice: Choice | None = None
    workers: list[Worker] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    message: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)
    _scene: Scene | None = None
    _known: Evidence | None = None

    # --- what a person asks for -------------------------------------------------------------------

    def start(self, choice: Choice) -> None:
        """Clear the stage, write clean rows, and hold the first client at its first boundary."""
        self.close()
        self.choice = choice
        play = Play(self.workshop, choice.impl, choice.activity)
        self._scene = self._stack.enter_context(play.scene())
        self._new_worker(choice.fault)

    def another(self) -> None:
        """Bring one more client on the stage, on the same work."""
        if len([w for w in self.workers if not w.ended]) >= limits.BOARD_WORKERS_MAX:
            raise NotNow(f"{limits.BOARD_WORKERS_MAX} clients at a time are enough to see it")
        self._new_worker(None)

    def step(self, number: int) -> None:
        """Let a held client go on to its next boundary; its fault comes when its place is reached."""
        worker = self._held(number)
        self._release(worker)
        self._follow(worker, limits.BOARD_PATIENCE_S)

    def run(self, number: int) -> None:
        """Let a client go on from boundary to boundary, at a pace that can be watched."""
        self._alive(number).running = True

    def pause(self, number: int) -> None:
        """Hold a running client at the next boundary it reaches."""
        self._alive(number).running = False

    def freeze(self, number: int) -> None:
        """Stop every process of a client with SIGSTOP; its server session lives on."""
        worker = self._alive(number)
        if worker.frozen:
            raise NotNow(f"{worker.name} is frozen already")
        worker.actor.client.freeze()
        worker.frozen, worker.running = True, False
        self.moments.append(
            Happened(f"{worker.name} is frozen (SIGSTOP); the server does not notice")
        )

    def thaw(self, number: int) -> None:
        """Let a frozen client go on with SIGCONT."""
        worker = self._alive(number)
        if not worker.frozen:
            raise NotNow(f"{worker.name} is not frozen")
        worker.actor.client.thaw()
        worker.frozen = False
        self.moments.append(Happened(f"{worker.name} goes on (SIGCONT)", fault=False))
        self._follow(worker, limits.BOARD_PATIENCE_S)

    def kill(self, number: int) -> None:
        """End a client with SIGKILL, prove it, and look at what is there."""
        worker = self._alive(number)
        hold = worker.hold
        ended = worker.actor.client.kill()
        worker.actor.lane.cut(Policy.ABORT)
        self._scene_now().laboratory.wait_backends_gone(worker.actor.lane.backend_pids)
        where = f" at boundary {hold.boundary.number}" if hold else ""
        worker.ended, worker.hold, worker.running = f"ended by {ended}{where}", None, False
        how = "killed by" if ended.killed else "ended before the kill by"
        words = f"{how} {ended}{where}; its server session is gone"
        self.moments.append(Ended(worker.number - 1, words, fault=True))
        self._look("after-fault", "a fresh connection, once the client was gone")

    def lose_reply(self, number: int) -> None:
        """Break a held client's connection after the server has done its work, and before the answer."""
        worker = self._held(number)
        worker.actor.lane.cut(Policy.ABORT)
        worker.hold = None
        self.moments.append(Happened(f"the answer to {worker.name} is lost: its connection breaks"))
        self._follow(worker, limits.BOARD_PATIENCE_S)

    def rival(self, order_id: int) -> None:
        """Let another owner raise an order's revision, unless somebody holds its row."""
        scene = self._scene_now()
        sql = "UPDATE orders SET revision = revision + 1 WHERE order_id = %s"
        with scene.rival_transaction() as connection:
            connection.execute(f"SET LOCAL lock_timeout = {limits.BOARD_RIVAL_LOCK_MS}")
            try:
                rows = connection.execute(sql, (order_id,)).rowcount
                connection.execute("COMMIT")
            except psycopg.errors.LockNotAvailable:
                words = f"another owner wants to edit order {order_id} and has to wait: a client holds its row"
                self.moments.append(Happened(words, fault=False))
                return
        if not rows:
            raise NotNow(f"there is no order {order_id}")
        self.moments.append(
            Happened(f"another owner edits order {order_id}: its revision is one higher")
        )
        self._look("now", "a fresh connection, after the edit")

    def close(self) -> None:
        """End every client and forget what has happened. May be repeated."""
        self._stack.close()
        self.workers, self.moments, self.message = [], [], ""
        self.choice = self._scene = self._known = None

    # --- going on by itself -----------------------------------------------------------------------

    @property
    def restless(self) -> bool:
        """Tell whether a client is on its way, so that `look_around` may find something new."""
        return any(not w.ended and (w.running or w.hold is None) for w in self.workers)

    def look_around(self) -> bool:
        """Take up what busy clients have done, and step those that run; tell whether anything changed."""
        before = [(w.seen, w.state) for w in self.workers]
        for worker in self.workers:
            if worker.ended:
                continue
            if worker.running and worker.hold is not None and not worker.frozen:
                self._release(worker)
            if worker.hold is None:
                self._follow(worker, limits.POLL_S)
        return before != [(w.seen, w.state) for w in self.workers]

    # --- what is seen -----------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """Return what a page shows, as JSON-ready data."""
        if self.choice is None:
            return {"on": False, "message": self.message}
        scenario = self.choice.activity.scenario
        steps = steps_of(scenario, self.moments, self._known)
        verdict, findings = self._verdict()
        return {
            "on": True,
            "message": self.message,
            "board": board_data(scenario),
            "story": story_data(steps, [w.name for w in self.workers]),
            "workers": [_worker_view(w) for w in self.workers],
            "orders": list(scenario.approved_ids),
            "verdict": verdict,
            "findings": [
                {"promise": f.promise, "expected": f.expected, "seen": f.seen} for f in findings
            ],
        }

    def _verdict(self) -> tuple[str, list[Finding]]:
        """Judge what is committed by now: safety at every moment, and the end once the job is done."""
        if self.choice is None or self._known is None:
            return "nothing is committed yet", []
        activity = self.choice.activity
        findings = activity.safety(activity.scenario, self._known)
        if findings:
            return "broken", findings
        if activity.finished(activity.scenario, self._known):
            return "safe so far", []
        return "finished: every approved order exactly once", []

    # --- one client -------------------------------------------------------------------------------

    def _new_worker(self, fault: Fault | None) -> None:
        assert self.choice is not None
        actor = self._client(self.choice, Stop(boundary=1))
        worker = Worker(len(self.workers) + 1, actor, fault)
        self.workers.append(worker)
        self._follow(worker, limits.HOLD_WAIT_S)

    def _client(self, choice: Choice, stop: Stop) -> Actor:
        """Start a client as the activity does, but with a life as long as a talk."""
        scene, work, scenario = self._scene_now(), choice.activity.work, choice.activity.scenario
        if isinstance(work, Program):
            arguments = [argument.replace("{job}", scenario.job_id) for argument in work.arguments]
            return scene.program(choice.impl, work.lab, arguments, stop=stop, limits=_LIMITS, settings=_SETTINGS)  # fmt: skip
        assert isinstance(work, Calls)
        actor = scene.actor(choice.impl, stop=stop, limits=_LIMITS, settings=_SETTINGS)
        actor.start(work.maker(scenario))
        return actor

    def _release(self, worker: Worker) -> None:
        """Let the held answer through; the client now knows what the board showed as untold."""
        assert worker.hold is not None
        for n, moment in enumerate(self.moments):
            if isinstance(moment, Worked) and moment.who == worker.number - 1 and not moment.told:
                self.moments[n] = replace(moment, told=True)
        number = worker.hold.boundary.number + 1
        worker.hold = None
        worker.actor.lane.release(Stop(boundary=number))

    def _follow(self, worker: Worker, patience_s: float) -> None:
        """Wait until a client is held, has ended, or the patience is over; then it stays busy."""
        deadline = time.monotonic() + patience_s
        worker.hold = worker.actor.go_on(until=lambda: time.monotonic() >= deadline)
        self._tell_boundaries(worker)
        if worker.hold is not None:
            worker.waits_for = ""
            self._meet_fault(worker)
        elif not worker.actor.busy:
            self._ended(worker)
        else:
            self._see_wait(worker)

    def _tell_boundaries(self, worker: Worker) -> None:
        boundaries = worker.actor.lane.boundaries
        held = worker.hold.boundary.number if worker.hold else None
        for b in boundaries[worker.seen :]:
            self.moments.append(Worked(worker.number - 1, b, b.number != held, time.monotonic()))
        if any(b.committed for b in boundaries[worker.seen :]):
            self._known = self._scene_now().evidence()
        worker.seen = len(boundaries)

    def _meet_fault(self, worker: Worker) -> None:
        fault, hold = worker.fault, worker.hold
        if fault is None or hold is None:
            return
        if is_reached(fault.stop, list(worker.actor.lane.boundaries), hold.boundary):
            worker.fault = None
            faults = {
                Kind.KILL: self.kill,
                Kind.LOSE_REPLY: self.lose_reply,
                Kind.FREEZE: self.freeze,
            }
            faults[fault.kind](worker.number)

    def _see_wait(self, worker: Worker) -> None:
        """Say whose lock a busy client waits for, once for each wait."""
        scene = self._scene_now()
        holders = [
            other.name
            for other in self.workers
            if other is not worker and scene.blocked(worker.actor, *other.actor.lane.backend_pids)
        ]
        now = holders[0] if holders else ""
        if now and now != worker.waits_for:
            words = f"{worker.name} waits for a lock that {now} holds"
            self.moments.append(Happened(words, fault=False))
        worker.waits_for = now

    def _ended(self, worker: Worker) -> None:
        worker.running, worker.waits_for = False, ""
        worker.ended = _last_words(worker.actor)
        worker.actor.close()
        self.moments.append(Ended(worker.number - 1, worker.ended))
        self._look("after-resume", "a fresh connection, once the client had ended")

    def _look(self, name: str, words: str) -> None:
        self._known = self._scene_now().evidence()
        self.moments.append(Looked(name, words, self._known))

    def _alive(self, number: int) -> Worker:
        worker = next((w for w in self.workers if w.number == number), None)
        if worker is None or worker.ended:
            raise NotNow("that client is not on the stage any more")
        return worker

    def _held(self, number: int) -> Worker:
        worker = self._alive(number)
        if worker.hold is None:
            raise NotNow(f"{worker.name} is {worker.state}")
        return worker

    def _scene_now(self) -> Scene:
        if self._scene is None:
            raise NotNow("nothing is on the stage: press Start first")
        return self._scene


def _worker_view(worker: Worker) -> dict[str, Any]:
    return {
        "number": worker.number, "name": worker.name, "state": worker.state, "held": worker.hold is not None,
        "running": worker.running, "frozen": worker.frozen, "ended": bool(worker.ended),
        "fault": str(worker.fault) if worker.fault else "",
    }  # fmt: skip


def _last_words(actor: Actor) -> str:
    """Say how a client ended: what its last call came to, or its exit status."""
    if not actor.calls:
        return f"ended: {actor.client.wait()}" if not actor.client.running() else "ended"
    call, result = actor.calls[-1]
    if isinstance(result, Returned):
        return f"ended: {call.function} returned"
    if isinstance(result, Raised):
        return f"ended: {call.function} raised {result.type_name}: {result.text[:200]}"
    return f"ended: {result.exit}"


def playable(activity: Activity) -> bool:
    """Tell whether an activity can be played on the board: a job of approved orders that changes."""
    return isinstance(activity.scenario, Scenario) and activity.lab in (2, 3, 4, 5, 6)
