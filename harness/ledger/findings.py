"""The findings of track B: the names of its promises, where they are explained, and how one is said."""

from __future__ import annotations

import json
from typing import Any

from harness.records import Finding

#: Each promise of the track, in the order of its labs, and where the lesson explains it.
READ = {
    "enumerated": "labs/lab08_decompose/README.md",
    "one live claim": "labs/lab09_claim/README.md",
    "one-way": "labs/lab10_finish/README.md",
    "parent failure is not child completion": "labs/lab11_resume/README.md",
    "the ledger wins": "labs/lab12_reconcile/README.md",
}


def finding(promise: str, did: str, expected: str, seen: str, cause: str = "") -> Finding:
    """Return one broken promise, with the lesson to read."""
    return Finding(promise, did, expected, seen, cause, READ[promise])


def brief(event: Any, most: int = 120) -> str:
    """Return an event as JSON, cut to a sentence's length."""
    text = json.dumps(event, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 3] + "..."
