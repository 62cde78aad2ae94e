"""Scenarios: the points of a grid, with the bounds of every value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sharecoord.analytics.whatif.work import parse_distribution
from sharecoord.core.states import Ordering
from sharecoord.errors import InvalidConfigError

POINTS_MAX: Final = 200
"""Most points of one grid: at a few seconds each it is done while one waits."""
CONSUMERS_MAX: Final = 100_000
"""Ten times the members of the largest group that was measured; a simulation takes minutes."""
PRODUCER_BATCH_BYTES: Final = 16_384
"""`batch.size` of Kafka's own producer: the size of a producer batch unless it is given."""
RECORD_OVERHEAD_BYTES: Final = 24
"""Bytes of a record beside its value: header, lengths, an 8-byte key, its part of the batch's
header."""
RECORD_LOCKS_DEFAULT: Final = 2_000
POLL_RECORDS_DEFAULT: Final = 500


class Dispatch(StrEnum):
    """Ways to hand out records."""

    FAIR = "fair"
    """This project: credits, learnt prefetch, a window that grows."""
    BATCH_OPTIMIZED = "batch_optimized"
    """Kafka's own share groups, whole producer batches."""
    RECORD_LIMIT = "record_limit"
    """Kafka's own share groups, `max.poll.records` strict."""


class Bound(NamedTuple):
    """Bounds of a value."""

    least: float
    most: float
    why: str


BOUNDS: Final[Mapping[str, Bound]] = {
    "consumers": Bound(1, CONSUMERS_MAX, "members of one group"),
    "work_ms": Bound(0.01, 3_600_000, "milliseconds a record"),
    "slow_members": Bound(0, CONSUMERS_MAX, "of the consumers"),
    "slow_work_ms": Bound(0.01, 3_600_000, "milliseconds a record"),
    "record_locks": Bound(100, 100_000, "as share.partition.max.record.locks"),
    "max_poll_records": Bound(1, 10_000, "records of one poll"),
    "lock_duration_ms": Bound(1_000, 43_200_000, "as share.record.lock.duration.ms"),
    "failure_ratio": Bound(0, 1, "part of the deliveries that fail"),
    "rate": Bound(0.01, 10_000_000, "records/s that arrive"),
    "partitions": Bound(1, 1_000, "of the topic"),
    "payload_bytes": Bound(0, 100_000_000, "bytes of a value"),
    "batch_records": Bound(1, 100_000, "records of a producer batch"),
    "keys": Bound(1, 1_000_000, "different keys"),
    "overhead_us": Bound(0, 1_000_000, "microseconds a record"),
    "seconds": Bound(1, 86_400, "of virtual time that are measured"),
    "warm_up_s": Bound(0, 3_600, "of virtual time before them"),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Settings of a simulation.

    Attributes:
        dispatch: The way to hand out records.
        consumers: Members of the group; each works on one record at a time.
        work_ms: Mean time of a handler.
        work_distribution: `constant`, `uniform` or `lognormal[:SIGMA]`.
        slow_members: Number of slow members among the consumers.
        slow_work_ms: Mean time of a slow member's handler; None = 10 x `work_ms`.
        record_locks: `share.partition.max.record.locks`; None = the default, which with `fair`
            grows with the members' pace.
        max_poll_records: None = the default: 500, which with `fair` does not bound what a member
            may hold.
        lock_duration_ms: `share.record.lock.duration.ms`.
        ordering: `share.ordering`; only `fair` has another one than `unordered`.
        failure_ratio: Part of the deliveries that end with RELEASE.
        rate: Records/s that arrive on all partitions together; None = a backlog without end.
        partitions: Number of partitions of the topic.
        payload_bytes: Length of a value.
        batch_records: Records of a producer batch; None = as many as fit into 16 KiB.
        keys: Number of different keys, with `ordering` `key`.
        overhead_us: Time that a record takes a member beside its handler.
        seconds: Virtual time that is measured.
        warm_up_s: Virtual time before that.
        seed: The same seed gives the same result.
    """

    dispatch: Dispatch = Dispatch.FAIR
    consumers: int = 50
    work_ms: float = 5.0
    work_distribution: str = "constant"
    slow_members: int = 0
    slow_work_ms: float | None = None
    record_locks: int | None = None
    max_poll_records: int | None = None
    lock_duration_ms: int = 30_000
    ordering: Ordering = Ordering.UNORDERED
    failure_ratio: float = 0.0
    rate: float | None = None
    partitions: int = 1
    payload_bytes: int = 1_000
    batch_records: int | None = None
    keys: int = 1_000
    overhead_us: float = 120.0
    seconds: float = 20.0
    warm_up_s: float = 8.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Checks bounds.

        Raises:
            InvalidConfigError: A value is out of bounds, or two do not go together.
            ValueError: No such dispatch or ordering.
        """
        object.__setattr__(self, "dispatch", Dispatch(self.dispatch))
        object.__setattr__(self, "ordering", Ordering(self.ordering))
        for name, bound in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not bound.least <= value <= bound.most:
                raise InvalidConfigError(
                    f"{flag(name)} {_number(value)} is out of bounds: {_number(bound.least)} to "
                    f"{_number(bound.most)} ({bound.why})"
                )
        parse_distribution(self.work_distribution)
        if self.slow_members > self.consumers:
            raise InvalidConfigError(
                f"--slow-members {self.slow_members} of --consumers {self.consumers}: at most all"
            )
        if self.ordering is not Ordering.UNORDERED and self.dispatch is not Dispatch.FAIR:
            raise InvalidConfigError(
                f"--ordering {self.ordering} with --dispatch {self.dispatch}: Kafka's share groups "
                "keep no order; use --dispatch fair"
            )

    @property
    def poll_records(self) -> int:
        """Most records of one poll."""
        return self.max_poll_records or POLL_RECORDS_DEFAULT

    @property
    def producer_batch(self) -> int:
        """Records of a producer batch."""
        size = self.payload_bytes + RECORD_OVERHEAD_BYTES
        return self.batch_records or max(1, PRODUCER_BATCH_BYTES // size)

    @property
    def slow_ms(self) -> float:
        """Mean time of a slow member's handler."""
        return 10 * self.work_ms if self.slow_work_ms is None else self.slow_work_ms

    def to_json(self) -> dict[str, Any]:
        """All settings as plain values."""
        return asdict(self)


FIELDS: Final = tuple(field.name for field in fields(Scenario))


def flag(name: str) -> str:
    """The command line's option for a field."""
    special = {"lock_duration_ms": "lock-duration", "warm_up_s": "warm-up"}
    return f"--{special.get(name, name.replace('_', '-'))}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value, 0) else f"{value:g}"


def grid(dimensions: Mapping[str, Sequence[Any]], **common: Any) -> list[Scenario]:
    """All combinations of values by field, without repetitions; `common` has single values.

    Raises:
        InvalidConfigError: Too many points, or a point whose values do not go together.
    """
    given = {name: values for name, values in dimensions.items() if values}
    total = math.prod(map(len, given.values()))
    if total > POINTS_MAX:
        raise InvalidConfigError(
            f"the grid has {total:,} points: give fewer values, {POINTS_MAX} points at the most"
        )
    combinations = (
        dict(zip(given, each, strict=True)) for each in itertools.product(*given.values())
    )
    return list(dict.fromkeys(Scenario(**common, **values) for values in combinations))


def varied(points: Sequence[Scenario]) -> list[str]:
    """The fields in which points differ."""
    return [name for name in FIELDS if len({getattr(point, name) for point in points}) > 1]
