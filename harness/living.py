"""Faults that a client survives: it must notice, say so, and leave the database whole.

Each function here plays one kind of fault line on a `Play` and returns a judged `Run`. The pattern is
always the same: hold the client at a boundary, do something to it or beside it, let it go on, read the
evidence, let one healthy client finish. What the client may say depends on the fault:

* its connection broke (lost request, lost reply, terminate, crash): the error reaches the caller;
* a rival worked beside it (freeze, rival worker): both return, or say that they are busy;
* the server made it a victim (deadlock, serialization, lock timeout): that error, or a new try;
* another owner edited an approved order (rival write): Conflict, unless the client had it locked.

A fault that is not possible at a place (no lock is held there, say) is told apart from one that missed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from harness.healthy import (
    BUSY,
    COMPLETE,
    CONFLICT,
    LOST,
    Heard,
    describe_exit,
    describe_failure,
    judge_calls,
    true_lines,
)
from harness.history import order_moves
from harness.judge import judge_refusal
from harness.limits import HOLD_WAIT_S, VICTIM_LOCK_TIMEOUT_MS
from harness.records import Boundary, Died, Evidence, Finding, Hold, Raised, Stop
from harness.run import Play, Run
from harness.scenario import Scenario
from harness.waiting import wait_until
from harness.workshop import Actor, Scene

_TAKE = "SELECT FROM orders WHERE order_id = %s FOR UPDATE NOWAIT"
DEADLOCK, SERIALIZATION, LOCK_TIMEOUT = "40P01", "40001", "55P03"


# --- the connection breaks ----------------------------------------------------------------------------


def lose_request(play: Play) -> Run:
    """Cut the connection when a unit has arrived at the proxy, before the server gets it."""
    place = _place(play)
    with play.scene() as scene:
        stop = Stop(boundary=place.number, before=True) if place else None
        actor = play.client(scene, stop)
        hold = actor.go_on() if place else None
        if hold is None:
            return play.missed(actor)
        assert place is not None
        if hold.boundary.sql != place.sql:
            return play.missed(actor, "the client's messages differ from its recorded run")
        actor.lane.cut()
        note = f"the connection was cut before {_unit(place)} arrived"
        return _after_the_break(play, scene, actor, note)


def lose_reply(play: Play) -> Run:
    """Cut the connection when the server has carried out a unit, before the client is told."""
    with _held(play) as (scene, actor, hold):
        if hold is None:
            return play.missed(actor)
        actor.lane.cut()
        note = f"the connection was cut after {_unit(hold.boundary)} was carried out"
        return _after_the_break(play, scene, actor, note)


def terminate(play: Play) -> Run:
    """End the held client's server session with pg_terminate_backend, then let it go on."""
    with _held(play) as (scene, actor, hold):
        if hold is None:
            return play.missed(actor)
        scene.terminate([hold.backend_pid])
        actor.lane.release()
        note = f"the session was terminated after {_unit(hold.boundary)}"
        return _after_the_break(play, scene, actor, note, excused=_last(play, hold))


def crash(play: Play) -> Run:
    """Stop the server at once and start it again: while the client is held, or right after a commit.

    At the point `commit` the client is told first, so what is lost then was reported as committed.

    Raises:
        DatabaseProblem: If the workshop's server is not private.
    """
    assert play.fault is not None
    with _held(play) as (scene, actor, hold):
        if hold is None:
            return play.missed(actor)
        told = tuple(b for b in actor.lane.boundaries if b.number < hold.boundary.number)
        note = f"the server crashed after {_unit(hold.boundary)}"
        if play.fault.stop.point == "commit":
            actor.lane.release(Stop(boundary=hold.boundary.number + 1, before=True))
            actor.go_on()
            told = (*told, hold.boundary)
            note = "the server crashed right after the client was told of its commit"
        scene.laboratory.crash()
        if actor.lane.holding:
            actor.lane.release()
        return _after_the_break(play, scene, actor, note, told, excused=_last(play, hold))


# --- a rival works beside it ----------------------------------------------------------------------------


def rival_worker(play: Play) -> Run:
    """Let a second client work while the first is held; then both go on."""
    return _beside(play, frozen=False)


def freeze(play: Play) -> Run:
    """Stop the client's process, let a second one work, then let the first go on: the zombie."""
    return _beside(play, frozen=True)


def _beside(play: Play, *, frozen: bool) -> Run:
    with _held(play) as (scene, actor, hold):
        if hold is None:
            return play.missed(actor)
        if frozen:
            actor.client.freeze()
        rival = play.client(scene)
        pids = actor.lane.backend_pids
        rival.go_on(until=lambda: scene.blocked(rival, *pids))
        met = "waited for the first one's lock" if rival.busy else "ended beside it"
        misled = _misled(play, scene, rival, frozen=frozen)
        actor.lane.release()
        if frozen:
            actor.client.thaw()
        for one in (actor, rival):
            one.go_on()
            one.close()
        seen = scene.evidence()
        scenario, shared = play.activity.scenario, play.activity.shared
        findings = misled or [
            finding
            for one in (actor, rival)
            for finding in shared(scenario, seen, play.activity.work.heard(one))
        ]
        note = f"{'frozen' if frozen else 'held'} after {_unit(hold.boundary)}; the rival {met}"
        return _to_the_end(play, scene, actor, seen, findings, note)


def _misled(play: Play, scene: Scene, rival: Actor, *, frozen: bool) -> list[Finding]:
    """A client beside one that stands still must not call an unfinished job done, nor wait for ever.

    How soon a program must give up behind a frozen holder is the activity's `busy_within_s`.
    """
    limit_s = play.activity.busy_within_s if frozen else None
    if limit_s is not None:
        deadline = time.monotonic() + limit_s
        rival.go_on(until=lambda: time.monotonic() > deadline)
        if rival.busy:
            wanted = f"exit status {BUSY} when its lock timeout is over"
            seen = f"it still waits after {limit_s:g} s"
            return [_finding(play, "froze the holder of the job", wanted, seen)]
    if rival.busy or not play.activity.returns_when_done:
        return []
    heard = _heard(play, rival)
    says_done = heard.error is None if heard.exit is None else heard.status == COMPLETE
    if says_done and play.activity.finished(play.activity.scenario, scene.evidence()):
        did, wanted = "let a second client work beside one that stands still", "busy, or a wait"
        return [_finding(play, did, wanted, "it says that all is done, and it is not")]
    return []


# --- the server makes it a victim ---------------------------------------------------------------------------


def deadlock(play: Play) -> Run:
    """Make client and rival wait for each other; the server ends the client's transaction.

    The rival takes an order of the next chunk, then waits for what the client holds; the client then
    waits for that order, closes the circle, and is the one that looks for a deadlock first.
    """

    with _held(play) as (scene, actor, hold), scene.rival_transaction() as rival:
        if hold is None:
            return play.missed(actor)
        order = _next_order(play, scene)
        scene.never_the_victim(rival)
        if order is None or not _locked_by(rival, lambda: rival.execute(_TAKE, (order,))):
            return _impossible(play, actor, "the order is locked, or none is left")
        with _waiting(scene, actor, rival, _everything(play)) as waits:
            if not waits:
                return _impossible(play, actor, "the client holds no lock that a rival wants")
            actor.lane.release()
            actor.go_on()
        return _after_the_error(play, scene, actor, DEADLOCK, rival)


def serialization(play: Play) -> Run:
    """Let another owner write an order, unchanged, after the client's snapshot: REPEATABLE READ fails.

    The client's sessions begin with REPEATABLE READ as their default.
    """
    isolation = {"default_transaction_isolation": "repeatable read"}
    with _held(play, isolation) as (scene, actor, hold), scene.rival_transaction() as rival:
        if hold is None:
            return play.missed(actor)
        order = _next_order(play, scene)
        if order is None or not _locked_by(rival, lambda: rival.execute(_TAKE, (order,))):
            return _impossible(play, actor, "the order is locked, or none is left")
        rival.execute("UPDATE orders SET qty = qty WHERE order_id = %s", (order,))
        rival.execute("COMMIT")
        actor.lane.release()
        actor.go_on()
        return _after_the_error(play, scene, actor, SERIALIZATION, rival)


def lock_timeout(play: Play) -> Run:
    """Let another owner keep an order of the next chunk locked; the client's lock timeout is short."""
    short = {"lock_timeout": str(VICTIM_LOCK_TIMEOUT_MS)}
    with _held(play, short) as (scene, actor, hold), scene.rival_transaction() as rival:
        if hold is None:
            return play.missed(actor)
        order = _next_order(play, scene)
        if order is None or not _locked_by(rival, lambda: rival.execute(_TAKE, (order,))):
            return _impossible(play, actor, "the order is locked, or none is left")
        actor.lane.release()
        actor.go_on()
        return _after_the_error(play, scene, actor, LOCK_TIMEOUT, rival)


# --- another owner writes -----------------------------------------------------------------------------------


def rival_write(play: Play) -> Run:
    """Let another owner raise the revision of an order of the next chunk while the client is held.

    Where the client has the order locked, the owner's write waits and comes second; then the client
    finishes as if nothing had been. Where it comes first, the chunk must be refused as a whole.
    """
    with _held(play) as (scene, actor, hold), scene.rival_transaction() as rival:
        if hold is None:
            return play.missed(actor)
        order = _next_order(play, scene)
        if order is None:
            return _impossible(play, actor, "no approved order is left to edit")
        write = "UPDATE orders SET revision = revision + 1 WHERE order_id = %s"
        with _waiting(scene, actor, rival, [(write, (order,)), ("COMMIT", ())]) as second:
            actor.lane.release()
            actor.go_on()
        actor.close()
        seen = scene.evidence()
        note = f"order {order} was edited {'after the client let go of it' if second else 'first'}"
        cancelled = {m.order_id for m in order_moves(seen.changes) if m.cancels}
        if order in cancelled or not play.activity.rivals:
            findings = play.activity.shared(play.activity.scenario, seen, _heard(play, actor))
            if not play.activity.rivals or not findings:
                return _to_the_end(play, scene, actor, seen, findings, note)
        else:
            findings = _refusal(play, actor, seen, order)
        findings = play.activity.safety(play.activity.scenario, seen) or findings
        return play.judged_as(actor, seen, findings, note)


# --- what the client may say ----------------------------------------------------------------------------------


def _after_the_break(
    play: Play,
    scene: Scene,
    actor: Actor,
    note: str,
    told: Sequence[Boundary] = (),
    *,
    excused: bool = False,
) -> Run:
    """Let a client find out that its connection is gone; judge what it says, then the rest.

    A client that did not need the connection any more is `excused` from noticing.
    """
    actor.go_on()
    actor.close()
    scene.laboratory.wait_backends_gone(actor.lane.backend_pids)
    seen = scene.evidence()
    findings = _survived(told, seen) or _says_lost(play, actor, seen, note, excused=excused)
    return _to_the_end(play, scene, actor, seen, findings, note)


def _says_lost(
    play: Play, actor: Actor, seen: Evidence, note: str, *, excused: bool
) -> list[Finding]:
    """The error must reach the caller; a client that needed the connection no more is excused."""
    heard = _heard(play, actor)
    if heard.exit is not None:
        if heard.status == LOST or (excused and heard.status == COMPLETE):
            return true_lines(seen, heard)
        return [_finding(play, note, f"exit status {LOST}", describe_exit(heard))]
    error = heard.error
    if error is None and not excused:
        return [_finding(play, note, "the connection's error, at once", "it returned")]
    if isinstance(error, Died):
        return [_finding(play, note, "an error the caller can catch", describe_failure(error))]
    return []


def _after_the_error(
    play: Play, scene: Scene, actor: Actor, sqlstate: str, rival: psycopg.Connection[Any]
) -> Run:
    """End the rival; judge a client that the server made a victim with `sqlstate`."""
    rival.execute("ROLLBACK")
    actor.go_on()
    actor.close()
    seen = scene.evidence()
    if sqlstate not in {b.error for b in actor.lane.boundaries}:
        return _impossible(play, actor, f"the server never answered {sqlstate}")
    note = f"the server answered {sqlstate}"
    heard = _heard(play, actor)
    findings: list[Finding] = []
    if heard.exit is not None:
        if heard.status not in (COMPLETE, BUSY):
            wanted = f"a new try, or exit status {BUSY}"
            findings = [_finding(play, note, wanted, describe_exit(heard))]
    elif not (isinstance(heard.error, Raised) and heard.error.sqlstate == sqlstate):
        findings = judge_calls(heard.calls)
    return _to_the_end(play, scene, actor, seen, findings, note)


def _refusal(play: Play, actor: Actor, seen: Evidence, order: int) -> list[Finding]:
    """Judge a client whose order was edited first: Conflict that names it, or exit status 20."""
    scenario: Scenario = play.activity.scenario
    chunk = scenario.approved_ids.index(order) // scenario.chunk_size + 1
    heard = _heard(play, actor)
    if heard.exit is None:
        return judge_refusal(scenario, seen, order, chunk, heard.calls[-1][1])
    conflict = Raised("Conflict", (), str(order), None, ())
    findings = judge_refusal(scenario, seen, order, chunk, conflict)
    if not findings and heard.status != CONFLICT:
        did = f"another owner edited order {order}"
        findings = [_finding(play, did, f"exit status {CONFLICT}", describe_exit(heard))]
    return findings


def _survived(told: Sequence[Boundary], seen: Evidence) -> list[Finding]:
    """A commit that the client was told of survives a crash, and did not depend on luck."""
    kept = {change.xid for change in seen.changes}
    lost = [b for b in told if set(b.committed) - kept]
    lucky = {c.xid for c in seen.changes if c.synchronous_commit == "off"}
    if not lost and not any(set(b.committed) & lucky for b in told):
        return []
    numbers = ", ".join(str(b.number) for b in lost)
    return [Finding(
        "hygiene",
        "crashed the server after the client had been told of its commits",
        "every reported commit is still there",
        f"lost: what was committed at boundary {numbers}" if lost
        else "synchronous_commit was off: that it is there was luck",
        "With synchronous_commit off, COMMIT answers before the commit is on disk.",
        "labs/lab03_chunk/README.md",
    )]  # fmt: skip


# --- helpers ----------------------------------------------------------------------------------------------------


@contextmanager
def _held(
    play: Play, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Scene, Actor, Hold | None]]:
    """Open a scene with a client held at the fault's place (or done without reaching it)."""
    assert play.fault is not None
    with play.scene() as scene:
        actor = play.client(scene, play.fault.stop, settings)
        yield scene, actor, actor.go_on()


def _to_the_end(
    play: Play, scene: Scene, actor: Actor, seen: Evidence, findings: Sequence[Finding], note: str
) -> Run:
    """Let a healthy client finish and judge it all."""
    healthy, _ = play.heal(scene)
    after = scene.evidence()
    return play.judged(actor, healthy, [seen], after, findings=findings, note=note)


def _impossible(play: Play, actor: Actor, why: str) -> Run:
    return play.missed(actor, f"not possible here: {why}", possible=False)


def _heard(play: Play, actor: Actor) -> Heard:
    return play.activity.work.heard(actor)


def _finding(play: Play, did: str, expected: str, seen: str) -> Finding:
    return Finding(play.activity.promise, did, expected, seen)


def _last(play: Play, hold: Hold) -> bool:
    """Tell whether the clean run ends at this boundary, so that its answer is all the client needs."""
    return hold.boundary.number >= len(play.record)


def _place(play: Play) -> Boundary | None:
    """Return the recorded boundary that the fault's place stands for: what a unit does is known later."""
    assert play.fault is not None
    stop, record = play.fault.stop, play.record
    if stop.boundary is not None:
        return next((b for b in record if b.number == stop.boundary), None)
    reached = [b for b in record if stop.point in b.points]
    return reached[stop.nth - 1] if stop.nth <= len(reached) else None


def _unit(boundary: Boundary) -> str:
    sql = " ".join(boundary.sql.split())[:60]
    return f"boundary {boundary.number}, {boundary.unit}" + (f" of {sql}" if sql else "")


def _next_order(play: Play, scene: Scene) -> int | None:
    """Return the last order of the next chunk that is not committed; None when all is done."""
    scenario = play.activity.scenario
    if not isinstance(scenario, Scenario):
        return None  # track B has no orders
    row = scene.laboratory.control.execute(
        "SELECT next_index FROM jobs WHERE job_id = %s", (scenario.job_id,)
    ).fetchone()
    start = row[0] if row is not None else 0
    ids = scenario.approved_ids[start : start + scenario.chunk_size]
    pending = {m for (m,) in scene.laboratory.control.execute(
        "SELECT order_id FROM orders WHERE state = 'pending' AND order_id = ANY (%s)", (list(ids),)
    )}  # fmt: skip
    return next((i for i in reversed(ids) if i in pending), None)


def _locked_by(rival: psycopg.Connection[Any], take: Callable[[], object]) -> bool:
    """Take a lock, if nobody has it."""
    try:
        take()
    except errors.LockNotAvailable:
        rival.execute("ROLLBACK")
        return False
    return True


def _everything(play: Play) -> list[tuple[str, tuple[Any, ...]]]:
    """Return statements that want what a client in the middle of its work may hold."""
    scenario: Scenario = play.activity.scenario
    ids = list(scenario.approved_ids)
    return [
        ("SELECT FROM jobs WHERE job_id = %s FOR UPDATE", (scenario.job_id,)),
        ("SELECT FROM orders WHERE order_id = ANY (%s) ORDER BY order_id FOR UPDATE", (ids,)),
    ]


@contextmanager
def _waiting(
    scene: Scene,
    actor: Actor,
    rival: psycopg.Connection[Any],
    statements: Sequence[tuple[str, tuple[Any, ...]]],
) -> Iterator[bool]:
    """Let the rival run statements in a thread; yield whether it waits for the client.

    When the block is left, the rival has what it waited for.
    """
    done = threading.Event()

    def run() -> None:
        try:
            for sql, parameters in statements:
                rival.execute(sql, parameters)
        except psycopg.Error:
            pass  # it was the victim itself; the client's boundaries tell
        finally:
            done.set()

    thread = threading.Thread(target=run, name="rival", daemon=True)
    pid, pids = rival.info.backend_pid, actor.lane.backend_pids
    thread.start()
    wait_until(
        lambda: done.is_set() or scene.waits_for(pid, pids),
        "the rival waits for the client, or is done",
        wait_s=HOLD_WAIT_S,
    )
    try:
        yield not done.is_set()
    finally:
        if actor.lane.holding:  # nobody would wake the rival
            actor.client.kill()
            actor.lane.cut()
        thread.join(HOLD_WAIT_S)
