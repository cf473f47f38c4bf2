"""The demo of track B: the worked answers come to the end, a wrong one ends the story with its promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from zoo import materialise, wrong_answers

from harness.cli import app
from harness.course import LABS, SOLUTIONS
from harness.ledger.demo import DISPATCHED, EVENTS, KILLED_AT, demo_scenario, run_ledger_demo
from harness.ledger.scenario import ending_of
from harness.records import Verdict
from harness.workshop import Workshop

pytestmark = pytest.mark.slow


def test_the_list_is_the_lessons_whatever_the_seed():
    """The seed moves subjects; which events are no good stays, and the killed worker was at a good one."""
    for seed in (0, 1, 41):
        states = [ending_of(event).state for event in demo_scenario(seed).parent.listed or ()]
        assert len(states) == EVENTS
        assert states[KILLED_AT] == "processed"
        assert [states[:KILLED_AT].count(s) for s in ("processed", "failed", "skipped")] == [
            572,
            12,
            4,
        ]
    assert demo_scenario(1).parent != demo_scenario(2).parent


def test_the_story_comes_to_its_end(workshop: Workshop):
    """Six acts, a proven kill, and every event accounted for."""
    demo = run_ledger_demo(workshop, SOLUTIONS, demo_scenario(3))
    assert demo.verdict is Verdict.PASS
    assert demo.kill is not None
    assert demo.kill.landed
    assert demo.kill.exit is not None
    assert demo.kill.exit.killed
    assert len(demo.acts) == 6
    assert sum(demo.counts.values()) == EVENTS
    assert demo.counts["processed, with one effect"] > DISPATCHED


@pytest.mark.parametrize(
    ("name", "acts"),
    [("b08-drops-malformed", 0), ("b10-mark-first", 1), ("b12-dry-run-writes", 4)],
)  # fmt: skip
def test_a_wrong_answer_ends_the_story_with_its_promise(
    name, acts, workshop: Workshop, tmp_path: Path
):
    """The acts before the mistake are told, and the judge's words end the story."""
    wrong = next(answer for answer in wrong_answers() if answer.name == name)
    demo = run_ledger_demo(workshop, materialise(wrong, tmp_path / "impl"), demo_scenario())
    assert len(demo.acts) == acts
    assert demo.verdict is Verdict.FAIL
    assert wrong.promise in {finding.promise for finding in demo.findings}


def test_the_command_tells_it_and_writes_it_down(tmp_path: Path):
    """Exit status 0, six acts in words, the same as JSON; untouched labs end it with status 1."""
    runner, file = CliRunner(), tmp_path / "demo.json"
    told = runner.invoke(app, ["demo", "--track", "ledger", "--seed", "5", "--json", str(file)])
    assert told.exit_code == 0, told.output
    assert "6. Every event is accounted for" in told.output
    data = json.loads(file.read_text())
    assert data["schema"] == "interrupted/ledger-demo/v1"
    assert data["verdict"] == "pass"
    assert data["seed"] == 5
    stubs = tmp_path / "stubs"
    for lab in LABS.glob("lab*"):
        (stubs / lab.name).mkdir(parents=True)
        for source in lab.glob("[!t]*.py"):
            (stubs / lab.name / source.name).write_text(source.read_text())
    undone = runner.invoke(app, ["demo", "--track", "ledger", "--impl", str(stubs)])
    assert undone.exit_code == 1, undone.output
    assert runner.invoke(app, ["demo", "--track", "ledger", "--point", "audit"]).exit_code == 2
