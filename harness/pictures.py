"""The pictures in README and lessons, made from real runs.

    uv run python -m harness.pictures            write them into labs/pictures/
    uv run python -m harness.pictures FOLDER     write them elsewhere, to compare

Nothing is drawn by hand: each picture is what a fresh connection saw in a run of the worked answers, or
what the command printed. `tests/test_pictures.py` makes them again and compares.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from harness.course import LABS, SOLUTIONS
from harness.demo import DEMO_CHUNK, Demo, run_demo
from harness.records import COMMIT_POINT
from harness.report.board import board_svg, count_words, order_states
from harness.report.terminal import demo_table
from harness.run import Run
from harness.scenario import festival
from harness.workshop import open_workshop

FOLDER = LABS / "pictures"
#: The scenes of the demo whose boards stand in lessons.
BOARDS = ("after audit", "after commit", "rival edit")
#: Columns of the pictured terminal: the table stands without a line break.
COLUMNS = 100
#: A picture stands on pages of any colour, so it brings its own ground and inks. The inks are told
#: apart without colour by the cells' shapes, too.
_STYLE = """
.board{font:6px ui-monospace,monospace} .chunk{fill:#3c4656} .id{fill:#3c4656;font-size:5px}
.s-p{fill:#b9c2cf} .s-w{fill:#e0a100} .s-c{fill:#0a7d55} .s-r{fill:#8a5fb8} .s-d{fill:#c2570c}
.s-m{fill:#b3261e} .s-t{fill:#b3261e}
"""


def draw_all(folder: Path) -> list[Path]:
    """Run the demo once and write every picture into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_workshop() as workshop:
        demo = run_demo(workshop, SOLUTIONS, festival())
    written = [_write(folder / "demo.svg", terminal_picture(demo))]
    for row in demo.rows:
        if row.title in BOARDS:
            name = row.title.replace(" ", "-")
            written.append(_write(folder / f"{name}.svg", board_picture(row.run)))
    return written


def terminal_picture(demo: Demo) -> str:
    """Return the demo's table as it stands in a terminal, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(demo_table(demo))
    svg = console.export_svg(title="uv run lab demo", unique_id="lab-demo")
    # rich asks another host for a font; a picture in a checkout asks nobody.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def board_picture(run: Run) -> str:
    """Return the board of what a fresh connection saw, as SVG with its own ground and colours.

    After a kill before the commit, the orders of that chunk are shown as rolled back.
    """
    seen = run.after_fault or run.after_resume
    assert seen is not None
    hold = run.kill.hold if run.kill else None
    undone = hold is not None and COMMIT_POINT not in hold.boundary.points
    states = order_states(run.scenario, seen, run.scenario.chunk_ids(DEMO_CHUNK) if undone else ())
    svg = board_svg(run.scenario, states, f"Board: {count_words(states)}")
    ground = '<rect x="-6" y="-6" width="100%" height="100%" rx="3" fill="#f7f9fb"/>'
    opened = re.sub(r'viewBox="-1 -1 (\d+) (\d+)"', _with_margin, svg, count=1)
    head, rest = opened.split(">", 1)
    return f"{head}><style>{_STYLE}</style>{ground}{rest}\n"


def _with_margin(match: re.Match[str]) -> str:
    width, height = int(match[1]) + 10, int(match[2]) + 10
    return (
        f'xmlns="http://www.w3.org/2000/svg" viewBox="-6 -6 {width} {height}" width="{width * 2}"'
    )


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for path in draw_all(target):
        print(path)
