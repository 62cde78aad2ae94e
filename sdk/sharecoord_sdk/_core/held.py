"""The lock book on the wire: few ranges for many records, and a bound on their size.

The coordinator compares the book with its locks by token, and a token stands for one run of
offsets that one acquire gave out. So a range may cover offsets in between whose records are settled
already: for those the coordinator answers "lost", and nobody here holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .columns import PartitionKey, Span


class Held(NamedTuple):
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


def merged(spans: Iterable[Span]) -> list[Held]:
    """Ranges for the spans; spans that follow one another under the same lock share one."""
    out: list[Held] = []
    for item in sorted(map(_held, spans)):
        last = out[-1] if out else None
        same = last is not None and (last.key, last.token) == (item.key, item.token)
        if last is not None and same and item.first_offset <= last.last_offset + 1:
            end = max(last.last_offset, item.last_offset)
            out[-1] = last._replace(last_offset=end)
        else:
            out.append(item)
    return out


def one_range_per_lock(spans: Iterable[Span]) -> list[Held]:
    """Ranges for the spans, one per lock, from its first to its last held offset.

    It may cover settled offsets in between: see the top of this module.
    """
    found: dict[tuple[PartitionKey, int], Held] = {}
    for item in map(_held, spans):
        place = (item.key, item.token)
        before = found.get(place, item)
        found[place] = item._replace(
            first_offset=min(before.first_offset, item.first_offset),
            last_offset=max(before.last_offset, item.last_offset),
        )
    return list(found.values())


def size_of(items: Iterable[Held]) -> int:
    """Bytes of the ranges inside a join, at most."""
    return sum(_size_of_one(item.key) for item in items)


def split_by_room(items: Sequence[Held], room_bytes: int) -> tuple[list[Held], list[Held]]:
    """Splits ranges into the first ones, which fit, and the rest."""
    for count, item in enumerate(items):
        room_bytes -= _size_of_one(item.key)
        if room_bytes < 0:
            return list(items[:count]), list(items[count:])
    return list(items), []


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


def _held(span: Span) -> Held:
    return Held(span.columns.key, span.lock.token, span.first_offset, span.last_offset)


@lru_cache(maxsize=1024)
def _size_of_one(key: PartitionKey) -> int:
    """Bytes of a range inside a join, at most: two tags with 9 bytes of offset each, the token."""
    place = Held(key, 0, 0, 0).to_wire().ByteSize()
    inner = place + 2 * 10 + 9
    # A tag and a length go before each range; a range is shorter than 16 KiB.
    return inner + (2 if inner < 128 else 3)
