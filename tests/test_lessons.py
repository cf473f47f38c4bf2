"""The words of the course keep their own promises.

A lesson is the first thing a learner reads, so its form is checked like code: the headings in their
order, the promise as the course states it, links that lead somewhere, snippets that parse, terms that
are defined once and before they are used. What a snippet prints is not checked here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.course import COURSE, LABS, Lab
from harness.scenario import FESTIVAL_JOB, FESTIVAL_TENANT, festival

HEADINGS = [
    "The story so far",
    "The promise",
    "Why it is needed",
    "How PostgreSQL and psycopg behave",
    "What to build",
    "How to check it",
    "What this does not prove",
    "Think about it",
]
HINTS_MIN = 4
#: Words of prose, without code and tables. Longer is not read, shorter does not explain.
PROSE_WORDS = range(500, 1101)
#: Each term of track A, and the lab that defines it in bold where it is first used.
TERMS = {
    "approval": 1, "chunk": 1, "revision": 1, "transaction": 1, "idempotent": 1, "conflict": 1,
    "savepoint": 2, "checkpoint": 3, "audit": 3, "row lock": 3, "lock timeout": 6,
    "drift": 7, "snapshot": 7,
}  # fmt: skip
LANGUAGES = {"python", "sql", "text"}
SQL_STARTS = {"select", "insert", "update", "delete", "with", "begin", "commit", "rollback", "set"}

every_lab = pytest.mark.parametrize("lab", COURSE, ids=lambda lab: lab.folder)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def lesson(lab: Lab) -> str:
    """Return the text of the lab's lesson."""
    return (LABS / lab.folder / "README.md").read_text(encoding="utf-8")


def hints(lab: Lab) -> str:
    """Return the text of the lab's hints."""
    return (LABS / lab.folder / "hints.md").read_text(encoding="utf-8")


def fences(text: str) -> list[tuple[str, str]]:
    """Return each fenced block as (language, code)."""
    return [(match[1], match[2]) for match in _FENCE.finditer(text)]


def prose(text: str) -> str:
    """Return the sentences only: without code, tables, headings and the targets of links."""
    text = _FENCE.sub("", text)
    lines = [line for line in text.splitlines() if not line.startswith(("#", "|"))]
    text = re.sub(r"`[^`]*`", "", "\n".join(lines))
    return re.sub(r"\]\([^)]*\)", "]", text)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def documents() -> list[Path]:
    """Return every page of words under labs/."""
    return sorted(LABS.glob("**/*.md"))


def first_sql_word(statement: str) -> str:
    """Return the statement's first word, comments aside; empty if there is nothing but comments."""
    bare = re.sub(r"--[^\n]*", "", statement).strip()
    return bare.split()[0].lower() if bare else ""


# --- lessons --------------------------------------------------------------------------------------


@every_lab
def test_a_lesson_has_every_part_in_order(lab: Lab) -> None:
    """The title names lab and subject; the parts follow in the order of the course."""
    text = _FENCE.sub("", lesson(lab))
    assert text.startswith(f"# Lab {lab.number}: {lab.title}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS


@every_lab
def test_a_lesson_promises_what_the_course_promises(lab: Lab) -> None:
    """The part 'The promise' is the sentence of `harness/course.py`, and nothing else."""
    promise = lesson(lab).split("\n## The promise\n")[1].split("\n## ")[0]
    assert " ".join(promise.split()) == lab.promise


@every_lab
def test_a_lesson_names_its_functions_and_its_commands(lab: Lab) -> None:
    """A learner finds in the lesson which functions to write and how to check them."""
    text = lesson(lab)
    build = text.split("\n## What to build\n")[1].split("\n## How to check it\n")[0]
    check = text.split("\n## How to check it\n")[1].split("\n## ")[0]
    assert [name for name in lab.functions if f"def {name}(" not in build] == []
    assert f"`{Path(lab.file).name}`" in build
    commands = [f"lab check {lab.number}", f"pytest labs/{lab.folder}", f"lab hint {lab.number}"]
    assert [command for command in commands if f"uv run {command}\n" not in check] == []


@every_lab
def test_a_lesson_can_be_read_in_one_sitting(lab: Lab) -> None:
    """Long enough to give the reasons, short enough to be read."""
    assert len(prose(lesson(lab)).split()) in PROSE_WORDS


@every_lab
def test_a_lesson_ends_with_two_or_three_questions_without_code(lab: Lab) -> None:
    """The last part asks; it shows nothing."""
    questions = lesson(lab).split("\n## Think about it\n")[1]
    assert fences(questions) == []
    assert len(re.findall(r"^\* ", questions, re.MULTILINE)) in (2, 3)
    assert questions.count("?") >= 2


def test_the_story_is_the_scenario() -> None:
    """The orders that lab 1 tells of are the orders that the harness seeds."""
    text, story = lesson(COURSE[0]), festival()
    rows = re.findall(r"^\| (\d+)-(\d+) \| ([\d ]+) \|$", text, re.MULTILINE)
    told = [int(order_id) for _, _, ids in rows for order_id in ids.split()]
    assert tuple(told) == story.approved_ids
    assert FESTIVAL_TENANT in text
    assert FESTIVAL_JOB in text


# --- hints ----------------------------------------------------------------------------------------


@every_lab
def test_hints_are_numbered_steps(lab: Lab) -> None:
    """`lab hint N` prints section after section, so there are several, numbered from 1."""
    numbers = re.findall(r"^## Hint (\d+)$", hints(lab), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) >= HINTS_MIN
    assert len(re.findall(r"^## ", hints(lab), re.MULTILINE)) == len(numbers)


@every_lab
def test_hints_never_give_the_complete_code(lab: Lab) -> None:
    """No hint defines one of the lab's functions, and SQL in hints has blanks to fill in."""
    text = hints(lab)
    assert [name for name in lab.functions if f"def {name}(" in text] == []
    assert [
        code for language, code in fences(text) if language == "sql" and "___" not in code
    ] == []


@every_lab
def test_words_do_not_point_at_the_worked_files(lab: Lab) -> None:
    """Nothing sends a learner to the worked answers; `lab diff` shows them at the right time."""
    assert "solutions" not in (lesson(lab) + hints(lab)).lower()


# --- all pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(LABS)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    """A link inside the project names a file that exists and, with #, a heading in it."""
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text("utf-8"))):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(LABS)))
def test_snippets_parse(page: Path) -> None:
    """Every block says its language; Python compiles, SQL is made of whole statements."""
    for language, code in fences(page.read_text(encoding="utf-8")):
        assert language in LANGUAGES, code
        if language == "python":
            compile(code, f"{page.name}: snippet", "exec")
        if language == "sql":
            statements = [part for part in re.split(r";\s*(?:\n|$)", code) if part.strip()]
            assert {first_sql_word(part) for part in statements} - {""} <= SQL_STARTS, code
            bare = re.sub(r"--[^\n]*", "", code)
            assert bare.count("(") == bare.count(")"), code
            assert bare.count("'") % 2 == 0, code


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(LABS)))
def test_the_voice_is_plain(page: Path) -> None:
    """No exclamation marks and no emojis: the facts are strong enough."""
    text = prose(page.read_text(encoding="utf-8"))
    assert "!" not in text.replace("![", "[")  # a picture is no exclamation
    assert [char for char in text if ord(char) > 0x2190] == []


# --- terms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("term", "number"), TERMS.items(), ids=lambda value: str(value))
def test_a_term_is_defined_once_and_before_it_is_used(term: str, number: int) -> None:
    """One bold occurrence in all lessons, in the lab named here, and no use before it in track A."""
    defining = [lab.number for lab in COURSE if f"**{term}**" in lesson(lab)]
    assert defining == [number]
    assert lesson(COURSE[number - 1]).count(f"**{term}**") == 1
    lessons = (lesson(lab).replace(lab.promise, "") for lab in COURSE if lab.track == "A")
    story = "\n".join(prose(text) for text in lessons)
    first = re.search(rf"\b{term}s?\b", re.sub(r"\s+", " ", story), re.IGNORECASE)
    assert first is not None
    before = re.sub(r"\s+", " ", story)[max(0, first.start() - 60) : first.end() + 2]
    assert before.endswith(f"**{term}**"), f"used before it is defined: ...{before}..."


@pytest.mark.parametrize(("term", "number"), TERMS.items(), ids=lambda value: str(value))
def test_the_glossary_links_each_term_to_its_lesson(term: str, number: int) -> None:
    """`labs/README.md` collects the terms."""
    course_map = (LABS / "README.md").read_text(encoding="utf-8")
    link = f"[{number}]({COURSE[number - 1].folder}/README.md)"
    assert re.search(rf"^\| {term} \| .+ \| {re.escape(link)} \|$", course_map, re.MULTILINE)


@every_lab
def test_the_course_map_agrees_with_the_course(lab: Lab) -> None:
    """Title, functions, promise and minutes of every lab stand in its row of the map."""
    course_map = (LABS / "README.md").read_text(encoding="utf-8")
    (row,) = [
        line for line in course_map.splitlines() if line.startswith(f"| [{lab.number} {lab.title}]")
    ]
    assert f"]({lab.folder}/README.md)" in row
    assert f"| {lab.promise} | {lab.minutes} min |" in row
    if lab.functions != ("main",):  # lab 6 is a program
        assert [name for name in lab.functions if f"`{name}`" not in row] == []
