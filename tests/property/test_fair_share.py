"""What every fair split and every measure of fairness has."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharecoord.core.dispatch.fair_share import (
    fair_level,
    fair_part,
    jain_index,
)
from tests.fairness import fairness, fairness_over

DEMANDS = st.lists(st.integers(0, 1_000), min_size=1, max_size=30)
AMOUNT = st.one_of(st.just(0.0), st.floats(0.001, 1e6))
AMOUNTS = st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=20)


@settings(max_examples=200, deadline=None)
@given(demands=DEMANDS, level=st.integers(1, 1_000))
def test_who_gets_up_to_one_level_is_served_fairly(demands: list[int], level: int) -> None:
    """Max-min fair: everybody gets what it wants, but nobody more than the level."""
    got = [min(demand, level) for demand in demands]
    if any(demands):
        assert fairness(demands, got) == pytest.approx(1)
        assert fair_level(demands, got) == pytest.approx(min(level, max(demands)))


@settings(max_examples=200, deadline=None)
@given(amounts=AMOUNTS)
def test_the_fair_level_solves_its_equation(amounts: list[tuple[float, float]]) -> None:
    """The sum of min(demand, level) is what was handed out, as far as demands reach."""
    demands, got = [d for d, _ in amounts], [g for _, g in amounts]
    level = fair_level(demands, got)
    handed_out = min(sum(got), sum(demands))
    assert sum(min(d, level) for d in demands) == pytest.approx(handed_out, rel=1e-9, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(amounts=AMOUNTS, order=st.randoms(use_true_random=False))
def test_fairness_is_an_index(amounts: list[tuple[float, float]], order: object) -> None:
    """Between 1/n and 1, and no matter who comes first."""
    demands, got = [d for d, _ in amounts], [g for _, g in amounts]
    index = fairness(demands, got)
    assert 1 / len(amounts) - 1e-9 <= index <= 1 + 1e-9
    order.shuffle(amounts)  # type: ignore[attr-defined]
    shuffled = fairness([d for d, _ in amounts], [g for _, g in amounts])
    assert shuffled == pytest.approx(index, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=20))
def test_jain_does_not_overflow(parts: list[float]) -> None:
    """Squares of large and small numbers."""
    assert 1 / len(parts) - 1e-9 <= jain_index(parts) <= 1 + 1e-9


@settings(max_examples=300, deadline=None)
@given(
    needs=st.lists(st.one_of(AMOUNT, st.just(math.inf)), max_size=20),
    amount=st.one_of(st.just(0.0), st.floats(0.001, 1e6)),
)
def test_a_fair_part_is_max_min_fair(needs: list[float], amount: float) -> None:
    """No more than there is, no more than is needed, all of it where more is needed."""
    part = fair_part(needs, amount)
    got = [min(need, part) for need in needs]
    assert sum(got) == pytest.approx(min(sum(needs), amount), rel=1e-9, abs=1e-6)
    needing = sum(need > 0 for need in needs)
    assert part >= amount / max(needing, 1), "who needs something makes progress"
    # Nobody gets less than it needs while another one gets more than it.
    for need, has in zip(needs, got, strict=True):
        assert has == need or has >= max(got)


INTERVAL = st.dictionaries(st.sampled_from("abcd"), st.tuples(AMOUNT, AMOUNT), max_size=4)


@settings(max_examples=200, deadline=None)
@given(amounts=AMOUNTS)
def test_one_interval_is_as_fair_as_the_live_index_says(amounts: list[tuple[float, float]]) -> None:
    demands, got = [d for d, _ in amounts], [g for _, g in amounts]
    interval = {str(place): amount for place, amount in enumerate(amounts)}
    assert fairness_over([interval]) == pytest.approx(fairness(demands, got), rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(intervals=st.lists(INTERVAL, max_size=6))
def test_several_intervals_are_an_index_too(
    intervals: list[dict[str, tuple[float, float]]],
) -> None:
    found = fairness_over(intervals)
    assert 0 < found <= 1 + 1e-9
    assert fairness_over([*intervals, *intervals]) == pytest.approx(found)
    assert fairness_over(reversed(intervals)) == pytest.approx(found)


def test_only_who_wanted_at_the_same_time_is_compared() -> None:
    assert fairness_over([{"a": (100, 77)}, {"b": (100, 12)}, {"c": (100, 11)}]) == 1
    # One in turn of many is fair in the end.
    turns = [{name: (5, float(name == turn)) for name in "abcd"} for turn in "abcd"]
    assert fairness_over(turns) == pytest.approx(1)
    # Who was there for a moment only counts for that.
    hour = [{"a": (9, 5), "b": (9, 5)}] * 3_600
    assert fairness_over([*hour, {"a": (9, 5), "b": (9, 5), "c": (9, 0)}]) > 0.999
    assert fairness_over([]) == fairness_over([{}]) == 1
