"""Parked offsets against a set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.offset_set import SEGMENT_OFFSETS, OffsetSet

EDGES = [0, 1, SEGMENT_OFFSETS - 1, SEGMENT_OFFSETS, 3 * SEGMENT_OFFSETS, 2**62]
FIRSTS = st.one_of(st.sampled_from(EDGES), st.integers(0, 4 * SEGMENT_OFFSETS))
LENGTHS = st.one_of(st.integers(1, 5), st.integers(1, 3 * SEGMENT_OFFSETS))
RANGES = st.tuples(FIRSTS, LENGTHS).map(lambda pair: (pair[0], pair[0] + pair[1] - 1))


def runs_of(numbers: set[int]) -> list[tuple[int, int]]:
    """Numbers as inclusive ranges."""
    starts = sorted(n for n in numbers if n - 1 not in numbers)
    return list(zip(starts, sorted(n for n in numbers if n + 1 not in numbers), strict=True))


@given(st.lists(RANGES, max_size=6), st.lists(RANGES, max_size=6), st.integers(0, 2**62 + 9))
def test_the_first_one_that_others_have_not(
    mine: list[tuple[int, int]], others: list[tuple[int, int]], end: int
) -> None:
    parked, kept = OffsetSet(), OffsetSet()
    numbers: list[set[int]] = []
    for offsets, ranges in ((parked, mine), (kept, others)):
        found = {n for first, last in ranges for n in range(first, last + 1)}
        for run in runs_of(found):
            offsets.add(*run)
        numbers.append(found)
    left = {n for n in numbers[0] - numbers[1] if n < end}
    assert parked.first_without(kept, end) == min(left, default=None)


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=12), RANGES)
def test_it_is_a_set_of_numbers(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    parked, twin = OffsetSet(), set[int]()
    for adds, (first, last) in steps:
        span = set(range(first, last + 1))
        if not adds:
            assert parked.discard(first, last) == len(twin & span)
            twin -= span
        elif not twin & span:
            parked.add(first, last)
            twin |= span
        assert parked.records == len(twin)
        assert parked.lowest == min(twin, default=None)
        assert parked.segments == len({n // SEGMENT_OFFSETS for n in twin})
    first, last = asked
    span = set(range(first, last + 1))
    assert [*parked.spans(first, last)] == runs_of(twin & span)
    assert [*parked.spans(0, 2**63)] == runs_of(twin)
    assert parked.covers(first, last) == (span <= twin)
    assert [*parked.spans(last + 1, last)] == []
