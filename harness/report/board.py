"""The board: one cell for each approved order, in columns of chunks.

What a batch did is seen best as squares: ten of forty changed, and then gone again. This file says
what each square is, from rows and nothing else, and where it stands; the page, the notebooks and the
live board draw the same ones. A state has a shape as well as a colour, so the board reads in grey.

Pure: a scenario and evidence in, cells and SVG out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from harness.history import order_moves
from harness.records import Evidence, OrderRow
from harness.scenario import Scenario

#: Up to so many orders, a cell shows its ID.
IDS_SHOWN = 80
#: Rows of a column: a chunk that is longer takes several columns.
ROWS = 10
#: Width at which the chunks of a board wrap, in units; a cell is 10 wide. A large board is wider: it
#: then has about this shape, so that it fits a screen.
BOARD_WIDTH, BOARD_SHAPE = 720, 2.4
CELL, PITCH = 10, 12
WIDE_PITCH, TALL_PITCH = 44, 14
CHUNK_GAP, BAND_GAP, LABEL = 8, 10, 10


class CellState(StrEnum):
    """What one order is, in one letter."""

    PENDING = "p"
    WRITTEN = "w"  # changed by an open transaction: nobody else sees it yet
    CANCELLED = "c"
    ROLLED_BACK = "r"  # it was changed, and the change is gone
    DRIFTED = "d"  # its row is neither the approved version nor what the job made of it
    MISSING = "m"
    TOUCHED = "t"  # never approved, and changed by a client


#: What a state is called.
STATE_WORDS: Mapping[CellState, str] = {
    CellState.PENDING: "pending, as approved",
    CellState.WRITTEN: "written, not committed",
    CellState.CANCELLED: "cancelled",
    CellState.ROLLED_BACK: "rolled back",
    CellState.DRIFTED: "drifted: not as approved",
    CellState.MISSING: "missing",
    CellState.TOUCHED: "not approved, but touched",
}
#: Each state's shape in a cell of 10 by 10, as a path relative to its corner. They differ in outline,
#: so that they are told apart without colour and at any size.
SHAPES: Mapping[CellState, str] = {
    CellState.PENDING: "m3.5 3.5h3v3h-3z",
    CellState.WRITTEN: "m0 0l10 10h-10z",
    CellState.CANCELLED: "m0 0h10v10h-10z",
    CellState.ROLLED_BACK: "m0 0h10v10h-10zm1.4 1.4v5.8l5.8-5.8zm7.2 7.2v-5.8l-5.8 5.8z",
    CellState.DRIFTED: "m5-1l6 6l-6 6l-6-6z",
    CellState.MISSING: "m1 0l4 4l4-4l1 1l-4 4l4 4l-1 1l-4-4l-4 4l-1-1l4-4l-4-4z",
    CellState.TOUCHED: "m5 0l5.5 10h-11zm-.7 3.5v3h1.4v-3zm0 4v1.2h1.4v-1.2z",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the cells stand. `labels` are (x, y, text) of the chunks, `text` their size in units."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    width: int
    height: int
    ids: bool
    labels: tuple[tuple[int, int, str], ...]
    text: float


def order_states(
    scenario: Scenario, evidence: Evidence, rolled_back: Iterable[int] = ()
) -> tuple[CellState, ...]:
    """Return what each approved order is, in list order.

    Args:
        evidence: What a fresh connection read; it never sees an open transaction.
        rolled_back: Order IDs that had been changed before, by a transaction that is gone.
    """
    rows = {row.order_id: row for row in evidence.orders}
    gone = frozenset(rolled_back)
    states = []
    for item in scenario.approval:
        state = row_state(rows.get(item.order_id), scenario.tenant, item.revision, item.qty)
        if state is CellState.PENDING and item.order_id in gone:
            state = CellState.ROLLED_BACK
        states.append(state)
    return tuple(states)


def row_state(row: OrderRow | None, tenant: str, revision: int, qty: int) -> CellState:
    """Return what one order is: its row against the approved tenant, revision and quantity."""
    if row is None:
        return CellState.MISSING
    if (row.tenant, row.qty) == (tenant, qty):
        if (row.state, row.revision) == ("pending", revision):
            return CellState.PENDING
        if (row.state, row.revision) == ("cancelled", revision + 1):
            return CellState.CANCELLED
    return CellState.DRIFTED


def touched_orders(scenario: Scenario, evidence: Evidence) -> tuple[int, ...]:
    """Return the orders that were never approved and that a client changed, in ID order."""
    approved = frozenset(scenario.approved_ids)
    return tuple(sorted({m.order_id for m in order_moves(evidence.changes)} - approved))


def lay_out(orders: int, chunk_size: int) -> Layout:
    """Place the cells of a list: a chunk is a block of columns, and blocks wrap into bands."""
    ids = orders <= IDS_SHOWN
    across, down = (WIDE_PITCH, TALL_PITCH) if ids else (PITCH, PITCH)
    rows = min(chunk_size, ROWS)
    columns = -(-min(chunk_size, orders) // rows)
    block = columns * across + CHUNK_GAP
    chunks = -(-orders // chunk_size)
    wrap, label = BOARD_WIDTH, LABEL
    if not ids:
        area = chunks * block * (LABEL + rows * down + BAND_GAP)
        wrap = max(wrap, round(math.sqrt(area * BOARD_SHAPE)))
        label = max(LABEL, wrap // 80)
    per_band = max(1, wrap // block)
    band = label + rows * down + BAND_GAP
    x, y = [], []
    for position in range(orders):
        chunk, place = divmod(position, chunk_size)
        x.append((chunk % per_band) * block + (place // rows) * across)
        y.append((chunk // per_band) * band + label + (place % rows) * down)
    # A narrow block has no room for its number: then only the first of each band is named.
    step = 1 if block >= 4 * label else per_band
    labels = tuple(
        ((c % per_band) * block, (c // per_band) * band + label - 3, f"chunk {c + 1}")
        for c in range(chunks)
        if (c % per_band) % step == 0
    )
    width = max(min(chunks, per_band) * block - CHUNK_GAP, 30)
    height = -(-chunks // per_band) * band - BAND_GAP
    return Layout(tuple(x), tuple(y), width, height, ids, labels, round(label * 0.65, 1))


def board_svg(scenario: Scenario, states: Sequence[CellState], label: str) -> str:
    """Draw a board as SVG: one path a state, whatever the number of orders.

    Colours come from the page's style sheet (``.s-c`` and so on); `label` is read out.
    """
    layout = lay_out(len(states), scenario.chunk_size)
    paths: dict[CellState, list[str]] = {}
    for x, y, state in zip(layout.x, layout.y, states, strict=True):
        paths.setdefault(state, []).append(f"M{x} {y}{SHAPES[state]}")
    parts = [f'<path class="s-{state}" d="{"".join(d)}"/>' for state, d in paths.items()]
    parts += [
        f'<text class="chunk" font-size="{layout.text}" x="{x}" y="{y}">{text}</text>'
        for x, y, text in layout.labels
    ]
    if layout.ids:
        parts += [
            f'<text class="id" x="{x + CELL + 3}" y="{y + CELL - 2}">{order_id}</text>'
            for x, y, order_id in zip(layout.x, layout.y, scenario.approved_ids, strict=True)
        ]
    size = f'viewBox="-1 -1 {layout.width + 2} {layout.height + 2}"'
    return (
        f'<svg class="board" {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def count_words(states: Sequence[CellState]) -> str:
    """Say how many orders are in which state: ``10 cancelled, 30 pending, as approved``."""
    counts = [(state, states.count(state)) for state in CellState]
    return "; ".join(f"{n} {STATE_WORDS[state]}" for state, n in counts if n) or "no orders"
