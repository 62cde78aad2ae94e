"""`sharecoord analyze fairness|lag|poison|locks|report`: what the event log says of groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from sharecoord.cli.analyze.follow import check, follow_events
from sharecoord.cli.analyze.options import (
    DURATION,
    check_range_and_out,
    duration_option,
    events_options,
    result_options,
    run_and_show,
    run_job,
    spark_options,
    warn,
    window_option,
)
from sharecoord.cli.options import FILE
from sharecoord.cli.output import Column, columns


def _columns(*parts: str | Column) -> Sequence[Column]:
    """The columns of a job's table: the group first, completeness and verdict last."""
    group = Column("GROUP", "group_id")
    return columns(group, *parts, "complete verdict", separator=" ")


_FAIRNESS: Final = _columns("members starved jain gini", Column("TOP", "top_share"), "dwell_p99_ms")
_LAG: Final = _columns(
    "topic partition lag waiting behind_ms",
    Column("IN/S", "arrival_rate"),
    Column("OUT/S", "service_rate"),
    "lag_share",
)
_POISON: Final = _columns(
    "attempts failed expired archived poison_keys", Column("WASTED H", "wasted_hours")
)
_LOCKS: Final = _columns(
    "lock_ms held_p50_ms",
    Column("HELD P99.9 MS", "held_p999_ms"),
    "renewed expired near_misses",
    Column("ADVISED MS", "advised_lock_ms"),
)


@click.command()
@events_options
@result_options("fairness_windows, fairness_members, fairness_groups")
@window_option
@duration_option(
    "--starved-after",
    "5s",
    "From which time without records on a member that wants some is starved.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Go on with what comes: tables grow and windows are shown as they close (fairness_windows "
    "and fairness_live in --out).",
)
@click.option(
    "--watermark",
    type=DURATION,
    metavar="TIME",
    help="With --follow: how long a window waits for late rows (1m; 10m of a folder).",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="With --follow: where the progress is kept (OUT/_checkpoint); the next run goes on there.",
)
@click.option(
    "--alerts",
    type=FILE,
    help="With --follow: YAML file of rules, looked at with each window (docs/alerts.md).",
)
@click.option(
    "--until-idle",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="With --follow: end when nothing came for so long.",
)
@click.option("--once", is_flag=True, help="With --follow: read what is there, and end.")
@spark_options
def fairness(window: int, starved_after: int, follow: bool, **given: Any) -> None:  # noqa: FBT001
    """Show who got what, who starved, and how fair it was.

    See docs/fairness.md for what the figures mean.
    """
    from sharecoord.analytics.fairness import job
    from sharecoord.analytics.fairness.settings import FairnessSettings
    from sharecoord.analytics.fairness.verdict import verdict

    settings = FairnessSettings(window_ms=window, starved_after_ms=starved_after)
    check(follow=follow, given=given)
    if follow:
        check_range_and_out(given)
        follow_events(settings, given)
        return
    run_and_show(job, settings, _FAIRNESS, verdict, given)


@click.command()
@events_options
@result_options("lag_windows, lag_stretches, lag_causes, lag_partitions")
@window_option
@duration_option("--behind", "10s", "A share-partition that needs longer for what waits is behind.")
@spark_options
def lag(window: int, behind: int, **given: Any) -> None:
    """Show who is behind, since when, why, and for how long.

    A line per share-partition; see docs/lag.md for what the figures mean.
    """
    from sharecoord.analytics.lag import job
    from sharecoord.analytics.lag.settings import LagSettings
    from sharecoord.analytics.lag.verdict import verdict

    run_and_show(job, LagSettings(window_ms=window, behind_ms=behind), _LAG, verdict, given)


@click.command()
@events_options
@result_options(
    "poison_deliveries, poison_records, poison_keys, poison_reasons, poison_members, "
    "poison_expiries, poison_groups"
)
@click.option(
    "--top", type=int, default=20, show_default=True, help="Records and keys listed per group."
)
@spark_options
def poison(top: int, **given: Any) -> None:
    """Show what fails, how often, why, and what it costs.

    A line per group; see docs/poison.md for what the figures mean.
    """
    from sharecoord.analytics.poison import job
    from sharecoord.analytics.poison.settings import PoisonSettings
    from sharecoord.analytics.poison.verdict import verdict

    run_and_show(job, PoisonSettings(top=top), _POISON, verdict, given)


@click.command()
@events_options
@result_options("locks_members, locks_groups")
@spark_options
def locks(**given: Any) -> None:
    """Show how long locks are held, and which duration would fit.

    A line per group; see docs/locks.md for what the figures mean.
    """
    from sharecoord.analytics.locks import job
    from sharecoord.analytics.locks.verdict import verdict

    run_and_show(job, None, _LOCKS, verdict, given)


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
    from sharecoord.analytics.report import job

    check_range_and_out(given)
    settings = job.ReportSettings(window, page)
    settings.page_in(given["out"])
    result = run_job(job, given, settings=settings)
    warn(result)
    if given["as_json"]:
        for line in result.lines():
            click.echo(line)
    else:
        for row in result.rows:
            click.echo(f"group {row['group_id']}: {'; '.join(row['verdicts'])}")
        click.echo(f"report: {result.page.resolve()}")
