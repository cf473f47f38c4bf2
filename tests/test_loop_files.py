"""Status, hints, reset, catch-up, diff and run: real processes in a checkout of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from loop_kit import Checkout
from typer.testing import CliRunner

from harness.cli import app
from harness.contract import ApprovedOrder
from harness.course import COURSE, LABS, SOLUTIONS, Lab, lab
from harness.database import Server
from harness.learner import pristine, trial
from harness.learner.hints import read_hints
from harness.scenario import festival


@pytest.fixture
def checkout(tmp_path: Path, server: Server) -> Checkout:
    """A fresh checkout, nothing done; the server is kept running from test to test."""
    return Checkout(tmp_path)


# --- the pristine files ---------------------------------------------------------------------------


@pytest.mark.parametrize("entry", COURSE, ids=lambda entry: entry.folder)
def test_the_pristine_files_are_those_the_kit_ships(entry: Lab) -> None:
    """What `lab reset` puts back equals labs/, file by file; both have a worked counterpart.

    After a change to a file in labs/: `uv run python -m harness.learner.pristine`.
    """
    shipped = {
        f"{entry.folder}/{path.name}"
        for path in (LABS / entry.folder).iterdir()
        if path.suffix in (".py", ".sql") and not path.name.startswith(("test_", "."))
    }
    assert set(pristine.files_of(entry)) == shipped
    for name in shipped:
        assert pristine.stub_text(name) == (LABS / name).read_text(), name
        assert (SOLUTIONS / name).is_file()


# --- status ---------------------------------------------------------------------------------------


def test_status_is_the_course_map_with_the_next_step(checkout: Checkout) -> None:
    """Every state has its word, and a program may read them too."""
    checkout.progress.parent.mkdir()
    checkout.progress.write_text(
        "version = 1\n[lab01_freeze]\nworked = true\n"
        "[lab02_change]\npoints = 100\nmax_points = 100\n"
        "[lab03_chunk]\npoints = 60\nmax_points = 100\nhints = 2\n"
    )
    checkout.file(4).write_text("# begun\n")
    done = checkout.run("status", "--json", "status.json")
    assert done.returncode == 0
    for entry in COURSE:
        assert entry.title in done.stdout
    assert "60 of 100, 2 hints" in done.stdout
    assert "Next: `uv run lab check 3`" in done.stdout
    labs = json.loads((checkout.root / "status.json").read_text())["labs"]
    assert [entry["state"] for entry in labs[:5]] == [
        "worked file", "done", "60 of 100", "begun", "not started"
    ]  # fmt: skip


def test_damaged_progress_is_told_and_status_goes_on(checkout: Checkout) -> None:
    """Status 0, the map, and what is wrong with the file."""
    checkout.progress.parent.mkdir()
    checkout.progress.write_text("version = ")
    done = checkout.run("status")
    assert done.returncode == 0
    assert ".lab/progress.toml cannot be read" in done.stderr
    assert checkout.progress.read_text() == "version = "


# --- hints ----------------------------------------------------------------------------------------


def test_each_hint_is_the_next_until_the_last(checkout: Checkout) -> None:
    """One at a time; `--again` repeats, `--all` shows every one; after the last it says so."""
    hints = read_hints(lab(3))
    for number in (1, 2):
        shown = checkout.run("hint", "3").stdout
        assert shown.startswith(f"Hint {number} of {len(hints)}\n{hints[number - 1]}")
    checkout.progress.write_text(f"version = 1\n[lab03_chunk]\nhints = {len(hints)}\n")
    assert f"last of {len(hints)} hints" in checkout.run("hint", "3").stdout
    assert checkout.run("hint", "3", "--again").stdout.startswith(f"Hint {len(hints)} of")
    assert checkout.run("hint", "3", "--all").stdout.count("\nHint ") == len(hints) - 1


# --- reset, catch-up, diff ------------------------------------------------------------------------


def test_reset_asks_and_keeps_a_backup(checkout: Checkout) -> None:
    """No changes nothing; yes puts the empty files back, says where yours are, and forgets the lab."""
    assert "nothing to reset" in checkout.run("reset", "7").stdout
    mine, query = checkout.file(7), checkout.file(7).with_name("reconcile.sql")
    mine.write_text("# mine\n")
    query.write_text("-- mine\n")
    checkout.progress.parent.mkdir(exist_ok=True)
    checkout.progress.write_text("version = 1\n[lab07_report]\npoints = 60\nmax_points = 100\n")
    refused = checkout.run("reset", "7", answer="n\n")
    assert (refused.returncode, mine.read_text()) == (1, "# mine\n")
    done = checkout.run("reset", "7", answer="y\n")
    assert done.returncode == 0
    backup = next((checkout.root / ".lab/backup").iterdir())
    assert f".lab/backup/{backup.name}" in done.stdout
    assert (backup / "lab07_report/report.py").read_text() == "# mine\n"
    assert (backup / "lab07_report/reconcile.sql").read_text() == "-- mine\n"
    assert mine.read_text() == pristine.stub_text("lab07_report/report.py")
    assert query.read_text() == pristine.stub_text("lab07_report/reconcile.sql")
    assert "lab07_report" not in checkout.progress.read_text()


def test_catch_up_fills_in_what_is_not_done(checkout: Checkout) -> None:
    """Done labs stay, written ones are kept in a backup, empty ones need none; then lab 4 is next."""
    checkout.progress.parent.mkdir()
    checkout.progress.write_text("version = 1\n[lab01_freeze]\npoints = 100\nmax_points = 100\n")
    checkout.file(1).write_text("# mine, done\n")
    checkout.file(3).write_text("# mine, half\n")
    done = checkout.run("catch-up", "4", "--yes")
    assert done.returncode == 0, done.stderr
    assert checkout.file(1).read_text() == "# mine, done\n"
    for number in (2, 3):
        assert checkout.file(number).read_text() == (SOLUTIONS / lab(number).file).read_text()
    kept = [p for p in (checkout.root / ".lab/backup").rglob("*") if p.is_file()]
    assert [(p.name, p.read_text()) for p in kept] == [("chunk.py", "# mine, half\n")]
    assert "lab04_doubt" in checkout.run("status").stdout.split("Next:")[1]
    again = checkout.run("catch-up", "4")
    assert (again.returncode, "Nothing to copy" in again.stdout) == (0, True)


def test_catch_up_stays_in_its_track(checkout: Checkout) -> None:
    """Track B stands on its own: its first lab needs nothing of track A."""
    assert "Nothing to copy" in checkout.run("catch-up", "8").stdout
    assert "Copied: lab 8." in checkout.run("catch-up", "9", "-y").stdout


def test_diff_waits_until_the_lab_passes(checkout: Checkout) -> None:
    """Before that it explains and shows nothing; with --reveal, or once it passes, it compares."""
    early = checkout.run("diff", "3")
    assert (early.returncode, "@@" in early.stdout) == (1, False)
    assert "--reveal" in early.stdout
    revealed = checkout.run("diff", "3", "--reveal")
    assert revealed.returncode == 0
    assert '-    raise NotImplementedError("lab03: run_chunk")' in revealed.stdout
    checkout.progress.parent.mkdir()
    checkout.progress.write_text("version = 1\n[lab03_chunk]\npoints = 100\nmax_points = 100\n")
    checkout.solve(3)
    done = checkout.run("diff", "3")
    assert (done.returncode, "equals the worked file" in done.stdout) == (0, True)


@pytest.mark.parametrize("command", ["check", "hint", "reset", "catch-up", "diff", "run"])
def test_an_unknown_lab_is_a_usage_error(command: str) -> None:
    """Exit status 2 and the range; `--help` has examples."""
    done = CliRunner().invoke(app, [command, "13"])
    assert (done.exit_code, "labs 1 to 12" in done.stderr) == (2, True)
    assert "Examples:" in CliRunner().invoke(app, [command, "--help"]).stdout


# --- run ------------------------------------------------------------------------------------------


def test_run_shows_the_result_the_prints_and_the_database(checkout: Checkout) -> None:
    """Without arguments the story's are passed; with --done-chunks the job stands in its middle."""
    checkout.solve(2, 3)
    with checkout.file(2).open("a") as file:
        file.write("\nprint('lab 2 is loaded')\n")
    done = checkout.run("run", "3", "--done-chunks", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "printed   lab 2 is loaded" in done.stdout
    assert "returned  ChunkResult(processed=" in done.stdout
    assert "40 of 40 approved orders cancelled, 40 audit rows, next_index 40" in done.stdout


def test_run_shows_the_learners_own_traceback(checkout: Checkout) -> None:
    """An error ends with status 1 and the learner's lines, none of the kit's."""
    checkout.file(3).write_text("def run_chunk(conn, job_id):\n    return {}['nothing']\n")
    done = checkout.run("run", "3")
    assert done.returncode == 1
    assert "KeyError" in done.stdout
    assert "return {}['nothing']" in done.stdout
    assert "harness" not in done.stdout + done.stderr


def test_run_in_process_has_the_terminals_input(checkout: Checkout) -> None:
    """`breakpoint()` reads commands from standard input, in the middle of a transaction."""
    checkout.solve(2)
    checkout.file(3).write_text(
        "def run_chunk(conn, job_id):\n"
        "    with conn.transaction():\n"
        "        conn.execute('UPDATE jobs SET next_index = 7')\n"
        "        breakpoint()\n"
        "        return 'done with ' + job_id\n"
    )
    done = checkout.run("run", "3", "--in-process", answer="p 6 * 7\nc\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(Pdb) 42" in done.stdout
    assert "returned  'done with festival-cancellation'" in done.stdout
    assert "next_index 7" in done.stdout
    left = checkout.run("run", "3", "--in-process", answer="q\n")
    assert (left.returncode, "next_index 0" in left.stdout) == (1, True)
    told = checkout.run("run", "3")
    assert (told.returncode, "--in-process" in told.stdout) == (1, True)


def test_arguments_become_values_of_the_contract() -> None:
    """JSON where it is JSON, words where not, objects by their fields, durations by their units."""
    given = trial.arguments(
        lab(2), "cancel_orders",
        ["umbra-events", '[{"order_id": 7, "revision": 2, "qty": 3}]', '{"seconds": 90}', "12"],
        festival(),
    )  # fmt: skip
    assert given[:2] == ("umbra-events", [ApprovedOrder(7, 2, 3)])
    assert given[2].total_seconds() == 90
    assert given[3] == 12


def test_run_needs_arguments_where_the_story_has_none(checkout: Checkout) -> None:
    """Exit status 2 for track B's functions without arguments, and for a function of another lab."""
    assert checkout.run("run", "9").returncode == 2
    other = checkout.run("run", "3", "drain")
    assert (other.returncode, "use run_chunk" in other.stderr) == (2, True)
