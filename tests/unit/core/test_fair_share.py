"""The fair level and Jain's index on cases that can be checked by hand."""

from __future__ import annotations

import pytest

from sharecoord.core.dispatch.fair_share import fair_level, jain_index
from sharecoord.errors import InternalError
from tests.fairness import fairness


@pytest.mark.parametrize(
    ("demands", "got", "level"),
    [
        ([], [], 0.0),
        ([10, 10], [5, 5], 5.0),
        ([10, 10], [10, 0], 5.0),
        ([2, 10, 10], [2, 4, 4], 4.0),
        ([2, 10], [2, 10], 10.0),
        ([2, 10], [20, 10], 10.0),
        ([0, 10], [0, 5], 5.0),
        ([10, 10], [0, 0], 0.0),
        ([0, 0], [3, 0], 0.0),
    ],
)
def test_the_fair_level(demands: list[float], got: list[float], level: float) -> None:
    assert fair_level(demands, got) == pytest.approx(level)


@pytest.mark.parametrize(
    ("demands", "got", "index"),
    [
        ([], [], 1.0),
        ([10, 10], [5, 5], 1.0),
        ([10, 10], [10, 0], 0.5),
        ([10] * 4, [40, 0, 0, 0], 0.25),
        ([2, 10, 10], [2, 4, 4], 1.0),
        ([2, 10], [2, 10], 1.0),
        ([0, 10, 10], [0, 5, 5], 1.0),
        ([10, 10], [0, 0], 1.0),
    ],
)
def test_fairness(demands: list[float], got: list[float], index: float) -> None:
    assert fairness(demands, got) == pytest.approx(index)


def test_a_member_that_wants_little_and_gets_it_is_not_unfairly_treated() -> None:
    assert jain_index([1, 100]) < 0.6
    assert fairness([1, 100], [1, 100]) == pytest.approx(1.0)


def test_jain_of_nothing_is_1() -> None:
    assert jain_index([]) == jain_index([0, 0]) == 1.0


@pytest.mark.parametrize("function", [fair_level, fairness])
def test_amounts_that_do_not_fit_are_a_mistake(function: object) -> None:
    with pytest.raises(InternalError, match="2 demands but 1"):
        function([1, 2], [1])  # type: ignore[operator]
    with pytest.raises(InternalError, match="negative"):
        function([1], [-1])  # type: ignore[operator]
