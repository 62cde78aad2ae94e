"""`sharecoord analyze timeline`."""

from __future__ import annotations

from typing import Any, Final

import click

from sharecoord.analytics.session import running
from sharecoord.cli.analyze_options import (
    check_order,
    events_options,
    show,
    spark_options,
)
from sharecoord.cli.options import OFFSET, PARTITION, no_color_option
from sharecoord.cli.output import Column

_COLUMNS: Final = (
    Column("TIME", "time"),
    Column("EVENT", "event"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("OFFSET", "first_offset"),
    Column("WHAT HAPPENED", "text"),
)


@click.command()
@events_options
@click.option("--topic", help="Of the record; narrows a key.")
@click.option("--partition", type=PARTITION, help="Of the record; narrows a key.")
@click.option("--offset", type=OFFSET, help="One record.")
@click.option(
    "--key", help="The records of one key that failed at least once; 0x… for bytes in hex."
)
@click.option("--member", help="One member, by its id.")
@click.option("--out", metavar="DIR", help="Also write the events, as table timeline_events.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event and line.")
@no_color_option
@spark_options
def timeline(
    topic: str | None,
    partition: int | None,
    offset: int | None,
    key: str | None,
    member: str | None,
    **given: Any,
) -> None:
    """Tell the life of one record, one key or one member, from a log of any size.

    \b
    sharecoord analyze timeline --events DIR --group billing --topic orders --partition 0 \\
      --offset 4711
    sharecoord analyze timeline --events DIR --group billing --key customer-17
    """  # noqa: D301 - Click's mark for lines that stay as they are
    from sharecoord.analytics.errors import AnalyticsError
    from sharecoord.analytics.frames import Range
    from sharecoord.analytics.jobs import check_out
    from sharecoord.analytics.timeline import job

    check_order(given["since"], given["until"])
    if len(given["groups"]) != 1:
        raise click.UsageError("--group: name one group")
    try:
        whose = job.make_wanted(
            given["groups"][0],
            topic=topic,
            partition=partition,
            offset=offset,
            key=key,
            member_id=member,
        )
    except AnalyticsError as error:
        raise click.UsageError(error.message) from None
    if given["out"] is not None:
        check_out(given["events"], given["out"])
    with running(job.NAME, given["master"], given["driver_memory"]) as spark:
        result = job.run(
            spark,
            given["events"],
            given["out"],
            whose=whose,
            wanted=Range(given["since"], given["until"]),
            skip_corrupt=given["skip_corrupt"],
        )
    show(result, _COLUMNS, None, as_json=given["as_json"], no_color=given["no_color"])
