"""The highest rate that holds: bisection with a bound on the number of probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found out.

    Attributes:
        rate: The highest rate that held; 0 when none did.
        probes: Every rate that was tried, and whether it held, in order.
    """

    rate: float
    probes: tuple[tuple[float, bool], ...]

    @property
    def bounded(self) -> bool:
        """Whether some rate did not hold: else the true limit is above the range."""
        return any(not held for _, held in self.probes)


def search_max_rate(
    holds: Callable[[float], bool], low: float, high: float, max_steps: int
) -> Found:
    """Tries the ends, then the geometric middle of the highest that held and the lowest that not.

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
