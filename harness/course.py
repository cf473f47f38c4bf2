"""The course: which labs there are, what they ask for, and where their files are.

One table, read by the command line, the client process, the checks and the docs' tests. Adding a lab
starts here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: The checkout: the folder that holds labs/, solutions/ and this package.
ROOT = Path(__file__).resolve().parent.parent
LABS = ROOT / "labs"
SOLUTIONS = ROOT / "solutions"


@dataclass(frozen=True, slots=True)
class Lab:
    """One lab. `folder` and `module` name its file, `functions` what the checks call."""

    number: int
    folder: str
    module: str
    functions: tuple[str, ...]
    title: str
    promise: str
    track: str
    minutes: int

    @property
    def file(self) -> str:
        """Return the file to fill in, relative to an implementation's folder."""
        return f"{self.folder}/{self.module}.py"


COURSE: tuple[Lab, ...] = (
    Lab(1, "lab01_freeze", "freeze", ("register_job",), "Freeze the approval",
        "The approved list is stored once, in ID order, and never changes.", "A", 40),
    Lab(2, "lab02_change", "change", ("cancel_orders",), "Change only what was approved",
        "An order changes only in the version that was approved; otherwise nothing changes.", "A", 40),
    Lab(3, "lab03_chunk", "chunk", ("run_chunk",), "Bind three records",
        "Orders, audit and checkpoint of a chunk commit together or not at all.", "A", 60),
    Lab(4, "lab04_doubt", "doubt", ("verify_progress", "resume_chunk"), "Doubt the progress",
        "Work resumes only after the audit proves the checkpoint.", "A", 50),
    Lab(5, "lab05_drain", "drain", ("drain",), "Drain within bounds",
        "A call runs at most as many chunks as it was given, and stops at the first trouble.", "A", 40),
    Lab(6, "lab06_takeover", "worker", ("main",), "Take over",
        "One worker at a time advances a job, and no chunk runs twice.", "A", 75),
    Lab(7, "lab07_report", "report", ("report",), "Report honestly",
        "What was committed then and what the orders are now are told apart.", "A", 50),
    Lab(8, "lab08_decompose", "decompose", ("decompose",), "Decompose before dispatch",
        "Every unit of work is a durable row before any is dispatched.", "B", 50),
    Lab(9, "lab09_claim", "claim", ("claim",), "Claim in bounds",
        "A unit has at most one live claim, and an abandoned claim comes back.", "B", 50),
    Lab(10, "lab10_finish", "finish", ("finish", "process"), "Finish one way",
        "A unit ends once, and its effect shares the transaction of its end.", "B", 60),
    Lab(11, "lab11_resume", "resume", ("resumable", "run_parent"), "Resume from the ledger",
        "A parent that failed is continued from its ledger and never parsed again.", "B", 50),
    Lab(12, "lab12_reconcile", "reconcile", ("reconcile",), "Reconcile the counters",
        "Counters are counted from the ledger; where they disagree, the ledger wins.", "B", 40),
)  # fmt: skip


def lab(number: int) -> Lab:
    """Return lab `number`.

    Raises:
        LookupError: If the course has no such lab; the text names the range.
    """
    for entry in COURSE:
        if entry.number == number:
            return entry
    raise LookupError(f"there is no lab {number}: the course has labs 1 to {COURSE[-1].number}")
