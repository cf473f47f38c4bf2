"""The graded checks of lab 2: an order changes only in the version that was approved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import psycopg

from harness.contract import ApprovedOrder
from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.rivals import EDITS, Edit, why_changed
from harness.grading.shapes import SHAPES
from harness.grading.words import step_text
from harness.history import order_moves, show_ids
from harness.judge import approved_version
from harness.records import CallResult, Evidence, OrderRow, Raised, Returned
from harness.scenario import Scenario, festival, unregistered
from harness.workshop import Scene

#: Three orders: few enough to stop a row-by-row style at each of its steps.
SMALL = unregistered(festival(3, 3, seed=41))
NINE = unregistered(festival(9, 9, seed=42))

#: What else may have happened to an order: beside the edits that every lab is checked with.
MORE_EDITS = (
    Edit(
        "lower the revision of",
        "UPDATE orders SET revision = revision - 1 WHERE order_id = %s",
        "revision",
    ),
    Edit(
        "cancel, as one normal write,",
        "UPDATE orders SET state = 'cancelled', revision = revision + 1 WHERE order_id = %s",
        "state and revision",
    ),
    Edit(
        "cancel and reopen, as two normal writes,",
        "UPDATE orders SET revision = revision + 2 WHERE order_id = %s",
        "revision",
    ),
)
_PUT_BACK = """
    INSERT INTO orders (order_id, tenant, qty, state, revision) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (order_id) DO UPDATE SET tenant = excluded.tenant, qty = excluded.qty,
        state = excluded.state, revision = excluded.revision
"""
COUNT = "An UPDATE that matches no row is no error in SQL; the program has to count."


@check(
    "the approved orders are cancelled, and the answer holds the database's values",
    promise="approved version",
    points=12,
)
def test_cancels_what_was_approved(bench: Bench):
    for name, shape in SHAPES.items():
        scenario = unregistered(shape)
        with bench.scene(scenario) as scene:
            items = [*scenario.approval[1::2], *scenario.approval[::2]]
            did = f"called cancel_orders with all items in mixed order, the case: {name}"
            value = bench.call(bench.actor(scene), "cancel_orders", scenario.tenant, items)
            cancelled(bench, scenario, value, scene.evidence(), did)


@check("no order, and 1,000 orders", promise="approved version", points=6)
def test_none_and_many(bench: Bench):
    scenario = unregistered(festival(1_000, 100, seed=43))
    with bench.scene(scenario) as scene:
        actor = bench.actor(scene)
        value = bench.call(actor, "cancel_orders", scenario.tenant, [])
        bench.equal("called cancel_orders with an empty list", [], value)
        bench.equal("read what that changed", [], list(scene.evidence().changes))
        items = list(scenario.approval)
        value = bench.call(actor, "cancel_orders", scenario.tenant, items)
        did = "called cancel_orders with 1,000 orders"
        cancelled(bench, scenario, value, scene.evidence(), did)


@check(
    "one order that is not as approved is a Conflict, at any place of the call",
    promise="approved version",
    points=20,
)
def test_each_part_of_the_guard(bench: Bench):
    with bench.scene(NINE) as scene:
        actor = bench.actor(scene)
        for edit in (*EDITS, *MORE_EDITS):
            for place in (0, 4, 8):
                row = NINE.approved_orders[place]
                scene.rival(edit.sql, (row.order_id,))
                did = (
                    f"let another owner {edit.words} order {row.order_id}, then cancelled all nine"
                )
                result = bench.result(actor, "cancel_orders", NINE.tenant, list(NINE.approval))
                refused(bench, result, scene, [row.order_id], did, edit.spoils)
                scene.rival(_PUT_BACK, order_values(row))
    with bench.scene(NINE) as scene:
        actor = bench.actor(scene)
        for words, item in strangers(NINE):
            did = f"asked for {words} beside eight orders as approved"
            items = [*NINE.approval[:4], item, *NINE.approval[5:]]
            result = bench.result(actor, "cancel_orders", NINE.tenant, items)
            refused(bench, result, scene, [item.order_id], did)


def strangers(scenario: Scenario) -> list[tuple[str, ApprovedOrder]]:
    """Return items that match no order, because of what was asked for."""
    item = scenario.approval[4]
    other = next(row for row in scenario.others if row.tenant != scenario.tenant)
    return [
        (f"order {item.order_id} in a later revision", replace(item, revision=item.revision + 1)),
        (f"order {item.order_id} with a larger quantity", replace(item, qty=item.qty + 1)),
        ("order 7, which never existed,", ApprovedOrder(7, 1, 1)),
        (
            f"order {other.order_id} of tenant {other.tenant!r}",
            ApprovedOrder(other.order_id, other.revision, other.qty),
        ),
    ]


@check("every order that did not match is named", promise="approved version", points=10)
def test_names_every_order(bench: Bench):
    for scenario in (NINE, unregistered(SHAPES["very large IDs"])):
        with bench.scene(scenario) as scene:
            actor = bench.actor(scene)
            result = bench.result(actor, "cancel_orders", "another-tenant", list(scenario.approval))
            did = f"cancelled {len(scenario.approval)} orders for a tenant that owns none of them"
            refused(bench, result, scene, scenario.approved_ids, did)
            spoiled = scenario.approved_ids[1::2]
            for edit, order_id in zip(EDITS, spoiled, strict=False):
                scene.rival(edit.sql, (order_id,))
            result = bench.result(actor, "cancel_orders", scenario.tenant, list(scenario.approval))
            did = f"let other owners edit, move or delete orders {show_ids(spoiled)}, then cancelled all"
            refused(bench, result, scene, spoiled, did)


@check(
    "an edit that commits while the call waits for it is a Conflict; one that is undone is none",
    promise="approved version",
    points=12,
)
def test_waits_for_a_rival(bench: Bench):
    for edit in (EDITS[0], EDITS[3], MORE_EDITS[1]):
        for ending in ("COMMIT", "ROLLBACK"):
            order_id = SMALL.approved_ids[1]
            did = (
                f"let another owner {edit.words} order {order_id} without committing, "
                f"started the call, then let that owner {ending}"
            )
            with bench.scene(SMALL) as scene, scene.rival_transaction() as rival:
                rival.execute(edit.sql, (order_id,))
                actor = bench.actor(scene)
                actor.start(bench.script("cancel_orders", SMALL.tenant, list(SMALL.approval)))
                scene.wait_blocked_or_done(actor)
                rival.execute(ending)
                result = bench.finish(actor)
                if ending == "COMMIT":
                    refused(bench, result, scene, [order_id], did, edit.spoils)
                else:
                    cancelled(bench, SMALL, bench.returned(result, did), scene.evidence(), did)


@check(
    "an edit between two steps of the call is not overwritten",
    promise="approved version",
    points=10,
)
def test_an_edit_in_the_middle(bench: Bench):
    order_id = SMALL.approved_ids[-1]
    items = list(SMALL.approval)
    record = bench.record(SMALL, "cancel_orders", SMALL.tenant, items)
    for boundary in record:
        for edit in (EDITS[1], EDITS[3], EDITS[4]):
            did = (
                f"held the call after {step_text(record, boundary.number)}, "
                f"let another owner {edit.words} order {order_id}, let the call go on"
            )
            with bench.scene(SMALL) as scene:
                actor, _ = bench.held(scene, boundary.number, "cancel_orders", SMALL.tenant, items)
                committed = any(b.committed for b in actor.lane.boundaries)
                edited = edit_unless_locked(scene, edit, order_id)
                result = bench.finish(actor)
                if edited and not committed:
                    refused(bench, result, scene, [order_id], did, edit.spoils)
                else:
                    bench.returned(result, did)
                    bench.judged(approved_version(SMALL, scene.evidence()), did)


def edit_unless_locked(scene: Scene, edit: Edit, order_id: int) -> bool:
    """Make the edit, unless the client has locked the order: then no edit can come in between."""
    with scene.rival_transaction() as rival:
        try:
            rival.execute("SELECT FROM orders WHERE order_id = %s FOR UPDATE NOWAIT", (order_id,))
        except psycopg.errors.LockNotAvailable:
            return False
        rival.execute(edit.sql, (order_id,))
        rival.execute("COMMIT")
    return True


@check(
    "two identical calls at once: one cancels, the other gets Conflict",
    promise="approved version",
    points=8,
)
def test_two_identical_calls(bench: Bench):
    items = list(SMALL.approval)
    record = bench.record(SMALL, "cancel_orders", SMALL.tenant, items)
    for boundary in record:
        did = (
            f"held one call after {step_text(record, boundary.number)}, "
            "started the same call in a second program, let the first go on"
        )
        with bench.scene(SMALL) as scene:
            first, _ = bench.held(scene, boundary.number, "cancel_orders", SMALL.tenant, items)
            second = bench.actor(scene)
            second.start(bench.script("cancel_orders", SMALL.tenant, items))
            scene.wait_blocked_or_done(second)
            results = sorted(
                [bench.finish(first), bench.finish(second)], key=lambda r: isinstance(r, Raised)
            )
            winner, loser = results
            evidence = scene.evidence()
            if not isinstance(winner, Returned):
                raise bench.broken(did, "one of the two cancels the orders", "; ".join(map(answer, results)))  # fmt: skip
            bench.raises(loser, "Conflict", did, naming=SMALL.approved_ids)
            cancelled(bench, SMALL, winner.value, evidence, did)


@check("a killed call leaves all of its orders cancelled, or none", promise="approved version", points=8)  # fmt: skip
def test_killed_at_every_step(bench: Bench):
    items = list(SMALL.approval)
    record = bench.record(SMALL, "cancel_orders", SMALL.tenant, items)
    for boundary in record:
        did = f"killed the client after {step_text(record, boundary.number)}"
        with bench.scene(SMALL) as scene:
            actor, hold = bench.held(scene, boundary.number, "cancel_orders", SMALL.tenant, items)
            committed = any(b.committed for b in actor.lane.boundaries)
            bench.kill(actor, hold, f"kill@{boundary.number}")
            evidence = scene.evidence()
            bench.equal(
                f"{did}; read which orders are cancelled",
                show_ids(SMALL.approved_ids if committed else ()), show_ids(changed(evidence)),
                cause="Orders of one call are committed in more than one transaction.",
            )  # fmt: skip


@check("inside an open transaction it undoes its own part only, and commits nothing", promise="bound", points=8)  # fmt: skip
def test_nests_in_an_outer_transaction(bench: Bench):
    one, two = (row.order_id for row in NINE.others[:2])
    edited = NINE.approved_ids[4]
    items = list(NINE.approval)
    raise_revision = "UPDATE orders SET revision = revision + 1 WHERE order_id = {}"
    around = {"before": raise_revision.format(one), "after": raise_revision.format(two)}
    with bench.scene(NINE) as scene:
        actor = bench.actor(scene)
        bench.inside(actor, "cancel_orders", NINE.tenant, items)
        did = "called cancel_orders inside a transaction that was rolled back"
        bench.equal(
            f"{did}; read what remained", "none", show_ids(changed(scene.evidence())),
            cause="The function commits by itself; conn.transaction() nests as a savepoint instead.",
        )  # fmt: skip
        scene.rival(raise_revision.format(edited))
        result = bench.around(actor, "cancel_orders", NINE.tenant, items, **around)
        did = (
            f"caught the Conflict about order {edited} inside a transaction that edited order {one} "
            f"before the call and order {two} after it, and committed that"
        )
        bench.raises(result, "Conflict", did, naming=[edited])
        bench.equal(
            f"{did}; read which orders are changed", show_ids([one, two]), show_ids(changed(scene.evidence())),
            cause="The call's own part was not undone, or the caller's work was undone with it: a savepoint undoes this call alone.",
        )  # fmt: skip
        scene.rival(_PUT_BACK, order_values(NINE.approved_orders[4]))
        result = bench.around(actor, "cancel_orders", NINE.tenant, items, **around)
        did = "called cancel_orders between two edits of a transaction that was committed"
        bench.returned(result, did)
        xids = {move.xid for move in order_moves(scene.evidence().changes)}
        bench.equal(f"{did}; counted the transactions that changed orders, the one before too", 2, len(xids))  # fmt: skip


@check("the connection is left as it was", promise="hygiene", points=6)
def test_leaves_the_connection_as_it_was(bench: Bench):
    items = list(NINE.approval)
    with bench.scene(NINE) as scene:
        actor = bench.actor(scene)
        for words, ended, tenant, given in (
            ("a Conflict", "Conflict", "another-tenant", items),
            ("an empty call", "", NINE.tenant, []),
            ("a call that cancelled", "", NINE.tenant, items),
        ):
            before = bench.session(actor)
            result = bench.result(actor, "cancel_orders", tenant, given)
            bench.hygiene(actor, before, result, f"after {words}, looked at the connection", ended)
        bench.durable(scene.evidence())


# --- what is said about a call ------------------------------------------------------------------------


def cancelled(
    bench: Bench, scenario: Scenario, value: object, evidence: Evidence, did: str
) -> None:
    """Demand that all approved orders were cancelled by one transaction, and the answer says how."""
    bench.judged(approved_version(scenario, evidence), did)
    bench.equal(
        f"{did}; read which orders were changed", show_ids(scenario.approved_ids), show_ids(changed(evidence)),
        cause="Orders were left out without an error.",
    )  # fmt: skip
    names = ("order_id", "revision_before", "revision_after", "qty")
    if not isinstance(value, list):
        raise bench.broken(f"{did}; read the answer", "a list", repr(value)[:200])
    seen = [bench.fields(f"{did}; read the answer", entry, *names) for entry in value]
    wanted = [(i.order_id, i.revision, i.revision + 1, i.qty) for i in scenario.approval]
    if sorted(map(str, seen)) != sorted(map(str, wanted)):
        raise bench.broken(
            f"{did}; compared the answer with the rows",
            f"{_entries(wanted, seen)}, as (order, revision before, after, quantity)",
            _entries(seen, wanted),
            cause="RETURNING gives the new values: revision is the one after.",
        )


def refused(
    bench: Bench,
    result: CallResult,
    scene: Scene,
    naming: Iterable[int],
    did: str,
    spoils: str = "",
) -> None:
    """Demand a Conflict that names these orders, and that no order was changed."""
    naming = tuple(naming)
    ids = changed(scene.evidence())
    bench.equal(
        f"{did}; read which orders the call changed", "none", show_ids(ids),
        cause=why_changed(ids, naming, result, spoils),
    )  # fmt: skip
    bench.raises(result, "Conflict", did, naming=naming, cause=COUNT)


def changed(evidence: Evidence) -> list[int]:
    """Return the orders that committed transactions of clients changed."""
    return sorted({move.order_id for move in order_moves(evidence.changes)})


def answer(result: CallResult) -> str:
    """Say how a call ended."""
    if isinstance(result, Returned):
        return "it returned"
    return f"{result.type_name}: {result.text}" if isinstance(result, Raised) else f"{result}"


def order_values(row: OrderRow) -> tuple[object, ...]:
    """Return a row's values for putting it back."""
    return (row.order_id, row.tenant, row.qty, row.state, row.revision)


def _entries(entries: Sequence[tuple], others: Sequence[tuple]) -> str:
    elsewhere = set(map(str, others))
    found = [str(entry) for entry in entries if str(entry) not in elsewhere]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more if found else "no other entries"
