"""`sharecoord records`: list what is in flight, tell the life of one record, force a state."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sharecoord.cli.options import (
    DRY_RUN,
    OFFSET,
    PARTITION,
    Connect,
    ParamType,
    admin_options,
    group_option,
    options,
    output_options,
)
from sharecoord.cli.output import Column, Output, columns, iso_time, note

if TYPE_CHECKING:
    from sharecoord_sdk.admin import AdminClient, InFlightRange

FOLDER = click.Path(path_type=Path)

_IN_FLIGHT = columns(
    "first_offset last_offset",
    Column("STATE", "state", lambda found: found.state.name.lower()),
    "delivery_count member=member_id lock_remaining_ms",
    Column("AVAILABLE-AT", "available_at", lambda found: iso_time(found.available_at_ms)),
    "checkpoints checkpoint_bytes reason",
)
_STORY = columns("time event", Column("WHAT HAPPENED", "text"))


@click.group()
def records() -> None:
    """Records in flight, the life of one record, and what an operator does to records."""


@records.command("list")
@admin_options()
@group_option
@click.option("--topic", required=True, help="The topic.")
@click.option("--partition", type=PARTITION, default=0, show_default=True, help="The partition.")
@click.option("--from-offset", type=OFFSET, default=0, help="Where to begin.")
@click.option(
    "--max-ranges", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="Most."
)
@output_options
def list_(
    connect: Connect,
    group: str,
    topic: str,
    partition: int,
    from_offset: int,
    max_ranges: int,
    output: Output,
) -> None:
    """List what is in flight: acquired, waiting, or archived before the window's end.

    Records between that stand in no line are finished.
    """
    with connect() as admin:
        found = admin.list_in_flight(
            group, topic, partition, from_offset=from_offset, max_ranges=max_ranges
        )
    output.show(_IN_FLIGHT, found)
    if len(found) == max_ranges:
        note(f"There may be more: go on with --from-offset {found[-1].last_offset + 1}.")


@records.command()
@admin_options()
@click.argument("topic")
@click.argument("partition", type=PARTITION)
@click.argument("offset", type=OFFSET)
@group_option
@click.option(
    "--events",
    type=FOLDER,
    help="Folder of the event log (serve --events parquet:DIR): adds what happened before.",
)
@output_options
def explain(
    connect: Connect,
    topic: str,
    partition: int,
    offset: int,
    group: str,
    events: Path | None,
    output: Output,
) -> None:
    """Tell the life of one record: what happened to it, and what it is now.

    \b
    sharecoord records explain orders 0 4711 --group billing --events /var/lib/sharecoord/events
    """  # noqa: D301 - Click's mark for lines that stay as they are
    steps = [] if events is None else _steps(events, group, topic, partition, offset)
    with connect() as admin:
        now = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": "now",
            "text": state_now(admin, group, topic, partition, offset),
        }
    output.show(_STORY, [*steps, now])
    if events is None:
        note("With --events DIR (the folder of the event log) what happened before is told, too.")


def _steps(
    folder: Path, group: str, topic: str, partition: int, offset: int
) -> list[dict[str, Any]]:
    from sharecoord.analytics.timeline.files import Wanted, read_events
    from sharecoord.analytics.timeline.story import story
    from sharecoord.app import event_tools

    # The spool is read first: a writer makes files of its rows at any time.
    spooled = event_tools(folder).spooled(group) if folder.is_dir() else ()
    found = read_events(folder, Wanted(group, topic, partition, offset), spooled)
    return [
        {
            "time": step.time.isoformat(timespec="milliseconds"),
            "event": step.event["event"],
            "text": step.text,
        }
        for step in story(found)
    ]


def state_now(admin: AdminClient, group: str, topic: str, partition: int, offset: int) -> str:
    """The present state of a record, in words."""
    ranges = admin.list_in_flight(group, topic, partition, from_offset=offset, max_ranges=1)
    if ranges and ranges[0].first_offset <= offset:
        return _in_flight_text(ranges[0]) + _checkpoint_text(ranges[0])
    (description,) = admin.describe_groups([group])
    for found in description.offsets:
        if (found.name, found.partition) == (topic, partition):
            break
    else:
        return "nothing is known of its share-partition yet"
    if found.start_offset is None or found.end_offset is None:
        return "its share-partition has no start offset yet: no member has wanted it"
    if offset < found.start_offset:
        return f"finished: it is below the group's start offset {found.start_offset}"
    if offset < found.end_offset:
        return "finished: accepted, or a gap"
    if found.log_end_offset is not None and offset >= found.log_end_offset:
        return f"there is no such record yet: the log ends at {found.log_end_offset}"
    return f"it waits behind the window, which ends at {found.end_offset}; lag is {found.lag}"


def _in_flight_text(found: InFlightRange) -> str:
    count, reason = found.delivery_count, f" ({found.reason})" if found.reason else ""
    state = found.state.name
    if state == "ACQUIRED":
        left_s = (found.lock_remaining_ms or 0) / 1000
        return f"{found.member_id} holds it, delivery {count}; its lock ends in {left_s:.1f} s"
    if state == "AVAILABLE" and found.available_at_ms:
        return f"it waits until {iso_time(found.available_at_ms)}, after {count} deliveries{reason}"
    if state == "AVAILABLE":
        return f"it is due, after {count} deliveries{reason}"
    if state == "ARCHIVING":
        return f"on its way to the dead-letter topic, after {count} deliveries{reason}"
    return f"archived after {count} deliveries{reason}: never delivered again"


def _checkpoint_text(found: InFlightRange) -> str:
    if not found.checkpoints:
        return ""
    if found.first_offset == found.last_offset:
        return f"; it has a checkpoint of {found.checkpoint_bytes} bytes"
    records, size_bytes = f"{found.first_offset}-{found.last_offset}", found.checkpoint_bytes
    return f"; of {records}, {found.checkpoints} have a checkpoint, {size_bytes} bytes together"


# -- skip, finish, release ----------------------------------------------------------------------

_FORCED = columns("first_offset last_offset before after member=member_id delivery_count")

_FORCE_HELP = {
    "skip": "Never deliver records (again): they are archived, without a dead letter.",
    "finish": "Take records for accepted: they are never delivered (again).",
    "release": "Make records due at once that are acquired or wait for their time.",
}


class Offsets(ParamType):
    """A parameter `4711` or `4711-4720`, both ends inclusive."""

    name = "OFFSET[-OFFSET]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """First and last offset."""
        if isinstance(value, tuple):
            return value
        first, dash, last = str(value).partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            self.fail(f"{value!r} is neither OFFSET nor OFFSET-OFFSET.", param, ctx)
        begin, end = (OFFSET.convert(int(each), param, ctx) for each in (first, last or first))
        if begin > end:
            self.fail(f"{value!r} ends before it begins.", param, ctx)
        return begin, end


_force_options: Final = options(
    admin_options(),
    click.argument("topic"),
    click.argument("partition", type=PARTITION),
    click.argument("offsets", type=Offsets(), metavar="OFFSET[-OFFSET]"),
    group_option,
    click.option("--execute", is_flag=True, help="Do it; without it, only say what it would do."),
    output_options,
)


def _force_command(name: str, text: str) -> click.Command:
    example = f"\b\nsharecoord records {name} orders 0 4711 --group billing --execute"
    more = "Whoever holds the records; its locks on them are dead, all others live on."
    run = _force_options(click.pass_context(_force))
    return click.command(name, help=f"{text}\n\n{more}\n\n{example}")(run)


def _force(
    ctx: click.Context,
    connect: Connect,
    topic: str,
    partition: int,
    offsets: tuple[int, int],
    group: str,
    execute: bool,  # noqa: FBT001 - Click calls by name
    output: Output,
) -> None:
    from sharecoord_sdk.admin import ForceAction

    action = ForceAction(ctx.info_name)
    with connect() as admin:
        found = admin.force_records(group, topic, partition, *offsets, action, dry_run=not execute)
    output.show(_FORCED, found)
    if not execute:
        note(DRY_RUN)
    elif all(each.before == each.after for each in found):
        note("nothing was changed: there was nothing to do")


for _name, _text in _FORCE_HELP.items():
    records.add_command(_force_command(_name, _text))
