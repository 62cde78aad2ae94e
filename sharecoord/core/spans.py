"""Arithmetic on spans: ranges (first, last) of offsets, both ends inclusive.

Where a function asks for spans *in order*, they ascend and share no offset. Results are in order,
and no two neighbours touch unless neighbours of the argument do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

Span = tuple[int, int]
Spans = tuple[Span, ...]
"""In order, and no two of them touch."""

_END = 1 << 63
"""Above every offset."""


def union(spans: Iterable[Span]) -> list[Span]:
    """The offsets of all spans as few spans in order; O(n log n). The argument may overlap."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def difference(spans: Iterable[Span], taken: Sequence[Span]) -> list[Span]:
    """The offsets of `spans` that are not in `taken`, both in order; O(n log m + pieces)."""
    found: list[Span] = []
    for first, last in spans:
        start = bisect_right(taken, (first, -1))
        start -= start > 0 and taken[start - 1][1] >= first
        found += uncovered((taken[at] for at in range(start, len(taken))), first, last)
    return found


def within(spans: Iterable[Span], first: int, last: int) -> Iterator[Span]:
    """The parts of spans in order that lie in [first, last]; O(n), stops behind `last`."""
    for start, end in spans:
        if start > last:
            return
        if end >= first:
            yield max(start, first), min(end, last)


def split(spans: Iterable[Span], first: int, last: int) -> Iterator[tuple[int, int, bool]]:
    """[first, last] in pieces that lie in a span (True) or in none; O(n), stops behind `last`.

    The spans ascend by their first offset; they may overlap.
    """
    position = first
    for start, end in spans:
        if start > last or position > last:
            break
        if start > position:
            yield position, start - 1, False
            position = start
        if end >= position:
            yield position, min(end, last), True
            position = end + 1
    if position <= last:
        yield position, last, False


def uncovered(spans: Iterable[Span], first: int, last: int) -> Iterator[Span]:
    """The parts of [first, last] that lie in no span, as `split` gives them."""
    position = first
    for start, end in spans:
        if position > last:
            return
        if start > position:
            yield position, min(start - 1, last)
        position = max(position, end + 1)
    if position <= last:
        yield position, last


def covers(spans: Sequence[Span], offset: int) -> bool:
    """Whether an offset lies in one of these spans, which are in order; O(log n)."""
    at = bisect_right(spans, (offset, _END))
    return at > 0 and spans[at - 1][1] >= offset


def spans_of(offsets: Sequence[int]) -> list[Span]:
    """Ascending offsets as few spans; O(n), and O(1) where they are one span."""
    if not offsets:
        return []
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return [(first, last)]
    found: list[Span] = []
    start = previous = first
    for offset in offsets:
        if offset > previous + 1:
            found.append((start, previous))
            start = offset
        previous = offset
    found.append((start, last))
    return found


def offsets_of(spans: Iterable[Span]) -> Iterator[int]:
    """Every offset of the spans."""
    for first, last in spans:
        yield from range(first, last + 1)


def count(spans: Iterable[Span]) -> int:
    """How many offsets the spans have."""
    return sum(last - first + 1 for first, last in spans)
