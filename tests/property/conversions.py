"""Between ranges, stored rows and the oracle's records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sharecoord.core.changes import InFlightRow
from sharecoord.core.partition.share_partition import AcknowledgedRange
from sharecoord.core.states import RecordState
from sharecoord.core.window.history import history_from_text, history_to_text
from sharecoord.core.window.window import Keys, RangeState
from tests.property.oracle import Record

Found = tuple[int, int, RangeState]


def to_row(first: int, last: int, value: RangeState) -> InFlightRow:
    """What is stored of a range."""
    hashes = value.keys.slice(first, last) if value.keys else None
    text = None if value.history is None else history_to_text(value.history, 0)
    return InFlightRow(first, last, int(value.state), *value[1:11], hashes, text)


def from_row(row: InFlightRow) -> Found:
    """A stored range."""
    keys = None if row.key_hashes is None else Keys(row.first_offset, row.key_hashes)
    history = None if row.history is None else history_from_text(row.history)
    value = RangeState(RecordState(row.state), *row[3:13], keys, history)
    return row.first_offset, row.last_offset, value


def as_record(offset: int, value: RangeState) -> Record:
    """A range's state as one record of the oracle."""
    key = None
    if value.keys is not None:
        key = int.from_bytes(value.keys.at(offset), "big")
    return Record(*value[:11], key, value.history)


def spread(ranges: Sequence[tuple[Any, ...]]) -> list[int]:
    """The offsets of ranges."""
    return [o for r in ranges for o in range(r[0], r[1] + 1)]


def without_key(record: Record) -> tuple[Any, ...]:
    """The fields of a record whose key no longer matters."""
    return dataclasses.astuple(dataclasses.replace(record, key=None))


def once_where_malformed(items: list[AcknowledgedRange], real: list[Any]) -> list[Any]:
    """The twin lists an item that does not ascend once, by its first offset."""
    previous, malformed = -1, []
    for item in items:
        if item.first > item.last or item.first <= previous:
            malformed.append(item)
        else:
            previous = item.last
    for item in malformed:
        for offset in range(item.first + 1, item.last + 1):
            real.remove((offset, next(x for o, x in real if o == item.first and x[0] == 5)))
    return sorted(real)
