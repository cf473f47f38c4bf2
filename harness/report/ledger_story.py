"""The demo of track B in the terminal and as data: six acts, and how it ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from harness.ledger.demo import DISPATCHED, EVENTS, Act, LedgerDemo, Table
from harness.records import Verdict
from harness.report.terminal import VERDICT_STYLE, finding_text

LEDGER_DEMO_SCHEMA = "interrupted/ledger-demo/v1"
#: Sentences are read best in lines of about this length, whatever the window's width is.
WIDTH = 92
INDENT = 3


def print_ledger_story(console: Console, demo: LedgerDemo) -> None:
    """Print the acts that were played, then the findings, if any, and the verdict."""
    title = f"{EVENTS:,} events, {DISPATCHED} dispatched, and a worker that is killed\n"
    console.print(Text(title, style="bold"))
    for act in demo.acts:
        _print_act(console, act)
    for finding in demo.findings:
        console.print(finding_text(finding))
    console.print(_ending(demo), width=WIDTH)


def ledger_demo_data(demo: LedgerDemo, impl: str) -> dict[str, Any]:
    """Return the demo as JSON-ready data under the schema `interrupted/ledger-demo/v1`."""
    return {
        "schema": LEDGER_DEMO_SCHEMA,
        "impl": impl,
        "seed": demo.scenario.seed,
        "events": EVENTS,
        "verdict": demo.verdict,
        "kill": asdict(demo.kill) if demo.kill else None,
        "findings": [asdict(finding) for finding in demo.findings],
        "counts": demo.counts,
        "acts": [asdict(act) for act in demo.acts],
    }


def _print_act(console: Console, act: Act) -> None:
    console.print(Text(act.title, style="bold cyan"))
    for sentence in act.text:
        console.print(Padding(Text(sentence), (0, 0, 0, INDENT)), width=WIDTH)
    if act.table is not None:
        console.print(Padding(_grid(act.table), (1, 0, 0, INDENT)))
    console.print()


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, header_style="dim", pad_edge=False)
    for n, header in enumerate(table.headers):
        grid.add_column(header, justify="left" if n == 0 else "right")
    for row in table.rows:
        grid.add_row(*row)
    return grid


def _ending(demo: LedgerDemo) -> Text:
    text = Text()
    text.append(demo.verdict.upper(), style=f"bold {VERDICT_STYLE[demo.verdict]}")
    if demo.verdict is Verdict.PASS:
        text.append(
            f"  the kill landed, and each of the {EVENTS:,} events had its effect exactly once or is accounted "
            "for with a reason.\n"
        )
        text.append(
            "Not proven: effects outside this database. There the ledger shows what is unknown, and does not "
            "decide it.",
            style="dim",
        )
    elif demo.verdict is Verdict.VOID:
        text.append("  the kill did not land; that is the harness's miss, not yours. Run it again.")
    else:
        promises = ", ".join(dict.fromkeys(finding.promise for finding in demo.findings))
        text.append(f"  broken: {promises}. The story ends here.")
    return text
