"""Runs as plain data for `--json`: everything a program may want to know, nothing to parse."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from harness.demo import Demo
from harness.records import Evidence
from harness.run import Run

DEMO_SCHEMA = "interrupted/demo/v1"


def demo_data(demo: Demo, impl: str) -> dict[str, Any]:
    """Return a demo as JSON-ready data under the schema `interrupted/demo/v1`."""
    scenario = demo.scenario
    return {
        "schema": DEMO_SCHEMA,
        "impl": impl,
        "seed": scenario.seed,
        "orders": len(scenario.approval),
        "chunk_size": scenario.chunk_size,
        "approved": list(scenario.approved_ids),
        "verdict": demo.verdict,
        "scenes": [{"title": row.title, **run_data(row.run)} for row in demo.rows],
    }


def run_data(run: Run) -> dict[str, Any]:
    """Return one run as JSON-ready data."""
    return {
        "fault": run.fault,
        "verdict": run.verdict,
        "findings": [asdict(finding) for finding in run.findings],
        "kill": asdict(run.kill) if run.kill else None,
        "after_fault": _evidence_data(run.after_fault),
        "after_resume": _evidence_data(run.after_resume),
        "resumed_by": run.resumed_by,
        "boundaries": [{**asdict(b), "points": list(b.points)} for b in run.boundaries],
        "seconds": round(run.seconds, 6),
    }


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON so that the file is always whole: a new file takes the old one's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2, default=_plain)
            file.write("\n")
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _evidence_data(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {name: value for name, value in asdict(evidence).items() if value}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
