"""`lab board`: the live board in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from harness.commands.common import Exit, out, trouble_told, usage
from harness.impl import UnknownImpl, find_impl

EPILOG = """Examples:
  lab board                       opens the board in your browser; Ctrl-C ends it
  lab board --impl ../submission  adds that folder to the menu
  lab board --no-open             prints the address only
"""


def board(
    impl: Annotated[
        list[str] | None,
        typer.Option("--impl", help="One more folder with labNN_* in it. Repeatable."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Step, freeze, thaw and kill real clients on a board in your browser."""
    from harness.live.server import Board, BoardServer, listen
    from harness.workshop import open_workshop

    impls = ("labs", "solutions", *(impl or ()))
    try:
        for name in impls:
            find_impl(name)
        opened = listen(port)
    except UnknownImpl as problem:
        usage(str(problem))
    except OSError as problem:
        usage(f"port {port} cannot be used: {problem.strerror}")
    with opened, trouble_told(), open_workshop() as workshop:
        made = Board(workshop, impls, opened.getsockname()[1])
        try:
            out.print(f"The board: {made.url}", highlight=False, soft_wrap=True)
            out.print(
                "Whoever has this address can move it. Ctrl-C ends it, and every client on it."
            )
            if browser:
                webbrowser.open(made.url)
            BoardServer(made).run(sockets=[opened])
        except KeyboardInterrupt:
            pass  # uvicorn repeats the signal once it has ended: that is how a board is closed
    raise typer.Exit(Exit.PASSED)
