"""The pictures in README and lessons are what the kit shows today, but for the process numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.course import LABS, ROOT
from harness.pictures import FOLDER, draw_all


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    draw_all(folder)
    return folder


def content(text: str) -> str:
    """Return a picture's words without the process numbers and the lines that depend on their width.

    A board has no process numbers, and is compared to the letter.
    """
    if "SIGKILL" not in text:
        return text
    words = " ".join(re.sub(r"<[^>]+>", " ", text[text.index("</style>") :]).split())
    words = re.sub(r"[─━┏┳┓┡╇┩└┴┘│┃]+", "|", words.replace("&#160;", " "))
    return re.sub(r"\b\d{3,7} SIGKILL|(?<=\| )\d{3,7}(?= *\|)", "PID", re.sub(r"\s+", " ", words))


def test_the_pictures_are_current(drawn: Path):
    """Scenario: the demo runs now. Outcome: the same pictures, so none is stale or missing."""
    names = sorted(path.name for path in drawn.glob("*.svg"))
    assert sorted(path.name for path in FOLDER.glob("*.svg")) == names
    for name in names:
        kept, made = (content((folder / name).read_text()) for folder in (FOLDER, drawn))
        assert kept == made, f"{name} is stale: run `uv run python -m harness.pictures`"


def test_every_picture_is_used_and_asks_no_other_host():
    pages = [ROOT / "README.md", *LABS.glob("*/README.md")]
    text = "\n".join(page.read_text() for page in pages)
    for path in FOLDER.glob("*.svg"):
        assert f"pictures/{path.name}" in text, f"{path.name} is on no page"
        linked = re.findall(r"https?://[^\s\"')]+", path.read_text())
        assert {url for url in linked if "w3.org" not in url} <= {"https://www.textualize.io"}
