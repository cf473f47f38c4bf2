"""Values keep their meaning between client and harness, and no bytes can do harm."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from harness import contract
from harness.process import values
from harness.records import Seen

ARGUMENTS = {
    "plain": [None, True, 7, -1.5, "é\n\u0000", ""],
    "tuple in a list": [(1, (2, ()))],
    "keys that are not text": {1: "a", (2, 3): "b", "c": None},
    "a key that looks like a tag": {"tuple": [1], "object": 2},
    "infinite": [math.inf, -math.inf],
    "time": [timedelta(minutes=5, microseconds=3), timedelta(-1), datetime(2026, 3, 1, tzinfo=UTC)],
    "contract": [contract.ApprovedOrder(7, 1, 2), contract.Outcome("failed", "late")],
    "nested contract": contract.Reconciliation(
        contract.Totals(None, 0, 0, 0, False), contract.Totals(3, 1, 1, 1, True), True
    ),
}


@pytest.mark.parametrize("value", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_an_argument_arrives_as_it_was(value: Any) -> None:
    assert values.decode_arguments(travel(value)) == value


class Text(str):
    def __str__(self) -> str:
        return "a lie"


class Number(int):
    pass


class State(enum.Enum):
    DONE = "done"


class Slotted:
    __slots__ = ("_hidden", "a")

    def __init__(self) -> None:
        self.a, self._hidden = 1, 2

    @property
    def twice(self) -> int:
        return 2 * self.a


class Raising:
    fine = property(lambda self: 1)
    broken = property(lambda self: 1 / 0)


Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Own:
    order_id: int
    items: tuple[int, ...]


RESULTS = {
    "tuples and sets are lists": ((1, (2,), {3}, range(2)), [1, [2], [3], [0, 1]]),
    "subclasses are plain": ([Text("x"), Number(3), State.DONE], ["x", 3, Seen("State", {"name": "DONE", "value": "done"})]),
    "a whole Decimal is a number": ([Decimal(3), Decimal("3.00"), Decimal("1.5"), Decimal("1e9999"), Decimal("NaN")], [3, 3, "1.5", "1E+9999", "NaN"]),
    "times are text": ([datetime(2026, 3, 1, tzinfo=UTC), timedelta(hours=1)], ["2026-03-01T00:00:00+00:00", "1:00:00"]),
    "uuid": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "dict": ({1: (2,), (3, 4): "x"}, {1: [2], (3, 4): "x"}),
    "a dataclass": (Own(7, (1, 2)), Seen("Own", {"order_id": 7, "items": [1, 2]})),
    "a namedtuple": (Pair(1, 2), Seen("Pair", {"left": 1, "right": 2})),
    "a namespace": (SimpleNamespace(a=1, _b=2), Seen("SimpleNamespace", {"a": 1})),
    "slots and properties": (Slotted(), Seen("Slotted", {"a": 1, "twice": 2})),
    "an attribute that raises": (Raising(), Seen("Raising", {"fine": 1})),
    "a lone surrogate": ("\ud800", "\\ud800"),
    "a contract value": (contract.ChunkResult((1, 2), 2, True), Seen("ChunkResult", {"processed": [1, 2], "next_index": 2, "complete": True})),
}  # fmt: skip


@pytest.mark.parametrize(("value", "seen"), RESULTS.values(), ids=RESULTS.keys())
def test_a_result_is_seen_by_value(value: Any, seen: Any) -> None:
    assert values.decode_result(travel(value)) == seen


def test_a_nan_does_not_break_the_line() -> None:
    assert math.isnan(values.decode_result(travel(math.nan)))


def test_a_generator_is_named_and_not_consumed() -> None:
    numbers = iter([1, 2])
    generator = (n for n in numbers)
    assert values.decode_result(travel(generator)) == Seen("generator", {})
    assert list(numbers) == [1, 2]


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Endless:
    def __init__(self) -> None:
        self.left = self
        self.right = self


REFUSED = {
    "circular": (circular, "nested deeper than"),
    "deep": (lambda: deep(50_000), "nested deeper than"),
    "endless objects": (Endless, "nested deeper than|larger than"),
    "a long text": (lambda: "x" * (100 << 20), "larger than"),
    "many items": (lambda: [None] * (5 << 20), "larger than"),
    "a huge number": (lambda: 1 << 100_000, "integer"),
}


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_cannot_travel_is_refused_in_words(make: Any, reason: str) -> None:
    with pytest.raises(values.BadValue, match=reason):
        values.encode(make())


GARBAGE = [
    "{}",
    '{"a": 1, "b": 2}',
    '{"pickle": "gASV"}',
    '{"object": ["X"]}',
    '{"object": [1, {}]}',
    '{"object": ["X", []]}',
    '{"object": ["X", {"a": {"object": 3}}]}',
    '{"dict": [1]}',
    '{"dict": [[{"dict": []}, 1]]}',
    '{"dict": [[[[1]], 1]]}',
    '{"tuple": 5}',
    '{"float": "one"}',
    '{"float": []}',
    '{"timedelta": [1]}',
    '{"timedelta": [1e300, 1, 1]}',
    '{"timedelta": [NaN, 1, 1]}',
    '{"timedelta": "abc"}',
    '{"datetime": 5}',
    '{"__class__": "os"}',
]


@pytest.mark.parametrize("text", GARBAGE)
def test_garbage_is_a_bad_value_and_nothing_else(text: str) -> None:
    with pytest.raises(values.BadValue):
        values.decode_result(json.loads(text))


def test_nesting_that_json_takes_is_no_crash() -> None:
    data: Any = None
    for _ in range(100_000):
        data = [data]
    with pytest.raises(values.BadValue):
        values.decode_result(data)
    while data is not None:  # unnest by hand: the interpreter's own way down is recursive
        data = data[0]


def travel(value: Any) -> Any:
    """Return what the other side parses, after a real trip through text."""
    return json.loads(json.dumps(values.encode(value), allow_nan=False))
