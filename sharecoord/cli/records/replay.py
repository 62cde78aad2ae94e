"""`sharecoord replay`: delivers a part of a topic to a side group."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sharecoord.cli.options import (
    DRY_RUN,
    FILE,
    admin_options,
    output_options,
    parse_by_duration_ms,
    parse_datetime_ms,
    parse_topics,
    topics_option,
)
from sharecoord.cli.output import Column, columns, note

if TYPE_CHECKING:
    from sharecoord_sdk.admin import ReplayOf

_COLUMNS = columns(
    "topic partition first_offset stops_at records",
    Column("RATE", "rate", lambda part: part.rate_limit or None),
)


@click.command()
@admin_options()
@click.option("--group", required=True, help="The group whose records they are.")
@click.option("--into", required=True, metavar="SIDE_GROUP", help="A new group that gets them.")
@topics_option
@click.option("--from-datetime", metavar="TIME", help="Records of this time or later (ISO 8601).")
@click.option("--to-datetime", metavar="TIME", help="Records before this time.")
@click.option("--by-duration", metavar="D", help="Records of the last D, such as PT1H30M.")
@click.option(
    "--offsets", type=FILE, help="CSV with topic,partition,offset or topic,partition,first-last."
)
@click.option("--rate", type=click.IntRange(1), help="Records per second at the most.")
@click.option("--with-settings", is_flag=True, help="SIDE_GROUP gets the settings of the group.")
@click.option("--dry-run", is_flag=True, help="Only show what would happen (the default).")
@click.option("--execute", is_flag=True, help="Do it.")
@output_options
def replay(**options: Any) -> None:
    """Deliver a part of a topic again, to a group of its own.

    The members of SIDE_GROUP subscribe to the topic, get these records, and then nothing more.
    Nothing changes for the group itself.

    \b
    sharecoord replay --group billing --into billing-again --topic orders \\
        --from-datetime 2026-01-31T12:00:00 --to-datetime 2026-01-31T13:00:00 --execute
    """  # noqa: D301 - Click's mark for lines that stay as they are
    _check(options)
    chosen, into = _chosen(options), options["into"]
    with options["connect"]() as admin:
        parts = admin.replay(
            options["group"],
            into,
            chosen,
            parse_topics(options["topics"]),
            rate_per_s=options["rate"] or 0,
            with_settings=options["with_settings"],
            dry_run=not options["execute"],
        )
    group = Column("GROUP", "group", lambda _: into)
    options["output"].show([group, *_COLUMNS], parts)
    if not options["execute"]:
        note(DRY_RUN)
    else:
        note(f"members of group '{into}' get them; `sharecoord groups --describe` shows how far")


def _check(options: Mapping[str, Any]) -> None:
    if options["dry_run"] and options["execute"]:
        raise click.UsageError("--dry-run and --execute exclude each other.")
    if not options["topics"] and options["offsets"] is None:
        raise click.UsageError("name the topic with --topic.")


def _chosen(options: Mapping[str, Any]) -> ReplayOf:
    """The records to replay; refuses options that do not go together, or can not be read."""
    from sharecoord_sdk.admin import ReplayOf

    first, last, duration = (
        options[name] for name in ("from_datetime", "to_datetime", "by_duration")
    )
    has_times = first is not None or last is not None
    if sum([has_times, duration is not None, options["offsets"] is not None]) != 1:
        raise click.UsageError(
            "say which records: --from-datetime and --to-datetime, or --by-duration, or "
            "--offsets; one of them."
        )
    if options["offsets"] is not None:
        return ReplayOf.offsets(read_ranges(options["offsets"]))
    if duration is not None:
        return ReplayOf.duration(parse_by_duration_ms(duration))
    return ReplayOf.times(
        None if first is None else parse_datetime_ms(first, "--from-datetime"),
        None if last is None else parse_datetime_ms(last, "--to-datetime"),
    )


def read_ranges(path: Path) -> list[tuple[str, int, int, int]]:
    """Reads `topic,partition,offset` and `topic,partition,first-last`; refuses other lines."""
    found: list[tuple[str, int, int, int]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        for fields in reader:
            stripped = [field.strip() for field in fields]
            if not any(stripped):
                continue
            parsed = _range(stripped)
            if parsed is None:
                raise click.UsageError(
                    f"{path}:{reader.line_num}: {','.join(fields)!r} is neither "
                    "topic,partition,offset nor topic,partition,first-last."
                )
            found.append(parsed)
    if not found:
        raise click.UsageError(f"{path}: there are no offsets in it.")
    return found


def _range(fields: list[str]) -> tuple[str, int, int, int] | None:
    if len(fields) != 3:
        return None
    topic, partition, offsets = fields
    first, dash, last = offsets.partition("-")
    last = last if dash else first
    if not (topic and partition.isdecimal() and first.isdecimal() and last.isdecimal()):
        return None
    if int(first) > int(last):
        return None
    return topic, int(partition), int(first), int(last)
