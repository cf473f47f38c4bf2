"""The terminal's view: rich tables for a demo, and one finding as the learner reads it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.demo import Demo, DemoRow
from harness.history import order_moves, transactions
from harness.records import Evidence, Finding, Verdict
from harness.run import Run
from harness.scenario import Scenario

VERDICT_STYLE = {
    Verdict.PASS: "green",
    Verdict.FAIL: "red",
    Verdict.SKIP: "yellow",
    Verdict.VOID: "yellow",
    Verdict.ERROR: "magenta",
}


def finding_text(finding: Finding) -> Text:
    """Return one finding in the fixed order: promise, did, expected, seen, cause, read."""
    text = Text()
    text.append(f"promise broken: {finding.promise}\n", style="bold red")
    for label, value in (
        ("did", finding.did),
        ("expected", finding.expected),
        ("seen", finding.seen),
        ("likely cause", finding.cause),
        ("read", finding.read),
    ):
        if value:
            text.append(f"  {label + ':':<14}", style="bold")
            text.append(value.replace("\n", "\n" + " " * 16) + "\n")
    return text


def demo_table(demo: Demo) -> RenderableType:
    """Return the demo's table and the two lines under it: what was proven and what was not."""
    table = Table(title=_title(demo.scenario), title_justify="left", header_style="bold")
    for column in ("killed", "client", "orders", "audit", "checkpoint", "resumed", "each ID"):
        table.add_column(
            column, justify="right" if column in ("orders", "audit", "checkpoint") else "left"
        )
    for row in demo.rows:
        table.add_row(*_cells(row))
    return Group(table, _explanation(), Text(), verdict_line(demo))


def verdict_line(demo: Demo) -> Text:
    """Say in one line how it ended, and in a second what that does not prove."""
    kills = [row.run for row in demo.rows if row.run.kill is not None]
    landed = [run for run in kills if run.kill is not None and run.kill.landed]
    style = VERDICT_STYLE[demo.verdict]
    text = Text()
    text.append(demo.verdict.upper(), style=f"bold {style}")
    if demo.verdict is Verdict.PASS:
        text.append(
            f"  {len(landed)} of {len(kills)} kills landed; after each one a new process finished, and each of "
            f"the {len(demo.scenario.approval)} approved orders was cancelled by exactly one transaction.\n"
        )
    elif demo.verdict is Verdict.VOID:
        text.append(
            "  a fault did not land; that is the harness's miss, not yours. Run it again.\n"
        )
    else:
        promises = ", ".join(dict.fromkeys(finding.promise for finding in demo.findings))
        text.append(f"  broken: {promises}\n")
    text.append(
        "Not proven: what survives a loss of power at the server, external refunds, or how fast it can go.",
        style="dim",
    )
    return text


def print_findings(console: Console, rows: Iterable[DemoRow]) -> None:
    """Print the first finding of each broken promise under its scene, and count the others."""
    told: set[str] = set()
    more = 0
    for row in rows:
        fresh = {f.promise: f for f in reversed(row.run.findings) if f.promise not in told}
        more += len(row.run.findings) - len(fresh)
        told |= set(fresh)
        if fresh:
            fault = row.run.fault or "no fault was needed"
            console.print(Text(f"\n{row.title} ({fault})", style="bold"))
        for finding in fresh.values():
            console.print(finding_text(finding), end="")
    if more:
        console.print(Text(f"\n{more} more findings of these promises; --json FILE has them all."))


def _title(scenario: Scenario) -> str:
    return (
        f"{len(scenario.approval)} orders approved, {scenario.chunk_size} a commit; "
        f"IDs {scenario.approved_ids[0]} to {scenario.approved_ids[-1]}, {len(scenario.others)} other orders beside them"
    )


def _cells(row: DemoRow) -> tuple[RenderableType, ...]:
    run = row.run
    seen = run.after_fault or run.after_resume
    counts = _counts(run.scenario, seen) if seen is not None else ("-", "-", "-")
    if run.kill is None:
        client = "no kill"
    else:
        ended = run.kill.exit
        client = f"{ended.pid} {ended}" if ended else "not reached"
    resumed = str(run.resumed_by) if run.kill is not None and run.resumed_by else "-"
    return (row.title, client, *counts, resumed, _per_id(run))


def _counts(scenario: Scenario, evidence: Evidence) -> tuple[str, str, str]:
    cancelled = sum(1 for move in order_moves(evidence.changes) if move.cancels)
    audit = sum(1 for row in evidence.audit if row.job_id == scenario.job_id)
    job = evidence.job(scenario.job_id)
    return (str(cancelled), str(audit), str(job.next_index) if job else "no job")


def _per_id(run: Run) -> Text:
    if run.verdict is Verdict.VOID:
        return Text("void: " + (run.kill.void_reason if run.kill else ""), style="yellow")
    if run.findings:
        return Text(f"broken: {run.findings[0].promise}", style="red")
    if run.after_resume is None:
        return Text("refused, named", style="green")
    parts = transactions(run.scenario, run.after_resume.changes)
    done = sum(len(part.cancelled) for part in parts)
    return Text(f"once: {done}/{len(run.scenario.approval)}", style="green")


def _explanation() -> Text:
    return Text(
        "orders, audit, checkpoint: what a fresh connection saw when the client was gone.",
        style="dim",
    )
