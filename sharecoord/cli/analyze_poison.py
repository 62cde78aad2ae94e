"""`sharecoord analyze poison`."""

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
    Column("ATTEMPTS", "attempts"),
    Column("FAILED", "failed"),
    Column("EXPIRED", "expired"),
    Column("ARCHIVED", "archived"),
    Column("POISON KEYS", "poison_keys"),
    Column("WASTED H", "wasted_hours"),
    Column("COMPLETE", "complete"),
    Column("VERDICT", "verdict"),
)


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
    """What fails, how often, why, and what it costs.

    A line per group; see docs/poison.md for what the figures mean.
    """
    from sharecoord.analytics.poison import job
    from sharecoord.analytics.poison.settings import PoisonSettings
    from sharecoord.analytics.poison.verdict import verdict

    run_and_show(job, PoisonSettings(top=top), _COLUMNS, verdict, given)
