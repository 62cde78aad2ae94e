"""Fairness in plain words, for tests of the live metric and of the Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sharecoord.core.dispatch.fair_share import fair_level, fair_parts, jain_index


def fairness(demands: Sequence[float], got: Sequence[float]) -> float:
    """Jain's index over the fair parts of the members with demand."""
    return jain_index(fair_parts(demands, got))


def fairness_over(intervals: Iterable[Mapping[str, tuple[float, float]]]) -> float:
    """How fair several intervals, with (demand, got) by member, were together: Jain's index.

    Each interval compares the members that wanted something in it. A member's part is what the
    member got in its intervals against its fair amounts in them (min(demand, level)). A part weighs
    as much as the member has intervals: a member that was there for a second says little about an
    hour. The index is 1 when nobody wanted anything or nothing was handed out.

    Raises:
        InternalError: As in `fair_level`.
    """
    sums: dict[str, tuple[float, float, int]] = {}
    for interval in intervals:
        level = fair_level(*zip(*interval.values(), strict=True)) if interval else 0.0
        for member_id, (demand, got) in interval.items():
            fair = min(demand, level)
            if fair > 0:
                own, amount, weight = sums.get(member_id, (0.0, 0.0, 0))
                sums[member_id] = (own + got, amount + fair, weight + 1)
    parts = [own / amount for own, amount, _ in sums.values()]
    return jain_index(parts, [weight for _, _, weight in sums.values()])
