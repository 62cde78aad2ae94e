"""Ratios of the core's speed: an operation costs the same in a small and in a large window.

Not part of `make check`; absolute figures are printed by `core_speed.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.perf.core_speed import OPERATIONS, alternating, best

RATIO_MAX = 1.5

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "operation", [*OPERATIONS.values(), alternating], ids=[*OPERATIONS, "alternating"]
)
def test_cost_does_not_grow_with_the_window(operation: Callable[[int], float]) -> None:
    """Best of several rounds on both sides, a second look before it counts as slow."""
    small, large = best(lambda: operation(1_000)), best(lambda: operation(100_000), 2)
    if large > RATIO_MAX * small:
        small, large = best(lambda: operation(1_000)), best(lambda: operation(100_000))
    assert large <= RATIO_MAX * small
