"""The highest rate that holds: bisection with a bound on the number of probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Attributes:
        rate: The highest rate that held; 0 when none did.
        probes: Every rate that was tried, and whether it held, in order.
    """

    rate: float
    probes: tuple[tuple[float, bool], ...]


def search_max_rate(
    holds: Callable[[float], bool], low: float, high: float, max_steps: int
) -> Found:
    """Tries both ends, then always the geometric middle between the best and the worst rate.

    Args:
        holds: Measures one rate.
        low: The least rate of interest, above 0.
        high: The greatest one.
        max_steps: Most calls of `holds`, at least 1. Each one after the ends halves the
            uncertainty (of the logarithm); it also stops when the two are within 2%.
    """
    probes: list[tuple[float, bool]] = []

    def probe(rate: float) -> bool:
        held = holds(rate)
        probes.append((rate, held))
        return held

    if not probe(low):
        return Found(0.0, tuple(probes))
    best, worst = low, high
    if len(probes) < max_steps and high > low and probe(high):
        return Found(high, tuple(probes))
    while len(probes) < max_steps and worst / best > 1.02:
        middle = float(round(math.sqrt(best * worst)))
        if not best < middle < worst:
            break
        if probe(middle):
            best = middle
        else:
            worst = middle
    return Found(best, tuple(probes))
