"""`lab status` and `lab hint`: where you are, and the next nudge."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from harness.commands.common import Exit, JsonFile, chosen_lab, err, out
from harness.course import COURSE, Lab
from harness.learner.progress import LabProgress, Progress, load, record

STATUS_EPILOG = """Examples:
  lab status                                   the course map with your progress
  lab status --json progress.json              the same for a program
"""
HINT_EPILOG = """Examples:
  lab hint 3                                   the next hint for lab 3
  lab hint 3 --again                           the one you saw last
  lab hint 3 --all                             all of them; nothing is remembered
"""
STATUS_SCHEMA = "interrupted/status/v1"
_TRACKS = {"A": "Track A: resume an interrupted batch", "B": "Track B: partial work needs a child ledger"}  # fmt: skip


def status(json: JsonFile = None) -> None:
    """Show the course map with your progress, and the next step."""
    progress = load()
    for track, title in _TRACKS.items():
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False
        )
        for column in ("lab", "", "minutes", "progress"):
            table.add_column(column, justify="right" if column in ("lab", "minutes") else "left")
        for lab in COURSE:
            if lab.track == track:
                table.add_row(
                    str(lab.number), lab.title, str(lab.minutes), _progress(lab, progress)
                )
        out.print(table)
        out.print()
    out.print(Text("Next: " + _next_step(progress)), soft_wrap=not out.is_terminal)
    tell(progress)
    if json is not None:
        from harness.report.data import write_json

        write_json(json, _data(progress))
    raise typer.Exit(Exit.PASSED)  # fmt: skip


def hint(
    number: Annotated[int, typer.Argument(metavar="N", help="The lab.")],
    everything: Annotated[bool, typer.Option("--all", help="Show all hints at once.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Show the last one again.")] = False,
) -> None:
    """Show the next hint for a lab; each is plainer than the one before."""
    from harness.learner.hints import read_hints

    lab = chosen_lab(number)
    hints = read_hints(lab)
    if not hints:
        out.print(f"Lab {number} has no hints; its lesson is labs/{lab.folder}/README.md")
        return
    progress = load()
    shown = min(progress.of(lab).hints, len(hints))
    if everything:
        for position in range(len(hints)):
            _print_hint(hints, position)
    elif again and shown:
        _print_hint(hints, shown - 1)
    elif shown == len(hints):
        out.print(
            f"That was the last of {len(hints)} hints for lab {number}. `lab hint {number} --all` shows "
            f"them again; `lab diff {number} --reveal` shows the worked file.",
            highlight=False,
        )
    else:
        _print_hint(hints, shown)
        progress = record(lab, hints=shown + 1)
    tell(progress)


def tell(progress: Progress) -> None:
    """Print what is wrong with the progress file, if anything is."""
    if progress.trouble:
        err.print(Text.assemble(("Progress: ", "yellow"), progress.trouble), soft_wrap=True)


def state(lab: Lab, known: LabProgress) -> str:
    """Return a lab's state in words: not started, begun, n of 100, done, or worked file."""
    from harness.learner.pristine import untouched

    if known.worked:
        return "worked file"
    if known.done:
        return "done"
    if known.points is not None and (known.points or not untouched(lab)):
        return f"{known.points} of {known.max_points}"
    return "not started" if untouched(lab) else "begun"


_STYLES = {"done": "green", "not started": "dim", "worked file": "cyan"}


def _progress(lab: Lab, progress: Progress) -> Text:
    known = progress.of(lab)
    words = state(lab, known)
    text = Text(words, style=_STYLES.get(words, "yellow"))
    if known.hints:
        text.append(f", {known.hints} hint{'s' if known.hints > 1 else ''}", style="dim")
    return text


def _next_step(progress: Progress) -> str:
    lab = progress.first_unfinished()
    if lab is None:
        return "all labs are done. `lab sweep` kills your code at every single step."
    words = state(lab, progress.of(lab))
    if words == "not started":
        return f"read labs/{lab.folder}/README.md, fill in labs/{lab.file}, then `uv run lab check {lab.number}`"
    return f"`uv run lab check {lab.number}`; `uv run lab hint {lab.number}` nudges"


def _data(progress: Progress) -> dict[str, Any]:
    following = progress.first_unfinished()
    return {
        "schema": STATUS_SCHEMA,
        "trouble": progress.trouble,
        "next": following.folder if following else None,
        "labs": [
            {
                "id": lab.folder,
                "number": lab.number,
                "title": lab.title,
                "track": lab.track,
                "state": state(lab, progress.of(lab)),
                "points": progress.of(lab).points,
                "max_points": progress.of(lab).max_points,
                "hints": progress.of(lab).hints,
            }
            for lab in COURSE
        ],
    }


def _print_hint(hints: tuple[str, ...], position: int) -> None:
    out.print(Text(f"Hint {position + 1} of {len(hints)}", style="bold"))
    if out.is_terminal:
        from rich.markdown import (
            Markdown,
        )  # a quarter of every command's start, and needed here only

        out.print(Markdown(hints[position]))
    else:
        out.print(Text(hints[position]), soft_wrap=True)
    out.print()
