"""A large set of offsets in little memory: a bit for each.

A group may delay a million records (design 5.4), each a range with a time of its own. The ranges
that are due first are in the window. Of those that are left to the store ("parked") memory keeps
only the offsets, so that it knows that they are not finished.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

SEGMENT_BITS = 10
SEGMENT_OFFSETS = 1 << SEGMENT_BITS
"""Offsets of one number: 130 bytes in the place of 1,024 ranges of 450 bytes."""


class OffsetSet:
    """A set of offsets, given and asked for as ranges."""

    __slots__ = ("_lowest", "_segments", "records")

    def __init__(self) -> None:
        self._segments: dict[int, int] = {}
        """Bits by offset >> SEGMENT_BITS; never 0."""
        self._lowest: list[int] = []
        """A heap of segments; some may be gone."""
        self.records = 0
        """How many offsets there are."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetSet) and self._segments == other._segments

    def __hash__(self) -> int:
        return hash((self.records, self.lowest))

    def __repr__(self) -> str:
        return f"OffsetSet({[*self.spans(0, 2**63 - 1)]})"

    @property
    def segments(self) -> int:
        """How much memory the set takes, in segments."""
        return len(self._segments)

    @property
    def lowest(self) -> int | None:
        """The lowest offset, or None."""
        heap = self._lowest
        while heap and heap[0] not in self._segments:
            heapq.heappop(heap)
        if not heap:
            return None
        bits = self._segments[heap[0]]
        return (heap[0] << SEGMENT_BITS) + _trailing_zeros(bits)

    def add(self, first: int, last: int) -> None:
        """Adds [first, last]; none of the offsets may be there."""
        for segment, mask in _masks(first, last):
            bits = self._segments.get(segment)
            if bits is None:
                heapq.heappush(self._lowest, segment)
                bits = 0
            assert not bits & mask, f"some of [{first}, {last}] is there already"
            self._segments[segment] = bits | mask
        self.records += last - first + 1

    def discard(self, first: int, last: int) -> int:
        """Removes offsets in [first, last] and returns how many were there."""
        gone = 0
        for segment, mask in self._present(first, last):
            bits = self._segments[segment]
            gone += (bits & mask).bit_count()
            if left := bits & ~mask:
                self._segments[segment] = left
            else:
                del self._segments[segment]
        self.records -= gone
        return gone

    def covers(self, first: int, last: int) -> bool:
        """Whether all offsets of [first, last] are there."""
        get = self._segments.get
        return all(get(segment, 0) & mask == mask for segment, mask in _masks(first, last))

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The offsets in [first, last] that are there, as spans in order."""
        start = end = -2
        for segment, mask in self._present(first, last):
            bits = self._segments[segment] & mask
            at = segment << SEGMENT_BITS
            while bits:
                zeros = _trailing_zeros(bits)
                bits >>= zeros
                ones = _trailing_zeros(~bits)
                bits >>= ones
                at += zeros
                if at != end + 1:
                    if end >= 0:
                        yield start, end
                    start = at
                at += ones
                end = at - 1
        if end >= 0:
            yield start, end

    def first_without(self, others: OffsetSet, end: int) -> int | None:
        """The lowest offset below `end` that `others` has not; None = there is none."""
        for segment, mask in self._present(0, end - 1):
            left = self._segments[segment] & mask & ~others._segments.get(segment, 0)
            if left:
                return (segment << SEGMENT_BITS) + _trailing_zeros(left)
        return None

    def _present(self, first: int, last: int) -> list[tuple[int, int]]:
        """Segments that may have offsets of [first, last], each with the mask of these."""
        if first > last:
            return []
        low, high = first >> SEGMENT_BITS, last >> SEGMENT_BITS
        if high - low > len(self._segments):
            found = sorted(s for s in self._segments if low <= s <= high)
        else:
            found = [s for s in range(low, high + 1) if s in self._segments]
        whole = (1 << SEGMENT_OFFSETS) - 1
        masks = [whole] * len(found)
        if found and found[0] == low:
            masks[0] &= whole << (first - (low << SEGMENT_BITS))
        if found and found[-1] == high:
            masks[-1] &= whole >> (((high + 1) << SEGMENT_BITS) - 1 - last)
        return list(zip(found, masks, strict=True))


def _masks(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The segments of [first, last], each with a bit for every offset."""
    while first <= last:
        segment = first >> SEGMENT_BITS
        base = segment << SEGMENT_BITS
        end = min(last, base + SEGMENT_OFFSETS - 1)
        yield segment, ((1 << (end - first + 1)) - 1) << (first - base)
        first = end + 1


def _trailing_zeros(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
