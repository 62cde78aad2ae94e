"""The lock book on the wire: few ranges for many records, and a bound on their size.

The coordinator compares the book with its locks by token, and a token stands for one run of
offsets that one acquire gave out. So a range may cover offsets in between whose records are settled
already: for those the coordinator answers "lost", and nobody here holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .columns import PartitionKey, Span


class _Held(NamedTuple):
    """Offsets under one lock; bounds are inclusive."""

    key: PartitionKey
    token: int
    first_offset: int
    last_offset: int

    def to_wire(self) -> types_pb.HeldRange:
        return types_pb.HeldRange(
            partition=self.key.to_wire(),
            first_offset=self.first_offset,
            last_offset=self.last_offset,
            lock_token=self.token,
        )


def merged(spans: Iterable[Span]) -> list[types_pb.HeldRange]:
    """Ranges for the spans; spans that follow one another under the same lock share one."""
    out: list[_Held] = []
    for item in sorted(map(_held, spans)):
        last = out[-1] if out else None
        same = last is not None and (last.key, last.token) == (item.key, item.token)
        if last is not None and same and item.first_offset <= last.last_offset + 1:
            end = max(last.last_offset, item.last_offset)
            out[-1] = last._replace(last_offset=end)
        else:
            out.append(item)
    return [item.to_wire() for item in out]


def one_range_per_lock(spans: Iterable[Span]) -> list[types_pb.HeldRange]:
    """Ranges for the spans, one per lock, from its first to its last held offset.

    It may cover settled offsets in between: see the top of this module.
    """
    found: dict[tuple[PartitionKey, int], _Held] = {}
    for item in map(_held, spans):
        place = (item.key, item.token)
        before = found.get(place, item)
        found[place] = item._replace(
            first_offset=min(before.first_offset, item.first_offset),
            last_offset=max(before.last_offset, item.last_offset),
        )
    return [item.to_wire() for item in found.values()]


def split_by_room(
    items: Sequence[types_pb.HeldRange], room_bytes: int
) -> tuple[Sequence[types_pb.HeldRange], Sequence[types_pb.HeldRange]]:
    """Splits ranges into the first ones, which fit into a message, and the rest."""
    for count, item in enumerate(items):
        size = item.ByteSize()
        # A tag and a length go before each range; a range is shorter than 16 KiB.
        room_bytes -= size + (2 if size < 128 else 3)
        if room_bytes < 0:
            return items[:count], items[count:]
    return items, ()


def taken_ranges(notice: service_pb.TakenBack) -> list[types_pb.HeldRange]:
    """The ranges of a notice, as entries of a lock book."""
    return [
        types_pb.HeldRange(
            partition=notice.partition,
            first_offset=each.first_offset,
            last_offset=each.last_offset,
            lock_token=each.lock_token,
        )
        for each in notice.ranges
    ]


def _held(span: Span) -> _Held:
    return _Held(span.columns.key, span.lock.token, span.first_offset, span.last_offset)
