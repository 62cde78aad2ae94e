"""Records that their producer wants delivered later: what their headers say.

`sharecoord-deliver-at` is a time (milliseconds since the epoch, UTC), `sharecoord-delay-ms` a time
after the record's own timestamp; both are decimal digits. A record with both headers waits for the
later time. An unusable header is reported, and its record is delivered at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sharecoord.core.records import Headers

DELIVER_AT_HEADER: Final = "sharecoord-deliver-at"
DELAY_HEADER: Final = "sharecoord-delay-ms"

HEADERS_BEGIN_WITH: Final = b"sharecoord-de"
"""What both names begin with: records without these bytes have neither."""

SCHEDULE_MAX_MS: Final = 10 * 366 * 86_400_000
"""A time more than ten years ahead is a mistake, as of microseconds for milliseconds."""

_SHOWN_MAX: Final = 40


class Unusable(NamedTuple):
    """A header whose value is no time."""

    record: int
    """Its index."""
    problem: str
    """Which header, its value, and what it should be."""


def due_times(
    headers: Mapping[int, Headers], timestamps: Sequence[int], now_ms: int
) -> tuple[dict[int, int], list[Unusable]]:
    """When the records are due that ask for a time, by index; and the headers that are unusable.

    `headers` is by index of the record; all times are milliseconds since the epoch.
    """
    found: dict[int, int] = {}
    unusable: list[Unusable] = []
    for index, pairs in headers.items():
        for name, value in pairs:
            if name != DELIVER_AT_HEADER and name != DELAY_HEADER:
                continue
            at_ms = _number(value)
            if at_ms is not None and name == DELAY_HEADER:
                at_ms += timestamps[index]
            if at_ms is None or at_ms - now_ms > SCHEDULE_MAX_MS:
                unusable.append(Unusable(index, _problem(name, value)))
            else:
                found[index] = max(at_ms, found.get(index, 0))
    return found, unusable


def _number(value: bytes | None) -> int | None:
    """Decimal digits, not more than a time needs."""
    if value is None or not value.isdigit() or len(value) > len(str(2**53)):
        return None
    return int(value)


def _problem(name: str, value: bytes | None) -> str:
    text = "null" if value is None else repr(value[:_SHOWN_MAX].decode(errors="replace"))
    what = "a time in milliseconds since the epoch" if name == DELIVER_AT_HEADER else "milliseconds"
    return f"{name}={text}: it must be {what}, in digits, at most ten years ahead"
