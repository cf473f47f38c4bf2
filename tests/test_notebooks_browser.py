"""Two notebooks opened in JupyterLab with `lab notebook`, and run by clicking, in a real browser.

Scenario: a learner's copy of the kit; JupyterLab is started by the command, opened in headless
Chromium, and told by its own menu to restart the kernel and run all cells. Outcome: the committed
pictures are visible before anything is run, every cell gets its number, and Ctrl-C leaves nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from loop_kit import Checkout, Started

from harness.course import ROOT
from harness.explore.notebooks import read
from harness.waiting import wait_until

#: A notebook takes seconds; Chromium, JupyterLab and the runs share a loaded machine's cores.
WAIT_S = 150.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A learner's folder with the notebooks in it."""
    made = Checkout(tmp_path / "kit")
    shutil.copytree(ROOT / "notebooks", made.root / "notebooks")
    return made


@pytest.fixture
def jupyter(checkout: Checkout, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """JupyterLab as `lab notebook` starts it: its address and its token."""
    os.environ["JUPYTER_CONFIG_DIR"] = str(tmp_path / "config")  # nobody's own settings
    try:
        started = checkout.start("notebook", "--no-browser")
    finally:
        del os.environ["JUPYTER_CONFIG_DIR"]
    try:
        output = started.wait_for("Ctrl-C ends it")
        found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\S+)", output)
        assert found is not None, output
        yield found[1], found[2]
    finally:
        _interrupt(started)


def _interrupt(started: Started) -> None:
    """Press Ctrl-C, and see that nothing of what the command started is left."""
    family = psutil.Process(started.process.pid).children(recursive=True)
    assert family
    started.process.send_signal(signal.SIGINT)
    assert started.wait() == 0, started.output
    wait_until(
        lambda: not any(process.is_running() for process in family),
        "Jupyter and its kernels have ended", wait_s=WAIT_S, poll_s=0.05,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["01_chunks_on_a_board", "03_lost_answers"])
def test_a_notebook_is_run_by_clicking(name, jupyter, checkout):
    address, token = jupyter
    cells = [
        c for c in read(checkout.root / f"notebooks/{name}.ipynb").cells if c.cell_type == "code"
    ]
    strangers: list[str] = []

    def note(request: sync_api.Request) -> None:
        if not request.url.startswith((address, address.replace("http", "ws"), "data:", "blob:")):
            strangers.append(request.url)

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.set_default_timeout(WAIT_S * 1000)
        page.on("request", note)
        page.goto(f"{address}/lab/tree/{name}.ipynb?token={token}")
        try:
            _look_and_run(page, len(cells))
        finally:
            if folder := os.environ.get("LAB_SCREENSHOTS"):
                page.screenshot(path=f"{folder}/{name}.png")
        browser.close()
    assert strangers == []


def _look_and_run(page: sync_api.Page, cells: int) -> None:
    """Look at the committed outputs, run all cells from the menu, and wait for the last number."""
    # Before anything is run: an output that is not trusted yet still shows its picture.
    first = page.locator(".jp-OutputArea-output img").first
    first.wait_for()
    assert first.evaluate("image => image.naturalWidth") > 0
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("Restart Kernel and Run All Cells")).click()
    page.locator(".jp-Dialog .jp-mod-accept").click()
    prompt = page.locator(".jp-CodeCell .jp-InputPrompt")
    prompt.filter(has_text="[*]:").first.wait_for()
    page.wait_for_function(_ALL_RUN, arg=cells)
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0


#: Every code cell has the number that a run from top to bottom gives it. Asked of the elements, not
#: of what is visible: the notebook is longer than the window.
_ALL_RUN = """
    count => {
        const prompts = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")];
        const wanted = Array.from({length: count}, (_, n) => `[${n + 1}]:`);
        return JSON.stringify(prompts.map(p => p.textContent.trim())) === JSON.stringify(wanted);
    }
"""
