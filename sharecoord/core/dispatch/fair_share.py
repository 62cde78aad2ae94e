"""Fair parts (max-min), and how fair a split was (design 5, "Measured").

One implementation for memory, the live metric and the Spark job, so that they agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from sharecoord.errors import InternalError


def fair_level(demands: Sequence[float], got: Sequence[float]) -> float:
    """The level L at which the sum of min(demand, L) equals the sum of `got`.

    By this fair split a member that wants less than L gets all that it wants, and every other
    member gets L. L is the highest demand when all demands were met, and 0 without demand.

    Raises:
        InternalError: The sequences differ in length or hold a negative number.
    """
    _check(demands, got)
    return _level(demands, float(sum(got)))


def fair_part(needs: Sequence[float], amount: float) -> float:
    """The most that each member may have of an amount (max-min fairness).

    A member that needs less than its part leaves the rest to the others: the sum of min(need, part)
    never exceeds the amount, and reaches the amount where more is needed. A part is an equal one at
    the least, and the whole amount where nothing is needed.
    """
    needing = sum(need > 0 for need in needs)
    return max(_level(needs, amount), amount / max(needing, 1))


def _level(demands: Sequence[float], amount: float) -> float:
    """The level at which the sum of min(demand, level) is the amount, or the highest demand."""
    heap = [demand for demand in demands if demand > 0]
    heapq.heapify(heap)
    left, level = amount, 0.0
    while heap:
        if heap[0] * len(heap) >= left:
            return left / len(heap)
        level = heapq.heappop(heap)
        left -= level
    return float(level)


def fair_parts(demands: Sequence[float], got: Sequence[float]) -> list[float]:
    """Got / min(demand, L) of each member with demand, in order: 1 = the fair part.

    The list is empty when nobody wanted anything or nothing was handed out.

    Raises:
        InternalError: As in `fair_level`.
    """
    level = fair_level(demands, got)
    if level <= 0:
        return []
    return [g / min(d, level) for d, g in zip(demands, got, strict=True) if d > 0]


def jain_index(parts: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """(sum x)^2 / (n * sum x^2): 1 = all equal, 1/n = one has all; 1 when all are 0.

    A weight says how many times its part counts.
    """
    highest = max(parts, default=0.0)
    if highest <= 0:
        return 1.0
    # Relative to the highest, so that no square overflows or vanishes.
    scaled = [part / highest for part in parts]
    counts = [1.0] * len(scaled) if weights is None else weights
    total = sum(count * part for count, part in zip(counts, scaled, strict=True))
    squares = sum(count * part * part for count, part in zip(counts, scaled, strict=True))
    return total**2 / (sum(counts) * squares)


def _check(demands: Sequence[float], got: Sequence[float]) -> None:
    if len(demands) != len(got):
        raise InternalError(f"{len(demands)} demands but {len(got)} amounts received")
    if any(value < 0 for value in (*demands, *got)):
        raise InternalError("demands and amounts received must not be negative")
