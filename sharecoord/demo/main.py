"""The entry of `sharecoord demo`, and the summary at its end."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from sharecoord.analytics.session import FOR_FEW_ROWS, check_java, check_pyspark, running
from sharecoord.core.states import ArchiveReason
from sharecoord.demo.director import Director
from sharecoord.demo.judge import Verdict, judge
from sharecoord.demo.plan import DELIVERY_LIMIT, RECORDS_DEFAULT, WORKERS_DEFAULT, Plan
from sharecoord.demo.screen import open_screen
from sharecoord.demo.stage import Stage
from sharecoord.errors import InvalidConfigError, SharecoordError

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


EXIT_OK, EXIT_LOST, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 2, 130
SEEDS = 10_000
REPORT_WINDOW_MS = 1_000
"""Length of the report's windows: the demo takes half a minute."""
REPORT_MEMORY = "1g"


def run(
    *,
    kafka: str | None = None,
    real: bool = False,
    records: int = RECORDS_DEFAULT,
    workers: int = WORKERS_DEFAULT,
    plain: bool = False,
    seed: int | None = None,
    report: Path | None = None,
) -> int:
    """Plays the demo and prints the summary on standard output.

    Args:
        kafka: `host:port[,...]` of a cluster that is there; None starts one.
        real: Start a real broker (Java, Maven) instead of librdkafka's mock cluster.
        records: How many are produced: 100 to 3000, 40 or more per worker.
        workers: How many processes share the partition, from 2 on.
        plain: Lines instead of the picture, also in a terminal.
        seed: Decides which record behaves how; None draws one, which is printed.
        report: File for a page about the run, by Spark (needs pyspark and Java); None: no page.

    Returns:
        Exit code: 0 when nothing was lost and every promise was kept, 1 when not, 2 when the demo
        could not be played, 130 after Ctrl-C.

    Raises:
        SharecoordError: A value is out of bounds, or what makes the report is not there.
    """
    if kafka is not None and real:
        raise InvalidConfigError("--kafka and --kafka-real: give one of them, not both.")
    plan = Plan(records, workers, secrets.randbelow(SEEDS) if seed is None else seed)
    if report is not None:
        # Said before the demo starts, not at its end.
        check_pyspark()
        check_java()
    console = Console()
    try:
        with Stage(kafka=kafka, real=real, with_events=report is not None) as stage:
            code = _play(plan, stage, console, plain=plain)
            if report is not None:
                stage.coordinator.stop()  # then its events are in files
                _report(stage, report, console)
            stage.keeps_files = code != EXIT_OK
            if stage.keeps_files:
                note = f"Ledgers, logs and the store are kept in {stage.directory}"
                console.print(note, highlight=False, soft_wrap=True)
            return code
    except SharecoordError as error:
        print(f"The demo could not be played: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("Interrupted; every process of the demo is ended.", file=sys.stderr)
        return EXIT_INTERRUPTED


def _play(plan: Plan, stage: Stage, console: Console, *, plain: bool) -> int:
    started_s = time.monotonic()
    with open_screen(console, plain=plain, records=plan.records) as screen:
        screen.event(
            f"{plan.records} records, {plan.workers} workers, --seed {plan.seed} plays it again",
            0.0,
        )
        evidence = Director(plan, stage, screen).play()
    verdict = judge(evidence)
    print_summary(console, verdict, plan, time.monotonic() - started_s)
    return EXIT_OK if verdict.good else EXIT_LOST


def _report(stage: Stage, page: Path, console: Console) -> None:
    """Runs the jobs that run on any event log on that of the demo, and prints their findings."""
    from sharecoord.analytics.report import job

    settings = job.ReportSettings(REPORT_WINDOW_MS, page)
    with running(job.NAME, None, REPORT_MEMORY, FOR_FEW_ROWS) as spark:
        tables = str(stage.directory / "tables")
        result = job.run(spark, str(stage.events), tables, settings=settings)
    for row in result.rows:
        words = "; ".join(row["verdicts"])
        console.print(f"Group {row['group_id']}: {words}", highlight=False, soft_wrap=True)
    console.print(f"Report: {page.resolve()}", highlight=False, soft_wrap=True)
