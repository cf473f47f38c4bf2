"""The director: one thread that does what a page asks for, and tells what has become of it.

A stage may be used by one thread only, and a command may take a second; a server's loop may not wait
that long. So commands are queued here, one at a time, and every change is published as a whole view.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from harness import limits
from harness.activity import activities, sized
from harness.client import ClientTrouble
from harness.faults import FaultLineError, parse_fault
from harness.gate.lane import ProxyError
from harness.impl import UnknownImpl, find_impl
from harness.live.stage import BOARD_KINDS, Choice, NotNow, Stage, playable
from harness.records import POINT_ALIASES
from harness.waiting import DeadlineExpired
from harness.workshop import Workshop

Command = dict[str, Any]
_ON_WORKER = frozenset({"step", "run", "pause", "freeze", "thaw", "kill"})
#: Commands of one page that wait; a page that sends more is not a person's.
_QUEUE_MAX = 50


class Director:
    """Owns the stage. `publish` is called from its thread with a view after every change."""

    def __init__(
        self, workshop: Workshop, publish: Callable[[dict[str, Any]], None], impls: tuple[str, ...]
    ) -> None:
        self._stage = Stage(workshop)
        self._publish = publish
        self._impls = impls
        self._commands: queue.Queue[Command | None] = queue.Queue(_QUEUE_MAX)
        self._thread = threading.Thread(target=self._work, name="board")
        self._thread.start()

    def ask(self, command: Command) -> bool:
        """Queue a command; tell whether there was room."""
        try:
            self._commands.put_nowait(command)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """End what is on the stage, and the thread. May be repeated."""
        self._commands.put(None)
        self._thread.join()

    def _work(self) -> None:
        try:
            while (command := self._next()) is not None:
                if command or self._stage.restless:
                    self._turn(command)
        finally:
            self._stage.close()

    def _next(self) -> Command | None:
        """Return the next command; an empty one when clients are on their way and none has come."""
        try:
            return self._commands.get(timeout=limits.BOARD_PACE_S if self._stage.restless else None)
        except queue.Empty:
            return {}

    def _turn(self, command: Command) -> None:
        changed = bool(command)
        try:
            if command:
                self._stage.message = ""
                self._do(command)
            changed |= self._stage.look_around()
        except (NotNow, FaultLineError, UnknownImpl, ValueError) as refused:
            self._stage.message, changed = str(refused), True
        except (DeadlineExpired, ProxyError, ClientTrouble) as trouble:
            self._stage.close()
            self._stage.message, changed = f"The kit's trouble, not yours: {trouble}", True
        if changed:
            self._publish(self._stage.view())

    def _do(self, command: Command) -> None:
        action = command.get("action")
        if action == "start":
            self._stage.start(self._choice(command))
        elif action == "another":
            self._stage.another()
        elif action == "rival":
            self._stage.rival(_number(command, "order", 1, 2**62))
        elif action == "stop":
            self._stage.close()
        elif action in _ON_WORKER:
            getattr(self._stage, action)(_number(command, "worker", 1, 10_000))
        elif action != "view":
            raise NotNow("the page asked for something the board does not know")

    def _choice(self, command: Command) -> Choice:
        impl = str(command.get("impl", ""))
        if impl not in self._impls:
            raise NotNow(f"{impl!r} is none of the implementations this board was started with")
        name = str(command.get("activity", ""))
        activity = next((a for a in activities() if playable(a) and a.name == name), None)
        if activity is None:
            raise NotNow(f"{name!r} cannot be played on the board")
        orders = _number(command, "orders", 1, limits.BOARD_ORDERS_MAX)
        chunk = _number(command, "chunk", 1, limits.BOARD_ORDERS_MAX)
        line = str(command.get("fault", "")).strip()
        fault = parse_fault(line) if line else None
        if fault is not None and fault.kind not in BOARD_KINDS:
            kinds = ", ".join(BOARD_KINDS)
            raise NotNow(f"the board plays {kinds}; for {fault.kind} use: lab sweep --at '{line}'")
        return Choice(sized(activity, orders, chunk, 0), impl, find_impl(impl), fault)


def menus(impls: tuple[str, ...]) -> dict[str, Any]:
    """Return what a page's menus offer."""
    points = (*POINT_ALIASES.values(), "commit")
    return {
        "activities": [(a.name, f"lab {a.lab}: {a.name}") for a in activities() if playable(a)],
        "impls": impls,
        "faults": [*(f"kill@{p}#2" for p in points), "lose-reply@commit#2", "freeze@orders#2"],
        "orders_max": limits.BOARD_ORDERS_MAX,
    }


def _number(command: Command, name: str, least: int, most: int) -> int:
    value = command.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise NotNow(f"{name} has to be a number from {least} to {most}, not {value!r}")
    return value
