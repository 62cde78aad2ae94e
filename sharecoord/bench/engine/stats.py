"""Percentiles, medians of repeats, ratios within a repeat, and fairness among consumers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from sharecoord.bench.text import Spread
from sharecoord.core.dispatch.fair_share import jain_index

PERCENTILES: Final = (("p50_ms", 50.0), ("p95_ms", 95.0), ("p99_ms", 99.0), ("max_ms", 100.0))


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that at least `percent` of the values do not exceed (nearest rank)."""
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[max(rank, 1) - 1]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and max by name; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    return {name: percentile(ordered, percent) for name, percent in PERCENTILES}


def fairness(records: Sequence[int]) -> dict[str, float]:
    """Jain's index, fewest, most, and how many got nothing."""
    return {
        "jain_ratio": jain_index([float(count) for count in records]),
        "fewest_records": min(records),
        "most_records": max(records),
        "starved_consumers": sum(1 for count in records if count == 0),
    }


def spreads(repeats: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Median, least and greatest of each figure over the repeats that have the figure."""
    names = dict.fromkeys(name for figures in repeats for name in figures)
    return {
        name: Spread.of(figures[name] for figures in repeats if name in figures) for name in names
    }


def ratios(own: Mapping[int, float], peers: Mapping[int, float]) -> list[float]:
    """Each repeat's figure over the peer's figure in the same repeat.

    The two ran close to each other, so that what else the machine did moved both.
    """
    return [value / peers[repeat] for repeat, value in own.items() if peers.get(repeat)]
