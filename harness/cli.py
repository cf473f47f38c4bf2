"""The `lab` command.

Exit status: 0 all passed, 1 something failed, 2 usage, 3 harness or environment. Each family of
commands is one file in `harness/commands/`; heavy imports happen inside a command, so that `--help`
and a wrong option answer at once.
"""

from __future__ import annotations

import sys

import typer

from harness.commands import bench, board, check, demo, files, learn, notebook, run, server, sweep
from harness.commands.common import Exit

app = typer.Typer(
    name="lab",
    help="Build a PostgreSQL batch that is killed in the middle and still runs every order exactly once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=demo.EPILOG)(demo.demo)
app.command(epilog=bench.EPILOG)(bench.bench)
app.command(epilog=board.EPILOG)(board.board)
app.command(epilog=check.EPILOG)(check.check)
app.command(epilog=learn.STATUS_EPILOG)(learn.status)
app.command(epilog=learn.HINT_EPILOG)(learn.hint)
app.command(epilog=files.RESET_EPILOG)(files.reset)
app.command("catch-up", epilog=files.CATCH_UP_EPILOG)(files.catch_up)
app.command(epilog=files.DIFF_EPILOG)(files.diff)
app.command(epilog=notebook.EPILOG)(notebook.notebook)
app.command(epilog=run.EPILOG)(run.run)
app.command(epilog=sweep.EPILOG)(sweep.sweep)
app.command(epilog=server.DOCTOR_EPILOG)(server.doctor)
app.command(epilog=server.PSQL_EPILOG, context_settings={"ignore_unknown_options": True})(
    server.psql
)


def main() -> None:
    """Run the command line; Ctrl-C ends with status 130 after everything was cleaned up."""
    try:
        app()
    except OSError as error:
        if error.filename is None:
            raise
        print(f"lab: cannot write or read {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(Exit.HARNESS)


if __name__ == "__main__":
    main()
