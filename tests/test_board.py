"""The board: cells from rows, steps from moments. Handmade evidence; no database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_maker import correct_evidence, order_change, with_changes

from harness.records import Boundary, Evidence, OrderRow, Touch, Unit
from harness.report.board import (
    SHAPES,
    STATE_WORDS,
    CellState,
    board_svg,
    count_words,
    lay_out,
    order_states,
    touched_orders,
)
from harness.report.moments import Ended, Looked, Moment, Worked
from harness.report.steps import Step, steps_of
from harness.scenario import Scenario, festival

SMALL = festival(6, 3)
FIRST = SMALL.approved_ids[0]
P, W, C, R, D, M = "pwcrdm"


def _with_order(evidence: Evidence, order_id: int, /, **new: object) -> Evidence:
    rows = tuple(replace(r, **new) if r.order_id == order_id else r for r in evidence.orders)  # type: ignore[arg-type]
    return replace(evidence, orders=rows)


# --- cells ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "state"),
    [
        ({}, CellState.CANCELLED),
        ({"state": "pending", "revision": SMALL.approval[0].revision}, CellState.PENDING),
        ({"revision": 99}, CellState.DRIFTED),
        ({"qty": 99}, CellState.DRIFTED),
        ({"tenant": "somebody-else"}, CellState.DRIFTED),
        ({"state": "pending"}, CellState.DRIFTED),
        ({"order_id": 1}, CellState.MISSING),
    ],
    ids=["cancelled", "pending", "revision", "quantity", "tenant", "reopened", "missing"],
)
def test_a_cell_is_what_its_row_is(new: dict[str, object], state: CellState) -> None:
    """Only the approved version, or exactly what the job makes of it, is pending or cancelled."""
    evidence = _with_order(correct_evidence(SMALL), FIRST, **new)
    assert order_states(SMALL, evidence)[0] is state


def test_rolled_back_is_pending_again_and_was_changed() -> None:
    """An order that is cancelled now is not called rolled back, whatever was before."""
    evidence = correct_evidence(SMALL, chunks=1)
    states = order_states(SMALL, evidence, rolled_back=SMALL.approved_ids)
    assert states == (CellState.CANCELLED,) * 3 + (CellState.ROLLED_BACK,) * 3
    assert count_words(states) == "3 cancelled; 3 rolled back"


def test_orders_that_were_never_approved_are_named_when_touched() -> None:
    """The witness tells of a neighbour's change, also when its row looks innocent now."""
    neighbour: OrderRow = SMALL.others[0]
    evidence = with_changes(correct_evidence(SMALL), order_change(neighbour, 900, revision=7))
    assert touched_orders(SMALL, evidence) == (neighbour.order_id,)
    assert touched_orders(SMALL, correct_evidence(SMALL)) == ()


def test_every_state_has_a_shape_of_its_own_and_words() -> None:
    """Without colour the states must still differ."""
    assert set(SHAPES) == set(STATE_WORDS) == set(CellState)
    assert len(set(SHAPES.values())) == len(CellState)


@pytest.mark.parametrize(
    ("orders", "chunk"), [(1, 1), (40, 10), (23, 10), (5, 400), (5000, 10), (5000, 5000), (81, 7)]
)
def test_no_two_cells_stand_in_one_place(orders: int, chunk: int) -> None:
    """Every cell is inside the drawing, and none covers another."""
    layout = lay_out(orders, chunk)
    places = set(zip(layout.x, layout.y, strict=True))
    assert len(places) == orders
    assert all(0 <= x <= layout.width - 10 for x in layout.x)
    assert all(0 <= y <= layout.height - 10 for y in layout.y)


def test_svg_has_one_path_a_state_however_many_orders() -> None:
    big = festival(5000, 100)
    states = (CellState.CANCELLED,) * 100 + (CellState.PENDING,) * 4900
    drawing = board_svg(big, states, 'a "label" <b>')
    assert drawing.count("<path") == 2
    assert "<b>" not in drawing


# --- steps ------------------------------------------------------------------------------------------


def _boundary(
    number: int, sql: str, status: str = "T", *touches: Touch, committed: tuple[int, ...] = ()
) -> Boundary:
    tag = sql.partition(" ")[0]
    return Boundary(number, 1, Unit.QUERY, sql, tag, status, touches, committed)


def _written(xid: int, first: int = 1) -> list[Boundary]:
    """Return the boundaries of a client that does one chunk and has not committed it."""
    return [
        _boundary(first, "BEGIN"),
        _boundary(first + 1, "UPDATE orders", "T", Touch("orders", "update", 3, xid)),
        _boundary(first + 2, "INSERT INTO job_audit", "T", Touch("job_audit", "insert", 3, xid)),
        _boundary(first + 3, "UPDATE jobs", "T", Touch("jobs", "update", 1, xid)),
    ]


def _play(
    moments: list[Moment], scenario: Scenario = SMALL
) -> list[tuple[str, str, tuple[int, int | None]]]:
    """Return (orders, audit, checkpoint) after each step, as the page adds them up."""
    orders, audit, seen = [""] * 6, [""] * 6, []
    for step in steps_of(scenario, moments):
        for cells, states in ((step.cells, orders), (step.audit, audit)):
            for start, size, state, _ in cells:
                states[start : start + size] = [state] * size
        seen.append(("".join(orders), "".join(audit), step.checkpoint))
    return seen


def test_a_transaction_is_written_then_committed() -> None:
    """Statement by statement the chunk is written; with the commit all three records are there."""
    worked = [Worked(0, b) for b in _written(801)]
    commit = Worked(0, _boundary(5, "COMMIT", "I", committed=(801,)))
    look = Looked("after-resume", "", correct_evidence(SMALL, chunks=1))
    seen = _play([*worked, commit, look])
    assert seen[0] == ("pppppp", "pppppp", (0, None))
    assert seen[2] == ("wwwppp", "pppppp", (0, None))
    assert seen[3] == ("wwwppp", "wwwppp", (0, None))
    assert seen[4] == ("wwwppp", "wwwppp", (0, 3))
    assert seen[5] == seen[6] == ("cccppp", "cccppp", (3, None))


def test_a_killed_transaction_is_rolled_back() -> None:
    """What an open transaction wrote is gone with its client, from all three records."""
    look = Looked("after-fault", "", correct_evidence(SMALL, chunks=0))
    seen = _play([*(Worked(0, b) for b in _written(900)), Ended(0, "killed", True), look])
    assert seen[-2] == seen[-1] == ("rrrppp", "rrrppp", (0, None))


def test_a_zombie_keeps_what_it_wrote() -> None:
    """Where the server never learned of the death, the change stays open, in a fresh look, too."""
    look = Looked("after-fault", "", correct_evidence(SMALL, chunks=0))
    ended = Ended(0, "killed", True, sessions_stay=True)
    seen = _play([*(Worked(0, b) for b in _written(900)), ended, look])
    assert seen[-1] == ("wwwppp", "wwwppp", (0, 3))


def test_a_frozen_client_that_committed_unseen_is_seen_to_have() -> None:
    """Its wire is known up to the freeze only; the looks after it tell the rest."""
    look = Looked("after-fault", "", correct_evidence(SMALL, chunks=1))
    seen = _play([*(Worked(0, b) for b in _written(801)), look])
    assert seen[-1][:2] == ("cccppp", "cccppp")
    assert seen[-1][2][0] == 3


def test_nothing_is_open_when_everybody_has_finished() -> None:
    look = Looked("after-resume", "", correct_evidence(SMALL, chunks=0), over=True)
    seen = _play([*(Worked(0, b) for b in _written(900)), look])
    assert seen[-1] == ("rrrppp", "rrrppp", (0, None))


def test_rollback_to_a_savepoint_undoes_what_came_after_it() -> None:
    boundaries = [
        _boundary(1, "BEGIN"),
        _boundary(2, "UPDATE orders", "T", Touch("orders", "update", 2, 900)),
        _boundary(3, 'SAVEPOINT "s"'),
        _boundary(4, "UPDATE orders", "T", Touch("orders", "update", 1, 900)),
        _boundary(5, 'ROLLBACK TO "s"'),
    ]
    seen = [orders for orders, _, _ in _play([Worked(0, b) for b in boundaries])]
    assert seen[-3:] == ["wwpppp", "wwwppp", "wwrppp"]


def test_a_look_puts_the_board_right() -> None:
    """A guess about an open transaction never outlives a fresh connection's look."""
    evidence = _with_order(correct_evidence(SMALL, chunks=0), SMALL.approved_ids[4], revision=99)
    seen = _play([Looked("now", "", evidence)])
    assert seen[-1][0] == "ppppdp"


def test_an_audit_row_of_another_order_is_shown_as_wrong() -> None:
    right = correct_evidence(SMALL, chunks=1)
    audit = (replace(right.audit[0], order_id=1), *right.audit[1:])
    assert _play([Looked("now", "", replace(right, audit=audit))])[-1][1] == "dccppp"


def test_commits_are_numbered_as_the_story_tells_them() -> None:
    """The first transaction that the witness recorded is T1, also when its client was never told."""
    look = Looked("after-resume", "", correct_evidence(SMALL))
    commit = _boundary(5, "COMMIT", "I", committed=(801,))
    moments = [*(Worked(0, b) for b in _written(801)), Worked(0, commit, told=False), look]
    steps: list[Step] = steps_of(SMALL, moments)
    assert steps[5].transaction == 1
    assert steps[5].words == "T1 is committed on the server; the client has not been told"
    assert [tx for _, _, _, tx in steps[6].cells] == [2]
