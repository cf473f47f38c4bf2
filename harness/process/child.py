"""What runs inside a client process: load the learner's code, call it, tell what came of it.

This is the only process that imports a learner's file, and everything here may be changed under our
feet by that file. So nothing in the harness depends on this code being honest: it only has to be
*helpful*, and the harness checks every byte it sends.

In call mode the client connects first, then answers calls, one line of JSON each::

    > {"id": 1, "lab": 3, "function": "run_chunk", "arguments": [["job-7"], {}]}
    < {"id": 1, "returned": {"object": ["ChunkResult", ...]}, "connection": {...}}
    < {"id": 1, "raised": {"type_name": "Conflict", ...}, "connection": {...}}

In program mode it imports the lab's module and exits with ``main(argv)``.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from harness import contract, course, limits  # noqa: F401 - contract: before any learner's folder
from harness.process import sandbox, values
from harness.process.birth import CALLS_FD, PLAN_VARIABLE
from harness.process.mistakes import describe_error, missing_file, missing_function

#: The package that stands above the lab folders, so that `from ..lab02_change.change` works wherever
#: they are. It has no file; its path is the implementation's folder.
PACKAGE = "submission"


def run(plan: dict[str, Any]) -> NoReturn:
    """Be the client that `plan` describes, then end without unwinding into what forked us.

    Exit handlers and destructors of the learner's do not run: a client must not depend on them.
    """
    code = 70  # our own trouble
    try:
        _prepare(plan)
        if plan["shut_in"]:
            sandbox.shut_in(plan["forbidden"], [os.getcwd(), "/dev"])
        if plan["mode"] == "calls":
            code = _serve_calls(plan)
        else:
            code = _run_program(plan)
        _flush()
    except BaseException:
        traceback.print_exc()
        _flush()
    finally:
        os._exit(code)


def isolate() -> None:
    """See to it that only the kit and installed packages can be imported, and always from source.

    Done once in the fork server, for all who are forked from it.
    """
    sys.dont_write_bytecode = True
    sys.pycache_prefix = "/nonexistent/no-bytecode-is-read"
    # The checkout holds labs/, solutions/ and tests/, and a submission may have folders of these names.
    if (course.ROOT / "labs").is_dir():
        sys.path[:] = [p for p in sys.path if p and Path(p).resolve() != course.ROOT]


def _prepare(plan: dict[str, Any]) -> None:
    package = ModuleType(PACKAGE)
    package.__path__ = [plan["impl"]]
    sys.modules[PACKAGE] = package
    # A line is out when it is printed: what a killed client said must not hang in a buffer. The
    # streams that the fork server had are not reused, they believe that they stand on /dev/null.
    # (typeshed calls the two dunder names final; whoever saved one must not keep the old stream.)
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]


def _stream(fd: int) -> TextIOWrapper:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue  # the learner's code closed it


# --- call mode ------------------------------------------------------------------------------------


def _serve_calls(plan: dict[str, Any]) -> int:
    """Connect, answer calls until the harness closes the socket, return the exit status."""
    # Bound before the learner's code is loaded, which may replace them in their modules.
    loads, dumps, encode, decode = json.loads, json.dumps, values.encode, values.decode_arguments
    calls = socket.socket(fileno=CALLS_FD)
    impl = Path(plan["impl"])
    conn, failed = _connect(plan["dsn"], impl)
    for line in calls.makefile("rb"):
        call = loads(line)
        answer = failed or _answer(conn, impl, call, encode, decode)
        frame = {"id": call["id"], "connection": _connection_state(conn)}
        text = dumps({**frame, **answer})
        if len(text) >= limits.CLIENT_RESULT_BYTES:
            answer = {"raised": describe_error(values.too_large(), impl, PACKAGE, "result")}
            text = dumps({**frame, **answer})
        _flush()  # what was printed is in the pipe before the answer is
        calls.sendall(text.encode() + b"\n")
    return 0


def _connect(dsn: str, impl: Path) -> tuple[Any, dict[str, Any] | None]:
    import psycopg

    try:
        return psycopg.connect(dsn, autocommit=True), None
    except BaseException as error:
        return None, {"raised": describe_error(error, impl, PACKAGE, "connect")}


def _answer(
    conn: Any,
    impl: Path,
    call: dict[str, Any],
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
) -> dict[str, Any]:
    phase = "import"
    try:
        lab = course.lab(call["lab"])
        if not (impl / lab.file).is_file():
            return {"raised": missing_file(lab, impl)}
        module = importlib.import_module(f"{PACKAGE}.{lab.folder}.{lab.module}")
        phase = "lookup"
        function = getattr(module, call["function"], None)
        if not callable(function):
            return {"raised": missing_function(lab, call["function"], function)}
        phase = "call"
        args, kwargs = decode(call["arguments"])
        value = _call(conn, lambda: function(conn, *args, **kwargs), call["inside"])
        phase = "result"
        return {"returned": encode(value)}
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too: leaving is not an answer.
        return {"raised": describe_error(error, impl, PACKAGE, phase)}


def _call(conn: Any, function: Callable[[], Any], inside: bool | list[str]) -> Any:
    """Call on its own, in an outer transaction that is rolled back, or in one with work of its own."""
    if not inside:
        return function()
    if inside is True:
        with conn.transaction(force_rollback=True):
            return function()
    before, after = inside
    value, caught = None, None
    with conn.transaction():
        conn.execute(before)
        try:
            value = function()
        except Exception as error:
            caught = error  # as a caller who knows what to do about it, and goes on
        conn.execute(after)
    if caught is not None:
        raise caught
    return value


def _connection_state(conn: Any) -> dict[str, Any] | None:
    if conn is None:
        return None
    try:
        return {
            "autocommit": bool(conn.autocommit),
            "transaction": str(conn.info.transaction_status.name),
            "closed": bool(conn.closed),
        }
    except Exception:
        return None


# --- program mode ---------------------------------------------------------------------------------


def _run_program(plan: dict[str, Any]) -> int:
    """Do what ``sys.exit(main(argv))`` at the end of a file does; return the exit status."""
    lab = course.lab(plan["lab"])
    impl = Path(plan["impl"])
    sys.argv = [lab.file, *plan["argv"]]
    phase = "import"
    try:
        if not (impl / lab.file).is_file():
            return _complain(missing_file(lab, impl))
        module = importlib.import_module(f"{PACKAGE}.{lab.folder}.{lab.module}")
        if not callable(main := getattr(module, "main", None)):
            return _complain(missing_function(lab, "main", main))
        phase = "call"
        sys.exit(main(list(plan["argv"])))
    except SystemExit as leaving:
        return _exit_status(leaving.code)
    except BaseException as error:
        return _complain(describe_error(error, impl, PACKAGE, phase))


def _exit_status(code: object) -> int:
    """Return what the interpreter makes of a SystemExit's argument."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _complain(error: dict[str, Any]) -> int:
    lines = [*error["traceback"], f"{error['type_name']}: {error['text']}"]
    print("\n".join(lines), file=sys.stderr)
    return 1


if __name__ == "__main__":
    given = json.loads(os.environ.pop(PLAN_VARIABLE))
    os.environ.pop("PYTHONPATH", None)
    isolate()
    run(given)
