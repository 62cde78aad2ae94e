"""`sharecoord records skip|finish|release`: settle records by hand, or give them back."""

from __future__ import annotations

from typing import Any, Final

import click

from sharecoord.cli.connection import Connect
from sharecoord.cli.options import (
    OFFSET,
    PARTITION,
    ParamType,
    admin_options,
    group_option,
    options,
    output_options,
)
from sharecoord.cli.output import Column, Output, note

_FORCED = (
    Column("FIRST-OFFSET", "first_offset"),
    Column("LAST-OFFSET", "last_offset"),
    Column("BEFORE", "before"),
    Column("AFTER", "after"),
    Column("MEMBER", "member", "member_id"),
    Column("DELIVERY-COUNT", "delivery_count"),
)

_WHAT = {
    "skip": "Never deliver records (again): they are archived, without a dead letter.",
    "finish": "Take records for accepted: they are never delivered (again).",
    "release": "Make records due at once that are acquired or wait for their time.",
}


class Offsets(ParamType):
    """`4711`, or `4711-4720`, both ends inclusive."""

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


def force_commands() -> list[click.Command]:
    """The three commands."""
    return [_command(name, text) for name, text in _WHAT.items()]


_force_options: Final = options(
    admin_options(),
    click.argument("topic"),
    click.argument("partition", type=PARTITION),
    click.argument("offsets", type=Offsets(), metavar="OFFSET[-OFFSET]"),
    group_option,
    click.option("--execute", is_flag=True, help="Do it; without it, only say what it would do."),
    output_options,
)


def _command(name: str, text: str) -> click.Command:
    example = f"\b\nsharecoord records {name} orders 0 4711 --group billing --execute"
    more = "Whoever holds the records; its locks on them are dead, all others live on."
    run = _force_options(click.pass_context(_run))
    return click.command(name, help=f"{text}\n\n{more}\n\n{example}")(run)


def _run(
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
        note("dry run: nothing was changed; use --execute to do it")
    elif all(each.before == each.after for each in found):
        note("nothing was changed: there was nothing to do")
