"""Shown: values that show themselves in a notebook, as pictures with words and as tables.

Every picture is an image with a text that says the same, because a reader may not see it and an
output may be stripped of its style. Pictures have a white ground: a notebook may be dark.

Colours are Okabe and Ito's, which stay apart for the colour-blind; a second sign (a shape, a hatch, a
label) always says the same.
"""

from __future__ import annotations

import base64
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from html import escape
from io import BytesIO
from typing import Any

from harness.report.board import STATE_WORDS, CellState, board_svg
from harness.scenario import Scenario

BLACK, GREY, LIGHT = "#1a1a1a", "#767676", "#d9d9d9"
BLUE, SKY, ORANGE, GREEN, RED, PURPLE = (
    "#0072b2", "#56b4e9", "#e69f00", "#009e73", "#d55e00", "#cc79a7",
)  # fmt: skip
#: Inches at which plots are drawn; twice the pixels of a plain screen, so that text stays sharp.
DPI = 144
_BOARD_STYLE = f"""
    svg {{ background: white }} text {{ font: 7px sans-serif; fill: {BLACK} }}
    .chunk {{ font-size: 6px; fill: #595959 }}
    .s-p {{ fill: {GREY} }} .s-w {{ fill: {ORANGE} }} .s-c {{ fill: {BLUE} }} .s-r {{ fill: {PURPLE} }}
    .s-d, .s-m, .s-t {{ fill: {RED} }}
"""
#: A unit of a board in pixels.
_BOARD_SCALE = 1.5


class Shown(ABC):
    """A value with a picture or a table; its `repr` is the same in words."""

    @abstractmethod
    def _repr_html_(self) -> str:
        """Return what a notebook shows."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Return the value in words, for whoever cannot see the picture."""

    def __repr__(self) -> str:
        """Return the words."""
        return self.words


def image(data: bytes, kind: str, words: str, width: int) -> str:
    """Return an image as HTML that needs no other file; `words` are read out in its place."""
    coded = base64.b64encode(data).decode()
    words = "; ".join(words.splitlines())
    style = "max-width:100%;height:auto;background:white"
    return (
        f'<img alt="{escape(words)}" width="{width}" style="{style}" '
        f'src="data:image/{kind};base64,{coded}">'
    )


def board(scenario: Scenario, states: Sequence[CellState], words: str) -> str:
    """Return one board as HTML: the drawing of the report page, as an image of its own.

    As an image, because a notebook that is not trusted yet strips drawings and keeps images.
    """
    svg = board_svg(scenario, states, words)
    found = re.search(r'viewBox="\S+ \S+ (\d+) ', svg)
    assert found is not None
    width = int(int(found[1]) * _BOARD_SCALE)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
    svg = svg.replace("<svg", head, 1).replace(">", f"><style>{_BOARD_STYLE}</style>", 1)
    return image(svg.encode(), "svg+xml", words, width)


def legend(states: Sequence[CellState]) -> str:
    """Return what the shapes of these states mean, each with its shape."""
    from harness.report.board import SHAPES

    parts = []
    for state in CellState:
        if state in states:
            shape = (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 12 12" width="12">'
                f'<style>{_BOARD_STYLE}</style><path class="s-{state}" d="M0 0{SHAPES[state]}"/></svg>'
            )
            parts.append(image(shape.encode(), "svg+xml", "", 12) + " " + STATE_WORDS[state])
    return f"<p>{' &nbsp; '.join(parts)}</p>"


def strip(items: Sequence[tuple[str, str]]) -> str:
    """Return pictures side by side, each under its title; they wrap."""
    boxes = "".join(
        f'<div style="display:inline-block;vertical-align:top;margin:0 18px 12px 0">'
        f"<div><b>{escape(title)}</b></div>{picture}</div>"
        for title, picture in items
    )
    return f"<div>{boxes}</div>"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Return a table as HTML; every value is text."""
    top = "".join(f'<th scope="col" style="text-align:left">{escape(name)}</th>' for name in head)
    cell = '<td style="text-align:left;vertical-align:top">'
    body = "".join(
        "<tr>" + "".join(f"{cell}{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{said}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def plot(
    draw: Callable[[Any], None],
    words: str,
    size: tuple[float, float] = (8.0, 3.2),
    *,
    panels: int = 1,
) -> str:
    """Let `draw` draw, and return the plot as HTML.

    Args:
        draw: Called with matplotlib's Axes; with several panels, with a list of them.
        size: Width and height in inches.
        panels: Axes side by side.
    """
    # No pyplot: it keeps every figure for ever and chooses a window system for the process.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "axes.edgecolor": GREY, "axes.titlesize": 10, "axes.titlelocation": "left",
        "legend.frameon": False, "hatch.linewidth": 0.6,
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = [figure.add_subplot(1, panels, n + 1) for n in range(panels)]
        draw(axes[0] if panels == 1 else axes)
        out = BytesIO()
        # Without matplotlib's name and version, the same run makes the same bytes.
        figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return image(out.getvalue(), "png", words, int(size[0] * 96))
