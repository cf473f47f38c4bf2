"""Run the notebooks and write what they showed into them, without a trace of this machine.

    uv run python -m harness.explore.notebooks             all of them
    uv run python -m harness.explore.notebooks 03          those whose name begins so

Outputs are committed, so that a reader sees them before anything is installed. Times of execution,
versions and paths are not: the same run writes the same file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from harness.course import ROOT
from harness.limits import NOTEBOOK_CELL_WAIT_S

NOTEBOOKS = ROOT / "notebooks"
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)


def paths(beginning: str = "") -> list[Path]:
    """Return the notebooks whose name begins so, in order."""
    return sorted(NOTEBOOKS.glob(f"{beginning}*.ipynb"))


def read(path: Path) -> Any:
    """Return a notebook as nbformat's NotebookNode."""
    import nbformat

    # nbformat types neither reading nor writing.
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def exercises(notebook: Any) -> list[str]:
    """Return the code of the exercises: the Python snippets in the text cells."""
    texts = (cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return [snippet for text in texts for snippet in _SNIPPET.findall(text)]


def execute(notebook: Any) -> None:
    """Run every code cell in a fresh kernel, in order; outputs are in the notebook afterwards.

    Raises:
        CellExecutionError: If a cell raises; the rest is not run then.
    """
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook, timeout=NOTEBOOK_CELL_WAIT_S, startup_timeout=NOTEBOOK_CELL_WAIT_S,
        kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )  # fmt: skip
    client.execute()


def tidy(notebook: Any) -> None:
    """Drop what belongs to a machine or a moment and not to the notebook."""
    notebook.metadata = {"kernelspec": _KERNELSPEC, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output["metadata"] = {}


def shown(notebook: Any) -> dict[str, str]:
    """Return what each code cell showed, as plain text, by the cell's ID."""
    texts = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            texts[cell.id] = output.get("data", {}).get("text/plain", "")
    return texts


def main(arguments: list[str]) -> None:
    """Run the notebooks that are named, or all, and write them."""
    import nbformat

    for path in [path for beginning in arguments or [""] for path in paths(beginning)]:
        print(path.name, flush=True)
        notebook = read(path)
        execute(notebook)
        tidy(notebook)
        # Untyped, as reading is.
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])
