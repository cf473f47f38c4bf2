"""Scenes watched: what a graded check did to clients, told as moments, whatever the check is like.

    with watch(workshop) as scenes:
        play_the_check()
    for scene in scenes: ...

A check is a Python function that plays scenes as it likes, so there is no run to look at afterwards. A
workshop tells its observer what happens on a scene; with the boundaries of each client's lane, put in
the order of time, that is the same story that a run has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.limits import PAGE_SCENES_MAX
from harness.records import Kill
from harness.report.moments import Happened, Looked, Moment, Worked, ended_by, unit_times
from harness.scenario import Scenario
from harness.story import shorten
from harness.workshop import Actor, Scene, Workshop

_Note = tuple[float, str, tuple[Any, ...]]


@dataclass(frozen=True)
class WatchedScene:
    """One stage of a scene: the rows it began with, what happened, and who took part."""

    scenario: Scenario
    moments: list[Moment]
    actors: list[str]
    fault: str  # the line of the first kill, if there was one


@contextmanager
def watch(workshop: Workshop) -> Iterator[list[WatchedScene]]:
    """Watch the workshop's scenes; the list that is yielded has the last of them when they are over."""
    seen: list[WatchedScene] = []
    notes: list[_Note] = []

    def observe(scene: Scene, what: str, details: tuple[Any, ...]) -> None:
        notes.append((time.monotonic(), what, details))
        if what == "close":
            seen.extend(_stages(scene, notes))
            del seen[:-PAGE_SCENES_MAX]
            notes.clear()

    workshop.observer = observe
    try:
        yield seen
    finally:
        workshop.observer = None


def _stages(scene: Scene, notes: list[_Note]) -> Iterator[WatchedScene]:
    """Put boundaries and notes in order, and yield a scene for each time that rows were laid."""
    timed = [*_worked(scene, notes), *_noted(scene, notes)]
    timed.sort(key=lambda entry: entry[0])
    laid = [(at, details[0]) for at, what, details in notes if what == "stage"]
    for n, (start, scenario) in enumerate(laid):
        end = laid[n + 1][0] if n + 1 < len(laid) else float("inf")
        moments = [moment for at, moment in timed if start <= at < end]
        if isinstance(scenario, Scenario) and moments:
            kills = [d[1] for at, what, d in notes if what == "kill" and start <= at < end]
            names = [f"client {actor.client.pid}" for actor in scene.actors]
            yield WatchedScene(scenario, moments, names, kills[0].fault if kills else "")


def _worked(scene: Scene, notes: list[_Note]) -> Iterator[tuple[float, Moment]]:
    kills: dict[Actor, Kill] = {d[0]: d[1] for _, what, d in notes if what == "kill"}
    for who, actor in enumerate(scene.actors):
        boundaries = actor.lane.boundaries
        kill, last = kills.get(actor), 0.0
        held = kill.hold.boundary.number if kill and kill.hold else None
        for b, at in zip(boundaries, unit_times(boundaries, actor.lane.events), strict=True):
            last = at or last
            yield last, Worked(who, b, b.number != held, at)


def _noted(scene: Scene, notes: list[_Note]) -> Iterator[tuple[float, Moment]]:
    before = ""
    for at, what, details in notes:
        if what == "look":
            name = "after-fault" if before == "kill" else "after-resume"
            yield at, Looked(name, "a fresh connection", details[0])
        elif what == "kill":
            yield at, ended_by(scene.actors.index(details[0]), details[1])
        elif what == "rival":
            yield (
                at,
                Happened(f"another owner: {shorten(details[0])} {list(details[1]) or ''}".rstrip()),
            )
        before = what
