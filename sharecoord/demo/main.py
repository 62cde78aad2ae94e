"""The entry of `sharecoord demo`."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path

from rich.console import Console

from sharecoord.analytics.session import FOR_FEW_ROWS, check_java, check_pyspark, running
from sharecoord.demo.director import Director
from sharecoord.demo.judge import judge
from sharecoord.demo.plan import RECORDS_DEFAULT, WORKERS_DEFAULT, Plan
from sharecoord.demo.screen import open_screen
from sharecoord.demo.stage import Stage
from sharecoord.demo.summary import print_summary
from sharecoord.errors import InvalidConfigError, SharecoordError

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
