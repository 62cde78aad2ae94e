"""What a plan is made of, and the order of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

WARM_UP_REPEAT = 0


class Server(StrEnum):
    """Whom a consumer talks to."""

    BROKER = "broker"
    BROKER_SHARE_GROUP = "broker's share group"
    COORDINATOR = "coordinator"


class Metric(StrEnum):
    """A figure that a target is about."""

    RATIO = "ratio"
    CPU_RATIO = "CPU ratio"
    FIRST_RECORD_S = "first record"
    IDLE_RSS_MB = "idle memory"


@dataclass(frozen=True, slots=True)
class Contender:
    """One kind of consumer.

    Attributes:
        key: Stable name in the result files.
        title: What people read.
        driver: Module in `sharecoord.bench.drivers`.
        server: Whom it talks to.
        explicit: Whether it acknowledges every record by a call of its own.
        peer: Key of the contender that it is compared with, or None.
    """

    key: str
    title: str
    driver: str
    server: Server
    explicit: bool = False
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A promise.

    Attributes:
        title: What people read.
        metric: What is judged.
        bound: The least ratio; of every other metric the most.
        contender: Whose figure; None takes all the runs on a coordinator.
        size_bytes: At which size of value; None takes all sizes.
    """

    title: str
    metric: Metric
    bound: float
    contender: str | None = None
    size_bytes: int | None = None

    @property
    def at_least(self) -> bool:
        """Whether more is better."""
        return self.metric is Metric.RATIO


@dataclass(frozen=True, slots=True)
class Step:
    """One run of one driver.

    Attributes:
        contender: Who consumes.
        size_bytes: Length of each value.
        records: How many records are consumed.
        repeat: 1 for the first one that counts; 0 warms up.
    """

    contender: Contender
    size_bytes: int
    records: int
    repeat: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark.

    Attributes:
        name: What people read.
        contenders: Peers stand beside whom they are compared with.
        records: How many records by size of value in bytes.
        repeats: How often every contender runs at each size.
        batch_bytes: Most bytes of one record batch in the topics.
        warm_up_records: How many records each contender consumes once before; 0 for none.
        targets: What is judged.
    """

    name: str
    contenders: Sequence[Contender]
    records: Mapping[int, int]
    repeats: int
    batch_bytes: int
    warm_up_records: int
    targets: Sequence[Target] = ()

    def steps(self) -> Iterator[Step]:
        """All runs: by size, repeats interleaved, every second round backwards against drift."""
        if self.warm_up_records:
            size_bytes = max(self.records)
            records = min(self.warm_up_records, self.records[size_bytes])
            for contender in self.contenders:
                yield Step(contender, size_bytes, records, WARM_UP_REPEAT)
        for size_bytes, records in self.records.items():
            for repeat in range(1, self.repeats + 1):
                order = self.contenders if repeat % 2 else tuple(reversed(self.contenders))
                for contender in order:
                    yield Step(contender, size_bytes, records, repeat)
