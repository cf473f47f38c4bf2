"""Values that travel between the harness and a client, as JSON.

The two processes share nothing but a socket. What goes over it is *by value*: an object becomes the
name of its type and its public attributes. Nothing is pickled, so no byte from a client can make the
harness run code.

One encoding serves both directions. None, bool, int, finite float and str are themselves, a list is
an array, and everything else is an object with exactly one key, its *tag*::

    {"tuple": [...]}   {"dict": [[key, value], ...]}   {"float": "nan"}   {"timedelta": [d, s, us]}
    {"datetime": "2026-01-01T00:00:00+00:00"}   {"object": ["ApprovedOrder", {"order_id": 7, ...}]}

The two decoders differ in trust. `decode_arguments` runs in the client and rebuilds the contract's
classes. `decode_result` runs in the harness on bytes that may be hostile: it builds None, bool, int,
float, str, list, dict and `Seen`, and refuses everything else with `BadValue`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from harness import contract, limits
from harness.records import Seen

#: Objects of these packages are named and not looked into: a cursor's attributes lead everywhere.
OPAQUE_PACKAGES = frozenset({"builtins", "psycopg", "psycopg_binary", "psycopg_c"})


#: What one value is counted as beside its text: it costs the harness more memory than a line shows.
_VALUE_BYTES = 8


class BadValue(Exception):
    """A value cannot travel: too large, too deep, circular, or not in the encoding. The text says which."""


def too_large(bytes_max: int = limits.CLIENT_RESULT_BYTES) -> BadValue:
    """Return the error for a value that is larger than `bytes_max`."""
    return BadValue(f"the value is larger than {bytes_max:,} bytes")


def encode(value: Any, *, bytes_max: int = limits.CLIENT_RESULT_BYTES) -> Any:
    """Return what JSON can hold for `value`, about `bytes_max` bytes of text at most.

    Raises:
        BadValue: If it is larger, nested deeper than `limits.CLIENT_RESULT_DEPTH`, or circular.
    """
    return _Encoder(bytes_max).encode(value, 0)


def decode_arguments(data: Any) -> Any:
    """Return the value that `encode` made `data` of, with tuples, times and contract classes."""
    return _decode(data, _ARGUMENT_MAKERS)


def decode_result(data: Any) -> Any:
    """Return the value in `data`, parsed JSON that nobody vouches for.

    Raises:
        BadValue: If it is not in the encoding.
    """
    try:
        return _decode(data, _RESULT_MAKERS)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadValue(f"not a value: {type(error).__name__}: {str(error)[:200]}") from None


def printable(text: str) -> str:
    """Return `text` with lone surrogates escaped, so that it can be written anywhere."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# --- encoding -------------------------------------------------------------------------------------


class _Encoder:
    """One encoding under way, with what is left of its budget."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_left = bytes_max

    def encode(self, value: Any, depth: int) -> Any:
        """Return what JSON can hold for `value`; subclasses of the plain types become plain."""
        self._spend(_VALUE_BYTES)
        if depth > limits.CLIENT_RESULT_DEPTH:
            raise BadValue(
                f"the value is nested deeper than {limits.CLIENT_RESULT_DEPTH}, or contains itself"
            )
        if value is None or value is True or value is False:
            return value
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return self._integer(int.__index__(value))
        if isinstance(value, float):
            return _float(float.__float__(value))
        if isinstance(value, Decimal):
            return self._decimal(value)
        if isinstance(value, (list, tuple, set, frozenset, range)):
            return self._collection(value, depth)
        if isinstance(value, Mapping):
            pairs = [
                [self.encode(k, depth + 1), self.encode(v, depth + 1)] for k, v in value.items()
            ]
            return {"dict": pairs}
        if isinstance(value, timedelta):
            return {"timedelta": [value.days, value.seconds, value.microseconds]}
        if isinstance(value, datetime):
            return {"datetime": value.isoformat()}
        if isinstance(value, (date, time, UUID)):
            return self._text(str(value))
        return self._object(value, depth)

    def _spend(self, byte_count: int) -> None:
        self._bytes_left -= byte_count
        if self._bytes_left < 0:
            raise too_large(self._bytes_max)

    def _text(self, text: str) -> str:
        self._spend(len(text))
        return text

    def _integer(self, number: int) -> int:
        self._spend(number.bit_length() // 4)
        if number.bit_length() > limits.CLIENT_RESULT_INT_BITS:
            raise BadValue(f"the value holds an integer of {number.bit_length():,} bits")
        return number

    def _decimal(self, number: Decimal) -> Any:
        """Return a whole Decimal as int: `sum()` over bigint is numeric, and Decimal(3) == 3."""
        whole = number.is_finite() and abs(number.adjusted()) < 100 and number == int(number)
        return int(number) if whole else self._text(str(number))

    def _collection(self, value: Iterable[Any], depth: int) -> Any:
        if hasattr(value, "_fields"):
            return self._object(value, depth)
        items = [self.encode(item, depth + 1) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items

    def _object(self, value: Any, depth: int) -> Any:
        name = self._text(str(type(value).__name__))
        fields = {self._text(k): self.encode(v, depth + 1) for k, v in _public(value)}
        return {"object": [name, fields]}


def _float(number: float) -> Any:
    return number if math.isfinite(number) else {"float": repr(number)}


def _public(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public attributes of `value`; one that raises when it is read is left out."""
    for name in _public_names(value):
        try:
            yield name, getattr(value, name)
        except Exception:
            # As in the learner's own process, the attribute cannot be read; a check that needs it
            # will say that it is missing.
            continue


def _public_names(value: Any) -> list[str]:
    kind = type(value)
    if str(kind.__module__).partition(".")[0] in OPAQUE_PACKAGES:
        return []
    if isinstance(value, Enum):
        return ["name", "value"]
    names: list[str] = list(getattr(kind, "_fields", ()))
    if dataclasses.is_dataclass(value):
        names += [field.name for field in dataclasses.fields(value)]
    names += list(getattr(value, "__dict__", ()))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
        names += [name for name, item in base.__dict__.items() if isinstance(item, property)]
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and name[:1] != "_"]


# --- decoding -------------------------------------------------------------------------------------

_Makers = Mapping[str, Callable[[Any], Any]]


def _decode(data: Any, makers: _Makers) -> Any:
    if data is None or isinstance(data, (bool, int, float)):
        return data
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, list):
        return [_decode(item, makers) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("an object that is not one tag")
    ((tag, content),) = data.items()
    if tag not in makers:
        raise ValueError(f"unknown tag {tag[:40]!r}")
    if tag == "object":
        name, fields = content
        content = (printable(name), {printable(k): _decode(v, makers) for k, v in fields.items()})
    elif tag == "dict":
        content = {_key(_decode(k, makers)): _decode(v, makers) for k, v in content}
    elif tag == "tuple":
        content = [_decode(item, makers) for item in content]
    return makers[tag](content)


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def _contract_object(content: tuple[str, dict[str, Any]]) -> Any:
    name, fields = content
    return getattr(contract, name)(**fields)


def _seen(content: tuple[str, dict[str, Any]]) -> Seen:
    name, fields = content
    return Seen(name, fields)


def _text_only(content: Any) -> str:
    if not isinstance(content, str):
        raise ValueError("text expected")
    return printable(content)


def _duration(content: Any) -> timedelta:
    days, seconds, microseconds = content
    return timedelta(days, seconds, microseconds)


def _duration_text(content: Any) -> str:
    try:
        return str(_duration(content))
    except OverflowError:
        raise ValueError("a duration out of range") from None


_ARGUMENT_MAKERS: _Makers = {
    "tuple": tuple,
    "dict": dict,
    "float": float,
    "timedelta": _duration,
    "datetime": datetime.fromisoformat,
    "object": _contract_object,
}
_RESULT_MAKERS: _Makers = {
    "tuple": list,
    "dict": dict,
    "float": float,
    "timedelta": _duration_text,
    "datetime": _text_only,
    "object": _seen,
}
