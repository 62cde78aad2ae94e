"""`sharecoord analyze lag`."""

from __future__ import annotations

from typing import Any, Final

import click

from sharecoord.cli.analyze_options import (
    Duration,
    events_options,
    result_options,
    run_and_show,
    spark_options,
    window_option,
)
from sharecoord.cli.output import Column

_COLUMNS: Final = (
    Column("GROUP", "group_id"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("LAG", "lag"),
    Column("WAITING", "waiting"),
    Column("BEHIND MS", "behind_ms"),
    Column("IN/S", "arrival_rate"),
    Column("OUT/S", "service_rate"),
    Column("LAG SHARE", "lag_share"),
    Column("COMPLETE", "complete"),
    Column("VERDICT", "verdict"),
)


@click.command()
@events_options
@result_options("lag_windows, lag_stretches, lag_causes, lag_partitions")
@window_option
@click.option(
    "--behind",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="A share-partition that needs longer for what waits is behind.",
)
@spark_options
def lag(window: int, behind: int, **given: Any) -> None:
    """Who is behind, since when, why, and for how long.

    A line per share-partition; see docs/lag.md for what the figures mean.
    """
    from sharecoord.analytics.lag import job
    from sharecoord.analytics.lag.settings import LagSettings
    from sharecoord.analytics.lag.verdict import verdict

    settings = LagSettings(window_ms=window, behind_ms=behind)
    run_and_show(job, settings, _COLUMNS, verdict, given)
