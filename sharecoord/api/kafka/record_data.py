"""The record batches of an answer: no record is in it twice.

A batch is sent whole for a part of its records, and clients keep what is acquired of it. Were it
there twice, for two deliveries, they would take its records twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sharecoord.core.delivery import Delivery
from sharecoord.core.fleet.peering import Relayed
from sharecoord.wire.record_batches import record_batches

_HEAD: Final = struct.Struct(">qi")
"""The first offset of a batch, and how many bytes follow."""
_LAST_DELTA: Final = struct.Struct(">11xi")
"""Behind the head: how far the last offset is from the first."""

Batch = tuple[int, int, bytes | memoryview]
"""The first and the last offset of a batch, and its bytes."""


def fits(others: Sequence[Delivery | Relayed], more: Delivery | Relayed) -> bool:
    """Whether a delivery of the same partition can be in one answer with others.

    It can not where batches overlap and are not the same one: records that wait with their payload
    come in batches of their own.
    """
    spans = {first: last for each in others for first, last, _ in _batches_of(each)}
    for first, last, _ in _batches_of(more):
        if spans.get(first) == last:
            continue
        if any(first <= end and begin <= last for begin, end in spans.items()):
            return False
    return True


def record_data(deliveries: Sequence[Delivery | Relayed]) -> list[bytes | memoryview]:
    """The record batches of one partition, in order of offset; those of two deliveries once."""
    found: dict[int, bytes | memoryview] = {}
    if len(deliveries) == 1:
        return list(_parts_of(deliveries[0]))
    for each in deliveries:
        found |= {first: content for first, _, content in _batches_of(each)}
    return [found[first] for first in sorted(found)]


def _parts_of(delivery: Delivery | Relayed) -> Iterable[bytes | memoryview]:
    if isinstance(delivery, Relayed):
        assert isinstance(delivery.frame, bytes), "joined by the owner"
        return (delivery.frame,)
    return record_batches(delivery)


def _batches_of(delivery: Delivery | Relayed) -> Iterator[Batch]:
    for part in _parts_of(delivery):
        data, at = memoryview(part), 0
        while at < len(data):
            first, size = _HEAD.unpack_from(data, at)
            (delta,) = _LAST_DELTA.unpack_from(data, at + _HEAD.size)
            end = at + _HEAD.size + size
            yield first, first + delta, data[at:end]
            at = end
