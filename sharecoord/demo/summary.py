"""Summary at the end of the demo: figures, and two sentences about what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.table import Table

from sharecoord.core.states import ArchiveReason
from sharecoord.demo.judge import Verdict
from sharecoord.demo.plan import DELIVERY_LIMIT, Plan

REASONS: Final[Mapping[str, str]] = {
    ArchiveReason.DELIVERY_LIMIT: f"failed {DELIVERY_LIMIT} times (DELIVERY_LIMIT)",
    ArchiveReason.REJECTED: "refused by a worker at once (REJECTED)",
}
SHOWN_OFFSETS: Final = 20


def print_summary(console: Console, verdict: Verdict, plan: Plan, elapsed_s: float) -> None:
    """Prints the verdict."""
    console.print()
    console.print(_table(verdict, plan, elapsed_s))
    for sentence in sentences(verdict, plan):
        console.print(sentence, highlight=False, soft_wrap=True)
    for fault in verdict.faults:
        console.print(f"BROKEN PROMISE: {fault}", style="bold red", soft_wrap=True)
    if verdict.lost:
        shown = ", ".join(map(str, verdict.lost[:SHOWN_OFFSETS]))
        console.print(f"LOST: offsets {shown}", style="bold red", soft_wrap=True)


def _table(verdict: Verdict, plan: Plan, elapsed_s: float) -> Table:
    table = Table(title=f"{plan.workers} workers, one partition, two kill -9", title_style="bold")
    table.add_column("What", no_wrap=True)
    table.add_column("Figure", justify="right")
    table.add_row("produced", str(verdict.produced))
    table.add_row("processed once", str(verdict.processed_once))
    if verdict.processed_again:
        table.add_row(
            "processed more than once (acknowledged too late)", str(verdict.processed_again)
        )
    for reason, count in verdict.archived.items():
        table.add_row(f"archived: {REASONS.get(reason, reason)}", str(count))
    style = "bold red" if verdict.lost else "bold green"
    table.add_row("lost", str(len(verdict.lost)), style=style)
    table.add_section()
    table.add_row("redelivered (failed at first, or its worker died)", str(verdict.redelivered))
    if verdict.overtaken:
        table.add_row("lock ended while a worker had the record", str(verdict.overtaken))
    table.add_row("fewest and most per worker", f"{verdict.handled_least} / {verdict.handled_most}")
    table.add_row("Jain's index of fairness (1 = all equal)", f"{verdict.jain:.4f}")
    table.add_row("time", f"{elapsed_s:.1f} s")
    return table


def sentences(verdict: Verdict, plan: Plan) -> list[str]:
    """A sentence about each kill, with what was measured."""
    found = []
    if verdict.redelivery_s is not None:
        first_s, last_s = verdict.redelivery_s
        found.append(
            f"Worker {plan.victim} was killed with -9 while it held {verdict.held_by_killed} "
            f"records: they were with other workers again after {first_s:.1f} s (the first) to "
            f"{last_s:.1f} s (the last), each with its delivery count one higher."
        )
    if verdict.outage_s is not None:
        found.append(
            f"The coordinator was killed with -9 and started again: deliveries went on "
            f"{verdict.outage_s:.1f} s after the kill, and of {verdict.locks_at_kill} records "
            f"that workers held through it {verdict.locks_kept} were acknowledged under the lock "
            "they had, without a second delivery."
        )
    return found
