"""The graded checks of lab 1: the approved list is stored once, in ID order, and never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.contract import ApprovedOrder
from harness.grading.bench import Bench
from harness.grading.check import check
from harness.grading.shapes import SHAPES
from harness.grading.words import step_text
from harness.history import show_ids
from harness.judge import frozen
from harness.records import CallResult, Evidence, Raised, Returned
from harness.scenario import Scenario, festival, unregistered
from harness.seeding import seed

#: Three orders: few enough to stop a row-by-row style at each of its steps.
SMALL = festival(3, 2, seed=31)


def request(scenario: Scenario, *, size: int = 0, tenant: str = "", orders=None) -> tuple:
    """Return the arguments of `register_job`: the scenario's own, or changed in one place."""
    chosen = list(scenario.approval) if orders is None else orders
    return (scenario.job_id, tenant or scenario.tenant, chosen, size or scenario.chunk_size)


def shuffled(orders: Sequence[ApprovedOrder]) -> list[ApprovedOrder]:
    """Return an order that is neither ascending nor descending, the same each time."""
    return [*orders[2::3], *orders[0::3][::-1], *orders[1::3]]


@check(
    "the list is stored in ID order, whatever order it came in and whatever its shape",
    promise="frozen",
    points=14,
)
def test_stored_in_id_order(bench: Bench):
    for name, scenario in SHAPES.items():
        with bench.scene(unregistered(scenario)) as scene:
            actor = bench.actor(scene)
            bench.call(
                actor, "register_job", *request(scenario, orders=shuffled(scenario.approval))
            )
            stored(
                bench,
                scenario,
                scene.evidence(),
                f"registered a list in shuffled order, the case: {name}",
            )


@check("a list in any order, and one of 5,000 orders", promise="frozen", points=6)
def test_any_order(bench: Bench):
    for scenario in (festival(23, 10, seed=32), festival(5_000, 100, seed=33)):
        with bench.scene(unregistered(scenario)) as scene:
            orders = shuffled(scenario.approval)
            actor = bench.actor(scene)
            bench.call(actor, "register_job", *request(scenario, orders=orders))
            did = f"registered {len(scenario.approval)} orders, shuffled"
            stored(bench, scenario, scene.evidence(), did)


@check("the approval is stored as given, whatever became of the orders", promise="frozen", points=8)
def test_stored_as_given(bench: Bench):
    scenario, other = (
        festival(7, 3, seed=34),
        festival(5, 2, seed=35, job_id="f-2", first_id=5001, done_chunks=1),
    )
    edited, gone = scenario.approved_ids[1], scenario.approved_ids[4]
    with bench.scene(unregistered(scenario)) as scene:
        seed(scene.laboratory.control, other)
        scene.rival("UPDATE orders SET qty = 99, revision = 99 WHERE order_id = %s", (edited,))
        scene.rival("DELETE FROM orders WHERE order_id = %s", (gone,))
        before = scene.evidence()
        bench.call(bench.actor(scene), "register_job", *request(scenario))
        after = scene.evidence()
        did = f"edited order {edited}, deleted order {gone}, then registered both as they were approved"
        stored(bench, scenario, after, did)
        others = (before.jobs, before.items, before.orders, before.audit)
        seen = (
            tuple(row for row in after.jobs if row.job_id != scenario.job_id),
            tuple(row for row in after.items if row.job_id != scenario.job_id),
            after.orders,
            after.audit,
        )
        for table, was, now in zip(("jobs", "job_items", "orders", "job_audit"), others, seen, strict=True):  # fmt: skip
            bench.equal(
                f"{did}; compared the other rows of {table}", was, now,
                cause="Registration writes its own job and list, nothing else.",
            )  # fmt: skip


@check(
    "the same approval again, in any order and at any time, changes nothing",
    promise="same request",
    points=12,
)
def test_the_same_request_again(bench: Bench):
    for done, where in ((0, "no chunk"), (1, "the first chunk"), (3, "every chunk")):
        scenario = festival(23, 10, seed=36, done_chunks=done, job_id="l'annulation 雨 %s")
        given = list(scenario.approval)
        with bench.scene(scenario) as scene:
            before = scene.evidence()
            actor = bench.actor(scene)
            for order, orders in (
                ("in ID order", given),
                ("backwards", given[::-1]),
                ("shuffled", shuffled(given)),
            ):
                did = f"registered the same approval again, {order}, when {where} was done"
                result = bench.result(actor, "register_job", *request(scenario, orders=orders))
                accepted(bench, result, did)
            unchanged(bench, before, scene.evidence(), did)


@check(
    "a request that differs in one place is a Conflict, and changes nothing",
    promise="same request",
    points=18,
)
def test_each_difference_is_a_conflict(bench: Bench):
    scenario = festival(23, 10, seed=37, done_chunks=1)
    with bench.scene(scenario) as scene:
        before = scene.evidence()
        actor = bench.actor(scene)
        for words, ids, arguments in differences(scenario):
            did = f"registered {scenario.job_id!r} again with {words}"
            result = bench.result(actor, "register_job", *arguments)
            bench.raises(
                result, "Conflict", did, naming=ids,
                cause="The comparison leaves a part of the approval out.",
            )  # fmt: skip
            unchanged(bench, before, scene.evidence(), did)


def differences(scenario: Scenario) -> list[tuple[str, list[int], tuple]]:
    """Return requests under a taken ID: what differs, the orders that differ, the arguments."""
    given = list(scenario.approval)
    first, second, middle, last = given[0], given[1], given[11], given[-1]
    assert len({item.qty for item in given}) > 1
    unlike = next(item for item in given if item.qty != middle.qty)
    found = [
        ("another tenant", [], request(scenario, tenant="aurora-catering")),
        ("the tenant in capitals", [], request(scenario, tenant=scenario.tenant.upper())),
        ("chunks of 9 instead of 10", [], request(scenario, size=9)),
        ("chunks of 23 instead of 10", [], request(scenario, size=23)),
    ]

    def differs(words: str, changed: Sequence[ApprovedOrder], *orders: ApprovedOrder) -> None:
        arguments = request(scenario, orders=shuffled(orders))
        found.append((words, sorted({item.order_id for item in changed}), arguments))

    def swap(*new: ApprovedOrder) -> list[ApprovedOrder]:
        by_id = {item.order_id: item for item in new}
        return [by_id.get(item.order_id, item) for item in given]

    for item in (first, middle, last):
        for words, new in (
            ("another revision", replace(item, revision=item.revision + 1)),
            ("another quantity", replace(item, qty=item.qty + 1)),
        ):
            differs(f"{words} of order {item.order_id}", [item], *swap(new))
        others = [other for other in given if other is not item]
        differs(f"order {item.order_id} left out", [item], *others)
    more = replace(last, order_id=last.order_id + 1)
    differs(f"one order more, {more.order_id}", [more], *given, more)
    instead = replace(second, order_id=second.order_id + 1)
    differs(
        f"order {instead.order_id} instead of {second.order_id}", [second, instead],
        *[instead if item is second else item for item in given],
    )  # fmt: skip
    differs(
        f"the quantities of {unlike.order_id} and {middle.order_id} exchanged", [unlike, middle],
        *swap(replace(unlike, qty=middle.qty), replace(middle, qty=unlike.qty)),
    )  # fmt: skip
    return found


@check(
    "what can never be a request is a ValueError, and nothing is written",
    promise="frozen",
    points=12,
)
def test_never_a_request(bench: Bench):
    scenario = festival(7, 3, seed=38)
    given = list(scenario.approval)
    twice = given[2].order_id
    bad = given[5]
    requests = (
        ("an empty list", request(scenario, orders=[])),
        (f"order {twice} twice, the same line", request(scenario, orders=[*given, given[2]])),
        (
            f"order {twice} twice, with different quantities",
            request(scenario, orders=[replace(given[2], qty=given[2].qty + 1), *given]),
        ),
        *(
            (
                f"quantity {qty} of order {bad.order_id}",
                request(scenario, orders=[*given[:5], replace(bad, qty=qty), given[6]]),
            )
            for qty in (0, -1)
        ),
        *(
            (f"a chunk size of {size}", (scenario.job_id, scenario.tenant, given, size))
            for size in (0, -3)
        ),
    )
    with bench.scene(unregistered(scenario)) as scene:
        before = scene.evidence()
        actor = bench.actor(scene)
        for words, arguments in requests:
            did = (
                f"registered a list with {words}" if "chunk" not in words else f"registered {words}"
            )
            result = bench.result(actor, "register_job", *arguments)
            bench.raises(
                result, "ValueError", did,
                cause="The request is not looked at as a whole before the first statement.",
            )  # fmt: skip
        unchanged(bench, before, scene.evidence(), "registered what can never be a request")


@check(
    "two programs register the same approval at once: both succeed, it is stored once",
    promise="same request",
    points=8,
)
def test_two_at_once_with_the_same(bench: Bench):
    first, second = request(SMALL), request(SMALL, orders=list(SMALL.approval)[::-1])
    for did, results, evidence in both_at_once(bench, first, second):
        for who, result in zip(("the first", "the second"), results, strict=True):
            accepted(bench, result, f"{did}; read the answer of {who}")
        stored(bench, SMALL, evidence, did)


@check(
    "two programs register different approvals at once: one is stored, the other gets Conflict",
    promise="same request",
    points=8,
)
def test_two_at_once_with_different(bench: Bench):
    more = replace(SMALL.approval[-1], order_id=SMALL.approval[-1].order_id + 1)
    longer = replace(SMALL, approval=(*SMALL.approval, more), chunk_size=3)
    for did, results, evidence in both_at_once(bench, request(SMALL), request(longer)):
        won = [isinstance(result, Returned) for result in results]
        lost = [isinstance(result, Raised) and result.is_a("Conflict") for result in results]
        if sorted(won) != [False, True] or sorted(lost) != [False, True]:
            raise bench.broken(
                did, "one of the two returns, the other raises Conflict",
                "; ".join(answer(result) for result in results),
                cause="The loser is not told, or is told by a database error. The primary key decides who is first; whoever was not first has to compare its request with what is stored.",
            )  # fmt: skip
        stored(bench, SMALL if won[0] else longer, evidence, f"{did}; read the list of the winner")


def both_at_once(bench: Bench, first: tuple, second: tuple):
    """Hold one client at each of its boundaries, run another, let the first go on."""
    record = bench.record(unregistered(SMALL), "register_job", *first)
    for boundary in record:
        did = (
            f"held one program after {step_text(record, boundary.number)} of its registration, "
            "started a second one, let the first go on"
        )
        with bench.scene(unregistered(SMALL)) as scene:
            held, _ = bench.held(scene, boundary.number, "register_job", *first)
            rival = bench.actor(scene)
            rival.start(bench.script("register_job", *second))
            scene.wait_blocked_or_done(rival)
            results = [bench.finish(held), bench.finish(rival)]
            yield did, results, scene.evidence()


@check(
    "a killed registration leaves the whole job or none of it", promise="frozen", points=8
)  # fmt: skip
def test_killed_at_every_step(bench: Bench):
    record = bench.record(unregistered(SMALL), "register_job", *request(SMALL))
    for boundary in record:
        did = f"killed the client after {step_text(record, boundary.number)} of its registration"
        with bench.scene(unregistered(SMALL)) as scene:
            actor, hold = bench.held(scene, boundary.number, "register_job", *request(SMALL))
            bench.kill(actor, hold, f"kill@{boundary.number}")
            evidence = scene.evidence()
            if evidence.jobs or evidence.items:
                bench.judged(frozen(SMALL, evidence), did)
            bench.call(bench.actor(scene), "register_job", *request(SMALL))
            stored(bench, SMALL, scene.evidence(), f"{did}, then let a new one register")


@check(
    "it nests in an open transaction, and leaves the connection as it was",
    promise="hygiene",
    points=6,
)
def test_leaves_the_connection_as_it_was(bench: Bench):
    scenario = festival(7, 3, seed=39)
    with bench.scene(unregistered(scenario)) as scene:
        actor = bench.actor(scene)
        bench.inside(actor, "register_job", *request(scenario))
        did = "registered inside a transaction that was rolled back; read what remained"
        evidence = scene.evidence()
        bench.equal(
            did, "no job, and no list", _left(evidence),
            cause="The function commits by itself; conn.transaction() nests as a savepoint instead.",
        )  # fmt: skip
        for words, ended, arguments in (
            ("a registration", "", request(scenario)),
            ("the same request again", "", request(scenario)),
            ("a Conflict", "Conflict", request(scenario, size=5)),
            ("a ValueError", "ValueError", request(scenario, orders=[])),
        ):
            before = bench.session(actor)
            result = bench.result(actor, "register_job", *arguments)
            bench.hygiene(actor, before, result, f"after {words}, looked at the connection", ended)
        bench.durable(scene.evidence())
        refused_inside(bench, scene, actor, scenario)


def refused_inside(bench: Bench, scene, actor, scenario: Scenario) -> None:
    """A caller may catch the Conflict and go on with its own transaction."""
    write = "INSERT INTO orders (order_id, tenant, qty) VALUES ({}, 'basalt-tours', 1)"
    result = bench.around(
        actor, "register_job", *request(scenario, size=5), before=write.format(1), after=write.format(2)
    )  # fmt: skip
    did = "caught a Conflict inside a transaction that wrote orders 1 and 2, and committed that"
    bench.raises(result, "Conflict", did)
    evidence = scene.evidence()
    kept = [order_id for order_id in (1, 2) if evidence.order(order_id) is not None]
    bench.equal(
        f"{did}; read which of them are there", "1, 2", show_ids(kept),
        cause="The function ends the caller's transaction; conn.transaction() nests as a savepoint.",
    )  # fmt: skip


# --- what is said about a registration ----------------------------------------------------------------


def stored(bench: Bench, scenario: Scenario, evidence: Evidence, did: str) -> None:
    """Demand the whole list in ID order, the checkpoint at 0, all in one transaction."""
    bench.judged(frozen(scenario, evidence), did)
    job = evidence.job(scenario.job_id)
    bench.equal(f"{did}; read next_index", 0, job.next_index if job else None)
    xids = {change.xid for change in evidence.changes}
    if len(xids) != 1:
        parts = (
            f"transaction {xid} wrote "
            + ", ".join(sorted({c.table for c in evidence.changes if c.xid == xid}))
            for xid in sorted(xids)
        )
        raise bench.broken(
            f"{did}; looked at which transactions wrote", "job and list appear together, in one transaction",
            "; ".join(parts), promise="frozen",
            cause="A crash between two commits leaves a job that approves nothing.",
        )  # fmt: skip


def unchanged(bench: Bench, before: Evidence, after: Evidence, did: str) -> None:
    """Demand that a call that is refused, or repeated, has no effect."""
    for table in ("jobs", "items", "audit", "orders"):
        was, now = getattr(before, table), getattr(after, table)
        name = table if table in ("jobs", "orders") else f"job_{table}"
        if was != now:
            raise bench.broken(
                f"{did}; compared the rows of {name}",
                "the same rows as before",
                f"gone: {_rows(was, now)}; new: {_rows(now, was)}",
                cause="Something was written before the request was known to be new.",
            )


def accepted(bench: Bench, result: CallResult, did: str) -> None:
    """Demand that a registration returned."""
    if not isinstance(result, Returned):
        raise bench.broken(did, "it returns normally", answer(result))


def answer(result: CallResult) -> str:
    """Say how a registration ended."""
    if isinstance(result, Returned):
        return "it returned"
    return f"{result.type_name}: {result.text}" if isinstance(result, Raised) else f"{result}"


def _rows(rows: Sequence[object], others: Sequence[object]) -> str:
    kept = set(others)
    found = [str(row) for row in rows if row not in kept]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more if found else "none"


def _left(evidence: Evidence) -> str:
    if not evidence.jobs and not evidence.items:
        return "no job, and no list"
    ids = show_ids(item.order_id for item in evidence.items)
    return f"jobs {', '.join(job.job_id for job in evidence.jobs) or 'none'}; in job_items orders {ids}"
