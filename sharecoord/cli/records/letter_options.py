"""Options that select dead letters."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sharecoord.cli.options import PARTITION, group_option, options, parse_datetime_ms
from sharecoord.cli.output import parse_content

if TYPE_CHECKING:
    from sharecoord_sdk.admin import DeadLetterFilter

F = TypeVar("F", bound=Callable[..., Any])

REASONS: Final = ("REJECTED", "DELIVERY_LIMIT")
TEN_DIGITS: Final = 10
"""A number with fewer digits is no time in milliseconds, but perhaps a year."""

dead_letter_topic_option: Final = click.option(
    "--dead-letter-topic", default="", metavar="TOPIC", help="Instead of the group's own."
)
_OPTIONS: Final = (
    group_option,
    dead_letter_topic_option,
    click.option(
        "--reason",
        "reasons",
        multiple=True,
        type=click.Choice(REASONS, case_sensitive=False),
        help="Why it is dead (repeatable).",
    ),
    click.option("--topic", default="", help="Where the record comes from."),
    click.option(
        "--partition",
        "partitions",
        type=PARTITION,
        multiple=True,
        help="Partition of --topic (repeatable).",
    ),
    click.option("--offsets", metavar="N[-M]", help="Offsets in that one --partition."),
    click.option("--key", metavar="TEXT|hex:…", help="The whole key."),
    click.option("--key-prefix", metavar="TEXT|hex:…", help="How the key begins."),
    click.option(
        "--from",
        "from_",
        metavar="TIME",
        help="Failed at this time or later: YYYY-MM-DDThh:mm:ss (UTC without zone), or "
        "milliseconds since the epoch.",
    ),
    click.option("--to", metavar="TIME", help="Failed before this time."),
    click.option(
        "--header",
        "headers",
        metavar="NAME[=VALUE]",
        multiple=True,
        help="A header of the record, with this value if one is given (repeatable: all must hold).",
    ),
    click.option("--id", "ids", metavar="ID", multiple=True, help="Of the letter (repeatable)."),
    click.option("--text", default="", help="Part of the error text."),
)
_FILTER: Final = (
    *("reasons", "topic", "partitions", "offsets", "key", "key_prefix", "from_", "to"),
    *("headers", "ids", "text"),
)
"""Names of the options that select letters."""


def filter_options(function: F) -> F:
    """--group, --dead-letter-topic and the filter; the command gets the last as `wanted`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in _FILTER}
        return function(*args, wanted=filter_of(given), **kwargs)

    return options(*_OPTIONS)(cast("F", call))


def filter_of(given: dict[str, Any]) -> DeadLetterFilter:
    """The filter of some options' values; refuses values that can not be read."""
    from sharecoord_sdk.admin import DeadLetterFilter

    first, last = _offsets(given["offsets"])
    return DeadLetterFilter(
        reasons=tuple(given["reasons"]),
        topic=given["topic"],
        partitions=tuple(given["partitions"]),
        first_offset=first,
        last_offset=last,
        key=_content("--key", given["key"]),
        key_prefix=_content("--key-prefix", given["key_prefix"]),
        failed_from_ms=_time_ms("--from", given["from_"]),
        failed_to_ms=_time_ms("--to", given["to"]),
        headers=tuple(map(_header, given["headers"])),
        ids=tuple(given["ids"]),
        text=given["text"],
    )


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text.strip())
    if match is None:
        raise click.UsageError(f"--offsets {text}: it must be N or N-M.")
    first = int(match.group(1))
    return first, first if match.group(2) is None else int(match.group(2))


def _content(option: str, text: str | None) -> bytes | None:
    return None if text is None else parse_content(option, text)


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch(f"[0-9]{{{TEN_DIGITS},18}}", text.strip()):
        return int(text)
    return parse_datetime_ms(text, option)


def _header(text: str) -> tuple[str, bytes | None]:
    name, separator, value = text.partition("=")
    if not name:
        raise click.UsageError(f"--header {text}: it must be NAME or NAME=VALUE.")
    return name, parse_content("--header", value) if separator else None
