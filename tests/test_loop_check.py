"""`lab check` as a learner and an instructor meet it: real processes in a checkout of their own."""

from __future__ import annotations

import json
import os
import pty
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from loop_kit import COMMAND_S, Checkout, Started

from harness.database import Server


@pytest.fixture
def checkout(tmp_path: Path, server: Server) -> Checkout:
    """A fresh checkout, nothing done; the server is kept running from test to test."""
    return Checkout(tmp_path)


@pytest.fixture
def started(checkout: Checkout) -> Iterator[list[Started]]:
    """Commands that a test starts; each one is ended with the test."""
    running: list[Started] = []
    yield running
    for command in running:
        if command.process.poll() is None:
            os.kill(command.process.pid, signal.SIGTERM)
            command.wait()


# --- once -----------------------------------------------------------------------------------------


def test_an_untouched_lab_is_told_once_as_a_beginning(checkout: Checkout) -> None:
    """Exit status 1, one friendly text for two checks, no traceback, nothing on standard error."""
    done = checkout.run("check", "3")
    assert done.returncode == 1
    assert done.stdout.count("not started yet") == 1
    assert "0 of 100 points" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_without_a_number_the_first_unfinished_lab_with_checks_is_checked(
    checkout: Checkout,
) -> None:
    """Lab 2 first; once it is done, lab 3."""
    assert "Lab 2 is not started yet" in checkout.run("check").stdout
    checkout.solve(2)
    done = checkout.run("check")
    assert (done.returncode, "Lab 2 is done" in done.stdout) == (0, True)
    assert "Lab 3 is not started yet" in checkout.run("check").stdout


def test_a_failure_has_the_words_and_the_command_that_repeats_it(checkout: Checkout) -> None:
    """A learner whose chunks are wrong sees what was expected, what was seen, and what was printed."""
    checkout.solve(2)
    checkout.file(3).write_text(
        "from harness.contract import ChunkResult\n"
        "def run_chunk(conn, job_id):\n"
        "    print('looking for', job_id)\n"
        "    return ChunkResult((), 13, True)\n"
    )
    done = checkout.run("check", "3")
    assert done.returncode == 1
    assert "FAIL  the first chunk is done (0 of 60 points)" in done.stdout
    assert "pass  the last chunk may be short (40 points)" in done.stdout
    for label in ("promise:", "did:", "expected:", "seen:", "read:", "again:"):
        assert label in done.stdout
    assert "looking for festival-cancellation" in done.stdout
    assert "lab 3: 40 of 100 points" in done.stdout
    assert "lab hint 3" in done.stdout


def test_an_error_that_every_check_meets_is_explained_once(checkout: Checkout) -> None:
    """A syntax error shows the learner's line once; the second check refers to the first."""
    checkout.file(3).write_text("def run_chunk(conn, job_id:\n    pass\n")
    done = checkout.run("check", "3")
    assert done.returncode == 1
    assert done.stdout.count("SyntaxError") == 2
    assert done.stdout.count("def run_chunk(conn, job_id:") == 1
    assert "the same as in 'the first chunk is done'" in done.stdout


def test_a_lab_that_is_half_written_is_not_called_untouched(checkout: Checkout) -> None:
    """What is there is judged; what is not there yet waits, by title."""
    checkout.solve(2)
    checkout.file(3).write_text(
        "from harness.contract import ChunkResult\n"
        "def run_chunk(conn, job_id):\n"
        "    total, = conn.execute('SELECT count(*) FROM job_items').fetchone()\n"
        "    if total > 13:\n"
        "        raise NotImplementedError('the long list')\n"
        "    return ChunkResult((), 13, True)\n"
    )
    done = checkout.run("check", "3")
    assert "pass  the last chunk may be short" in done.stdout
    assert "not written yet: the first chunk is done" in done.stdout
    assert "not started yet" not in done.stdout
    assert "lab 3: 40 of 100 points" in done.stdout


def test_an_earlier_lab_that_is_missing_is_named_once(checkout: Checkout) -> None:
    """Lab 3 is written and calls lab 2, which is not: two checks wait, nobody is blamed."""
    checkout.solve(3)
    done = checkout.run("check", "3")
    assert done.returncode == 1
    assert done.stdout.count("lab 2 comes first") == 1
    assert "2 checks wait" in done.stdout
    assert "catch-up 3" in done.stdout
    assert "FAIL" not in done.stdout


def test_solutions_are_checked_whole_and_leave_no_progress(checkout: Checkout) -> None:
    """--impl without a number means all labs; only the learner's own runs are remembered."""
    done = checkout.run("check", "--impl", "solutions", "--json", "out/result.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all: 200 of 200 points" in done.stdout
    result = json.loads((checkout.root / "out/result.json").read_text())
    assert result["schema"] == "interrupted/result/v1"
    assert (result["submission"], result["points"]) == ("solutions", 200)
    assert not checkout.progress.exists()


def test_a_check_is_chosen_by_its_whole_name(checkout: Checkout) -> None:
    """`first` runs one check, though another's name begins with it; a part of a lab is not recorded."""
    checkout.solve(2, 3)
    done = checkout.run("check", "3", "-k", "first")
    assert done.returncode == 0
    assert "lab 3: 60 of 60 points" in done.stdout
    assert not checkout.progress.exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["44"], "labs 1 to 12"),
        (["three"], "valid integer"),
        (["3", "-k", "nothing-like-it"], "first, first_and_last"),
        (["3", "-k", "( or"], "no check matches"),
        (["3", "--impl", "nowhere"], "'nowhere' is no implementation"),
        (["4"], "no graded checks for lab 4"),
    ],
    ids=["no such lab", "no number", "no such check", "bad expression", "no impl", "no checks"],
)
def test_a_wrong_command_line_is_told_in_one_line(
    checkout: Checkout, arguments: list[str], text: str
) -> None:
    """Exit status 2, and what would have been right."""
    done = checkout.run("check", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_check_that_breaks_is_the_kits_trouble(checkout: Checkout) -> None:
    """Exit status 3 where nothing is the learner's doing, and progress stays as it was."""
    checkout.solve(2)
    checkout.checks(2).write_text(
        "from harness.grading.check import check\n"
        "@check('a check with a mistake', promise='none', points=100)\n"
        "def test_broken(bench):\n    raise RuntimeError('ours')\n"
    )
    done = checkout.run("check", "2")
    assert done.returncode == 3
    assert "that is the kit's doing, not yours" in done.stdout
    assert not checkout.progress.exists()


def test_checks_that_cannot_be_loaded_are_the_kits_trouble(checkout: Checkout) -> None:
    """Exit status 3, and the file's name."""
    checkout.checks(2).write_text("import nothing_of_this_name\n")
    done = checkout.run("check", "2")
    assert done.returncode == 3
    assert "test_change.py" in done.stderr


def test_progress_is_what_the_last_whole_run_earned(checkout: Checkout) -> None:
    """A lab that was done and is broken again is not done."""
    checkout.solve(2, 3)
    assert checkout.run("check", "3").returncode == 0
    assert tomllib.loads(checkout.progress.read_text())["lab03_chunk"]["points"] == 100
    checkout.file(3).write_text("def run_chunk(conn, job_id):\n    return 1 / 0\n")
    assert checkout.run("check", "3").returncode == 1
    assert tomllib.loads(checkout.progress.read_text())["lab03_chunk"]["points"] == 0


# --- interrupted ----------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_found_and_leaves_no_process(
    checkout: Checkout, started: list[Started]
) -> None:
    """
    Scenario:
    * The first check passes, the second one's client never answers. Ctrl-C.

    Outcome:
    * Status 130, the first verdict is on the screen and in the file, every process is gone.
    """
    checkout.solve(2, 3)
    with checkout.file(3).open("a") as file:
        file.write(
            "\n\n_run = run_chunk\n"
            "def run_chunk(conn, job_id):\n"
            "    if conn.execute('SELECT count(*) FROM job_items').fetchone()[0] == 13:\n"
            "        import time; open('/dev/null'); time.sleep(3600)\n"
            "    return _run(conn, job_id)\n"
        )
    result = checkout.root / "result.json"
    command = checkout.start("check", "3", "--json", str(result))
    started.append(command)
    command.wait_for("pass  the first chunk is done")
    family = psutil.Process(command.process.pid).children(recursive=True)
    assert family, "the fork server at least"
    os.kill(command.process.pid, signal.SIGINT)
    assert command.wait() == 130
    assert "Stopped" in command.output
    assert "Traceback" not in command.output
    assert json.loads(result.read_text())["points"] == 60
    assert not checkout.progress.exists(), "half a lab is not recorded"
    ours = [p for p in family if not _is_the_servers(p)]
    _, alive = psutil.wait_procs(ours, timeout=COMMAND_S)
    assert alive == []


def _is_the_servers(process: psutil.Process) -> bool:
    """Tell whether a process belongs to the embedded server, which lingers for the next command."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "harness.postgres.keeper" in line or "postgres" in line


# --- watching -------------------------------------------------------------------------------------


def test_a_watch_checks_again_after_a_save_and_shows_what_changed(
    checkout: Checkout, started: list[Started]
) -> None:
    """
    Scenario:
    * Lab 3 is not started; the learner saves a right file, then half a line, then a right file.

    Outcome:
    * Each save is answered, the changed checks alone are shown, a syntax error ends nothing.
    """
    checkout.solve(2)
    command = checkout.start("check", "3", "--watch")
    started.append(command)
    command.wait_for("Watching")
    checkout.solve(3)
    output = command.wait_for("100 of 100 points (was 0)")
    assert output.count("pass  ") == 2
    with checkout.file(3).open("a") as file:
        file.write("def half(\n")
    assert "SyntaxError" in command.wait_for("0 of 100 points (was 100)")
    checkout.solve(3)
    command.wait_for("100 of 100 points (was 0)", count=2)
    checkout.file(3).write_text(checkout.file(3).read_text() + "# a word\n")
    output = command.wait_for("(as before)")
    assert output.count("pass  ") == 4, "nothing changed, so nothing but the line is shown"
    assert output.count("Lab 3 is done") == 2, "told when it becomes true"
    os.kill(command.process.pid, signal.SIGINT)
    assert command.wait() == 130
    assert "Traceback" not in command.output


def test_a_watch_does_not_look_at_the_kits_checks(
    checkout: Checkout, started: list[Started]
) -> None:
    """A change of a check file is answered by nothing; the save after it is the first one answered."""
    command = checkout.start("check", "3", "--watch")
    started.append(command)
    command.wait_for("Watching")
    checkout.checks(3).write_text(checkout.checks(3).read_text() + "\n# touched\n")
    checkout.file(2).write_text(checkout.file(2).read_text() + "# saved\n")
    output = command.wait_for("saved\n")
    assert "test_chunk.py" not in output


def test_q_leaves_a_watch(checkout: Checkout, started: list[Started]) -> None:
    """On a terminal one key is enough, and the status is 0."""
    keyboard, terminal = pty.openpty()
    try:
        command = checkout.start("check", "3", "--watch", stdin=terminal)
        started.append(command)
        command.wait_for("Watching")
        os.write(keyboard, b"q")
        assert command.wait() == 0
    finally:
        os.close(keyboard)
        os.close(terminal)
