"""`sharecoord analyze timeline`."""

from __future__ import annotations

from typing import Any, Final

import click

from sharecoord.cli.analyze.options import (
    check_range_and_out,
    events_options,
    run_job,
    show,
    spark_options,
)
from sharecoord.cli.options import OFFSET, PARTITION, no_color_option
from sharecoord.cli.output import Column, columns

_COLUMNS: Final = columns(
    "time event topic partition", Column("OFFSET", "first_offset"), Column("WHAT HAPPENED", "text")
)


@click.command()
@events_options
@click.option("--topic", help="Of the record; narrows a key.")
@click.option("--partition", type=PARTITION, help="Of the record; narrows a key.")
@click.option("--offset", type=OFFSET, help="One record.")
@click.option(
    "--key", help="The records of one key that failed at least once; 0x… for bytes in hex."
)
@click.option("--member", "member_id", help="One member, by its id.")
@click.option("--out", metavar="DIR", help="Also write the events, as table timeline_events.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event and line.")
@no_color_option
@spark_options
def timeline(**given: Any) -> None:
    """Tell the life of one record, one key or one member, from a log of any size.

    \b
    sharecoord analyze timeline --events DIR --group billing --topic orders --partition 0 \\
      --offset 4711
    sharecoord analyze timeline --events DIR --group billing --key customer-17
    """  # noqa: D301 - Click's mark for lines that stay as they are
    from sharecoord.analytics.errors import AnalyticsError
    from sharecoord.analytics.timeline import job

    check_range_and_out(given)
    if len(given["groups"]) != 1:
        raise click.UsageError("--group: name one group")
    names = ("topic", "partition", "offset", "key", "member_id")
    try:
        whose = job.make_wanted(given["groups"][0], **{name: given[name] for name in names})
    except AnalyticsError as error:
        raise click.UsageError(error.message) from None
    show(run_job(job, given, whose=whose), _COLUMNS, None, given)
