"""Percentiles and what is derived from records per consumer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from sharecoord.core.fair_share import jain_index

PERCENTILES: Final = (("p50_ms", 50.0), ("p95_ms", 95.0), ("p99_ms", 99.0), ("max_ms", 100.0))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that at least `percent` of the values do not exceed (nearest rank).

    Args:
        ordered: Ascending, at least one.
        percent: From 0 to 100.
    """
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and max by name; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {name: percentile(ordered, percent) for name, percent in PERCENTILES}


def fairness(records: Sequence[int]) -> dict[str, float]:
    """Jain's index, fewest, most, and how many got nothing.

    Args:
        records: By consumer, at least one.
    """
    return {
        "jain_ratio": jain_index([float(count) for count in records]),
        "fewest_records": min(records),
        "most_records": max(records),
        "starved_consumers": sum(1 for count in records if count == 0),
    }
