"""The harness's end of a client's call socket: calls out, answers in, and no trust in the bytes.

The other end is in the hands of the learner's code. Whatever it writes ends as a value: an answer, or a
`Raised` with phase 'protocol' that says what was wrong. See `child.py` for the lines.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from harness import limits
from harness.process import values
from harness.records import ConnectionState, Raised, Returned


class Answers:
    """Calls to one client, one at a time, and their answers."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.RLock()
        self._bytes = bytearray()
        self._id = 0
        self._waiting = False
        #: Why no answer will come any more, or "".
        self.broken = ""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def send(
        self,
        lab: int,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        inside: bool | Sequence[str] = False,
    ) -> None:
        """Send one call. The client reads it before it does anything else, so this does not wait.

        With `inside`, the client makes the call in an outer transaction that is rolled back; or, where
        `inside` is two statements, that runs them before and after the call and is committed.
        """
        assert not self._waiting, "the answer of the call before was not taken"
        self._id += 1
        self._waiting = True
        arguments = values.encode([list(args), dict(kwargs)], bytes_max=1 << 30)
        call = {"id": self._id, "lab": lab, "function": function, "arguments": arguments}
        call["inside"] = inside
        try:
            self._socket.settimeout(
                limits.CLIENT_WALL_S
            )  # a client that never reads is killed there
            self._socket.sendall(json.dumps(call).encode() + b"\n")
        except OSError:
            pass  # it has ended, or will be ended for not reading: the result says so
        finally:
            self._socket.setblocking(False)

    def complete(self) -> bool:
        """Tell whether a whole answer is here. Reads what has come, never waits."""
        with self._lock:
            while not self.broken and b"\n" not in self._bytes:
                try:
                    data = self._socket.recv(1 << 18)
                except BlockingIOError:
                    break
                except OSError:
                    data = b""
                if not data:
                    self.broken = "the client closed the socket that its answers go out on"
                self._bytes += data
                if len(self._bytes) > limits.CLIENT_RESULT_BYTES:
                    self.broken = f"the answer is longer than {limits.CLIENT_RESULT_BYTES:,} bytes"
                    self._bytes.clear()
            return self._waiting and b"\n" in self._bytes

    def take(self, output: tuple[str, ...]) -> Returned | Raised:
        """Return the answer that is here; when it makes no sense, `broken` says why."""
        with self._lock:
            line, _, rest = bytes(self._bytes).partition(b"\n")
            self._bytes[:] = rest
            self._waiting = False
            try:
                answer = json.loads(line)
                if answer["id"] != self._id:
                    raise values.BadValue("it answers another call")
                if rest:
                    raise values.BadValue("there is more than one")
                return _result(answer, output)
            except (values.BadValue, ValueError, TypeError, LookupError, RecursionError) as error:
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                self.broken = f"the answer makes no sense ({values.printable(reason)})"
                return self.refusal(output)

    def refusal(self, output: tuple[str, ...]) -> Raised:
        """Return the result of a call whose answer was spoiled."""
        self.abandon()
        bases = ("Exception", "BaseException")
        return Raised("ProtocolError", bases, self.broken, None, (), "protocol", None, output)

    def abandon(self) -> None:
        """Expect no answer to the last call any more."""
        self._waiting = False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _result(answer: Mapping[str, Any], output: tuple[str, ...]) -> Returned | Raised:
    state = answer["connection"]
    connection = None if state is None else ConnectionState(
        _checked(state["autocommit"], bool), _text(state["transaction"]), _checked(state["closed"], bool)
    )  # fmt: skip
    if "raised" in answer:
        return _raised(answer["raised"], connection, output)
    if connection is None:
        connection = ConnectionState(autocommit=False, transaction="UNKNOWN", closed=True)
    return Returned(values.decode_result(answer["returned"]), connection, output)


def _raised(
    error: Mapping[str, Any], connection: ConnectionState | None, output: tuple[str, ...]
) -> Raised:
    sqlstate = error["sqlstate"]
    return Raised(
        type_name=_text(error["type_name"]),
        bases=_texts(error["bases"]),
        text=_text(error["text"]),
        sqlstate=None if sqlstate is None else _text(sqlstate),
        traceback=_texts(error["traceback"]),
        phase=_text(error["phase"]),
        connection=connection,
        output=output,
    )


def _checked(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise values.BadValue(f"{kind.__name__} expected")
    return value


def _text(value: Any) -> str:
    return values.printable(_checked(value, str))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(item) for item in _checked(value, list))
