"""A simulation: makes predicted figures of a scenario. Deterministic, without I/O."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from sharecoord.analytics.whatif.fair import FairWorld
from sharecoord.analytics.whatif.kafka import KafkaWorld
from sharecoord.analytics.whatif.settings import RECORD_LOCKS_DEFAULT, Dispatch, Scenario
from sharecoord.analytics.whatif.work import (
    Arrivals,
    Histogram,
    ServiceTimes,
    measured_arrivals,
    measured_times,
    service_times,
    steady_arrivals,
)
from sharecoord.analytics.whatif.world import Failures, Log, Member, Meter, World
from sharecoord.core.dispatch.fair_share import jain_index
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcquireMode, Ordering

_MODES = {
    Dispatch.FAIR: AcquireMode.FAIR,
    Dispatch.BATCH_OPTIMIZED: AcquireMode.BATCH_OPTIMIZED,
    Dispatch.RECORD_LIMIT: AcquireMode.RECORD_LIMIT,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a recorded group, in the place of assumptions."""

    arrivals: Sequence[Mapping[int, int]] = ()
    """Records by second since the begin, one mapping per partition; second -1 = the lag at the
    begin. Empty = not known."""
    service: Sequence[Histogram] = ()
    """Times of handlers, one histogram per member. Empty = not known."""


NOTHING_MEASURED = Measured()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted figures of a scenario; with several repeats their means."""

    scenario: Scenario
    rate: float
    """Records/s whose handler ended."""
    busy: float
    """Part of the members' time that handlers took."""
    jain: float
    """Jain's index over records per member."""
    starved: float
    """Number of members none of whose handlers ended in the measured time."""
    fewest: float
    """Least records of a member."""
    most: float
    """Most records of a member."""
    dwell_p50_ms: float | None
    """Median of the time that a record waits for its handler: from its arrival, or, in a backlog,
    from the hand-out. None when no handler began."""
    dwell_p99_ms: float | None
    """99th percentile of the same time."""
    expired: float
    """Records whose lock ended by itself."""
    refused: float
    """Records whose acknowledgement came too late."""
    repeats: int = 1
    """Number of simulations whose means these are."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Least and greatest `rate`, `jain` and `starved` of the repeats."""

    def figures(self) -> dict[str, float | None]:
        """The predicted figures by name."""
        return {name: getattr(self, name) for name in FIGURES}

    def to_json(self) -> dict[str, Any]:
        """Figures and settings as plain values."""
        rounded = {name: _rounded(value) for name, value in self.figures().items()}
        ranges = {name: [_rounded(end) for end in ends] for name, ends in self.ranges.items()}
        return {
            **rounded,
            "repeats": self.repeats,
            "ranges": ranges,
            "settings": self.scenario.to_json(),
        }


_OTHERS: Final = ("scenario", "repeats", "ranges")
FIGURES: Final = tuple(each.name for each in fields(Prediction) if each.name not in _OTHERS)
_RANGED: Final = ("rate", "jain", "starved")


def merged(predictions: Sequence[Prediction]) -> Prediction:
    """The means of repeats of one scenario, at least one."""
    means: dict[str, Any] = {}
    for name in FIGURES:
        values = [value for p in predictions if (value := getattr(p, name)) is not None]
        means[name] = statistics.fmean(values) if values else None
    ranges = {}
    for name in _RANGED:
        values = [getattr(p, name) for p in predictions]
        ranges[name] = min(values), max(values)
    return Prediction(predictions[0].scenario, **means, repeats=len(predictions), ranges=ranges)


def simulate(scenario: Scenario, measured: Measured = NOTHING_MEASURED) -> Prediction:
    """Runs one simulation; measurements take the place of the scenario's assumptions.

    Raises:
        InvalidConfigError: The scenario has an unknown distribution.
    """
    world = build(scenario, measured)
    world.clock.run(world.meter.end_ms)
    return prediction(scenario, world.meter)


def build(scenario: Scenario, measured: Measured = NOTHING_MEASURED) -> World:
    """The world of a simulation before its first event; see `simulate`."""
    begin_ms = scenario.warm_up_s * 1000
    keys = scenario.keys if scenario.ordering is Ordering.KEY else 0
    common: dict[str, Any] = {
        "settings": PartitionSettings(
            lock_duration_ms=scenario.lock_duration_ms,
            record_locks_max=scenario.record_locks or RECORD_LOCKS_DEFAULT,
            ordering=scenario.ordering,
        ),
        "logs": [
            Log(scenario.producer_batch, keys, f"keys {scenario.seed} {number}")
            for number in range(scenario.partitions)
        ],
        "members": _members(scenario, measured),
        "failures": Failures(scenario.failure_ratio, scenario.seed),
        "meter": Meter(begin_ms, begin_ms + scenario.seconds * 1000, [0] * scenario.consumers),
        # Measured service times have the overhead in them.
        "overhead_ms": 0.0 if measured.service else scenario.overhead_us / 1000,
        "seed": scenario.seed,
    }
    world = _world(scenario, common)
    for share, arrivals in zip(world.shares, _arrivals(scenario, measured), strict=False):
        world.feed(share, arrivals)
    for share in world.shares:
        if scenario.rate is None and not measured.arrivals:
            share.log.fill()
            world.has_more(share)
    for member in world.members:
        world.start(member)
    return world


def _world(scenario: Scenario, common: dict[str, Any]) -> World:
    locks = scenario.record_locks or RECORD_LOCKS_DEFAULT
    if scenario.dispatch is not Dispatch.FAIR:
        # Kafka's limit counts offsets, not locks: the world applies it, the core's never binds.
        return KafkaWorld(
            mode=_MODES[scenario.dispatch],
            poll_records=scenario.poll_records,
            record_locks=locks,
            **common,
        )
    return FairWorld(
        poll_records=scenario.poll_records,
        max_poll_records=scenario.max_poll_records or 0,
        record_locks=locks,
        is_fixed=scenario.record_locks is not None,
        record_bytes=scenario.payload_bytes,
        **common,
    )


def _members(scenario: Scenario, measured: Measured) -> list[Member]:
    """The members, slow ones first; each begins at its own place of its table of times."""
    slow, normal = _tables(scenario, measured)
    members = []
    for number in range(scenario.consumers):
        own = slow if number < scenario.slow_members else normal
        place = number * 1_009  # a prime: no two members go through a table side by side
        members.append(Member(number, f"member-{number}", own[number % len(own)], place))
    return members


def _tables(
    scenario: Scenario, measured: Measured
) -> tuple[Sequence[ServiceTimes], Sequence[ServiceTimes]]:
    """Tables of service times of slow members, and of the others."""
    seed, kind = scenario.seed, scenario.work_distribution
    slow = service_times(kind, scenario.slow_ms, seed)
    if not measured.service:
        return [slow], [service_times(kind, scenario.work_ms, seed)]
    normal = [
        measured_times(histogram, f"{seed} {number}")
        for number, histogram in enumerate(measured.service)
    ]
    return [slow], normal


def _arrivals(scenario: Scenario, measured: Measured) -> Iterator[Arrivals]:
    """Arrivals of each partition; none in a backlog."""
    batch, partitions = scenario.producer_batch, scenario.partitions
    if scenario.rate is not None:
        for _ in range(partitions):
            yield steady_arrivals(scenario.rate / partitions, batch)
    elif measured.arrivals:
        for per_second in spread(measured.arrivals, partitions):
            yield measured_arrivals(per_second, batch)


def spread(arrivals: Sequence[Mapping[int, int]], partitions: int) -> Sequence[Mapping[int, int]]:
    """Measured arrivals; with another number of partitions evenly spread over all of them."""
    if partitions == len(arrivals):
        return arrivals
    total: Counter[int] = Counter()
    for per_second in arrivals:
        total.update(per_second)
    return [
        {
            second: records * (at + 1) // partitions - records * at // partitions
            for second, records in total.items()
        }
        for at in range(partitions)
    ]


def prediction(scenario: Scenario, meter: Meter) -> Prediction:
    """The figures of a simulation that is over."""
    records = meter.records
    total_ms = (meter.end_ms - meter.begin_ms) * scenario.consumers
    return Prediction(
        scenario=scenario,
        rate=sum(records) / scenario.seconds,
        busy=meter.busy_ms / total_ms,
        jain=jain_index([float(count) for count in records]),
        starved=sum(count == 0 for count in records),
        fewest=min(records),
        most=max(records),
        dwell_p50_ms=meter.dwell_ms(50),
        dwell_p99_ms=meter.dwell_ms(99),
        expired=meter.expired,
        refused=meter.refused,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
