"""`lab reset`, `lab catch-up` and `lab diff`: the learner's files, the pristine and the worked ones.

Whatever replaces a learner's file makes a backup first and says where.
"""

from __future__ import annotations

import difflib
from typing import Annotated

import typer
from rich.text import Text

from harness.commands.common import Exit, chosen_lab, out, usage
from harness.commands.learn import tell
from harness.course import COURSE, LABS, ROOT, SOLUTIONS, Lab
from harness.learner import pristine
from harness.learner.progress import forget, load, record

RESET_EPILOG = """Examples:
  lab reset 3                                  asks, keeps a backup, puts the empty file back
  lab reset 3 --yes                            does not ask
"""
CATCH_UP_EPILOG = """Examples:
  lab catch-up 3                               worked files for labs 1 and 2, unless they are done
  lab catch-up 10                              for labs 8 and 9: tracks stand on their own
"""
DIFF_EPILOG = """Examples:
  lab diff 3                                   your file and the worked one, once lab 3 passes
  lab diff 3 --reveal                          before that, too
"""

Number = Annotated[int, typer.Argument(metavar="N", help="The lab.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def reset(number: Number, yes: Yes = False) -> None:
    """Start a lab again: put the empty file back, and keep a backup of yours."""
    lab = chosen_lab(number)
    if pristine.untouched(lab):
        out.print(f"Lab {number} is as it was at the beginning; there is nothing to reset.")
        tell(forget(lab))
        return
    names = ", ".join(f"labs/{name}" for name in pristine.files_of(lab))
    _ask(f"Put the empty {names} back? Yours is kept in a backup.", yes)
    _back_up(lab)
    pristine.restore(lab)
    tell(forget(lab))
    out.print(f"Lab {number} begins again: labs/{lab.file}", highlight=False)


def catch_up(number: Number, yes: Yes = False) -> None:
    """Put the worked files of the labs before N in place, so that you can begin with lab N."""
    lab = chosen_lab(number)
    progress = load()
    earlier = [e for e in COURSE if e.track == lab.track and e.number < number]
    wanted = [e for e in earlier if not progress.of(e).done and not pristine.is_worked(e)]
    for entry in earlier:
        if progress.of(entry).done:
            out.print(f"Lab {entry.number} is done: your file stays.", highlight=False)
        elif entry not in wanted:
            tell(record(entry, worked=True))
    if not wanted:
        out.print(f"Nothing to copy: begin with labs/{lab.folder}/README.md", highlight=False)
        return
    written = [entry for entry in wanted if not pristine.untouched(entry)]
    numbers = _numbers(wanted)
    kept = f" What you wrote in {_numbers(written)} is kept in a backup." if written else ""
    _ask(f"Copy the worked files of {numbers} into labs/?{kept}", yes)
    for entry in wanted:
        if entry in written:
            _back_up(entry)
        pristine.copy_worked(entry)
        tell(record(entry, worked=True, points=None, max_points=None))
    out.print(f"Copied: {numbers}. Begin with labs/{lab.folder}/README.md", highlight=False)


def diff(
    number: Number,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show the worked file before the lab passes.")
    ] = False,
) -> None:
    """Compare your file with the worked one, once the lab passes."""
    lab = chosen_lab(number)
    if not reveal and not load().of(lab).behind:
        out.print(
            f"Lab {number} does not pass yet, and the worked file would give it away. `lab check {number}` "
            f"records that it passes; `lab hint {number}` nudges; `lab diff {number} --reveal` shows it now.",
            highlight=False,
        )
        raise typer.Exit(Exit.FAILED)
    for name in pristine.files_of(lab):
        _print_diff(name)


def _print_diff(name: str) -> None:
    """Print one file's unified diff, from yours to the worked one."""
    try:
        yours = (LABS / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        yours = ""
    except (OSError, UnicodeDecodeError) as problem:
        usage(f"labs/{name} cannot be read: {problem}")
    worked = (SOLUTIONS / name).read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        yours.splitlines(), worked.splitlines(), f"labs/{name} (yours)",
        f"solutions/{name} (worked)", lineterm="",
    )  # fmt: skip
    any_line = False
    for line in lines:
        any_line = True
        out.print(Text(line, style=_style(line)), soft_wrap=True)
    if not any_line:
        out.print(f"labs/{name} equals the worked file.", highlight=False)


def _style(line: str) -> str:
    if line.startswith(("---", "+++")):
        return "bold"
    return {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")


def _back_up(lab: Lab) -> None:
    folder = pristine.back_up(lab)
    if folder is not None:
        out.print(f"Kept: {folder.relative_to(ROOT)}", highlight=False, soft_wrap=True)


def _ask(question: str, yes: bool) -> None:
    """Ask, and end with status 1 and nothing changed on anything but yes."""
    if not yes and not typer.confirm(question):
        out.print("Nothing was changed.")
        raise typer.Exit(Exit.FAILED)


def _numbers(labs: list[Lab]) -> str:
    numbers = [str(lab.number) for lab in labs]
    if len(numbers) == 1:
        return f"lab {numbers[0]}"
    return f"labs {', '.join(numbers[:-1])} and {numbers[-1]}"
