"""What a plan is made of, and the order of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sharecoord.devenv.stores import StoreKind

WARM_UP_REPEAT = 0

T = TypeVar("T")


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
    ALL_SERVED_S = "all served"
    FIRST_DELIVERY_S = "first delivery"


class TrialKind(StrEnum):
    """What a trial does, as its table is called."""

    COMMITS = "The store alone"
    RECOVERY = "Recovery"
    RESTART = "Restart under load"


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
        store: Where the coordinator keeps its state.
    """

    key: str
    title: str
    driver: str
    server: Server
    explicit: bool = False
    peer: str | None = None
    store: StoreKind = StoreKind.SQLITE


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement with a store that is no run of a driver.

    Attributes:
        key: Stable name in the result files.
        kind: What is done.
        store: With which store.
        partitions: Share-partitions (`COMMITS` and `RECOVERY`).
        ranges: In flight in each of them (`RECOVERY`), or changed in each by a transaction.
        records: In the topic (`RESTART`).
    """

    key: str
    kind: TrialKind
    store: StoreKind
    partitions: int = 1
    ranges: int = 0
    records: int = 0

    @property
    def title(self) -> str:
        """What people read."""
        if self.kind is TrialKind.RESTART:
            return str(self.store)
        return f"{self.store}, {self.partitions:,} x {self.ranges:,} ranges"


@dataclass(frozen=True, slots=True)
class Target:
    """A promise.

    Attributes:
        title: What people read.
        metric: What is judged.
        bound: The least ratio; of every other metric the most.
        contender: Whose figure, or of which trial; None takes all the runs on a coordinator.
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
        trials: What is measured besides.
        about: What the reader of the report has to know.
        compared: Whom the ratios of speed are to, as the head of their column.
        with_core: Whether the pure decisions are timed, too.
    """

    name: str
    contenders: Sequence[Contender]
    records: Mapping[int, int]
    repeats: int
    batch_bytes: int
    warm_up_records: int
    targets: Sequence[Target] = ()
    trials: Sequence[Trial] = ()
    about: str = ""
    compared: str = "against its peer"
    with_core: bool = False

    def steps(self) -> Iterator[Step]:
        """All runs: by size, repeats interleaved, every second round backwards against drift."""
        if self.warm_up_records:
            size_bytes = max(self.records)
            records = min(self.warm_up_records, self.records[size_bytes])
            for contender in self.contenders:
                yield Step(contender, size_bytes, records, WARM_UP_REPEAT)
        for size_bytes, records in self.records.items():
            for contender, repeat in self._rounds(self.contenders):
                yield Step(contender, size_bytes, records, repeat)

    def trial_steps(self) -> Iterator[tuple[Trial, int]]:
        """All trials with their repeat, by kind, in the same order."""
        for kind in dict.fromkeys(trial.kind for trial in self.trials):
            yield from self._rounds([trial for trial in self.trials if trial.kind is kind])

    def _rounds(self, once: Sequence[T]) -> Iterator[tuple[T, int]]:
        for repeat in range(1, self.repeats + 1):
            for each in once if repeat % 2 else tuple(reversed(once)):
                yield each, repeat
