"""`sharecoord dead-letters`: list, show, redrive, discard and withdraw dead letters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from sharecoord.cli.options import (
    LONG_TIMEOUT_MS,
    Connect,
    admin_options,
    group_option,
    options,
    output_options,
)
from sharecoord.cli.output import Column, Output, columns, iso_time, note, shown
from sharecoord.cli.records.letter_options import dead_letter_topic_option, filter_options

if TYPE_CHECKING:
    from sharecoord_sdk.admin import (
        AdminClient,
        DeadLetter,
        DeadLetterDetails,
        DeadLetterFilter,
        DeadLettersResult,
    )

PAGE_MAX: Final = 1_000
CALL_MAX: Final = 250_000
RATE_MAX: Final = 1_000_000
ERROR_CHARACTERS: Final = 60
"""A table shows this much of the error text."""

_LETTER = columns(
    "id topic partition offset reason attempts=delivery_count",
    Column("FAILED-AT", "failed_at", lambda letter: iso_time(letter.failed_at_ms)),
    Column("KEY", "key", lambda letter: shown(letter.key)),
    Column("STATE", "state", lambda letter: letter.state.value),
    Column("PLACE", "place", lambda letter: letter.place and "{}:{}".format(*letter.place[1:])),
)
_WHOLE = (*_LETTER, *columns("error=message run=run_id"))
"""The columns of JSON and YAML, with the whole error text."""
_SHOWN = (*_LETTER, Column("ERROR", "error", lambda letter: _cut(letter.message)))
"""The columns of a table."""
_PARTS = columns("topic partition letters")
_FIELDS = columns("field value")


@click.group("dead-letters")
def dead_letters() -> None:
    """Dead letters of a group: records that were rejected, or failed for the last time."""


@dead_letters.command("list")
@admin_options()
@filter_options
@click.option(
    "--max", "max_", type=click.IntRange(1), default=100, show_default=True, help="Most letters."
)
@click.option("--after", default="", help="Where a former list has ended.")
@output_options
def list_(
    connect: Connect,
    group: str,
    dead_letter_topic: str,
    wanted: DeadLetterFilter,
    max_: int,
    after: str,
    output: Output,
) -> None:
    """List dead letters: those that wait for their topic, then those in it.

    All options that say which ones must hold.

    \b
    sharecoord dead-letters list --group billing --reason REJECTED --from 2026-01-31T12:00:00
    """  # noqa: D301 - Click's mark for lines that stay as they are
    with connect() as admin:
        found, after = _pages(admin, group, wanted, max_, after, dead_letter_topic)
    output.show(_SHOWN if output.format == "table" else _WHOLE, found)
    if after:
        note(f"There may be more: go on with --after {after}.")


def _pages(
    admin: AdminClient, group: str, wanted: DeadLetterFilter, most: int, after: str, topic: str
) -> tuple[list[DeadLetter], str]:
    """At most `most` letters, page by page, and where to go on."""
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
@admin_options(LONG_TIMEOUT_MS)
@click.argument("letter", metavar="ID|PARTITION:OFFSET")
@group_option
@dead_letter_topic_option
@output_options
def show(connect: Connect, letter: str, group: str, dead_letter_topic: str, output: Output) -> None:
    """Show one dead letter whole: key, value, headers, and what happened to it.

    By its id, or (quicker) by its partition and offset in the dead-letter topic. What is no text is
    printed as hex: and digits.

    \b
    sharecoord dead-letters show 0:17 --group billing
    """  # noqa: D301 - Click's mark for lines that stay as they are
    place = _place(letter)
    with connect() as admin:
        found = admin.show_dead_letter(
            group, "" if place else letter, place=place, dead_letter_topic=dead_letter_topic
        )
    if output.format == "table":
        output.show(_FIELDS, _fields(found))
    else:
        details = _details(found)
        output.show([Column(key, key) for key in details], [details])


_run_options = options(
    click.option("--all", "all_", is_flag=True, help="All letters of the group."),
    click.option(
        "--max", "max_", type=click.IntRange(1, CALL_MAX), help="Most letters, in their order."
    ),
    click.option("--dry-run", is_flag=True, help="Only say what would happen: the default."),
    click.option("--execute", is_flag=True, help="Do it."),
)


@dead_letters.command()
@admin_options(LONG_TIMEOUT_MS)
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
def redrive(
    connect: Connect,
    output: Output,
    rate: int | None,
    again: bool,  # noqa: FBT001 - Click calls by name
    discarded: bool,  # noqa: FBT001
    **given: Any,
) -> None:
    """Deliver dead letters to their group again, each once, with a new count.

    They come to the members that subscribe to the topic they came from; nobody else sees them.
    Without --execute it only says what would happen.

    \b
    sharecoord dead-letters redrive --group billing --reason REJECTED
    sharecoord dead-letters redrive --group billing --reason REJECTED --rate 100 --execute
    """  # noqa: D301 - Click's mark for lines that stay as they are
    group, chosen = given.pop("group"), _chosen(**given)
    with connect() as admin:
        result = admin.redrive_dead_letters(
            group, given["wanted"], **chosen, rate_per_s=rate or 0, again=again, discarded=discarded
        )
    show_run(result, "redriven", output, execute=given["execute"])


@dead_letters.command()
@admin_options(LONG_TIMEOUT_MS)
@filter_options
@_run_options
@output_options
def discard(connect: Connect, output: Output, **given: Any) -> None:
    """Mark dead letters as done with: no redrive takes them unless asked to.

    They stay in their topic. Without --execute it only says what would happen.
    """
    group, chosen = given.pop("group"), _chosen(**given)
    with connect() as admin:
        result = admin.discard_dead_letters(group, given["wanted"], **chosen)
    show_run(result, "discarded", output, execute=given["execute"])


@dead_letters.command()
@admin_options()
@group_option
@dead_letter_topic_option
def withdraw(connect: Connect, group: str, dead_letter_topic: str) -> None:
    """Take back what was redriven and never handed out.

    These letters are as before: the next redrive takes them.
    """
    with connect() as admin:
        letters = admin.withdraw_redrive(group, dead_letter_topic=dead_letter_topic)
    click.echo(f"{_letters(letters)} withdrawn.")


def _chosen(
    *,
    wanted: DeadLetterFilter,
    dead_letter_topic: str,
    all_: bool,
    max_: int | None,
    dry_run: bool,
    execute: bool,
) -> dict[str, Any]:
    """The arguments of a redrive or a discard; refuses options that do not go together."""
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other.")
    is_empty = wanted == type(wanted)()
    if is_empty and not all_:
        raise click.UsageError(
            "say which letters are meant (--reason, --topic, --key, --from, ...), or --all."
        )
    if all_ and not is_empty:
        raise click.UsageError("--all and options that say which letters exclude each other.")
    return {
        "all_letters": all_,
        "dry_run": not execute,
        "max_letters": max_ or 0,
        "dead_letter_topic": dead_letter_topic,
    }


def show_run(result: DeadLettersResult, done: str, output: Output, *, execute: bool) -> None:
    """Prints what a redrive or a discard did, or would do."""
    if output.format == "table":
        output.show(_PARTS, _parts(result))
        if result.first:
            click.echo()
        output.show(_SHOWN, result.first)
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
    """Reasons why letters that match are not taken, with their numbers."""
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


def _parts(result: DeadLettersResult) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "letters": letters}
        for (topic, partition), letters in result.parts.items()
    ]


def _run_row(result: DeadLettersResult) -> dict[str, Any]:
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    letters = [_letter_row(letter) for letter in result.first]
    special = {"first": letters, "not_redrivable": dict(result.not_redrivable)}
    return found | special | {"parts": _parts(result)}


def _place(text: str) -> tuple[int, int] | None:
    """Reads PARTITION:OFFSET; None = an id, which has more parts."""
    parts = text.split(":")
    if len(parts) == 2 and all(part.isascii() and part.isdecimal() for part in parts):
        return int(parts[0]), int(parts[1])
    return None


def _cut(error: str) -> str:
    return error if len(error) <= ERROR_CHARACTERS else error[: ERROR_CHARACTERS - 1] + "…"


def _letter_row(letter: DeadLetter) -> dict[str, Any]:
    """A letter in JSON and YAML."""
    return {column.key: column.of(letter) for column in _WHOLE}


def _details(found: DeadLetterDetails) -> dict[str, Any]:
    letter = found.letter
    return {
        **_letter_row(letter),
        "member": letter.member_id,
        "timestamp": iso_time(letter.timestamp_ms),
        "payload": letter.payload,
        "value": shown(found.value),
        "headers": [{"name": name, "value": shown(value)} for name, value in found.headers],
        "life": [{"time": iso_time(time_ms), "text": text} for time_ms, text in found.steps],
    }


def _fields(found: DeadLetterDetails) -> list[dict[str, Any]]:
    details = _details(found)
    headers, life = details.pop("headers"), details.pop("life")
    rows = [(name.replace("_", " "), value) for name, value in details.items()]
    rows += [(f"header {each['name']}", each["value"]) for each in headers]
    rows += [(each["time"] or "now", each["text"]) for each in life]
    return [{"field": field, "value": value} for field, value in rows]
