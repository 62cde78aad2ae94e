"""Many simulations: on all cores of this machine, or (`job`) as tasks of Spark."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Final

from sharecoord.analytics.whatif.model import (
    NOTHING_MEASURED,
    Measured,
    Prediction,
    merged,
    simulate,
)
from sharecoord.analytics.whatif.settings import Dispatch, Scenario

REPEATS: Final = 10
"""The split in Kafka's share groups depends on who fetches when: one simulation is one throw of the
dice, and ten give the mean of the starved to about half a member."""
FAIR_REPEATS: Final = 2
"""In this project's dispatch only delays are left to chance: repeats differ by less than 1 %."""
INLINE_RECORDS: Final = 400_000
"""Below this number of records (a second or two) starting processes costs more than they save."""


def repeats_of(point: Scenario, repeats: int | None) -> int:
    """Number of simulations of a point; None = as many as its dispatch needs."""
    if repeats is not None:
        return repeats
    return FAIR_REPEATS if point.dispatch is Dispatch.FAIR else REPEATS


def throws(points: Sequence[Scenario], repeats: int | None) -> list[Scenario]:
    """Each point as often as it is repeated, each time with the next seed."""
    return [
        replace(point, seed=point.seed + number)
        for point in points
        for number in range(repeats_of(point, repeats))
    ]


def gathered(
    points: Sequence[Scenario], repeats: int | None, outcomes: Iterable[Prediction]
) -> list[Prediction]:
    """The predictions for `throws`, merged by point."""
    left = iter(outcomes)
    return [
        replace(merged(list(islice(left, repeats_of(point, repeats)))), scenario=point)
        for point in points
    ]


def predict(
    points: Sequence[Scenario],
    repeats: int | None = None,
    measured: Measured = NOTHING_MEASURED,
    *,
    processes: int | None = None,
) -> list[Prediction]:
    """Simulates all points of a grid; returns one prediction per point, in order.

    Args:
        points: At least one.
        repeats: Simulations of each, with consecutive seeds; None = `REPEATS`, of this project's
            dispatch `FAIR_REPEATS`.
        measured: Measurements in the place of assumptions.
        processes: Number of processes; None = one per core where that pays.
    """
    wanted = throws(points, repeats)
    if processes is None:
        small = sum(map(records_expected, wanted)) < INLINE_RECORDS
        processes = 1 if small else os.cpu_count() or 1
    processes = min(processes, len(wanted))
    if processes == 1:
        return gathered(points, repeats, [simulate(each, measured) for each in wanted])
    # Not forked: the caller may have threads. Each child imports the caller's main module.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        outcomes = list(pool.map(simulate, wanted, [measured] * len(wanted)))
    return gathered(points, repeats, outcomes)


def records_expected(scenario: Scenario) -> float:
    """About how many records a simulation handles at most: a measure of its cost."""
    capacity = scenario.consumers * 1000 / scenario.work_ms
    rate = capacity if scenario.rate is None else min(capacity, scenario.rate)
    return rate * (scenario.seconds + scenario.warm_up_s)
