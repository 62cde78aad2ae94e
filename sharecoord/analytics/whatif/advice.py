"""The recommended point of a grid, and the reason in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from sharecoord.analytics.whatif.model import Prediction
from sharecoord.analytics.whatif.settings import (
    RECORD_LOCKS_DEFAULT,
    Dispatch,
    Scenario,
    flag,
    varied,
)
from sharecoord.core.states import Ordering

NEAR: Final = 0.98
"""Rates within 2 % of each other are alike: repeats differ by as much."""
STARVED_MIN: Final = 0.5
"""Fewer starved members on average, one in one of two repeats, count as none."""


def recommended(predictions: Sequence[Prediction]) -> int:
    """The index of the best point of a grid with at least one point.

    The fewest starved members; then the highest rate; among rates that are alike the fewest
    consumers, the fairest split, the shortest waiting.
    """
    least = min(_starved(p) for p in predictions)
    left = [at for at, p in enumerate(predictions) if _starved(p) == least]
    highest = max(predictions[at].rate for at in left)
    left = [at for at in left if predictions[at].rate >= NEAR * highest]
    return min(left, key=lambda at: (*_cost(predictions[at]), at))


def _starved(prediction: Prediction) -> float:
    return prediction.starved if prediction.starved >= STARVED_MIN else 0.0


def _cost(prediction: Prediction) -> tuple[float, ...]:
    wait_ms = math.inf if prediction.dwell_p99_ms is None else prediction.dwell_p99_ms
    return prediction.scenario.consumers, -round(prediction.jain, 2), round(wait_ms)


def reason(predictions: Sequence[Prediction]) -> str:
    """Why a point is recommended, and what bounds the rate of the worst one."""
    at = recommended(predictions)
    best = predictions[at]
    text = f"{_named(best, predictions)}: {_figures(best)}"
    if len(predictions) == 1:
        return f"{text}. {bottleneck(best)}"
    highest = max(p.rate for p in predictions)
    if best.rate >= highest:
        text += "; the highest rate of the grid"
    elif best.rate >= NEAR * highest:
        text += "; within 2 % of the highest rate, with the fewest consumers or the fairest split"
    else:
        text += "; higher rates of the grid leave members without records"
    worst = min(predictions, key=lambda p: (-_starved(p), p.rate))
    is_worse = _starved(worst) > _starved(best) or worst.rate < NEAR * best.rate
    if worst is best or not is_worse:
        return f"{text}. {bottleneck(best)}"
    return (
        f"{text}. {_named(worst, predictions)}, for comparison: {_figures(worst)}. "
        f"{bottleneck(worst)}"
    )


def _figures(prediction: Prediction) -> str:
    starved, consumers = _starved(prediction), prediction.scenario.consumers
    who = f"{starved:.0f} of {consumers} starve" if starved else "nobody starves"
    return (
        f"{prediction.rate:,.0f} records/s, handlers busy {prediction.busy:.1%}, "
        f"Jain {prediction.jain:.3f}, {who}"
    )


def _named(prediction: Prediction, predictions: Sequence[Prediction]) -> str:
    fields = varied([p.scenario for p in predictions]) or ["dispatch", "consumers"]
    return ", ".join(_setting(name, prediction.scenario) for name in fields)


def _setting(name: str, scenario: Scenario) -> str:
    value: Any = getattr(scenario, name)
    if value is None:
        value = "default"
    return f"{flag(name)} {value:g}" if isinstance(value, float) else f"{flag(name)} {value}"


def bottleneck(prediction: Prediction) -> str:
    """The bound of the rate, in one or two sentences."""
    scenario = prediction.scenario
    if scenario.rate is not None and prediction.rate >= NEAR * scenario.rate:
        return f"All {scenario.rate:,.6g} records/s that arrive are worked off."
    if prediction.expired:
        return (
            f"{prediction.expired:,.0f} locks ended by themselves after "
            f"{scenario.lock_duration_ms:,} ms: their records were handed out again while a member "
            "still had them."
        )
    holders = _holders(scenario)
    if holders < scenario.consumers:
        locks = scenario.record_locks or RECORD_LOCKS_DEFAULT
        return (
            f"{holders} members at a time hold the whole window of {locks:,} records, up to "
            f"{_poll_size(scenario)} each; the window moves on only when the oldest of them is "
            "done, and the others wait for it."
        )
    if prediction.busy >= 0.9:
        return "The members' own work is the limit: more consumers would raise the rate."
    if scenario.ordering is not Ordering.UNORDERED:
        return (
            f"Order by {scenario.ordering} holds records back: a record waits while another member "
            "has an earlier one that must be done before it."
        )
    return "Members wait for records, not the other way round."


def _holders(scenario: Scenario) -> int:
    """Number of members that can hold records at a time."""
    if scenario.dispatch is Dispatch.FAIR:
        return scenario.consumers
    locks = scenario.record_locks or RECORD_LOCKS_DEFAULT
    return math.ceil(locks / _poll_size(scenario)) * scenario.partitions


def _poll_size(scenario: Scenario) -> int:
    """Records of a full poll."""
    if scenario.dispatch is not Dispatch.BATCH_OPTIMIZED:
        return scenario.poll_records
    batch = scenario.producer_batch
    return math.ceil(scenario.poll_records / batch) * batch
