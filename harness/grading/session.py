"""One run of graded checks inside this process: pytest does the work, values come back.

`lab check` and `lab check --watch` use pytest for what it is good at (finding checks, choosing some,
fixtures) and nothing of its appearance: every check that ends is handed to a callback, and the end is
a `CheckRun`. The workshop is opened by the caller and lent, so that a watch keeps it warm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.course import LABS, ROOT, Lab
from harness.grading import plugin
from harness.grading.result import CheckResult
from harness.records import Verdict
from harness.workshop import Workshop


@dataclass(frozen=True)
class CheckOrder:
    """What to check: these labs of this implementation, and only the checks that `select` names.

    `impl` is what `--impl` takes. `select` is the exact name of a check, or pytest's expression.
    `result_file` gets the result after every check, the folder `pages` a page for each check.
    """

    labs: tuple[Lab, ...]
    impl: str = "labs"
    select: str = ""
    result_file: Path | None = None
    pages: Path | None = None


@dataclass(frozen=True)
class CheckRun:
    """How a run ended. `whole` tells that every check of its labs has a verdict.

    `trouble` is empty, or what kept pytest from running the checks. `deselected` names the checks
    that the selection left out.
    """

    results: tuple[CheckResult, ...]
    whole: bool
    interrupted: bool = False
    trouble: str = ""
    bad_selection: bool = False
    deselected: tuple[str, ...] = ()

    def of(self, lab: Lab) -> tuple[CheckResult, ...]:
        """Return the results of one lab."""
        return tuple(result for result in self.results if result.lab == lab.number)

    def passed(self, lab: Lab) -> bool:
        """Tell whether every check of a lab passed."""
        return all(result.verdict is Verdict.PASS for result in self.of(lab))

    def changed(self, before: Mapping[str, CheckResult]) -> bool:
        """Tell whether a check has another verdict than before."""
        return any(r.id in before and before[r.id].verdict is not r.verdict for r in self.results)


class Listener:
    """What a caller may want to hear during a run. The methods do nothing here."""

    def begins(self, checks: int) -> None:
        """Hear how many checks there are, before the first."""

    def starts(self, title: str) -> None:
        """Hear that a check starts."""

    def ended(self, result: CheckResult) -> None:
        """Hear how a check ended, the moment it did."""


def has_checks(lab: Lab) -> bool:
    """Tell whether the kit has graded checks for a lab."""
    return any((LABS / lab.folder).glob("test_*.py"))


def run_checks(order: CheckOrder, workshop: Workshop, listener: Listener) -> CheckRun:
    """Run the checks and return how they ended. Ctrl-C ends the run, not the caller."""
    bridge = _Bridge(order, workshop, listener)
    status = pytest.main(_arguments(order), plugins=[bridge])
    whole = not (bridge.interrupted or bridge.troubles or order.select) and not bridge.waiting
    return CheckRun(
        tuple(bridge.results),
        whole,
        interrupted=bridge.interrupted,
        trouble="\n".join(bridge.troubles),
        bad_selection=bool(order.select)
        and status in (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR),
        deselected=tuple(bridge.deselected),
    )


def _arguments(order: CheckOrder) -> list[str]:
    """Return pytest's arguments: our plugin alone, our configuration, and none of its output."""
    arguments = [
        *(str(LABS / lab.folder) for lab in order.labs),
        f"--rootdir={ROOT}",
        f"--config-file={ROOT / 'pyproject.toml'}",
        "--override-ini=addopts=--import-mode=importlib",  # the kit's own tests run on all cores
        "--disable-plugin-autoload",
        f"-p{plugin.__name__}",
        "-pno:terminal",
        "-pno:cacheprovider",
        "--capture=no",  # nothing is printed in this process but by the listener
        "--assert=plain",
        "--override-ini=filterwarnings=default",  # a learner's Python may be newer than the kit
        f"--impl={order.impl}",
    ]
    if order.select:
        arguments.append(f"-k={order.select}")
    if order.result_file is not None:
        arguments.append(f"--result={order.result_file}")
    if order.pages is not None:
        arguments.append(f"--pages={order.pages}")
    return arguments


class _Bridge:
    """The pytest plugin that turns what pytest tells into results, and passes them on."""

    def __init__(self, order: CheckOrder, workshop: Workshop, listener: Listener) -> None:
        self._order = order
        self._workshop = workshop
        self._listener = listener
        self._config: pytest.Config | None = None
        self.results: list[CheckResult] = []
        self.waiting: set[str] = set()
        self.deselected: list[str] = []
        self.troubles: list[str] = []
        self.interrupted = False

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.WORKSHOP] = self._workshop
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Where the selection is a check's whole name, leave out what only contains it."""
        exact = [i for i in items if i.name == f"test_{self._order.select}"]
        if exact:
            config.hook.pytest_deselected(items=[i for i in items if i not in exact])
            items[:] = exact

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.deselected += [item.name.removeprefix("test_") for item in items]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.waiting = {item.nodeid for item in session.items if plugin.check_of(item)}
        self._listener.begins(len(self.waiting))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        check = plugin.check_of(item)
        if check is not None:
            self._listener.starts(check.title)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and report.failed):
            self._end(report)
        elif report.when == "teardown" and report.failed:
            self.troubles.append(f"cleaning up after {report.nodeid}:\n{report.longreprtext}")

    def _end(self, report: pytest.TestReport) -> None:
        """Take a check's result; one that could not even be set up has an error of the harness."""
        assert self._config is not None
        known = self._config.stash[plugin.RESULTS]
        if report.nodeid not in known:
            return
        if report.when == "setup":
            known[report.nodeid] = replace(
                known[report.nodeid], verdict=Verdict.ERROR, message=report.longreprtext
            )
        self.waiting.discard(report.nodeid)
        self.results.append(known[report.nodeid])
        self._listener.ended(known[report.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.troubles.append(f"{report.nodeid} cannot be loaded:\n{report.longreprtext}")

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.troubles.append(str(excrepr))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell Ctrl-C from pytest's own stop after a file that cannot be loaded."""
        self.interrupted = not isinstance(excinfo.value, pytest.Session.Interrupted)
