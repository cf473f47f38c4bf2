"""Stories: a failure told by transactions, and what has nothing to do with it left out."""

from __future__ import annotations

from harness.records import (
    Boundary,
    Change,
    Evidence,
    Finding,
    Hold,
    Kill,
    Policy,
    Touch,
    Unit,
    Verdict,
    WireEvent,
)
from harness.run import Run
from harness.scenario import festival
from harness.story import describe, tell

SCENARIO = festival(5, 3)
FIRST = SCENARIO.approved_ids[:3]


def cancelled(xid: int, *ids: int) -> list[Change]:
    """Return the changes of a transaction that cancelled orders."""
    return [
        Change(
            order, xid, 1, "orders", "update",
            {"order_id": order, "state": "pending"}, {"order_id": order, "state": "cancelled"},
        )
        for order in ids
    ]  # fmt: skip


def audited(xid: int, *ids: int) -> list[Change]:
    """Return the changes of a transaction that wrote the audit."""
    return [
        Change(order, xid, 1, "job_audit", "insert", None, {"order_id": order, "job_id": "j"})
        for order in ids
    ]


def boundary(number: int, point: str, xid: int) -> Boundary:
    """Return a recorded boundary of a statement that commits by itself."""
    table, operation = point.split(".")
    touches = (Touch(table, operation, 3, xid),)
    return Boundary(
        number, 1, Unit.QUERY, f"{operation} {table}", touches=touches, committed=(xid,)
    )


RECORD = (
    boundary(1, "orders.update", 71), boundary(2, "job_audit.insert", 72),
    boundary(3, "jobs.update", 73), boundary(4, "orders.update", 74),
)  # fmt: skip


def failed(before: list[Change], after: list[Change]) -> Run:
    """Return a failed run whose client died at the first recorded boundary."""
    kill = Kill("kill@1", Hold(RECORD[0], 1), None, Policy.ABORT, True)
    return Run(
        SCENARIO, "kill@1", Verdict.FAIL,
        (Finding("bound", "", "", "", order_ids=FIRST),), (kill,),
        Evidence(changes=tuple(before)), Evidence(changes=tuple(before + after)),
        events=(
            WireEvent(0.9, 1, "client", "Query", "update orders"),
            WireEvent(0.95, 1, "server", "ParameterStatus"),
            WireEvent(1.0, 1, "harness", "hold", "boundary 1"),
            WireEvent(1.1, 0, "harness", "cut", "abort"),
        ),
    )  # fmt: skip


def test_the_sentence_names_both_transactions() -> None:
    """What was committed, what was still to come in which transaction, and where the client died."""
    story = tell(failed(cancelled(81, *FIRST), []), RECORD)
    ids = ", ".join(map(str, FIRST))
    assert story.headline == (
        f"T1 cancelled {ids} and committed; its audit was in T2, its checkpoint in T3; "
        "the client died between them"
    )


def test_a_repeated_change_is_the_resumed_clients_doing() -> None:
    """Without anything left to come, the story is that it was done twice."""
    story = tell(failed(cancelled(81, *FIRST), cancelled(82, *FIRST)), RECORD[:1])
    assert "then T2, of the resumed client, cancelled" in story.headline
    assert story.headline.endswith("as well")


def test_a_death_before_any_commit_says_so() -> None:
    """Nothing was committed, and the story starts with the resumed client."""
    story = tell(failed([], cancelled(82, *FIRST)), RECORD)
    assert story.headline.startswith("the client died before anything was committed")


def test_transactions_about_other_orders_are_left_out() -> None:
    """The finding names the first chunk's orders, so the second chunk is no part of the story."""
    others = cancelled(85, *SCENARIO.approved_ids[3:])
    story = tell(failed(cancelled(81, *FIRST), [*audited(83, *FIRST), *others]), RECORD)
    assert len([step for step in story.steps if step.startswith("T")]) == 2


def test_the_wire_log_is_about_the_place() -> None:
    """Messages without a story are left out, times are relative to the hold."""
    story = tell(failed(cancelled(81, *FIRST), []), RECORD)
    assert [line.split()[0] for line in story.log] == ["-100.0", "+0.0", "+100.0"]


def test_tables_of_a_program_are_told_by_their_keys() -> None:
    """Without a scenario the words are those of SQL."""
    rows = [Change(n, 9, 1, "mails", "insert", None, {"id": n, "to": "x"}) for n in range(1, 6)]
    assert describe(None, rows) == "inserted into mails (1, 2, 3 and 2 more)"
