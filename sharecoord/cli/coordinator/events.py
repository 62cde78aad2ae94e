"""`sharecoord events`: the files of the event log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sharecoord.cli.failures import EXIT_ERROR
from sharecoord.cli.options import Parsed, output_options
from sharecoord.cli.output import Column, Output, columns, note

if TYPE_CHECKING:
    from sharecoord.app import EventTools

_DATE: Final = Column("DATE", "date", lambda each: str(each.date))
_LISTED: Final = columns(
    _DATE,
    "group=group_id files rows bytes spooled",
    Column("FIRST", "first", lambda each: each.first.isoformat()),
    Column("LAST", "last", lambda each: each.last.isoformat()),
    Column("SCHEMA", "schema_versions", lambda each: ",".join(map(str, each.schema_versions))),
)
_JOINED: Final = columns(
    _DATE, "group=group_id files rows bytes=bytes_before", Column("BYTES AFTER", "bytes_after")
)
_DELETED: Final = columns(_DATE, "files bytes")
_FINDINGS: Final = columns("file=path finding fix")

_FOLDER: Final = click.argument(
    "folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


def _size(text: str) -> int:
    from sharecoord.config.values import parse_size_bytes

    size = parse_size_bytes(text)
    if size < 1 << 20:
        raise ValueError("1MiB or more")
    return size


def _keep(text: str) -> int:
    from sharecoord.config.values import parse_duration_ms

    keep_ms = parse_duration_ms(text)
    if keep_ms < 24 * 3_600_000:
        raise ValueError("1d or more: whole dates are deleted")
    return keep_ms


def _tools(folder: Path) -> EventTools:
    from sharecoord.app import event_tools

    return event_tools(folder)


@click.group()
def events() -> None:
    """Look after the files of the event log (events.sink=parquet:DIR).

    \b
    sharecoord events list DIR
    sharecoord events compact DIR [--before DATE] [--file-max-bytes SIZE] [--dry-run]
    sharecoord events retain DIR --keep 30d [--dry-run]
    sharecoord events check DIR
    """  # noqa: D301 - Click's mark for lines that stay as they are


@events.command("list")
@_FOLDER
@output_options
def list_files(folder: Path, output: Output) -> None:
    """List files, rows, bytes, times (UTC) and schema versions by date and group.

    SPOOLED: rows that are in no file yet, so that only this command and `records explain` see them.
    """
    listed, bad = _tools(folder).listed()
    output.show(_LISTED, listed)
    spooled = sum(each.spooled for each in listed)
    if spooled:
        note(
            f"{spooled} rows are in no file yet: their coordinator makes files of them when the "
            "first is events.file.max.age.ms old (5 minutes, unless it says otherwise)"
        )
    if bad:
        note(f"{bad} more can not be read: sharecoord events check {folder}")


@events.command()
@_FOLDER
@click.option(
    "--before",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="Only dates before this one; without it those before today (UTC).",
)
@click.option(
    "--file-max-bytes",
    type=Parsed("size", _size),
    default="128MiB",
    show_default=True,
    metavar="SIZE",
    help="About the size of the files that come out.",
)
@_DRY_RUN
@output_options
def compact(
    folder: Path,
    before: datetime | None,
    file_max_bytes: int,
    dry_run: bool,  # noqa: FBT001 - Click calls by name
    output: Output,
) -> None:
    """Join the small files of a date and group; coordinators may write meanwhile.

    A job that listed the files before may not find them any more and is to be run again.
    """
    joined = list(
        _tools(folder).compact(
            before=before.date() if before else None, file_max_bytes=file_max_bytes, dry_run=dry_run
        )
    )
    output.show(_JOINED, joined)
    count = sum(each.files for each in joined)
    note(f"{count} files {_done(dry_run, 'joined')} into {len(joined)}")


@events.command()
@_FOLDER
@click.option(
    "--keep",
    "keep_ms",
    type=Parsed("duration", _keep),
    required=True,
    metavar="DURATION",
    help="What is younger stays, such as 30d.",
)
@_DRY_RUN
@output_options
def retain(
    folder: Path,
    keep_ms: int,
    dry_run: bool,  # noqa: FBT001 - Click calls by name
    output: Output,
) -> None:
    """Delete the dates (UTC) that ended longer ago than --keep."""
    keep = timedelta(milliseconds=keep_ms)
    deleted = _tools(folder).retain(keep, now=datetime.now(UTC), dry_run=dry_run)
    output.show(_DELETED, deleted)
    note(f"{len(deleted)} dates {_done(dry_run, 'deleted')}")


@events.command()
@_FOLDER
@output_options
@click.pass_context
def check(ctx: click.Context, folder: Path, output: Output) -> None:
    """Read every file and name what is corrupt, half-written, unknown or left behind.

    Exit codes: 0 sound, 1 there are findings.
    """
    findings = list(_tools(folder).check())
    output.show(_FINDINGS, findings)
    note(f"{folder}: {len(findings)} findings" if findings else f"{folder}: sound")
    if findings:
        ctx.exit(EXIT_ERROR)


def _done(dry_run: bool, what: str) -> str:  # noqa: FBT001
    return f"would be {what}" if dry_run else what
