"""One call of a lab's function, for a learner who wants to look: no checks, no points, no faults.

A *trial* is a function, its arguments, and the scenario that stands in the clean database before the
call. Arguments come from the command line as JSON, or else from the scenario: what the story would
pass.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from harness import contract
from harness.course import Lab
from harness.records import Seen
from harness.scenario import Scenario, unregistered

#: Chunks that a trial's drain may run: more than any scenario of a trial has.
DRAIN_CHUNKS = 1_000
#: Contract values that a function takes; a JSON object with exactly their fields becomes one.
_VALUES = (contract.ApprovedOrder, contract.Outcome)
#: What the story passes to each function of track A.
_STORY: Mapping[str, Callable[[Scenario], tuple[Any, ...]]] = {
    "register_job": lambda s: (s.job_id, s.tenant, list(s.approval), s.chunk_size),
    "cancel_orders": lambda s: (s.tenant, list(s.approval[s.next_index :][: s.chunk_size])),
    "run_chunk": lambda s: (s.job_id,),
    "verify_progress": lambda s: (s.job_id,),
    "resume_chunk": lambda s: (s.job_id,),
    "drain": lambda s: (s.job_id, DRAIN_CHUNKS),
    "report": lambda s: (s.job_id,),
    "main": lambda s: ("--dsn", "{dsn}", "--job", s.job_id),
}


class NoArguments(ValueError):
    """A function's arguments are not known and none were given; the text says so."""


def stage(function: str, scenario: Scenario) -> Scenario:
    """Return what stands in the database: registration starts from a job that is not there."""
    return unregistered(scenario) if function == "register_job" else scenario


def arguments(lab: Lab, function: str, texts: Sequence[str], scenario: Scenario) -> tuple[Any, ...]:
    """Return the arguments of a trial: those given, else those of the story.

    Args:
        texts: JSON each; a text that is no JSON is taken as a string. For a program, plain words.

    Raises:
        NoArguments: If none are given and the story has none.
    """
    if texts and function == "main":
        return tuple(texts)
    if texts:
        return tuple(_value(text) for text in texts)
    if function in _STORY:
        return _STORY[function](scenario)
    raise NoArguments(f"lab {lab.number}: {function} needs its arguments, as JSON")


def show(value: Any) -> str:
    """Return a value as Python would write it, objects by the name of their type."""
    if isinstance(value, Seen):
        fields = ", ".join(f"{name}={show(item)}" for name, item in value.fields.items())
        return f"{value.type_name}({fields})"
    if dataclasses.is_dataclass(value) or not isinstance(value, (list, tuple, dict)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{show(k)}: {show(v)}" for k, v in value.items()) + "}"
    inside = ", ".join(show(item) for item in value)
    return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"


def _value(text: str) -> Any:
    try:
        return json.loads(text, object_hook=_object)
    except json.JSONDecodeError:
        return text


def _object(fields: dict[str, Any]) -> Any:
    """Make the contract's value, or a duration, of an object that has its fields."""
    for kind in _VALUES:
        if set(fields) == {field.name for field in dataclasses.fields(kind)}:
            return kind(**fields)
    if fields and set(fields) <= {"seconds", "minutes", "milliseconds"}:
        return timedelta(**fields)
    return fields
