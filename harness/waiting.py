"""Wait for facts, never for time to pass.

A wait asks for a fact again and again until a named deadline. When the deadline expires, the error
says which fact never came and what was seen instead; that is trouble of the harness, not a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from harness.limits import POLL_S

T = TypeVar("T")


class DeadlineExpired(Exception):
    """A fact did not come in time. The text names the fact, the deadline and what was seen last."""


def wait_until(
    fact: Callable[[], T],
    what: str,
    *,
    wait_s: float,
    poll_s: float = POLL_S,
    dump: Callable[[], str] | None = None,
) -> T:
    """Ask for `fact` until its answer is true, and return that answer.

    Args:
        fact: Called at least once; an answer that counts as false means "not yet".
        what: The fact in words, for the error: "the server accepts connections".
        wait_s: Seconds until the wait is given up.
        poll_s: Seconds between two questions.
        dump: Called when the deadline expires; its text goes into the error.

    Raises:
        DeadlineExpired: If the fact has not come after `wait_s` seconds.
    """
    deadline = time.monotonic() + wait_s
    while not (answer := fact()):
        if time.monotonic() >= deadline:
            seen = f"\n{dump()}" if dump is not None else ""
            raise DeadlineExpired(f"after {wait_s:g} s still not true: {what}{seen}")
        time.sleep(poll_s)  # the one pause between two questions; the fact decides
    return answer
