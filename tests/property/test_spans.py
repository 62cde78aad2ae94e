"""Span arithmetic against sets of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.spans import (
    Span,
    count,
    covers,
    difference,
    offsets_of,
    spans_of,
    split,
    uncovered,
    union,
    within,
)

ANY = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8).map(
    lambda found: [(first, first + more) for first, more in found]
)
"""Spans in any order, which may overlap."""

IN_ORDER = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=8)
"""Gaps and lengths."""


def laid_out(steps: list[tuple[int, int]]) -> list[Span]:
    """Spans in order; they may touch."""
    found: list[Span] = []
    position = 0
    for gap, more in steps:
        found.append((position + gap, position + gap + more))
        position += gap + more + 1
    return found


ORDERED = IN_ORDER.map(laid_out)


def is_in_order(spans: list[Span]) -> bool:
    """Whether spans are whole, ascend and share no offset."""
    return all(first <= last for first, last in spans) and all(
        before[1] < after[0] for before, after in pairwise(spans)
    )


@given(ANY)
def test_union_has_all_offsets_in_as_few_spans_as_there_can_be(spans: list[Span]) -> None:
    found = union(spans)
    assert [*offsets_of(found)] == sorted({*offsets_of(spans)})
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))
    assert count(found) == len({*offsets_of(spans)})


@given(ORDERED, ORDERED)
def test_difference_has_what_the_others_have_not(spans: list[Span], taken: list[Span]) -> None:
    found = difference(spans, taken)
    assert is_in_order(found)
    assert [*offsets_of(found)] == sorted({*offsets_of(spans)} - {*offsets_of(taken)})


@given(ORDERED, st.integers(0, 40), st.integers(-1, 20))
def test_within_has_what_lies_between_two_offsets(
    spans: list[Span], first: int, length: int
) -> None:
    found = list(within(spans, first, first + length))
    assert is_in_order(found)
    wanted = {*offsets_of(spans)} & {*range(first, first + length + 1)}
    assert [*offsets_of(found)] == sorted(wanted)


@given(ANY.map(sorted), st.integers(0, 40), st.integers(-1, 20))
def test_split_and_uncovered_tell_covered_offsets_from_others(
    spans: list[Span], first: int, length: int
) -> None:
    last, all_of_them = first + length, {*offsets_of(spans)}
    pieces = list(split(spans, first, last))
    assert is_in_order([(start, end) for start, end, _ in pieces])
    assert {at: inside for start, end, inside in pieces for at in range(start, end + 1)} == {
        at: at in all_of_them for at in range(first, last + 1)
    }
    free = list(uncovered(spans, first, last))
    assert free == [(start, end) for start, end, inside in pieces if not inside]
    assert all(before[1] + 1 < after[0] for before, after in pairwise(free))


@given(ORDERED, st.integers(0, 50))
def test_covers_looks_at_each_span(spans: list[Span], offset: int) -> None:
    assert covers(spans, offset) == (offset in {*offsets_of(spans)})


@given(st.sets(st.integers(0, 40)))
def test_spans_of_offsets_are_those_offsets(offsets: set[int]) -> None:
    found = spans_of(sorted(offsets))
    assert found == union((at, at) for at in offsets)
