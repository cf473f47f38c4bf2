"""The notebooks run on a fresh kernel, say what they said when they were committed, and hold no logic.

Each is executed once, with its exercises after it; then expressions are asked of the same kernel. What
depends on timing (which worker was faster, how many milliseconds) is not compared.
"""

from __future__ import annotations

import ast
import copy
import getpass
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from harness.course import ROOT
from harness.explore.notebooks import NOTEBOOKS, execute, exercises, paths, read, shown, tidy

NAMES = [path.stem for path in paths()]

#: What must come of each notebook: an expression in its kernel, and its value as JSON.
KEY_VALUES: dict[str, dict[str, Any]] = {
    "01_chunks_on_a_board": {
        "film.totals": [[n, n, n] for n in (0, 10, 20, 30, 40)],
        "len(film.step(2, 'audit').written)": 10,
        "[step.seen[0] for step in film.steps if step.point == 'commit']": [10, 20, 30, 40],
        "{len(step.written) for step in film.steps if step.point == 'commit'} == {0}": True,
    },
    "02_four_kills": {
        "[kill.after_kill[0] for kill in kills.kills]": [10, 10, 10, 20],
        "[list(kill.after_resume) for kill in kills.kills]": [[40, 40, 40]] * 4,
        "all(kill.times_cancelled == {1: 40} for kill in kills.kills)": True,
        "all(kill.run.kill.landed for kill in kills.kills)": True,
        "len(kills.kills)": 4,
        "broken.broken > 0": True,
        "broken.sweep.verdict": "fail",
        "kill_everywhere(4, 2).totals": [0, 2, 4],
    },
    "03_lost_answers": {
        "stories.same_exception": True,
        "stories.request.exception.startswith('OperationalError: ')": True,
        "[list(stories.request.truth), list(stories.answer.truth)]": [[10] * 3, [20] * 3],
        "[stories.request.in_the_end[0], stories.answer.in_the_end[0]]": [40, 40],
        "[guess.right for guess in guesses('solutions', 'assumes failure', 'assumes success').guesses]": [
            True, True, True, False, False, True,
        ],
        "len(every_commit(20, 10).exceptions)": 1,
    },
    "04_two_workers": {
        "duet.waited_first": True,
        "list(duet.runs_of_each_chunk.values())": [1, 1, 1, 1],
        "duet.times_cancelled == {1: 40}": True,
        "duet.kept": True,
        "any(span.what == 'waits' and span.worker == 'B' for span in duet.spans)": True,
        "[behind_a_frozen_one(50).status, list(behind_a_frozen_one(50).in_the_end)]": [30, [40] * 3],
        "two_workers(impl='no lock').times_cancelled == {1: 40}": True,
    },
    "05_doubt": {
        "[doubts.refused, doubts.changed]": [28, 0],
        "damage().said": "went on to 23",
        "damage('UPDATE job_audit SET qty = qty + 1 WHERE position = 7').refused": True,
        "'position 7' in damage('UPDATE job_audit SET qty = qty + 1 WHERE position = 7').said": True,
        "damage('UPDATE orders SET revision = revision + 1 WHERE order_id = 1001').refused": False,
    },
    "06_child_ledger": {
        "list(histories.counters)": [[1000, 573, 12, 4]],
        "[[h.once, h.twice] for h in histories.each]": [
            [573, 0], [573, 0], [574, 0], [572, 0], [547, 13],
        ],
        "[row[1] == (0, 0) for row in histories.repairs().rows]": [True, False, False, False, False],
        "story.kill.landed": True,
        "story.moments[0].counts['processed']": 573,
        "list(story.end.effects)": [1],
        "sum(story.end.counts.values())": 1000,
        "[bool(moment.parent.completed_at) for moment in story.moments]": [False, False, True],
        "[reconciled(900).dry_run_wrote, reconciled(900).wrote, reconciled(900).counted[-1]]": [0, 1, False],
        "reconciled(1000).counted[-1]": True,
    },
    "07_what_it_costs": {
        "[[c.kept, c.undone] for c in costs.each]": [[310, 1], [310, 9], [300, 49], [250, 249]],
        "[n for n, _ in doubt.each]": [1000, 2000, 4000, 8000, 16000],
    },
}  # fmt: skip

#: Cells whose words hold times, or who was faster.
VOLATILE = {
    ("04_two_workers", "run-1"), ("07_what_it_costs", "run-1"), ("07_what_it_costs", "run-2"),
}  # fmt: skip


def path_of(name: str) -> Path:
    return NOTEBOOKS / f"{name}.ipynb"


def run(name: str) -> tuple[Any, list[Any]]:
    """Run a notebook with its exercises and questions; return it and the values of the questions."""
    notebook = copy.deepcopy(read(path_of(name)))
    for cell in notebook.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    own = len(notebook.cells)
    questions = ", ".join(KEY_VALUES[name])
    more = [*exercises(notebook), f"import json; print(json.dumps([{questions}]))"]
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in more]
    execute(notebook)
    answer = notebook.cells[-1].outputs[0].text
    assert len(notebook.cells[own:]) == len(more)
    notebook.cells = notebook.cells[:own]
    return notebook, json.loads(answer)


def test_every_notebook_is_tested():
    assert sorted(KEY_VALUES) == NAMES
    assert len(NAMES) == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_a_fresh_kernel_and_shows_what_it_showed(name):
    """
    Scenario:
    * The notebook runs top to bottom, then its exercises; then its key values are asked.

    Outcome:
    * The values are right, and the committed words are those of this run, but for what depends on timing.
    """
    notebook, values = run(name)
    assert dict(zip(KEY_VALUES[name], values, strict=True)) == KEY_VALUES[name]
    committed, now = shown(read(path_of(name))), shown(notebook)
    assert committed.keys() == now.keys()
    for cell in committed.keys() - {cell for where, cell in VOLATILE if where == name}:
        assert committed[cell] == now[cell], cell


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_are_committed(name):
    """Every code cell has one output, of a run from top to bottom; what shows itself has HTML."""
    cells = [cell for cell in read(path_of(name)).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert len(cell.outputs) == 1, cell.source
        assert cell.outputs[0].output_type == "execute_result"
    assert any("text/html" in cell.outputs[0].data for cell in cells)


def test_words_that_hold_times_are_current_in_the_rest():
    """What is arithmetic in the volatile cells is as committed: the losses, and the chunks run once."""
    costs = shown(read(path_of("07_what_it_costs")))["run-1"]
    assert re.findall(r"(\d+) kept, (\d+) good orders", costs) == [
        ("310", "1"), ("310", "9"), ("300", "49"), ("250", "249"),
    ]  # fmt: skip
    duet = shown(read(path_of("04_two_workers")))["run-1"]
    assert sorted(re.findall(r"chunk (\d)", duet)) == ["1", "2", "3", "4"]
    assert duet.endswith("all promises kept: True")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_machine_or_a_moment_is_committed(name):
    notebook = read(path_of(name))
    text = path_of(name).read_text()
    for trace in (str(ROOT), str(Path.home()), "/tmp/", "site-packages", "Traceback"):
        assert trace not in text, trace
    if len(getpass.getuser()) > 4:
        assert getpass.getuser() not in text
    tidied = copy.deepcopy(notebook)
    tidy(tidied)
    assert tidied == notebook
    assert "execution" not in {key for cell in notebook.cells for key in cell.metadata}


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_has_words(name):
    """All but the small ones of a legend, whose words stand beside them; and no picture is a link."""
    cells = [cell for cell in read(path_of(name)).cells if cell.cell_type == "code"]
    html = "".join(cell.outputs[0].data.get("text/html", "") for cell in cells)
    pictures = re.findall(r'<img alt="([^"]*)" width="(\d+)" style="[^"]*" src="data:image/', html)
    assert len(pictures) == html.count("<img")
    assert all(words or int(width) < 20 for words, width in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_with_a_question_and_ends_with_exercises(name):
    notebook = read(path_of(name))
    title = notebook.cells[0].source.splitlines()[0]
    assert re.fullmatch(r"# \d\. .*\?.*", title), title
    assert notebook.cells[-1].source.count("<details>") == len(exercises(notebook))
    assert 2 <= len(exercises(notebook)) <= 3


@pytest.mark.parametrize("name", NAMES)
def test_it_holds_no_logic_of_its_own(name):
    """Only imports from the kit, names for values, and expressions."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    forbidden = (ast.Lambda, ast.comprehension, ast.IfExp, ast.BinOp)
    for cell in read(path_of(name)).cells:
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            assert all(isinstance(line, allowed) for line in tree.body), cell.source
            assert not any(isinstance(node, forbidden) for node in ast.walk(tree)), cell.source
            for line in tree.body:
                if isinstance(line, ast.ImportFrom):
                    assert str(line.module).startswith("harness."), cell.source


def test_the_page_lists_every_notebook_with_its_question():
    text = (NOTEBOOKS / "README.md").read_text()
    for name in NAMES:
        question = read(path_of(name)).cells[0].source.splitlines()[0].removeprefix("# ")[3:]
        assert f"[{name}]({name}.ipynb) | {question} |" in text
