"""The workshop: what a run needs, started once and joined.

A *workshop* holds what is started once and used for hundreds of runs: the server, one clean database,
the proxy's event loop, the fork server. A *scene* is one run's stage: clean rows, a scenario in them,
and the *actors* that play in it. An actor is a client process on a lane of the proxy of its own, so
whatever is on that lane was said by that process.

    with open_workshop() as workshop, workshop.scene(festival()) as scene:
        actor = scene.actor(impl, stop=Stop(point="audit", nth=2))
        hold = actor.follow(drain(scenario))      # the client stands still there
        proof = actor.kill("kill@audit#2", hold)
        print(scene.evidence())

Nothing here judges; `run.py` does whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from harness.client import Client, ClientHost, ClientLimits
from harness.database import Laboratory, open_laboratory, open_server
from harness.evidence import read_evidence
from harness.limits import HOLD_WAIT_S, KILL_WAIT_S, PROGRAM_WALL_S
from harness.proxy import Lane, Proxy
from harness.records import CallResult, Died, EndKind, Evidence, Hold, Kill, Policy, Stop
from harness.scenario import Scenario
from harness.script import Call, Script
from harness.seeding import seed
from harness.waiting import wait_until

Seeder = Callable[[psycopg.Connection[Any]], None]
#: Hears what happens on a scene: the scene, what it was (stage, look, rival, kill, close), and details.
Observer = Callable[["Scene", str, tuple[Any, ...]], None]


class Workshop:
    """What is started once: server, database, proxy, fork server. Made by `open_workshop`."""

    def __init__(self, laboratory: Laboratory, proxy: Proxy, host: ClientHost) -> None:
        self.laboratory = laboratory
        self.proxy = proxy
        self.host = host
        #: What a client may use where nothing else is said.
        self.limits = ClientLimits()
        #: Whether a client has run into a limit; whoever asks sets it back.
        self.limit_broken = False
        self.observer: Observer | None = None

    @contextmanager
    def scene(
        self, scenario: Scenario | Seeder | None = None, *, told_as: Any = None
    ) -> Iterator[Scene]:
        """Clean the rows, write `scenario`, and end every actor when the scene is over.

        What is no `Scenario` writes itself: it is called with the owner's connection. An observer is
        then told what was written with `told_as`.
        """
        self.laboratory.clear()
        scene = Scene(self)
        scene.lay(scenario, told_as)
        try:
            yield scene
        finally:
            scene.close()


@contextmanager
def open_workshop(
    *,
    source: str | None = None,
    private: bool = False,
    spawn: bool = False,
    keep: bool = False,
    host: ClientHost | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Workshop]:
    """Find or start PostgreSQL, make a clean database, start the proxy and the fork server.

    Args:
        private: Use a server of this workshop's own, which may be crashed.
        spawn: Start a fresh interpreter for each client instead of forking.
        keep: Leave the database and its roles behind.
        host: Start clients with this host, which stays open, instead of one of its own.

    Raises:
        DatabaseProblem: If no server can be used; its `next_step` says what to do.
    """
    with ExitStack() as stack:
        # The fork server first: it must start before any thread or connection exists.
        host = host or stack.enter_context(ClientHost(spawn=spawn))
        server = stack.enter_context(open_server(source=source, private=private, progress=progress))
        host.keep_from(server.secrets)
        laboratory = stack.enter_context(open_laboratory(server, keep=keep))
        proxy = stack.enter_context(Proxy(server.upstream, laboratory.xact_status))
        yield Workshop(laboratory, proxy, host)


class Scene:
    """One run's stage. Actors are ended with it."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.laboratory = workshop.laboratory
        self._actors: list[Actor] = []
        self._rivals: list[int] = []
        self._ledger = True

    def lay(self, scenario: Scenario | Seeder | None, told_as: Any = None) -> None:
        """Write the scenario's rows; the tables must be empty."""
        self.tell("stage", told_as or scenario)
        # The batch's scenarios leave the ledger's tables empty; its own are told as something else.
        self._ledger = not isinstance(told_as or scenario, Scenario)
        if isinstance(scenario, Scenario):
            seed(self.laboratory.control, scenario)
        elif scenario is not None:
            scenario(self.laboratory.control)

    def restage(self, scenario: Scenario | Seeder) -> None:
        """Put clean rows with `scenario` under the actors, who stay; none may be in a transaction.

        For checks that make many small calls: a client costs ten times what its rows cost.
        """
        self.laboratory.wipe()
        self.lay(scenario)

    def actor(
        self,
        impl: Path,
        *,
        stop: Stop | None = None,
        limits: ClientLimits | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start a client that answers calls; the stop is armed before it connects.

        `settings` of the server hold in its sessions from the start, as if they were the defaults.
        """
        lane = self.workshop.proxy.lane(stop=stop)
        dsn = self._dsn(lane, settings)
        client = self.workshop.host.start_calls(impl, dsn, limits=limits or self.workshop.limits)
        return self._add(Actor(self, client, lane))

    def program(
        self,
        impl: Path,
        lab: int,
        arguments: Sequence[str],
        *,
        stop: Stop | None = None,
        limits: ClientLimits | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Actor:
        """Start the lab's program; ``{dsn}`` in an argument becomes the way through the proxy."""
        lane = self.workshop.proxy.lane(stop=stop)
        dsn = self._dsn(lane, settings)
        argv = [argument.replace("{dsn}", dsn) for argument in arguments]
        client = self.workshop.host.start_program(
            impl, lab, argv, limits=limits or self.workshop.limits
        )
        return self._add(Actor(self, client, lane, program=True))

    def command(
        self,
        command: Sequence[str],
        cwd: Path,
        *,
        stop: Stop | None = None,
        limits: ClientLimits | None = None,
    ) -> Actor:
        """Start any program; it finds the database in DATABASE_URL, and in libpq's variables."""
        lane = self.workshop.proxy.lane(stop=stop)
        dsn = self._dsn(lane, None)
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password",
                 "PGDATABASE": "dbname", "PGSSLMODE": "sslmode", "PGGSSENCMODE": "gssencmode"}  # fmt: skip
        env = {"DATABASE_URL": dsn, **{name: str(parts[key]) for name, key in names.items()}}
        caps = limits or self.workshop.limits
        client = self.workshop.host.start_command(command, env=env, cwd=cwd, limits=caps)
        return self._add(Actor(self, client, lane, program=True))

    def _dsn(self, lane: Lane, settings: Mapping[str, str] | None) -> str:
        dsn = self.laboratory.learner_dsn(lane.host, lane.port)
        if not settings:
            return dsn
        options = " ".join(
            f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items()
        )
        return f"{dsn}&options={quote(options, safe='')}"

    def _add(self, actor: Actor) -> Actor:
        self._actors.append(actor)
        return actor

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Return every actor so far, in the order of their start."""
        return tuple(self._actors)

    def tell(self, what: str, *details: Any) -> None:
        """Tell the workshop's observer, if there is one, what has just happened here."""
        if self.workshop.observer is not None:
            self.workshop.observer(self, what, details)

    def evidence(self) -> Evidence:
        """Read what the database holds on a fresh connection; changes by the harness are left out."""
        connection = self.laboratory.connect()
        try:
            evidence = read_evidence(connection, ledger=self._ledger)
        finally:
            connection.close()
        own = {self.laboratory.control.info.backend_pid, *self._rivals}
        changes = tuple(c for c in evidence.changes if c.backend_pid not in own)
        evidence = replace(evidence, changes=changes)
        self.tell("look", evidence)
        return evidence

    def rival(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Let another owner write: one statement in its own transaction. Returns the rows it changed."""
        rows = self.laboratory.control.execute(sql, parameters).rowcount
        self.tell("rival", sql, parameters)
        return rows

    @contextmanager
    def rival_transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Open a transaction of another owner and yield its connection; COMMIT is up to the caller.

        What is not committed when the block ends is rolled back.
        """
        connection = self.laboratory.connect()
        self._rivals.append(connection.info.backend_pid)
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()

    def never_the_victim(self, rival: psycopg.Connection[Any]) -> None:
        """See to it that in a deadlock with a client the client is the victim, where we may.

        The session that looks first finds the deadlock and ends itself. Only a superuser may look
        later; elsewhere either of the two may be the victim.
        """
        try:
            with rival.transaction():
                rival.execute("SET LOCAL deadlock_timeout = '60s'")
        except psycopg.errors.InsufficientPrivilege:
            return

    def wait_blocked_or_done(self, actor: Actor) -> bool:
        """Wait until the actor's session waits for a lock (True), or its call is over (False).

        Raises:
            DeadlineExpired: If neither becomes true within `HOLD_WAIT_S`.
        """
        ask = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s) AND wait_event_type = 'Lock'"
        control = self.laboratory.control

        def blocked() -> bool:
            return control.execute(ask, (list(actor.lane.backend_pids),)).fetchone() is not None

        def over() -> bool:
            return actor.client.answered() or not actor.client.running()

        wait_until(lambda: over() or blocked(), "the client is blocked or done", wait_s=HOLD_WAIT_S)
        return not over()

    def waits_for(self, pid: int, others: Sequence[int]) -> bool:
        """Tell whether the backend `pid` waits for a lock that one of the backends `others` holds."""
        ask = "SELECT pg_blocking_pids(%s) && %s::int[]"
        row = self.laboratory.control.execute(ask, (pid, list(others)), prepare=True).fetchone()
        return row == (True,)

    def blocked(self, actor: Actor, *others: int) -> bool:
        """Tell whether a session of the actor waits for a lock that one of the backends `others` holds."""
        return any(self.waits_for(pid, others) for pid in actor.lane.backend_pids)

    def terminate(self, pids: Sequence[int]) -> None:
        """End server sessions with pg_terminate_backend, and wait until they are gone."""
        ask = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY (%s)"
        self.laboratory.control.execute(ask, (list(pids),))
        self.laboratory.wait_backends_gone(pids)

    def close(self) -> None:
        """End every actor, whatever state it is in."""
        self.tell("close")
        for actor in self._actors:
            actor.close()
            if actor.client.wait().kind is EndKind.LIMIT:
                self.workshop.limit_broken = True


class Actor:
    """A client process and the lane of the proxy it talks through."""

    def __init__(self, scene: Scene, client: Client, lane: Lane, *, program: bool = False) -> None:
        self.scene = scene
        self.client = client
        self.lane = lane
        self._program = program
        self.calls: list[tuple[Call, CallResult]] = []
        self._script: Script | None = None
        self._pending: Call | None = None

    def call(self, lab: int, function: str, *args: Any, **kwargs: Any) -> CallResult:
        """Call one function and wait for its answer. The client must not have a stop armed."""
        self.client.call(lab, function, *args, **kwargs)
        result = self.client.result()
        self.calls.append((Call(lab, function, args, kwargs), result))
        return result

    def wait_connected(self) -> None:
        """Wait until the client is connected and its session is idle, or the process has ended."""
        wait_until(
            lambda: self.lane.idle or not self.client.running(),
            "the client is connected",
            wait_s=HOLD_WAIT_S,
        )

    def call_inside(
        self, lab: int, function: str, *args: Any, around: tuple[str, str] | None = None
    ) -> CallResult:
        """Call one function inside an outer transaction, and wait for its answer.

        The transaction is rolled back; with `around`, it runs these statements before and after the
        call, also when the call raised, and is committed.
        """
        self.client.call_inside(lab, function, *args, around=around)
        return self.client.result()

    def follow(self, script: Script) -> Hold | None:
        """Play a script until the client is held (its Hold is returned) or the script ends (None)."""
        self.start(script)
        return self.go_on()

    def start(self, script: Script) -> None:
        """Send the script's first call and do not wait; `go_on` plays the rest."""
        self._script = script
        self._send(next(script, None))

    def go_on(self, until: Callable[[], bool] = lambda: False) -> Hold | None:
        """Go on with the script, or the program, after `lane.release` or at the start; as `follow`.

        Returns None also when `until` has become true; then the actor is still `busy`.
        """
        while self.busy:
            hold = self.wait_hold(until)
            if hold is not None or self._working():
                return hold
            if self._pending is not None:
                self._take()
        return None

    def finish(self) -> None:
        """Play to the end; nothing may be armed. Cheaper than `go_on`, which watches for a hold."""
        while self.busy:
            if self._pending is None:
                self.client.wait()
            else:
                self._take()

    def _take(self) -> None:
        """Take the answer of the pending call and send the next one."""
        assert self._pending is not None
        result = self.client.result()
        self.calls.append((self._pending, result))
        self._send(self._next_call(result))

    @property
    def busy(self) -> bool:
        """Tell whether the script, or the program, is not over."""
        return self.client.running() if self._program else self._pending is not None

    def wait_hold(self, until: Callable[[], bool] = lambda: False) -> Hold | None:
        """Wait until the client stands still at its stop; None when it answered or ended instead.

        The wait is as long as a client may live: one that never gets anywhere ends by its limits.
        """
        return self.lane.wait_hold(
            PROGRAM_WALL_S + KILL_WAIT_S, alive=lambda: self._working() and not until()
        )

    def _working(self) -> bool:
        return self.client.running() and not self.client.answered()

    def _send(self, call: Call | None) -> None:
        self._pending = call
        if call is not None:
            self.client.call(call.lab, call.function, *call.args, **call.kwargs)

    def _next_call(self, result: CallResult) -> Call | None:
        if self._script is None or isinstance(result, Died):
            return None
        try:
            return self._script.send(result)
        except StopIteration:
            return None

    def kill(self, fault: str, hold: Hold, policy: Policy = Policy.ABORT) -> Kill:
        """Kill the held client, let go of its connection as the policy says, and prove both."""
        ended = self.client.kill()
        self.lane.cut(policy)
        if policy is not Policy.LEAVE_OPEN:
            self.scene.laboratory.wait_backends_gone(self.lane.backend_pids)
        why = "" if ended.killed else f"the process ended by itself: {ended.kind}"
        kill = Kill(fault, hold, ended, policy, ended.killed, why)
        self.scene.tell("kill", self, kill)
        return kill

    def close(self) -> None:
        """End the client, close its lane, and wait until the server has let go of its sessions."""
        self.client.close()
        self.lane.close()
