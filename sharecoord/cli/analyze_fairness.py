"""`sharecoord analyze fairness`."""

from __future__ import annotations

from typing import Any, Final

import click

from sharecoord.cli.analyze_follow import check, follow_events
from sharecoord.cli.analyze_options import (
    Duration,
    check_order,
    events_options,
    result_options,
    run_and_show,
    spark_options,
    window_option,
)
from sharecoord.cli.options import FILE
from sharecoord.cli.output import Column

_COLUMNS: Final = (
    Column("GROUP", "group_id"),
    Column("MEMBERS", "members"),
    Column("STARVED", "starved"),
    Column("JAIN", "jain"),
    Column("GINI", "gini"),
    Column("TOP", "top_share"),
    Column("DWELL P99 MS", "dwell_p99_ms"),
    Column("COMPLETE", "complete"),
    Column("VERDICT", "verdict"),
)


@click.command()
@events_options
@result_options("fairness_windows, fairness_members, fairness_groups")
@window_option
@click.option(
    "--starved-after",
    type=Duration(),
    default="5s",
    show_default=True,
    metavar="TIME",
    help="From which time without records on a member that wants some is starved.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Go on with what comes: tables grow and windows are shown as they close (fairness_windows "
    "and fairness_live in --out).",
)
@click.option(
    "--watermark",
    type=Duration(),
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
    """Who got what, who starved, how fair it was.

    See docs/fairness.md for what the figures mean.
    """
    from sharecoord.analytics.fairness import job
    from sharecoord.analytics.fairness.settings import FairnessSettings
    from sharecoord.analytics.fairness.verdict import verdict
    from sharecoord.analytics.jobs import check_out

    settings = FairnessSettings(window_ms=window, starved_after_ms=starved_after)
    check(follow=follow, given=given)
    if follow:
        check_order(given["since"], given["until"])
        check_out(given["events"], given["out"])
        follow_events(settings, given)
        return
    run_and_show(job, settings, _COLUMNS, verdict, given)
