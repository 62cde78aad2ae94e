"""Delayed ranges in the store in memory: reading them by due time, and cutting them off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sharecoord.core.changes import DelayedPlace, InFlight, InFlightRow, Parked
from sharecoord.core.offset_set import OffsetSet


def truncate(rows: dict[int, InFlightRow], offset: int) -> None:
    """Takes [offset, …) out of all ranges, which are given by first offset."""
    for row in [*rows.values()]:
        if row.first_offset >= offset:
            del rows[row.first_offset]
        elif row.last_offset >= offset:
            rows[row.first_offset] = row._replace(last_offset=offset - 1)


def read(rows: Mapping[int, InFlightRow], after: DelayedPlace, max_rows: int) -> InFlight:
    """See `ports.Store.read_delayed`."""
    behind = [row for row in _in_order(rows.values()) if _place(row) > after]
    return InFlight.of(behind[:max_rows])


def cut(
    rows: Mapping[int, InFlightRow], delayed_max: int | None
) -> tuple[list[InFlightRow], Parked]:
    """The ranges that a claim reads, in order of offset, and those that it leaves."""
    delayed, offsets = _in_order(rows.values()), OffsetSet()
    if delayed_max is None or len(delayed) <= delayed_max:
        return sorted(rows.values()), Parked(offsets)
    left = delayed[delayed_max:]
    for row in left:
        offsets.add(row.first_offset, row.last_offset)
    return sorted({*rows.values()} - {*left}), Parked(offsets, _place(delayed[delayed_max - 1]))


def _in_order(rows: Iterable[InFlightRow]) -> list[InFlightRow]:
    """Delayed ranges in the order in which they are due."""
    return sorted((row for row in rows if row.available_at_ms > 0), key=_place)


def _place(row: InFlightRow) -> DelayedPlace:
    return DelayedPlace(row.available_at_ms, row.first_offset)
