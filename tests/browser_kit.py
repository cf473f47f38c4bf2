"""A real browser for the tests of pages: headless Chromium, which may reach this machine only.

Every request is recorded and judged, and so is every word on the console: a page that asks another
host for something, or that has an error, fails its test whatever else it shows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LOCAL = ("file:", "data:", "blob:", "http://127.0.0.1:")
#: As issue reports have it: a laptop in both themes, and a small phone.
VIEWS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 780}, "color_scheme": "light"},
}


def find_browser() -> str:
    """Return the path of a Chromium, or skip the test."""
    found = os.environ.get("LAB_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)}, and LAB_BROWSER is not set")
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start headless Chromium with a fresh profile."""
    path = find_browser()
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium's sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS + sandbox)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(browser: Browser, view: str = "light") -> Iterator[Page]:
    """Open a page; at the end it must have had no error and asked no other host."""
    context = browser.new_context(**VIEWS[view])  # type: ignore[arg-type]
    trouble: list[str] = []

    def judge(route: Any) -> None:
        url = route.request.url
        if url.startswith(LOCAL):
            route.continue_()
        else:
            trouble.append(f"asked for {url}")
            route.abort()

    context.route("**/*", judge)
    page = context.new_page()
    page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    try:
        yield page
        assert trouble == []
    finally:
        context.close()


def accessibility_problems(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the page: rule, help, and the first elements."""
    violations = Axe().run(page).response["violations"]
    return [
        f"{v['id']}: {v['help']}: {[n['html'][:120] for n in v['nodes'][:3]]}" for v in violations
    ]


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def keep_picture(page: Page, name: str) -> None:
    """Save a screenshot where LAB_SCREENSHOTS says; without it, do nothing."""
    folder = os.environ.get("LAB_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
