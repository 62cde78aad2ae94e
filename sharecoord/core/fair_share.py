"""Fair parts (max-min), and how fair a split was (design 5, "Measured").

One implementation for memory, the live metric and the Spark job, so that they agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sharecoord.errors import InternalError


def fair_level(demands: Sequence[float], got: Sequence[float]) -> float:
    """The level L at which the sum of min(demand, L) equals the sum of `got`.

    What was handed out, poured over the demands like water: who wants less than L gets all, the
    others L each.

    Args:
        demands: What each member wanted in the interval, at least 0.
        got: What each received, at least 0; same order.

    Returns:
        L; the highest demand when everything wanted (or more) was handed out, 0 without demand.

    Raises:
        InternalError: The sequences differ in length or hold a negative number.
    """
    _check(demands, got)
    return _level(demands, float(sum(got)))


def fair_part(needs: Sequence[float], amount: float) -> float:
    """Up to how much each may have of an amount (max-min fairness).

    Who needs less than its part leaves the rest to the others. The sum of min(need, part) never
    exceeds the amount, and comes up to it where more is needed.

    Args:
        needs: What each has or needs, at least 0; who needs nothing takes no part.
        amount: What there is.

    Returns:
        The part, an equal one at the least; the whole amount where nothing is needed.
    """
    needing = sum(need > 0 for need in needs)
    return max(_level(needs, amount), amount / max(needing, 1))


def _level(demands: Sequence[float], amount: float) -> float:
    """Where the sum of min(demand, level) is the amount; the highest demand where that is less."""
    heap = [demand for demand in demands if demand > 0]
    heapq.heapify(heap)
    left, level = amount, 0.0
    while heap:
        if heap[0] * len(heap) >= left:
            return left / len(heap)
        level = heapq.heappop(heap)
        left -= level
    return float(level)


def fairness(demands: Sequence[float], got: Sequence[float]) -> float:
    """Jain's index over the fair parts of the members with demand.

    1 = everybody got its fair part, 1/n = one of n got all. 1 also when nobody wanted anything or
    nothing was handed out.

    Args:
        demands: As in `fair_level`.
        got: As in `fair_level`.

    Raises:
        InternalError: As in `fair_level`.
    """
    return jain_index(fair_parts(demands, got))


def fair_parts(demands: Sequence[float], got: Sequence[float]) -> list[float]:
    """What each member with demand got against min(demand, L), in order: 1 = its fair part.

    Empty when nobody wanted anything or nothing was handed out.

    Args:
        demands: As in `fair_level`.
        got: As in `fair_level`.

    Raises:
        InternalError: As in `fair_level`.
    """
    level = fair_level(demands, got)
    if level <= 0:
        return []
    return [g / min(d, level) for d, g in zip(demands, got, strict=True) if d > 0]


def jain_index(parts: Sequence[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 = all equal, 1/n = one has all; 1 when all are 0."""
    highest = max(parts, default=0.0)
    if highest <= 0:
        return 1.0
    # Relative to the highest, so that no square overflows or vanishes.
    scaled = [part / highest for part in parts]
    return sum(scaled) ** 2 / (len(scaled) * sum(part * part for part in scaled))


def _check(demands: Sequence[float], got: Sequence[float]) -> None:
    if len(demands) != len(got):
        raise InternalError(f"{len(demands)} demands but {len(got)} amounts received")
    if any(value < 0 for value in (*demands, *got)):
        raise InternalError("demands and amounts received must not be negative")
