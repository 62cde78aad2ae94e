"""`sharecoord dead-letters`: what a group's workers gave up; found, redriven, discarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sharecoord.cli.connection import Services
from sharecoord.cli.letter_options import filter_options
from sharecoord.cli.options import (
    connection_options,
    debug_option,
    long_timeout_option,
    output_options,
    timeout_option,
)
from sharecoord.cli.output import Column, Output, note
from sharecoord.cli.payloads import shown

if TYPE_CHECKING:
    from sharecoord_sdk.admin import (
        AdminClient,
        DeadLetter,
        DeadLetterDetails,
        DeadLetterFilter,
        DeadLettersResult,
    )

F = TypeVar("F", bound=Callable[..., Any])

PAGE_MAX: Final = 1_000
CALL_MAX: Final = 250_000
RATE_MAX: Final = 1_000_000
ERROR_CHARACTERS: Final = 60
"""What a table shows of the error text."""

_LETTERS = (
    Column("ID", "id"),
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("OFFSET", "offset"),
    Column("REASON", "reason"),
    Column("ATTEMPTS", "attempts"),
    Column("FAILED-AT", "failed_at"),
    Column("KEY", "key"),
    Column("STATE", "state"),
    Column("PLACE", "place"),
    Column("ERROR", "error"),
)
_PARTS = (
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition"),
    Column("LETTERS", "letters"),
)
_FIELDS = (Column("FIELD", "field"), Column("VALUE", "value"))


@click.group("dead-letters")
def dead_letters() -> None:
    """Dead letters of a group: records that were rejected, or failed for the last time."""


@dead_letters.command("list")
@connection_options
@timeout_option
@filter_options
@click.option(
    "--max", "max_", type=click.IntRange(1), default=100, show_default=True, help="Most letters."
)
@click.option("--after", default="", help="Where a former list has ended.")
@output_options
@debug_option
@click.pass_context
def list_(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int,
    group: str,
    dead_letter_topic: str,
    wanted: DeadLetterFilter,
    max_: int,
    after: str,
    output: str,
    no_color: bool,  # noqa: FBT001 - Click calls by name
) -> None:
    """List dead letters: those that wait for their topic, then those in it.

    All options that say which ones must hold.

    \b
    sharecoord dead-letters list --group billing --reason REJECTED --from 2026-01-31T12:00:00
    """  # noqa: D301 - Click's mark for lines that stay as they are
    services = ctx.ensure_object(Services)
    with services.admin(bootstrap_server, command_config, timeout_ms) as admin:
        found, after = _pages(admin, group, wanted, max_, after, dead_letter_topic)
    rows = [letter_row(letter, whole=output != "table") for letter in found]
    columns = _LETTERS if output == "table" else (*_LETTERS, Column("RUN", "run"))
    Output(output, not no_color).show(columns, rows)
    if after:
        note(f"There may be more: go on with --after {after}.")


def _pages(
    admin: AdminClient, group: str, wanted: DeadLetterFilter, most: int, after: str, topic: str
) -> tuple[list[DeadLetter], str]:
    """Letters of as many pages as are needed, and where to go on."""
    found: list[DeadLetter] = []
    while len(found) < most:
        page = admin.list_dead_letters(
            group,
            wanted,
            max_letters=min(most - len(found), PAGE_MAX),
            after=after,
            dead_letter_topic=topic,
        )
        found += page.letters
        after = page.next
        if not after:
            break
    return found, after


@dead_letters.command()
@connection_options
@long_timeout_option
@click.argument("letter", metavar="ID|PARTITION:OFFSET")
@click.option("--group", required=True, help="The share group.")
@click.option(
    "--dead-letter-topic", default="", metavar="TOPIC", help="Instead of the group's own."
)
@output_options
@debug_option
@click.pass_context
def show(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int,
    letter: str,
    group: str,
    dead_letter_topic: str,
    output: str,
    no_color: bool,  # noqa: FBT001 - Click calls by name
) -> None:
    """Show one dead letter whole: key, value, headers, and what happened to it.

    By its id, or (quicker) by its partition and offset in the dead-letter topic. What is no text is
    printed as hex: and digits.

    \b
    sharecoord dead-letters show 0:17 --group billing
    """  # noqa: D301 - Click's mark for lines that stay as they are
    place = _place(letter)
    services = ctx.ensure_object(Services)
    with services.admin(bootstrap_server, command_config, timeout_ms) as admin:
        found = admin.show_dead_letter(
            group,
            "" if place else letter,
            place=place,
            dead_letter_topic=dead_letter_topic,
        )
    if output == "table":
        Output(output, not no_color).show(_FIELDS, _fields(found))
    else:
        details = _details(found)
        Output(output, not no_color).show([Column(key, key) for key in details], [details])


def _run_options(function: F) -> F:
    """--all, --max, --dry-run and --execute."""
    for option in (
        click.option("--execute", is_flag=True, help="Do it."),
        click.option("--dry-run", is_flag=True, help="Only say what would happen: the default."),
        click.option(
            "--max",
            "max_",
            type=click.IntRange(1, CALL_MAX),
            help="Most letters, in their order.",
        ),
        click.option("--all", "all_", is_flag=True, help="All letters of the group."),
    ):
        function = option(function)
    return function


@dead_letters.command()
@connection_options
@long_timeout_option
@filter_options
@_run_options
@click.option(
    "--rate",
    type=click.IntRange(1, RATE_MAX),
    help="Records per second, of all together. Default: no limit.",
)
@click.option("--again", is_flag=True, help="Also those that were redriven before.")
@click.option("--discarded", is_flag=True, help="Also those that were discarded before.")
@output_options
@debug_option
@click.pass_context
def redrive(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int,
    group: str,
    dead_letter_topic: str,
    wanted: DeadLetterFilter,
    all_: bool,  # noqa: FBT001 - Click calls by name
    max_: int | None,
    dry_run: bool,  # noqa: FBT001
    execute: bool,  # noqa: FBT001
    rate: int | None,
    again: bool,  # noqa: FBT001
    discarded: bool,  # noqa: FBT001
    output: str,
    no_color: bool,  # noqa: FBT001
) -> None:
    """Deliver dead letters to their group again, each once, with a new count.

    They come to the members that subscribe to the topic they came from; nobody else sees them.
    Without --execute it only says what would happen.

    \b
    sharecoord dead-letters redrive --group billing --reason REJECTED
    sharecoord dead-letters redrive --group billing --reason REJECTED --rate 100 --execute
    """  # noqa: D301 - Click's mark for lines that stay as they are
    _check_run(wanted, all_=all_, dry_run=dry_run, execute=execute)
    services = ctx.ensure_object(Services)
    with services.admin(bootstrap_server, command_config, timeout_ms) as admin:
        result = admin.redrive_dead_letters(
            group,
            wanted,
            all_letters=all_,
            dry_run=not execute,
            rate_per_s=rate or 0,
            again=again,
            discarded=discarded,
            max_letters=max_ or 0,
            dead_letter_topic=dead_letter_topic,
        )
    show_run(result, "redriven", Output(output, not no_color), execute=execute)


@dead_letters.command()
@connection_options
@long_timeout_option
@filter_options
@_run_options
@output_options
@debug_option
@click.pass_context
def discard(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int,
    group: str,
    dead_letter_topic: str,
    wanted: DeadLetterFilter,
    all_: bool,  # noqa: FBT001 - Click calls by name
    max_: int | None,
    dry_run: bool,  # noqa: FBT001
    execute: bool,  # noqa: FBT001
    output: str,
    no_color: bool,  # noqa: FBT001
) -> None:
    """Mark dead letters as done with: no redrive takes them unless asked to.

    They stay in their topic. Without --execute it only says what would happen.
    """
    _check_run(wanted, all_=all_, dry_run=dry_run, execute=execute)
    services = ctx.ensure_object(Services)
    with services.admin(bootstrap_server, command_config, timeout_ms) as admin:
        result = admin.discard_dead_letters(
            group,
            wanted,
            all_letters=all_,
            dry_run=not execute,
            max_letters=max_ or 0,
            dead_letter_topic=dead_letter_topic,
        )
    show_run(result, "discarded", Output(output, not no_color), execute=execute)


@dead_letters.command()
@connection_options
@timeout_option
@click.option("--group", required=True, help="The share group.")
@click.option(
    "--dead-letter-topic", default="", metavar="TOPIC", help="Instead of the group's own."
)
@debug_option
@click.pass_context
def withdraw(
    ctx: click.Context,
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int,
    group: str,
    dead_letter_topic: str,
) -> None:
    """Take back what was redriven and never handed out.

    These letters are as before: the next redrive takes them.
    """
    services = ctx.ensure_object(Services)
    with services.admin(bootstrap_server, command_config, timeout_ms) as admin:
        letters = admin.withdraw_redrive(group, dead_letter_topic=dead_letter_topic)
    click.echo(f"{_letters(letters)} withdrawn.")


def _check_run(wanted: DeadLetterFilter, *, all_: bool, dry_run: bool, execute: bool) -> None:
    """Refuses what is not said clearly.

    Raises:
        click.UsageError: Names the option and the fix.
    """
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other.")
    is_empty = wanted == type(wanted)()
    if is_empty and not all_:
        raise click.UsageError(
            "say which letters are meant (--reason, --topic, --key, --from, ...), or --all."
        )
    if all_ and not is_empty:
        raise click.UsageError("--all and options that say which letters exclude each other.")


def show_run(result: DeadLettersResult, done: str, output: Output, *, execute: bool) -> None:
    """Prints what a redrive or a discard did, or would do."""
    if output.format == "table":
        parts = [
            {"topic": topic, "partition": partition, "letters": letters}
            for (topic, partition), letters in result.parts.items()
        ]
        output.show(_PARTS, parts)
        if result.first:
            click.echo()
        output.show(_LETTERS, [letter_row(letter, whole=False) for letter in result.first])
    else:
        row = _run_row(result)
        output.show([Column(key, key) for key in row], [row])
    if execute:
        run = f" by run {result.run_id}" if result.run_id else ""
        note(f"{_letters(result.letters)} {done}{run}.")
    else:
        note(f"Dry run: nothing was done. {_letters(result.letters)} would be {done} by --execute.")
    for text in _left_out(result):
        note(f"Left out: {text}.")
    if result.more:
        note("There are more: the same command goes on behind these.")


def _letters(number: int) -> str:
    return f"{number} letter{'' if number == 1 else 's'}"


def _left_out(result: DeadLettersResult) -> Iterator[str]:
    """Why letters that match are not among those that are taken."""
    reasons = {
        "redriven before (--again takes them)": result.redriven,
        "discarded before (--discarded redrives them)": result.discarded,
        "an earlier redrive of them is not finished": result.under_way,
        "a second copy of a letter": result.copies,
        "not in their topic yet": result.waiting,
    }
    texts = {
        "off": "the group copies no records (errors.deadletterqueue.copy.record.enable)",
        "gone": "the record was gone from the log",
        "kept": "too large for the topic, and the store has the record no more",
    }
    for payload, number in result.not_redrivable.items():
        reasons[f"{texts.get(payload, payload)}, payload {payload}"] = number
    for reason, number in reasons.items():
        if number:
            yield f"{_letters(number)}: {reason}"


def _run_row(result: DeadLettersResult) -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "letters": result.letters,
        "parts": [
            {"topic": topic, "partition": partition, "letters": letters}
            for (topic, partition), letters in result.parts.items()
        ],
        "first": [letter_row(letter, whole=True) for letter in result.first],
        "redriven": result.redriven,
        "discarded": result.discarded,
        "under_way": result.under_way,
        "copies": result.copies,
        "waiting": result.waiting,
        "not_redrivable": dict(result.not_redrivable),
        "more": result.more,
    }


def _place(text: str) -> tuple[int, int] | None:
    """PARTITION:OFFSET; an id has more parts."""
    parts = text.split(":")
    if len(parts) == 2 and all(part.isascii() and part.isdecimal() for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def letter_row(letter: DeadLetter, *, whole: bool) -> dict[str, Any]:
    """A letter as a line of a list; the error text cut unless `whole`."""
    error = letter.message
    if not whole and len(error) > ERROR_CHARACTERS:
        error = error[: ERROR_CHARACTERS - 1] + "…"
    return {
        "id": letter.id,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "reason": letter.reason,
        "attempts": letter.delivery_count,
        "failed_at": _iso(letter.failed_at_ms),
        "key": shown(letter.key),
        "state": letter.state.value,
        "place": None if letter.place is None else "{}:{}".format(*letter.place[1:]),
        "run": letter.run_id,
        "error": error,
    }


def _details(found: DeadLetterDetails) -> dict[str, Any]:
    letter = found.letter
    return {
        **letter_row(letter, whole=True),
        "member": letter.member_id,
        "timestamp": _iso(letter.timestamp_ms),
        "payload": letter.payload,
        "value": shown(found.value),
        "headers": [{"name": name, "value": shown(value)} for name, value in found.headers],
        "life": [{"time": _iso(time_ms), "text": text} for time_ms, text in found.steps],
    }


def _fields(found: DeadLetterDetails) -> list[dict[str, Any]]:
    details = _details(found)
    headers, life = details.pop("headers"), details.pop("life")
    rows = [(name.replace("_", " "), value) for name, value in details.items()]
    rows += [(f"header {each['name']}", each["value"]) for each in headers]
    rows += [(each["time"] or "now", each["text"]) for each in life]
    return [{"field": field, "value": value} for field, value in rows]


def _iso(at_ms: int) -> str | None:
    """A time as text; None for one that is not known."""
    if at_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return f"{at_ms} ms"
