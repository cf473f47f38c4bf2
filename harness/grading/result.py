"""Results under the schema `interrupted/result/v1`: one per submission, written after every check.

    {schema, kit_version, seed, submission, points, max_points, duration_s, labs: [
        {id, title, points, max_points, checks: [
            {id, title, promise, verdict, points, max_points, message, evidence, repeat, duration_s}]}]}

Points are earned by `pass` alone. A check that has not run yet is `skip`, so the file is valid and
complete from the first moment on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from harness.course import COURSE, Lab
from harness.records import Verdict

SCHEMA = "interrupted/result/v1"
#: The seed of every graded run. Graded checks draw nothing; it is written down for those that may.
GRADED_SEED = 0


@dataclass(frozen=True)
class CheckResult:
    """How one check ended, in words and points."""

    lab: int
    id: str
    title: str
    promise: str
    verdict: Verdict
    points: int
    max_points: int
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    repeat: str = ""
    duration_s: float = 0.0


def result_data(
    submission: str, checks: Iterable[CheckResult], duration_s: float
) -> dict[str, Any]:
    """Build the result of one submission from its checks; labs without checks are left out."""
    by_lab: dict[int, list[CheckResult]] = {}
    for check in checks:
        by_lab.setdefault(check.lab, []).append(check)
    labs = [_lab_data(lab, by_lab[lab.number]) for lab in COURSE if lab.number in by_lab]
    return {
        "schema": SCHEMA,
        "kit_version": kit_version(),
        "seed": GRADED_SEED,
        "submission": submission,
        "points": sum(lab["points"] for lab in labs),
        "max_points": sum(lab["max_points"] for lab in labs),
        "duration_s": round(duration_s, 3),
        "labs": labs,
    }


def kit_version() -> str:
    """Return the kit's version, or 'unknown' when it was not installed."""
    try:
        return version("interrupted-labs")
    except PackageNotFoundError:
        return "unknown"


def _lab_data(lab: Lab, checks: list[CheckResult]) -> dict[str, Any]:
    rows = []
    for check in checks:
        row = asdict(check)
        del row["lab"]
        row["verdict"] = check.verdict.value
        row["duration_s"] = round(check.duration_s, 3)
        rows.append(row)
    return {
        "id": lab.folder,
        "title": lab.title,
        "points": sum(check.points for check in checks),
        "max_points": sum(check.max_points for check in checks),
        "checks": rows,
    }
