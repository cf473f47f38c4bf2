"""Pages of real runs in a real browser: a demo, a wrong answer, a sweep of 200 cells, 5,000 orders."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_kit import (
    VIEWS,
    accessibility_problems,
    keep_picture,
    open_browser,
    overflow,
    watched_page,
)
from playwright.sync_api import Browser, Page, expect
from zoo import materialise, wrong_answers

from harness.activity import activities, sized
from harness.course import SOLUTIONS
from harness.demo import run_demo
from harness.report.page import demo_page, sweep_page, write_page
from harness.scenario import festival
from harness.sweep import run_sweep
from harness.workshop import Workshop

#: The page of 5,000 orders opens in two seconds; a loaded machine gets some more.
OPEN_S = 2.0 * 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def demo_file(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo.html"
    write_page(path, demo_page(run_demo(workshop, SOLUTIONS, festival()), "solutions"))
    return path


@pytest.mark.parametrize("view", VIEWS)
def test_demo_page_is_accessible_and_fits(browser: Browser, demo_file: Path, view: str) -> None:
    """Every story of the demo is free of what axe-core finds, and no wider than the window."""
    with watched_page(browser, view) as page:
        page.goto(demo_file.as_uri())
        keep_picture(page, f"demo-{view}")
        for story in range(6):
            page.goto(f"{demo_file.as_uri()}#s{story}")
            expect(page.locator(f"#told-s{story}")).to_be_visible()
            assert overflow(page) == 0
            assert accessibility_problems(page) == []


def test_demo_page_shows_before_after_and_resumed(browser: Browser, demo_file: Path) -> None:
    """The three moments of the kill after the audit say what was written, gone, and done."""
    with watched_page(browser) as page:
        page.goto(f"{demo_file.as_uri()}#s2")
        moments = page.locator("#moments button")
        expect(moments).to_have_count(3)
        expect(moments.nth(0)).to_contain_text("10 written, not committed; 10 cancelled")
        expect(moments.nth(1)).to_contain_text("10 cancelled; 10 rolled back. next_index 10")
        expect(moments.nth(2)).to_contain_text("40 cancelled. next_index 40")


def test_stepping_moves_board_tables_and_timeline_together(
    browser: Browser, demo_file: Path
) -> None:
    """Back from the kill the chunk is written and uncommitted in board, table and words; forward it is gone."""
    with watched_page(browser) as page:
        page.goto(f"{demo_file.as_uri()}#s2")
        second = page.locator("#chunks tr").nth(1)
        expect(page.locator("#what")).to_contain_text("after audit; its server session is gone")
        expect(second).to_contain_text("10 rolled back")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#what")).to_contain_text("inserts 10 rows of job_audit")
        expect(page.locator("#counts")).to_contain_text("10 written, not committed")
        expect(second).to_contain_text("10 written, not committed")
        expect(page.locator("#timeline svg")).to_have_attribute(
            "aria-label", _has("inserts 10 rows")
        )
        page.get_by_role("button", name="One boundary forward").click()
        expect(second).to_contain_text("10 rolled back")
        page.keyboard.press("Home")
        expect(page.locator("#counts")).to_have_text("40 pending, as approved.")
        page.keyboard.press("End")
        expect(page.locator("#checkpoint")).to_have_text("next_index: 40")
        expect(page.locator("#chunks tr").nth(3)).to_contain_text("T4")


def test_untold_commit_is_told_apart(browser: Browser, demo_file: Path) -> None:
    """Killed after COMMIT: the chunk stays, and the page says that the client was not told."""
    with watched_page(browser) as page:
        page.goto(f"{demo_file.as_uri()}#s4")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#what")).to_contain_text(
            "T2 is committed on the server; the client has not"
        )
        expect(page.locator("#timeline .unknown")).to_have_text("?")


def test_theme_button_overrules_the_system(browser: Browser, demo_file: Path) -> None:
    with watched_page(browser, "light") as page:
        page.goto(demo_file.as_uri())
        light = _paper(page)
        page.locator("#theme").click()
        page.locator("#theme").click()
        expect(page.locator("#theme")).to_have_text("Theme: dark")
        assert _paper(page) != light
        assert accessibility_problems(page) == []


def test_wrong_answer_is_named_and_shown(
    browser: Browser, workshop: Workshop, tmp_path: Path
) -> None:
    """
    Scenario:
    * A batch commits orders, audit and checkpoint apart; its sweep fails.

    Outcome:
    * The grid has crosses that open stories; the finding names the promise; the table says who wrote what apart.
    """
    answer = next(a for a in wrong_answers() if a.name == "chunk-three-commits")
    row = sized(activities(3)[0], 6, 3, 0)
    sweep = run_sweep(workshop, materialise(answer, tmp_path / "impl"), row)
    file = tmp_path / "wrong.html"
    write_page(file, sweep_page([sweep], lambda activity: f"lab sweep {activity.lab}"))
    with watched_page(browser) as page:
        page.goto(file.as_uri())
        keep_picture(page, "wrong")
        expect(page.locator("header .verdict")).to_contain_text("FAIL")
        page.locator(".grid a.v-fail").last.click()
        shown = page.locator(".told:not([hidden])")
        expect(shown.locator("h3").first).to_contain_text("Promise broken: bound")
        expect(shown.locator(".repeat")).to_contain_text("uv run lab sweep 3 --at 'kill@")
        page.keyboard.press("End")
        expect(page.locator("#chunks .apart").first).to_contain_text("apart")
        assert accessibility_problems(page) == []
        page.emulate_media(color_scheme="dark")
        assert accessibility_problems(page) == []


@pytest.mark.slow
def test_sweep_of_200_cells_opens_their_stories(
    browser: Browser, workshop: Workshop, tmp_path: Path
) -> None:
    """Each cell of a sweep with 200 opens its own story, also on a phone."""
    sweep = run_sweep(workshop, SOLUTIONS, sized(activities(3)[0], 12, 1, 0))
    assert len(sweep.cells) >= 200
    file = tmp_path / "sweep.html"
    write_page(file, sweep_page([sweep], lambda activity: f"lab sweep {activity.lab}"))
    for view in ("light", "phone"):
        with watched_page(browser, view) as page:
            page.goto(file.as_uri())
            keep_picture(page, f"sweep-{view}")
            cells = page.locator(".grid a")
            assert cells.count() >= 201  # and the clean run
            for n in (1, 100, 200):
                cells.nth(n).click()
                expect(cells.nth(n)).to_have_attribute("aria-current", "true")
                expect(page.locator("#what")).to_contain_text("killed by SIGKILL")
            assert overflow(page) == 0
            assert accessibility_problems(page) == []


@pytest.mark.slow
def test_5000_orders_open_fast_and_step_fast(
    browser: Browser, workshop: Workshop, tmp_path: Path
) -> None:
    """The page of 5,000 orders opens in about two seconds, and a hundred steps take no longer."""
    file = tmp_path / "big.html"
    demo = run_demo(workshop, SOLUTIONS, festival(5000, 100), ["audit"])
    write_page(file, demo_page(demo, "solutions"))
    with watched_page(browser) as page:
        started = time.monotonic()
        page.goto(file.as_uri())
        expect(page.locator("#counts")).to_contain_text("100 rolled back")
        assert time.monotonic() - started < OPEN_S
        started = time.monotonic()
        for _ in range(100):
            page.keyboard.press("ArrowRight")
        expect(page.locator("#count")).to_contain_text("of")
        assert time.monotonic() - started < 3 * OPEN_S
        assert accessibility_problems(page) == []
        keep_picture(page, "5000")


def _paper(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def _has(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))
