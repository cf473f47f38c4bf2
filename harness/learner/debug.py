"""A lab's function in a plain process on your terminal, so that `breakpoint()` works.

`lab run N --in-process` starts `python -m harness.learner.debug` with a plan in the environment. Unlike a
client under the checks, this process has the terminal, no limits, no proxy, and a session that may
wait: you can stand in the debugger for an hour with a transaction open.
"""

from __future__ import annotations

import bdb
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import course
from harness.learner import trial
from harness.process import values
from harness.process.child import PACKAGE
from harness.process.mistakes import describe_error

PLAN_VARIABLE = "INTERRUPTED_DEBUG"
#: The learner's role has short timeouts, which would end a session that stands at a breakpoint.
_PATIENT = "-c idle_in_transaction_session_timeout=0 -c lock_timeout=0"


def main() -> int:
    """Run the planned call, print what came of it, and return the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plan = json.loads(os.environ.pop(PLAN_VARIABLE))
    impl = Path(plan["impl"])
    package = ModuleType(PACKAGE)
    package.__path__ = [str(impl)]
    sys.modules[PACKAGE] = package
    sys.dont_write_bytecode = True
    try:
        value = _call(plan)
    except KeyboardInterrupt:
        return 130
    except bdb.BdbQuit:
        print("left the debugger; what was not committed is rolled back")
        return 1
    except Exception as error:
        told = describe_error(error, impl, PACKAGE, "call")
        lines = told["traceback"] or traceback.format_exception(error)
        print(*lines, f"{told['type_name']}: {told['text']}", sep="\n")
        return 1
    print(f"returned  {trial.show(value)}")
    return 0


def _call(plan: dict[str, Any]) -> Any:
    import psycopg

    lab = course.lab(plan["lab"])
    module = importlib.import_module(f"{PACKAGE}.{lab.folder}.{lab.module}")
    function = getattr(module, plan["function"])
    arguments = values.decode_arguments(plan["arguments"])
    if plan["function"] == "main":
        return function([str(a).replace("{dsn}", plan["dsn"]) for a in arguments])
    with psycopg.connect(plan["dsn"], autocommit=True, options=_PATIENT) as conn:
        return function(conn, *arguments)


if __name__ == "__main__":
    sys.exit(main())
