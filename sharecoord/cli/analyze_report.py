"""`sharecoord analyze report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sharecoord.cli.analyze_options import (
    check_order,
    events_options,
    result_options,
    spark_options,
    window_option,
)
from sharecoord.cli.output import note


@click.command()
@events_options
@result_options("of the jobs fairness, lag, poison and locks")
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The page; without it report.html in --out.",
)
@window_option
@spark_options
def report(window: int, page: Path | None, **given: Any) -> None:
    """All findings on one page that opens offline.

    Words first (who starves, who is behind, what fails, and what cures it), then plots, then
    tables. Prints the words, too.
    """
    from sharecoord.analytics.frames import Range
    from sharecoord.analytics.jobs import check_out
    from sharecoord.analytics.report import job
    from sharecoord.analytics.session import running

    check_order(given["since"], given["until"])
    check_out(given["events"], given["out"])
    settings = job.ReportSettings(window, page)
    settings.page_in(given["out"])
    with running(job.NAME, given["master"], given["driver_memory"]) as spark:
        result = job.run(
            spark,
            given["events"],
            given["out"],
            wanted=Range(given["since"], given["until"], given["groups"]),
            settings=settings,
            skip_corrupt=given["skip_corrupt"],
        )
    for line in result.warnings():
        note(f"sharecoord: warning: {line}")
    if given["as_json"]:
        for line in result.lines():
            click.echo(line)
    else:
        for row in result.rows:
            click.echo(f"group {row['group_id']}: {'; '.join(row['verdicts'])}")
        click.echo(f"report: {result.page.resolve()}")
