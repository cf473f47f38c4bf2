"""Any program under the sweep: a psql script and a Python program, committed apart and bound."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.postgres.embedded import find_programs
from harness.program_sweep import Foreign, ScriptProblem, foreign_activity
from harness.records import Verdict
from harness.report.grid import repeat_line
from harness.story import tell
from harness.sweep import Sweep, run_sweep
from harness.workshop import Workshop, open_workshop

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    """A workshop of this file's own: the programs' tables are no guests in the labs' database."""
    with open_workshop() as opened:
        yield opened


def foreign(command: Sequence[str]) -> Foreign:
    """Return the batch of tests/programs with a command."""
    setup, check = ((PROGRAMS / name).read_text() for name in ("setup.sql", "check.sql"))
    return Foreign(setup, check, tuple(command), tuple(command), PROGRAMS)


def psql(script: str) -> list[str]:
    """Return the command that runs a script with the psql of the embedded server's wheel."""
    return [str(find_programs() / "psql"), "-X", "-q", "-f", script]


def python(style: str) -> list[str]:
    """Return the command of the Python batch."""
    return [sys.executable, "batch.py", style]


def swept(workshop: Workshop, command: Sequence[str]) -> Sweep:
    """Sweep a command."""
    return run_sweep(workshop, PROGRAMS, foreign_activity(workshop, foreign(command), 3))


@pytest.mark.parametrize("command", [psql("bound.sql"), python("bound")], ids=["psql", "python"])
def test_a_bound_batch_survives_everywhere(workshop: Workshop, command: list[str]) -> None:
    """Killed at every boundary and started again, it exits with 0 and the check has no rows."""
    sweep = swept(workshop, command)
    assert sweep.verdict is Verdict.PASS, [cell.run.findings for cell in sweep.failures]
    assert sweep.covered[0] == sweep.covered[1] == len(sweep.cells)
    assert sweep.commits == (3, 3)


@pytest.mark.parametrize("command", [psql("apart.sql"), python("apart")], ids=["psql", "python"])
def test_a_naive_batch_fails_with_a_story_of_two_transactions(
    workshop: Workshop, command: list[str]
) -> None:
    """It passes when nothing goes wrong; killed between T1 and T2 it cancels twice."""
    sweep = swept(workshop, command)
    assert sweep.record.verdict is Verdict.PASS
    assert sweep.verdict is Verdict.FAIL
    first = sweep.failures[0]
    story = tell(first.run, sweep.record.boundaries)
    assert story.headline.startswith("T1 updated orders (3, 6, 9 and 7 more) and committed")
    assert "its audit was in T2" in story.headline
    assert story.headline.endswith("the client died between them")
    line = repeat_line(first, sweep.record.boundaries)
    assert line in ("kill@orders", "kill@commit")


def test_another_command_may_resume(workshop: Workshop) -> None:
    """A batch that cannot repeat itself passes when what resumes it can."""
    naive = foreign(python("apart"))
    broom = ("-c", "update orders set state = 'cancelled', revision = 2 where order_id in (select order_id from approved);"
             "delete from audit; insert into audit select * from approved")  # fmt: skip
    repaired = replace(naive, resume=(*psql("x")[:3], *broom))
    sweep = run_sweep(workshop, PROGRAMS, foreign_activity(workshop, repaired, 1))
    assert sweep.verdict is Verdict.PASS


def test_a_command_that_does_not_work_is_said_at_once(workshop: Workshop) -> None:
    """Nothing is killed when the clean run fails; its output is shown."""
    sweep = swept(workshop, [sys.executable, "-c", "raise SystemExit('no such thing')"])
    assert sweep.verdict is Verdict.FAIL
    assert sweep.cells == ()
    assert "no such thing" in sweep.record.findings[0].seen


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"setup": "create tabel x ()"}, "the setup failed"),
        ({"check": "select * from nowhere"}, "the check failed"),
        ({"check": "update orders set revision = 1"}, "the check failed"),
    ],
)
def test_broken_scripts_are_told_apart(
    workshop: Workshop, changes: dict[str, str], says: str
) -> None:
    """What is wrong with setup or check is the user's to know, with the server's words."""
    with pytest.raises(ScriptProblem, match=says):
        foreign_activity(workshop, replace(foreign(python("bound")), **changes), 1)
