"""Pages as text: what is in them, what cannot get out of its place, and that all of it is packaged."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from harness.activity import activities, sized
from harness.course import SOLUTIONS
from harness.demo import Demo, run_demo
from harness.grading.result import CheckResult
from harness.records import Finding, Verdict
from harness.report.moments import moments_of
from harness.report.page import (
    check_page,
    demo_page,
    render,
    run_page,
    sweep_page,
    worst_of,
    write_page,
)
from harness.report.scenes import watch
from harness.report.steps import steps_of
from harness.scenario import festival
from harness.sweep import run_sweep
from harness.workshop import Workshop

HOSTILE = '</script><script>alert("x")</script><!-- & \' " <img src=http://evil.example/x>'
SMALL = festival(6, 3)


@pytest.fixture(scope="module")
def demo(workshop: Workshop) -> Demo:
    return run_demo(workshop, SOLUTIONS, SMALL, ["audit", "commit"])


class _Reader(HTMLParser):
    """Collects elements, and the JSON of data scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.data: dict[str, Any] = {}
        self._id: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action") and v]
        self._id = given.get("id") if given.get("type") == "application/json" else None

    def handle_data(self, data: str) -> None:
        if self._id:
            self.data[self._id] = json.loads(data)
            self._id = None


def test_demo_page_holds_every_story_and_needs_nothing_else(demo: Demo) -> None:
    """Steps, boards and words are in the one file; its only addresses are inside it."""
    read = _Reader(render(demo_page(demo)))
    assert {f"data-s{n}" for n in range(len(demo.rows))} <= set(read.data)
    assert all(a.startswith(("#", "data:")) for a in read.addresses)
    assert read.data["boards"][0]["orders"] == list(SMALL.approved_ids)


def test_story_ends_as_the_evidence_does(demo: Demo) -> None:
    """The steps of every scene, added up, come to what the last fresh connection read."""
    read = _Reader(render(demo_page(demo)))
    for n, row in enumerate(demo.rows):
        states = [""] * len(SMALL.approval)
        for step in read.data[f"data-s{n}"]["steps"]:
            for start, size, state, _ in step.get("o", []):
                states[start : start + size] = [state] * size
        done = row.title != "rival edit"
        assert "".join(states) == ("cccccc" if done else "cccrdr"), row.title


def test_hostile_text_stays_text(demo: Demo) -> None:
    """SQL, findings and notes come from a learner; none of them may become part of the page."""
    run = demo.rows[1].run
    bad = replace(
        run,
        verdict=Verdict.FAIL,
        findings=(Finding(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        boundaries=tuple(replace(b, sql=HOSTILE, tag=HOSTILE) for b in run.boundaries),
    )
    clean = _Reader(render(run_page("title", "lead", [run], "repeat")))
    html = render(run_page(HOSTILE, HOSTILE, [bad], HOSTILE, words=HOSTILE))
    read = _Reader(html)
    assert read.tags.count("script") == clean.tags.count("script")
    assert "img" not in read.tags
    assert "http://evil.example" not in read.addresses
    assert any(HOSTILE[:20] in text for text in read.data["data-s0"]["texts"])


def test_sweep_page_opens_a_story_for_each_cell(workshop: Workshop) -> None:
    """A sweep keeps no wire of what passed; the page tells those runs by the record."""
    sweep = run_sweep(workshop, SOLUTIONS, sized(activities(3)[0], 2, 1, 0))
    page = sweep_page([sweep], lambda activity: f"lab sweep {activity.lab}")
    read = _Reader(render(page))
    assert len(page.stories) == len(sweep.cells) + 1
    for n, cell in enumerate(sweep.cells, 1):
        steps = read.data[f"data-s{n}"]["steps"]
        assert [s["b"] for s in steps if s["k"] == "boundary"] == list(range(1, cell.boundary + 1))
        assert [s["k"] for s in steps].count("fault") == 1


def test_check_page_says_the_check(workshop: Workshop) -> None:
    """A graded check's page has its claim, its message and its command, with or without scenes."""
    result = CheckResult(5, "lab05.x", "a claim", "bounded", Verdict.FAIL, 0, 10, "a message", {}, "uv run x")  # fmt: skip
    with watch(workshop) as scenes:
        run_demo(workshop, SOLUTIONS, SMALL, ["audit"])
    for shown in ([], scenes):
        html = render(check_page(result, shown))
        assert all(text in html for text in ("a claim", "bounded", "a message", "uv run x"))


def test_watched_scenes_tell_what_the_runs_tell(workshop: Workshop) -> None:
    """A scene watched from outside has the same kill, and the same end, as the run that it was."""
    with watch(workshop) as scenes:
        demo = run_demo(workshop, SOLUTIONS, SMALL, ["audit"])
    assert workshop.observer is None
    assert [scene.fault for scene in scenes] == ["", demo.rows[1].run.fault, ""]
    kinds = [type(moment).__name__ for moment in scenes[1].moments]
    assert kinds.index("Ended") < kinds.index("Looked")
    assert kinds[-1] == "Looked"
    ours, theirs = (
        [step.boundary for step in steps_of(SMALL, moments) if step.boundary]
        for moments in (scenes[1].moments, moments_of(demo.rows[1].run)[0])
    )
    assert ours == theirs


def test_lab_check_writes_a_page_for_every_check(tmp_path: Path) -> None:
    """`lab check --html DIR`: the check's page stands under its name, with the scenes it played."""
    name = "killed_at_the_four_points"
    command = [sys.executable, "-m", "harness.cli", "check", "3", "-k", name, "--impl", "solutions"]
    ended = subprocess.run([*command, "--html", str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    read = _Reader((tmp_path / f"lab03_chunk.{name}.html").read_text(encoding="utf-8"))
    assert len(read.data) > 4


def test_written_file_is_whole_and_readable(demo: Demo, tmp_path: Path) -> None:
    """The page replaces an older file, in folders that are made, and leaves nothing beside it."""
    path = tmp_path / "new" / "page.html"
    write_page(path, demo_page(demo))
    write_page(path, demo_page(demo))
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]
    assert path.stat().st_mode & 0o444 == 0o444


def test_worst_verdict_is_the_pages() -> None:
    assert worst_of([Verdict.PASS, Verdict.VOID]) is Verdict.VOID
    assert worst_of([Verdict.VOID, Verdict.FAIL, Verdict.ERROR]) is Verdict.FAIL
    assert worst_of([]) is Verdict.SKIP


def test_templates_are_part_of_the_package() -> None:
    """They are found as package data, so that an installed kit has them as well."""
    names = {p.name for p in (files("harness.report") / "templates").iterdir()}
    assert names >= {"page.html.j2", "page.css", "page.js", "live.html.j2", "live.js"}
