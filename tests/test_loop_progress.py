"""The progress file: small, readable, and never lost, whatever is done to it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.course import lab
from harness.learner.progress import LabProgress, forget, load, record

LAB_1, LAB_3 = lab(1), lab(3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the progress is; nothing is there yet."""
    return tmp_path / ".lab" / "progress.toml"


def test_no_file_is_no_progress_and_no_trouble(path: Path) -> None:
    """A fresh checkout starts at lab 1."""
    progress = load(path)
    assert (progress.trouble, progress.of(LAB_3)) == ("", LabProgress())
    assert progress.first_unfinished() == LAB_1
    assert not path.exists(), "looking writes nothing"


def test_what_was_recorded_is_read_again_by_program_and_person(path: Path) -> None:
    """Points of zero are points; what was never set is not written."""
    record(LAB_3, path, points=0, max_points=100)
    record(LAB_3, path, hints=2)
    record(LAB_1, path, worked=True)
    assert load(path).of(LAB_3) == LabProgress(points=0, max_points=100, hints=2)
    assert path.read_text().splitlines()[1:] == [
        "version = 1", "", "[lab01_freeze]", "worked = true",
        "", "[lab03_chunk]", "points = 0", "max_points = 100", "hints = 2",
    ]  # fmt: skip


def test_the_first_unfinished_lab_is_neither_done_nor_filled_in(path: Path) -> None:
    """Half the points are not done; a worked file is left behind."""
    record(LAB_1, path, worked=True)
    record(lab(2), path, points=100, max_points=100)
    record(LAB_3, path, points=60, max_points=100)
    assert load(path).first_unfinished() == LAB_3


def test_forgetting_leaves_the_other_labs(path: Path) -> None:
    """Nothing about the lab remains, its hints included."""
    record(LAB_1, path, points=100, max_points=100)
    record(LAB_3, path, hints=4)
    forget(LAB_3, path)
    assert load(path).of(LAB_3) == LabProgress()
    assert load(path).of(LAB_1).done


DAMAGED = {
    "no TOML": "points everywhere",
    "empty": "",
    "no version": "[lab03_chunk]\npoints = 60\n",
    "points are text": 'version = 1\n[lab03_chunk]\npoints = "many"\n',
    "points are negative": "version = 1\n[lab03_chunk]\npoints = -1\n",
    "points are true": "version = 1\n[lab03_chunk]\npoints = true\n",
    "an unknown entry": "version = 1\n[lab03_chunk]\nstars = 5\n",
    "a lab is a number": "version = 1\nlab03_chunk = 60\n",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_counts_as_nothing_and_is_kept(path: Path, text: str) -> None:
    """It is told, looking changes nothing, and the next record keeps it under another name."""
    path.parent.mkdir()
    path.write_text(text)
    progress = load(path)
    assert "cannot be read" in progress.trouble
    assert progress.labs == {}
    assert path.read_text() == text
    after = record(LAB_1, path, hints=1)
    kept = path.with_name("progress.damaged-1.toml")
    assert kept.name in after.trouble
    assert kept.read_text() == text
    assert (load(path).trouble, load(path).of(LAB_1).hints) == ("", 1)


def test_bytes_that_are_no_text_are_damage(path: Path) -> None:
    """A second damaged file does not take the first one's place."""
    path.parent.mkdir()
    for number in (1, 2):
        path.write_bytes(b"\xff\xfe" + bytes([number]))
        record(LAB_1, path, hints=1)
        kept = path.with_name(f"progress.damaged-{number}.toml")
        assert kept.read_bytes()[-1] == number


def test_a_newer_file_is_left_alone(path: Path) -> None:
    """A kit that does not know a format does not write it, and says what to do."""
    path.parent.mkdir()
    text = "version = 2\nstars = 5\n"
    path.write_text(text)
    for progress in (load(path), record(LAB_1, path, hints=1)):
        assert "newer" in progress.trouble
        assert progress.first_unfinished() == LAB_1
    assert path.read_text() == text


def test_a_place_that_cannot_be_written_is_told(path: Path) -> None:
    """A file where the folder should be: nothing is recorded, and nothing breaks."""
    path.parent.write_text("in the way")
    assert "cannot be" in record(LAB_1, path, hints=1).trouble
    assert path.parent.read_text() == "in the way"


def test_two_at_once_lose_nothing(path: Path) -> None:
    """A watch in one terminal and hints in another write the same file."""

    def count(number: int) -> None:
        for hints in range(1, 21):
            record(lab(number), path, hints=hints)

    writers = [threading.Thread(target=count, args=(number,)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [load(path).of(lab(number)).hints for number in (1, 2, 3)] == [20, 20, 20]
    leftovers = [p.name for p in path.parent.iterdir() if p.name.startswith(".progress")]
    assert leftovers == []
