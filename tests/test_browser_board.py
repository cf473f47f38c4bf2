"""The live board in a real browser: kill, freeze, thaw and a rival's edit, by hand."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from board_kit import RunningBoard, open_board
from browser_kit import accessibility_problems, keep_picture, open_browser, overflow, watched_page
from playwright.sync_api import Browser, Locator, Page, expect

from harness.waiting import wait_until

#: Everything happens for real: a client starts, a server answers.
PATIENCE_MS = 30_000
GONE_WAIT_S = 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def board(browser: Browser) -> Iterator[RunningBoard]:
    """After the browser, so that a machine without one starts no server."""
    with open_board() as running:
        yield running


def test_kill_at_a_fault_line_and_finish_with_another_client(
    browser: Browser, board: RunningBoard
) -> None:
    """
    Scenario:
    * A client runs with `kill@audit#2` waiting for it; then another client runs.

    Outcome:
    * The second chunk is rolled back, then done; the board says that every order was done exactly once.
    """
    with watched_page(browser) as page:
        _start(page, board, fault="kill@audit#2")
        _press(page, 1, "run")
        expect(_worker(page, 1)).to_contain_text("ended by SIGKILL", timeout=PATIENCE_MS)
        expect(page.locator("#counts")).to_contain_text("10 cancelled; 10 rolled back")
        expect(page.locator("#verdict")).to_contain_text("safe so far")
        assert accessibility_problems(page) == []
        keep_picture(page, "board-killed")
        page.locator("#another").click()
        expect(_worker(page, 2)).to_contain_text("held at boundary 1", timeout=PATIENCE_MS)
        _press(page, 2, "run")
        expect(page.locator("#verdict")).to_contain_text("exactly once", timeout=PATIENCE_MS)
        expect(page.locator("#counts")).to_have_text("40 cancelled.")
        keep_picture(page, "board-finished")


def test_freeze_wait_thaw_and_rival(browser: Browser, board: RunningBoard) -> None:
    """
    Scenario:
    * A client changes its first chunk and is frozen; another client and another owner come.

    Outcome:
    * The client waits for the lock, the owner has to wait; thawed, the first goes on and commits.
    """
    with watched_page(browser) as page:
        _start(page, board, orders=6, chunk=3)
        _step_until(page, 1, "rows of orders")
        _press(page, 1, "freeze")
        expect(_worker(page, 1)).to_contain_text("frozen, held", timeout=PATIENCE_MS)
        page.locator("#another").click()
        expect(_worker(page, 2)).to_contain_text("held at boundary 1", timeout=PATIENCE_MS)
        _press(page, 2, "run")
        expect(_worker(page, 2)).to_contain_text("waits for a lock", timeout=PATIENCE_MS)
        page.locator("#rival button[type=submit]").click()
        expect(page.locator("#what")).to_contain_text("has to wait", timeout=PATIENCE_MS)
        keep_picture(page, "board-waiting")
        _press(page, 1, "thaw")
        expect(_worker(page, 1)).not_to_contain_text("frozen", timeout=PATIENCE_MS)
        _press(page, 1, "run")
        expect(_worker(page, 1)).to_contain_text("ended", timeout=PATIENCE_MS)
        expect(_worker(page, 2)).to_contain_text("ended", timeout=PATIENCE_MS)
        expect(page.locator("#verdict")).to_contain_text("exactly once", timeout=PATIENCE_MS)


def test_rival_edit_drifts_an_order_and_is_refused(browser: Browser, board: RunningBoard) -> None:
    """An order that its owner edited after the approval is drifted; the client stops at its chunk."""
    with watched_page(browser, "dark") as page:
        _start(page, board, orders=6, chunk=3)
        page.locator("#rival select").select_option(index=4)
        page.locator("#rival button[type=submit]").click()
        expect(page.locator("#counts")).to_contain_text("1 drifted", timeout=PATIENCE_MS)
        _press(page, 1, "run")
        expect(_worker(page, 1)).to_contain_text("raised Conflict", timeout=PATIENCE_MS)
        expect(page.locator("#counts")).to_contain_text("3 cancelled")
        assert accessibility_problems(page) == []
        keep_picture(page, "board-dark")


def test_closing_the_page_ends_its_clients(browser: Browser, board: RunningBoard) -> None:
    """A client that stands still on the board is gone when the page is."""
    with watched_page(browser, "phone") as page:
        _start(page, board)
        name = _worker(page, 1).locator("b").inner_text()
        pid = int(name.removeprefix("client "))
        assert psutil.pid_exists(pid)
        assert overflow(page) == 0
        assert accessibility_problems(page) == []
        keep_picture(page, "board-phone")
    wait_until(lambda: not psutil.pid_exists(pid), "the client is gone", wait_s=GONE_WAIT_S)


def test_newest_page_has_the_board(browser: Browser, board: RunningBoard) -> None:
    """One run at a time: a second page takes the board over, and the first one says so."""
    with watched_page(browser) as first, watched_page(browser) as second:
        _start(first, board)
        _start(second, board)
        expect(first.locator("#message")).to_contain_text("another window", timeout=PATIENCE_MS)
        expect(_worker(second, 1)).to_contain_text("held")


def test_refusals_are_told(browser: Browser, board: RunningBoard) -> None:
    """A fault line that is none, or that the board cannot play, is answered in words."""
    with watched_page(browser) as page:
        page.goto(board.url)
        page.get_by_label("Fault").fill("kill@nowhere")
        page.get_by_role("button", name="Start").click()
        expect(page.locator("#message")).to_contain_text("is no point", timeout=PATIENCE_MS)
        page.get_by_label("Fault").fill("crash@commit")
        page.get_by_role("button", name="Start").click()
        expect(page.locator("#message")).to_contain_text("lab sweep --at", timeout=PATIENCE_MS)


def _start(
    page: Page, board: RunningBoard, *, fault: str = "", orders: int = 40, chunk: int = 10
) -> None:
    page.goto(board.url)
    page.get_by_label("Fault").fill(fault)
    page.get_by_role("spinbutton", name="Orders").fill(str(orders))
    page.get_by_role("spinbutton", name="a chunk").fill(str(chunk))
    page.get_by_role("button", name="Start").click()
    expect(_worker(page, 1)).to_contain_text("held at boundary 1", timeout=PATIENCE_MS)


def _worker(page: Page, number: int) -> Locator:
    return page.locator(f"#workers li[data-worker='{number}']")


def _press(page: Page, number: int, action: str) -> None:
    _worker(page, number).locator(f"[data-action={action}]").click()


def _step_until(page: Page, number: int, words: str) -> None:
    """Step a client until the page says what is waited for; each step is seen before the next."""
    for boundary in range(2, 60):
        _press(page, number, "step")
        state = f"held at boundary {boundary}"
        expect(_worker(page, number)).to_contain_text(state, timeout=PATIENCE_MS)
        if words in page.locator("#what").inner_text():
            return
    raise AssertionError(f"no boundary said {words!r}")
