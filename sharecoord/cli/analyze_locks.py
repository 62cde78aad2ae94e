"""`sharecoord analyze locks`."""

from __future__ import annotations

from typing import Any, Final

import click

from sharecoord.cli.analyze_options import (
    events_options,
    result_options,
    run_and_show,
    spark_options,
)
from sharecoord.cli.output import Column

_COLUMNS: Final = (
    Column("GROUP", "group_id"),
    Column("LOCK MS", "lock_ms"),
    Column("HELD P50 MS", "held_p50_ms"),
    Column("HELD P99.9 MS", "held_p999_ms"),
    Column("RENEWED", "renewed"),
    Column("EXPIRED", "expired"),
    Column("NEAR MISSES", "near_misses"),
    Column("ADVISED MS", "advised_lock_ms"),
    Column("COMPLETE", "complete"),
    Column("VERDICT", "verdict"),
)


@click.command()
@events_options
@result_options("locks_members, locks_groups")
@spark_options
def locks(**given: Any) -> None:
    """How long locks are held, and which duration would fit.

    A line per group; see docs/locks.md for what the figures mean.
    """
    from sharecoord.analytics.locks import job
    from sharecoord.analytics.locks.verdict import verdict

    run_and_show(job, None, _COLUMNS, verdict, given)
