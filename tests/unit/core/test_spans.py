"""Span arithmetic at its edges: nothing, one offset, spans that touch."""

from __future__ import annotations

from collections.abc import Iterator

from sharecoord.core.spans import (
    Span,
    count,
    covers,
    difference,
    spans_of,
    split,
    uncovered,
    union,
    within,
)


def test_nothing_stays_nothing() -> None:
    assert union([]) == difference([], [(0, 9)]) == spans_of([]) == [*within([], 0, 9)] == []
    assert count([]) == 0
    assert not covers([], 0)
    assert [*split([(0, 9)], 5, 4)] == [*uncovered([], 5, 4)] == []


def test_union_joins_spans_that_touch_or_overlap() -> None:
    assert union([(5, 6), (0, 3), (4, 4), (9, 9), (2, 3)]) == [(0, 6), (9, 9)]


def test_difference_keeps_the_borders_of_its_first_argument() -> None:
    touching = [(0, 4), (5, 9)]
    assert difference(touching, []) == touching
    assert difference(touching, [(4, 5)]) == [(0, 3), (6, 9)]
    assert difference([(3, 3)], [(0, 2), (4, 9)]) == [(3, 3)]
    assert difference([(3, 3)], [(0, 3)]) == []


def test_split_ends_at_both_bounds() -> None:
    assert [*split([(0, 2), (5, 20)], 1, 9)] == [(1, 2, True), (3, 4, False), (5, 9, True)]
    assert [*split([(12, 20)], 1, 9)] == [(1, 9, False)]


def test_what_lies_behind_the_end_is_not_looked_at() -> None:
    def spans() -> Iterator[Span]:
        yield 0, 1
        yield 10, 11
        raise AssertionError("looked too far")

    assert [*within(spans(), 0, 9)] == [(0, 1)]
    assert [*split(spans(), 0, 9)] == [(0, 1, True), (2, 9, False)]


def test_covers_knows_both_ends() -> None:
    assert [covers([(2, 4), (6, 6)], at) for at in range(8)] == [
        at in (2, 3, 4, 6) for at in range(8)
    ]


def test_offsets_without_a_hole_are_one_span() -> None:
    assert spans_of([7]) == [(7, 7)]
    assert spans_of([7, 8, 9]) == [(7, 9)]
    assert spans_of([7, 9, 10, 12]) == [(7, 7), (9, 10), (12, 12)]
