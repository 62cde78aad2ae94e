"""The report on the demo's own run, by the jobs that run on any event log."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.console import Console

from sharecoord.analytics.session import FOR_FEW_ROWS, check_java, check_pyspark, running

WINDOW_MS: Final = 1_000
"""The demo takes half a minute."""
DRIVER_MEMORY: Final = "1g"


def check() -> None:
    """Says before the demo starts what the report would miss at its end.

    Raises:
        SparkMissingError: No pyspark, no Java, or one that is too old.
    """
    check_pyspark()
    check_java()


def make_report(events: Path, scratch: Path, page: Path, console: Console) -> None:
    """Runs the jobs on what the coordinator wrote, and says what they found.

    Args:
        events: Folder of the events.
        scratch: For the tables.
        page: File of the page.
        console: Where words and the page's place are printed.

    Raises:
        AnalyticsError: See its subclasses.
    """
    from sharecoord.analytics.report import job

    settings = job.ReportSettings(WINDOW_MS, page)
    with running(job.NAME, None, DRIVER_MEMORY, FOR_FEW_ROWS) as spark:
        result = job.run(spark, str(events), str(scratch / "tables"), settings=settings)
    for row in result.rows:
        words = "; ".join(row["verdicts"])
        console.print(f"Group {row['group_id']}: {words}", highlight=False, soft_wrap=True)
    console.print(f"Report: {page.resolve()}", highlight=False, soft_wrap=True)
