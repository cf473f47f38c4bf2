"""A learner's checkout to try the `lab` command in: the real kit, the empty files, two small sets of checks.

The checks of the labs may change; what is tested here is the loop around them. So the checkout has
its own: one for lab 2, two for lab 3.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from harness.course import COURSE, ROOT, lab
from harness.learner import pristine

#: A command that has not ended, or said what it should, by now never will.
COMMAND_S = 90.0
#: Compiled files are copied too: compiling the kit anew for every test takes longer than the test.
_NOT_COPIED = shutil.ignore_patterns("test_*.py", ".lab", "*.egg-info")

LAB_2_CHECKS = """
from harness.grading.check import check
from harness.scenario import festival


@check("the approved orders are cancelled", promise="approved version", points=100)
def test_cancel(bench):
    story = festival(4, 2)
    with bench.scene(story) as scene:
        rows = bench.call(bench.actor(scene), "cancel_orders", story.tenant, list(story.approval))
        bench.equal("cancelled", story.approved_ids, sorted(row.order_id for row in rows))
"""

LAB_3_CHECKS = """
from harness.grading.check import check
from harness.scenario import festival


@check("the first chunk is done", promise="bound", points=60)
def test_first(bench):
    story = festival(40, 10)
    with bench.scene(story) as scene:
        result = bench.call(bench.actor(scene), "run_chunk", story.job_id)
        bench.equal("ran a chunk", story.chunk_ids(1), result.processed)


@check("the last chunk may be short", promise="bound", points=40)
def test_first_and_last(bench):
    story = festival(13, 10, done_chunks=1)
    with bench.scene(story) as scene:
        result = bench.call(bench.actor(scene), "run_chunk", story.job_id)
        bench.equal("ran the last chunk", (13, True), (result.next_index, result.complete))
"""


class Checkout:
    """A learner's folder. `run` is a `lab` command in it, as a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("harness", "labs", "solutions"):
            shutil.copytree(ROOT / name, root / name, ignore=_NOT_COPIED)
        shutil.copy(ROOT / "pyproject.toml", root)
        for entry in COURSE:
            for name in pristine.files_of(entry):
                (root / "labs" / name).write_text(pristine.stub_text(name))
        self.checks(2).write_text(LAB_2_CHECKS)
        self.checks(3).write_text(LAB_3_CHECKS)

    def checks(self, number: int) -> Path:
        """Return the path of a lab's checks."""
        return self.root / "labs" / lab(number).folder / f"test_{lab(number).module}.py"

    def file(self, number: int) -> Path:
        """Return the learner's file of a lab."""
        return self.root / "labs" / lab(number).file

    def solve(self, *numbers: int) -> None:
        """Write the worked files as if the learner had."""
        for number in numbers:
            shutil.copy(ROOT / "solutions" / lab(number).file, self.file(number))

    @property
    def progress(self) -> Path:
        """Return the progress file's path."""
        return self.root / ".lab" / "progress.toml"

    def run(self, *arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
        """Run `lab` with these arguments to its end."""
        return subprocess.run(
            self.command(*arguments), cwd=self.root, env=self.environment(), input=answer,
            capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip

    def start(self, *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> Started:
        """Start `lab` with these arguments."""
        output = (self.root / "output.txt").open("w")
        with output:
            process = subprocess.Popen(
                self.command(*arguments), cwd=self.root, env=self.environment(), stdin=stdin,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Started(process, self.root / "output.txt")

    @staticmethod
    def command(*arguments: str) -> list[str]:
        """Return the command line of `lab`."""
        return [sys.executable, "-m", "harness.cli", *arguments]

    def environment(self) -> dict[str, str]:
        """Return an environment in which the checkout's own kit is imported."""
        return {**os.environ, "PYTHONPATH": str(self.root), "COLUMNS": "200", "TERM": "dumb"}


class Started:
    """A `lab` command that runs; what it prints goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self._path = path

    @property
    def output(self) -> str:
        """Return everything printed so far."""
        return self._path.read_text()

    def wait_for(self, text: str, *, count: int = 1) -> str:
        """Wait until `text` was printed `count` times; return the output then."""
        self.wait_until(lambda: self.output.count(text) >= count, f"{text!r} printed")
        return self.output

    def wait_until(self, fact: Callable[[], bool], what: str) -> None:
        """Wait until a fact holds, as long as the command runs and the deadline has not come."""
        deadline = time.monotonic() + COMMAND_S
        while not fact():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"never {what}:\n{self.output}"
            time.sleep(0.01)

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        return self.process.wait(COMMAND_S)
