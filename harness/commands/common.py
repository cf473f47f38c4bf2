"""What every command shares: exit statuses, options, and how trouble is told."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from harness.course import Lab, lab
from harness.records import Verdict


class Terminal(Console):
    """A console whose reader may leave (`lab check | head`): the command goes on without a word."""

    def on_broken_pipe(self) -> None:
        """Print nothing from here on; what is left in buffers must not fail at exit either."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


out = Terminal()
err = Terminal(stderr=True)


class Exit(IntEnum):
    """The exit statuses of `lab`."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    HARNESS = 3


Impl = Annotated[
    str,
    typer.Option(
        "--impl", help="Whose code runs: labs, solutions, or a folder with labNN_* in it."
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", dir_okay=False, help="Also write the result as JSON."),
]

HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        dir_okay=False,
        help="Also write a page to step through what happened.",
    ),
]


def usage(message: str) -> NoReturn:
    """End with status 2 and one clear line."""
    err.print(f"[bold red]lab:[/] {escape(message)}", highlight=False)
    raise typer.Exit(Exit.USAGE)


def chosen_lab(number: int) -> Lab:
    """Return lab `number`, or end with status 2."""
    try:
        return lab(number)
    except LookupError as problem:
        usage(str(problem))


def exit_for(verdict: Verdict) -> Exit:
    """Return the exit status of a verdict: void and error are ours, not the learner's."""
    if verdict in (Verdict.PASS, Verdict.SKIP):
        return Exit.PASSED
    return Exit.FAILED if verdict is Verdict.FAIL else Exit.HARNESS


@contextmanager
def trouble_told() -> Iterator[None]:
    """Turn the harness's own troubles into a message with a next step and exit status 3.

    SIGTERM is turned into an ordinary exit, so that a command that is asked to stop cleans up.
    """
    from harness.database import DatabaseProblem
    from harness.waiting import DeadlineExpired

    signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    except DatabaseProblem as problem:
        err.print(f"[bold magenta]No PostgreSQL to work with:[/] {problem}", highlight=False)
        err.print(f"Next step: {problem.next_step}", highlight=False)
        raise typer.Exit(Exit.HARNESS) from None
    except DeadlineExpired as expired:
        err.print(f"[bold magenta]The harness waited in vain:[/] {expired}", highlight=False)
        err.print("This is the kit's trouble, not yours. Try again; `lab doctor` looks for causes.")
        raise typer.Exit(Exit.HARNESS) from None


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
