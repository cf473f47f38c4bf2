"""`lab demo` as a user runs it: the main job, its options, wrong answers, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from zoo import materialise, wrong_answers

from harness.course import ROOT
from harness.scenario import festival

#: A demo takes two seconds on an idle machine; one that is not done by now never will be.
COMMAND_S = 120.0
#: A harness that was killed leaves clients, a keeper and a server that must notice it by themselves.
GONE_S = 10.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *arguments]


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `lab` to its end."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=COMMAND_S,
        env={**os.environ, "COLUMNS": "160"}, check=False,
    )  # fmt: skip


def demo(tmp_path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Run a demo and return what it printed and its data."""
    file = tmp_path / "demo.json"
    done = lab("demo", "--json", str(file), *arguments)
    return done, json.loads(file.read_text())


SHAPES = [(), ("--orders", "23", "--chunk-size", "10", "--seed", "7"), ("--orders", "1"),
          ("--chunk-size", "100"), ("--orders", "7", "--chunk-size", "3", "--spawn")]  # fmt: skip


@pytest.mark.parametrize("arguments", SHAPES, ids=["the story", *(" ".join(s) for s in SHAPES[1:])])
def test_the_main_job_survives_the_four_kills(arguments, tmp_path):
    """
    Scenario:
    * A client is killed after each of the four points; another finishes.

    Outcome:
    * Each kill landed by SIGKILL at its point; every approved order was cancelled once.
    """
    done, data = demo(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    scenes = {scene["title"]: scene for scene in data["scenes"]}
    assert [t for t in scenes if t.startswith("after")] == [
        "after orders", "after audit", "after checkpoint", "after commit",
    ]  # fmt: skip
    for title, scene in scenes.items():
        assert scene["verdict"] == "pass", title
        if scene["kill"]:
            assert scene["kill"]["landed"]
            assert scene["kill"]["exit"]["signal"] == signal.SIGKILL
            assert scene["resumed_by"] != scene["kill"]["exit"]["pid"]
            cancelled = [c["new"]["order_id"] for c in scene["after_resume"]["changes"]
                         if c["table"] == "orders"]  # fmt: skip
            assert sorted(cancelled) == data["approved"]


def test_the_same_seed_tells_the_same_story(tmp_path):
    _, data = demo(tmp_path, "--seed", "7", "--point", "commit")
    assert data["approved"] == list(festival(40, 10, seed=7).approved_ids)
    assert [scene["title"] for scene in data["scenes"]] == [
        "no fault",
        "after commit",
        "rival edit",
    ]


USAGE = {
    ("demo", "--chunk-size", "0"): "--chunk-size",
    ("demo", "--orders", "0"): "--orders",
    ("demo", "--impl", "no/such/folder"): "no/such/folder",
    ("demo", "--impl", "tests"): "no lab folder",
    ("demo", "--point", "midnight"): "midnight",
    ("demo", "--no-such-option"): "--no-such-option",
    ("no-such-command",): "no-such-command",
}


@pytest.mark.parametrize(("arguments", "named"), USAGE.items(), ids=[" ".join(a) for a in USAGE])
def test_a_usage_error_is_named_and_ends_with_2(arguments, named):
    done = lab(*arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


WRONG = {
    "chunk-three-commits": "bound",
    "chunk-checkpoint-before": "bound",
    "change-ignores-revision": "approved version",
}


@pytest.mark.parametrize(("name", "promise"), WRONG.items(), ids=list(WRONG))
def test_a_wrong_answer_fails_with_its_promise_and_order_ids(name, promise, tmp_path):
    wrong = next(answer for answer in wrong_answers() if answer.name == name)
    done, data = demo(tmp_path, "--impl", str(materialise(wrong, tmp_path / "impl")))
    assert done.returncode == 1
    findings = [f for scene in data["scenes"] for f in scene["findings"]]
    broken = next(f for f in findings if f["promise"] == promise)
    assert broken["order_ids"]
    assert f"promise broken: {promise}" in done.stdout
    assert str(broken["order_ids"][0]) in done.stdout


def test_an_empty_lab_fails_with_the_learners_own_line(tmp_path):
    done, _ = demo(tmp_path, "--impl", "labs")
    assert done.returncode == 1
    assert "NotImplementedError" in done.stdout


def test_a_kept_database_can_be_opened_and_cleaned_away(tmp_path):
    done = lab("demo", "--keep", "--point", "audit")
    name = re.search(r"lab psql --database (\S+)", done.stdout)[1]
    seen = lab("psql", "--database", name, "--", "-Atc", "SELECT next_index FROM lab.jobs")
    assert seen.stdout.split() == ["10"], seen.stderr
    cleaned = lab("doctor", "--clean")
    assert name in cleaned.stdout
    gone = lab("psql", "--database", name, "--", "-c", "SELECT 1")
    assert gone.returncode != 0


def test_psql_opens_the_story_and_ends_with_psqls_status():
    seen = lab("psql", "--", "-Atc", "SELECT count(*) FROM job_items")
    assert (seen.returncode, seen.stdout.split()) == (0, ["40"])
    assert lab("psql", "--", "-c", "SELEC 1").returncode == 1


def test_bench_prints_a_kill_beside_its_floor(tmp_path):
    file = tmp_path / "bench.json"
    done = lab("bench", "--kills", "8", "--json", str(file))
    data = json.loads(file.read_text())
    assert done.returncode == 0, done.stdout
    assert "times its floor" in done.stdout
    assert (len(data["kills_ms"]), data["verdicts"]) == (8, {"pass": 8})


def test_doctor_says_what_will_be_used(tmp_path):
    file = tmp_path / "doctor.json"
    done = lab("doctor", "--json", str(file))
    assert done.returncode == 0, done.stdout
    sources = json.loads(file.read_text())["sources"]
    assert [s["usable"] for s in sources if s["chosen"]] == [True]


def test_a_reader_that_leaves_early_is_no_error():
    """Scenario: `lab demo | head -1`. Outcome: no traceback, and the verdict's exit status."""
    with subprocess.Popen(
        command("demo", "--point", "audit"), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        process.stdout.close()
        complaint = process.stderr.read()
    assert process.returncode == 0
    assert "Traceback" not in complaint
    assert "BrokenPipe" not in complaint


@pytest.mark.parametrize(
    "how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name
)
def test_a_demo_that_is_ended_leaves_nothing(how, tmp_path):
    """
    Scenario:
    * A demo that has started its clients is interrupted, asked to stop, or killed.

    Outcome:
    * No process of it is left ten seconds later, nor its database.
    """
    with tempfile.TemporaryDirectory(prefix="lab-demo-", dir="/tmp") as cache:
        os.chmod(cache, 0o755)  # as root, the server runs as a user of its own
        env = {**os.environ, "LAB_CACHE_DIR": cache, "LAB_DATABASE": ""}
        env.pop("LAB_DATABASE_URL", None)
        process = subprocess.Popen(
            command("demo", "--orders", "4000", "--chunk-size", "10"), cwd=ROOT, env=env,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        family = wait_for_client(process, cache)
        process.send_signal(how)
        process.communicate(timeout=COMMAND_S)
        left = psutil.wait_procs([*family, *_of_server(cache)], timeout=GONE_S)[1]
        assert left == [], [_line(p) for p in left]
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    assert process.returncode == expected[how]


def wait_for_client(process: subprocess.Popen[bytes], cache: str) -> list[psutil.Process]:
    """Wait until the demo has a server, a fork server and a client; return all its processes."""
    deadline = time.monotonic() + COMMAND_S
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        below = psutil.Process(process.pid).children(recursive=True)
        if _of_server(cache) and sum("harness.process.forkserver" in _line(p) for p in below) >= 2:
            return below
        time.sleep(0.01)
    raise AssertionError("the demo never started a client")


def _of_server(cache: str) -> list[psutil.Process]:
    """Return keeper and postmaster: they name the cache folder on their command lines."""
    return [p for p in psutil.process_iter() if cache in _line(p)]


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
