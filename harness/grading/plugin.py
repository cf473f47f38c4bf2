"""The pytest plugin: graded checks with four verdicts, on one warm workshop.

    uv run pytest labs/lab03_chunk                    your own code
    uv run pytest labs --impl solutions               the worked answers
    uv run pytest labs --impl ../submission --result result.json

A check that ends `void` or `error` is tried once more before it is reported as ours. The result file
is written after every check, so a run that is cut off leaves a valid file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.course import COURSE, LABS, Lab
from harness.grading.check import CHECK_ATTRIBUTE, Check
from harness.grading.result import CheckResult, result_data
from harness.grading.runner import play_check
from harness.impl import UnknownImpl, find_impl
from harness.records import Verdict

RESULT = pytest.StashKey[CheckResult]()
RESULTS = pytest.StashKey[dict[str, CheckResult]]()
#: The labs of which a client has broken a limit; their other checks get less of everything.
HURRIED = pytest.StashKey[set[int]]()
STARTED = pytest.StashKey[float]()
#: An open workshop that whoever runs pytest in-process lends to the session (`lab check`).
WORKSHOP: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--impl`, `--spawn` and `--result`."""
    group = parser.getgroup("interrupted", "graded checks")
    group.addoption(
        "--impl", default="labs", help="whose code is checked: labs, solutions, or a folder"
    )
    group.addoption(
        "--spawn", action="store_true", help="start a fresh interpreter for each client"
    )
    group.addoption("--result", metavar="FILE", help="write the result as JSON after every check")
    group.addoption("--pages", metavar="DIR", help="write a page to step through for every check")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run graded checks in this process: one workshop, one result file, one line a check in order.

    None leaves the number to pytest-xdist, for the kit's own tests.
    """
    paths = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    return 0 if any(path == LABS or LABS in path.parents for path in paths) else None


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an unknown implementation before anything is collected."""
    config.stash[RESULTS] = {}
    config.stash[HURRIED] = set()
    config.stash[STARTED] = time.perf_counter()
    try:
        find_impl(config.getoption("--impl"))
    except UnknownImpl as problem:
        raise pytest.UsageError(str(problem)) from None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Put every collected check into the result as not yet run."""
    for item in session.items:
        check = check_of(item)
        if check is not None:
            lab = lab_of(item.path)
            session.config.stash[RESULTS][item.nodeid] = _result(
                item, lab, check, Verdict.SKIP, message="not run yet"
            )


@pytest.fixture(scope="session")
def workshop(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One workshop for the whole session: the one that was lent to it, or one of its own."""
    from harness.workshop import open_workshop

    lent = request.config.stash.get(WORKSHOP, None)
    if lent is not None:
        yield lent
        return
    with open_workshop(spawn=request.config.getoption("--spawn")) as opened:
        yield opened


@pytest.fixture
def bench(request: pytest.FixtureRequest, workshop: Any) -> Any:
    """Return the bench of this check: its lab, and whose code is checked."""
    from harness.grading.bench import Bench

    impl = find_impl(request.config.getoption("--impl"))
    check = check_of(request.node) or Check(request.node.name, "", 0)
    return Bench(workshop, impl, lab_of(request.node.path), check)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a check, up to twice when it ends without a verdict, and keep its result."""
    check = check_of(pyfuncitem)
    if check is None:
        return None
    lab = lab_of(pyfuncitem.path)
    bench: Any = pyfuncitem.funcargs.get("bench")
    hurried = pyfuncitem.config.stash[HURRIED]
    if bench is not None:
        bench.hurry(lab.number in hurried)
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    started = time.perf_counter()
    with _watched(pyfuncitem, bench) as scenes:
        played = play_check(
            lambda: pyfuncitem.obj(**arguments), lab, repeat_command(pyfuncitem, lab)
        )  # fmt: skip
    if bench is not None and bench.workshop.limit_broken:
        hurried.add(lab.number)
        bench.workshop.limit_broken = False
    result = _result(
        pyfuncitem, lab, check, played.verdict, message=played.message, evidence=played.evidence,
        duration_s=time.perf_counter() - started,
    )  # fmt: skip
    pyfuncitem.stash[RESULT] = result
    pyfuncitem.config.stash[RESULTS][pyfuncitem.nodeid] = result
    _write(pyfuncitem.config)
    if scenes is not None:
        from harness.report.page import write_check_page

        write_check_page(Path(pyfuncitem.config.getoption("--pages")), result, scenes)
    if played.verdict is Verdict.SKIP:
        pytest.skip(played.message)  # the verdict `skip`: an earlier lab is missing
    if played.problem is not None:
        raise played.problem
    return True


@contextmanager
def _watched(item: pytest.Item, bench: Any) -> Iterator[Any]:
    """Watch the check's scenes when its page is asked for; yield None otherwise."""
    if bench is None or not item.config.getoption("--pages"):
        yield None
        return
    from harness.report.scenes import watch

    with watch(bench.workshop) as scenes:
        yield scenes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show a check's own words instead of a traceback into the harness."""
    report = yield
    result = item.stash.get(RESULT, None)
    if call.when == "call" and result is not None and report.failed:
        head = f"{result.verdict.upper()}  lab {result.lab}: {result.title}"
        report.longrepr = f"{head}\n{result.message}"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the result file a last time."""
    _write(session.config)


def check_of(item: Any) -> Check | None:
    """Return the words of a graded check, or None for any other test."""
    return getattr(getattr(item, "function", None), CHECK_ATTRIBUTE, None)


def lab_of(path: Path) -> Lab:
    """Return the lab in whose folder a check's file is.

    Raises:
        LookupError: If the file is in no lab folder.
    """
    for lab in COURSE:
        if lab.folder in path.parts:
            return lab
    raise LookupError(f"{path} is in no lab folder: a graded check belongs into labs/labNN_*/")


def repeat_command(item: pytest.Item, lab: Lab) -> str:
    """Return the one command that repeats this check."""
    impl = item.config.getoption("--impl")
    option = "" if impl == "labs" else f" --impl {impl}"
    return f"uv run lab check {lab.number} -k {item.name.removeprefix('test_')}{option}"


def _result(
    item: pytest.Item,
    lab: Lab,
    check: Check,
    verdict: Verdict,
    *,
    message: str = "",
    evidence: dict[str, Any] | None = None,
    duration_s: float = 0.0,
) -> CheckResult:
    name = item.name.removeprefix("test_")
    points = check.points if verdict is Verdict.PASS else 0
    return CheckResult(
        lab.number, f"{lab.folder}.{name}", check.title, check.promise, verdict, points, check.points,
        message, evidence or {}, repeat_command(item, lab), duration_s,
    )  # fmt: skip


def _write(config: pytest.Config) -> None:
    name = config.getoption("--result")
    if name and config.stash[RESULTS]:
        from harness.report.data import write_json

        duration_s = time.perf_counter() - config.stash[STARTED]
        data = result_data(config.getoption("--impl"), config.stash[RESULTS].values(), duration_s)
        write_json(Path(name), data)
