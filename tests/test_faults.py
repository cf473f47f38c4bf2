"""Fault lines: each is read back as it was written, and each mistake is told."""

from __future__ import annotations

import pytest

from harness.faults import FaultLineError, parse_fault
from harness.place import place_kill
from harness.records import Boundary, Policy, Stop, Touch, Unit

LINES = [
    "kill@audit#3",
    "kill@17",
    "kill@commit:leave-open",
    "kill@child_work.insert#2:half-close",
    "lose-reply@commit#2",
    "lose-request@commit",
    "crash@checkpoint",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read_back_as_it_was_written(line):
    assert str(parse_fault(line)) == line


def test_a_line_says_where_to_stop_and_how_to_let_go():
    fault = parse_fault("kill@audit#3:leave-open")
    assert (fault.stop, fault.policy) == (Stop(point="audit", nth=3), Policy.LEAVE_OPEN)


MISTAKES = {
    "kill": "KIND@PLACE",
    "kill@": "KIND@PLACE",
    "slay@audit": "'slay' is no fault",
    "kill@audits": "'audits' is no point",
    "kill@orders.select": "'orders.select' is no point",
    "kill@audit#0": "counted from 1",
    "kill@0": "counted from 1",
    "kill@3#2": "reached once",
    "kill@audit:politely": "'politely' is no policy",
    "freeze@audit:abort": "takes no policy",
}


@pytest.mark.parametrize(("line", "said"), MISTAKES.items())
def test_a_mistake_in_a_line_is_told(line, said):
    with pytest.raises(FaultLineError, match=said):
        parse_fault(line)


def one_statement_a_chunk(chunks: int) -> list[Boundary]:
    """The record of a client that writes each table with one statement."""
    boundaries: list[Boundary] = []
    for xid in range(1, chunks + 1):
        for touch in ("orders.update", "job_audit.insert", "jobs.update", None):
            table, _, operation = (touch or "").partition(".")
            touches = (Touch(table, operation, 10, xid),) if touch else ()
            boundaries.append(Boundary(
                len(boundaries) + 1, 1, Unit.QUERY, "", touches=touches,
                committed=() if touch else (xid,),
            ))  # fmt: skip
    return boundaries


def row_by_row(chunks: int, rows: int) -> list[Boundary]:
    """The record of a client that writes each row with a statement of its own."""
    boundaries: list[Boundary] = []
    for xid in range(1, chunks + 1):
        plan = [("orders", "update"), ("job_audit", "insert")] * rows + [("jobs", "update")]
        for table, operation in plan:
            touches = (Touch(table, operation, 1, xid),)
            boundaries.append(Boundary(len(boundaries) + 1, 1, Unit.EXECUTE, "", touches=touches))
        boundaries.append(Boundary(len(boundaries) + 1, 1, Unit.SYNC, "", committed=(xid,)))
    return boundaries


def test_a_kill_is_placed_in_the_same_chunk_whatever_the_style():
    assert str(place_kill(one_statement_a_chunk(4), "audit", 2)) == "kill@audit#2"
    assert str(place_kill(row_by_row(4, 10), "audit", 2)) == "kill@audit#20"
    assert str(place_kill(row_by_row(4, 10), "checkpoint", 2)) == "kill@checkpoint#2"
    assert str(place_kill(row_by_row(4, 10), "commit", 2)) == "kill@commit#2"


def test_one_statement_that_does_everything_is_one_place():
    touches = (
        Touch("jobs", "update", 1, 5),
        Touch("orders", "update", 9, 5),
        Touch("job_audit", "insert", 9, 5),
    )
    record = [
        Boundary(1, 1, Unit.QUERY, "", touches=touches),
        Boundary(2, 1, Unit.QUERY, "", committed=(5,)),
    ]
    assert [str(place_kill(record, p, 1)) for p in ("orders", "audit", "checkpoint", "commit")] == [
        "kill@orders", "kill@audit", "kill@checkpoint", "kill@commit",
    ]  # fmt: skip


def test_a_place_that_is_never_reached_is_none():
    assert place_kill(one_statement_a_chunk(2), "audit", 3) is None
    assert place_kill([], "commit", 1) is None
