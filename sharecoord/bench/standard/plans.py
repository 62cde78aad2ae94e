"""The plans with targets, as tables: contenders, trials of stores, and promises.

`standard/run.py` measures whatever stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

from sharecoord.bench.engine.cell import (
    DEFAULT_BATCH_BYTES,
    MAX_BATCH_BYTES,
    Ack,
    Cell,
    Consumer,
)
from sharecoord.bench.engine.settings import SMALL_RECORDS, Settings, backlog_records
from sharecoord.devenv.stores import StoreKind, has_programs
from sharecoord.errors import InvalidConfigError

WARM_UP_REPEAT: Final = 0
DEFAULT_SIZES: Final = (100, 1000)
DEFAULT_REPEATS: Final = 3
MAX_REPEATS: Final = 100
MIN_RECORDS: Final = 50_000
"""A share group hands out whole batches of the producer, of up to 10,000 records: with so many
records the window begins and ends within the topic."""
QUICK_RECORDS: Final = 200_000
WARM_UP_RECORDS: Final = 200_000
QUICK_WARM_UP_RECORDS: Final = 50_000
"""With fewer, the broker's compiler is still at work."""
SLOWEST_RECORDS_PER_S: Final = 5_000
START_S: Final = 60.0
"""Longest time until a consumer runs."""
MIN_VALUE_BYTES: Final = 10
MAX_VALUE_BYTES: Final = 20_000
"""A gigabyte of `MIN_RECORDS` records."""
COMMIT_SECONDS: Final = 2.0
QUICK_COMMIT_SECONDS: Final = 0.3


T = TypeVar("T")


class TrialKind(StrEnum):
    """The kind of a trial of a store; the value is the title of its table."""

    COMMITS = "The store alone"
    RECOVERY = "Recovery"
    RESTART = "Restart under load"


@dataclass(frozen=True, slots=True)
class Contender:
    """A line of the table of speeds.

    Attributes:
        key: Stable name in the result files.
        title: Name in reports.
        cell: The cell that consumes; its payload is set for each size of value.
        peer: Key of the contender that this one is compared with, or None.
    """

    key: str
    title: str
    cell: Cell
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A run of a contender, at a size of value; repeat 1 is the first that counts, 0 warms up."""

    contender: Contender
    cell: Cell
    records: int
    repeat: int


@dataclass(frozen=True, slots=True)
class StoreTrial:
    """A measurement of a store, or of a coordinator on a store.

    Attributes:
        kind: The kind of measurement.
        store: The kind of store.
        partitions: Number of share-partitions (`COMMITS` and `RECOVERY`).
        ranges: In flight in each of them (`RECOVERY`), or changed in each by a transaction.
        records: In the topic (`RESTART`).
        seconds: How long transactions are counted (`COMMITS`).
    """

    kind: TrialKind
    store: StoreKind
    partitions: int = 0
    ranges: int = 0
    records: int = 0
    seconds: float = COMMIT_SECONDS

    @property
    def key(self) -> str:
        """Stable name in the result files."""
        ranges = f"-{self.ranges}" if self.kind is TrialKind.COMMITS else ""
        return f"{self.kind.name.lower()}{ranges}-{self.store.lower()}"

    @property
    def title(self) -> str:
        """Name in reports."""
        if self.kind is TrialKind.RESTART:
            return str(self.store)
        return f"{self.store}, {self.partitions:,} x {self.ranges:,} ranges"


@dataclass(frozen=True, slots=True)
class Target:
    """A promise about the median of a figure.

    Attributes:
        title: Name in reports.
        figure: Name of the figure.
        bound: The promise.
        unit: Of the bound.
        keys: Keys of the contenders or trials whose figure it is.
        size_bytes: The size of value; None takes all sizes.
        against_peer: Whether the ratio to the peer of the same repeat is judged.
        at_least: Whether `bound` is the least good value; else it is the greatest.
    """

    title: str
    figure: str
    bound: float
    unit: str
    keys: Sequence[str]
    size_bytes: int | None = None
    against_peer: bool = False
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark with targets.

    Attributes:
        name: Name in reports.
        settings: Repeats, batches and limits, as the engine takes them.
        about: Facts that the reader of the report has to know.
        contenders: Peers stand beside those that are compared with them.
        sizes: Lengths of values in bytes.
        batch_bytes: Most bytes of one record batch in the topics.
        warm_up_records: Records that each contender consumes once before.
        targets: Promises that are judged.
        trials: Trials of stores that are made after the contenders.
        compared: The peer of the ratios of speed, as the head of their column.
        with_core: Whether the pure decisions are timed, too.
    """

    name: str
    settings: Settings
    about: str
    contenders: Sequence[Contender] = ()
    sizes: Sequence[int] = ()
    batch_bytes: int = DEFAULT_BATCH_BYTES
    warm_up_records: int = 0
    targets: Sequence[Target] = ()
    trials: Sequence[StoreTrial] = ()
    compared: str = ""
    with_core: bool = False

    @property
    def records(self) -> dict[int, int]:
        """How many records a topic has, by size of value."""
        cell = Cell(Consumer.SHARECOORD)
        return {
            size: backlog_records(self.settings, replace(cell, payload_bytes=size))
            for size in self.sizes
        }

    def cells(self, size_bytes: int) -> list[tuple[Contender, Cell]]:
        """Each contender at a size of value."""
        return [
            (each, replace(each.cell, payload_bytes=size_bytes, batch_bytes=self.batch_bytes))
            for each in self.contenders
        ]

    def steps(self) -> Iterator[Step]:
        """All runs of contenders: the warm-up with the largest values, then by size all repeats."""
        amounts = self.records
        if amounts:
            largest = max(amounts)
            records = min(self.warm_up_records, amounts[largest])
            for contender, cell in self.cells(largest):
                yield Step(contender, cell, records, WARM_UP_REPEAT)
        for size, records in amounts.items():
            for (contender, cell), repeat in self._rounds(self.cells(size)):
                yield Step(contender, cell, records, repeat)

    def trial_steps(self) -> Iterator[tuple[StoreTrial, int]]:
        """All trials with their repeat, by kind."""
        for kind in dict.fromkeys(trial.kind for trial in self.trials):
            yield from self._rounds([trial for trial in self.trials if trial.kind is kind])

    def _rounds(self, once: Sequence[T]) -> Iterator[tuple[T, int]]:
        """Repeats interleaved, every second round backwards against drift."""
        for repeat in range(1, self.settings.repeats + 1):
            for each in once if repeat % 2 else tuple(reversed(once)):
                yield each, repeat


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a plan on the command line; None takes the plan's own.

    Attributes:
        sizes: Lengths of values in bytes, each at most once.
        records: Records per size: 1,500,000 small ones, or 1 GB of larger ones.
        repeats: How often everything is measured: 3.
        batch_bytes: Most bytes of one record batch in the topics.
        quick: A look, not a result: 200,000 records and one repeat where those are None, and a
            shorter warm-up.
    """

    sizes: Sequence[int] = DEFAULT_SIZES
    records: int | None = None
    repeats: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    quick: bool = False

    def settings(self) -> Settings:
        """The engine's settings, in which the tenths of a topic bound the window.

        The limits in time only end a run that stands still. InvalidConfigError when an option is
        out of bounds.
        """
        self._check()
        records, repeats = self.records, self.repeats
        if self.quick:
            records, repeats = records or QUICK_RECORDS, repeats or 1
        deadline_s = START_S + (records or SMALL_RECORDS) / SLOWEST_RECORDS_PER_S
        return Settings(
            records=records,
            repeats=repeats or DEFAULT_REPEATS,
            warm_up_s=deadline_s,
            duration_s=deadline_s,
        )

    @property
    def warm_up_records(self) -> int:
        """Records that each contender consumes once before."""
        return QUICK_WARM_UP_RECORDS if self.quick else WARM_UP_RECORDS

    def _check(self) -> None:
        sizes, records, repeats = self.sizes, self.records, self.repeats
        if not sizes:
            raise InvalidConfigError("sizes: none is given; name at least one, such as 1000")
        if len(set(sizes)) != len(sizes):
            raise InvalidConfigError(f"sizes: {list(sizes)} names one twice; drop it")
        for size in sizes:
            if not MIN_VALUE_BYTES <= size <= MAX_VALUE_BYTES:
                raise InvalidConfigError(
                    f"sizes: {size} must be from {MIN_VALUE_BYTES} to {MAX_VALUE_BYTES} bytes"
                )
        if records is not None and records < MIN_RECORDS:
            raise InvalidConfigError(f"records: {records} are too few, use {MIN_RECORDS} or more")
        if repeats is not None and not 1 <= repeats <= MAX_REPEATS:
            raise InvalidConfigError(f"repeats: {repeats} must be from 1 to {MAX_REPEATS}")
        if not 1 <= self.batch_bytes <= MAX_BATCH_BYTES:
            raise InvalidConfigError(
                f"batch_bytes: {self.batch_bytes} must be from 1 to {MAX_BATCH_BYTES}"
            )


# -- throughput -----------------------------------------------------------------------------------

CONTENDERS: Final = (
    Contender("plain", "plain consumer", Cell(Consumer.PLAIN)),
    *(
        contender
        for ack in Ack
        for contender in (
            Contender(
                f"kafka-{ack}",
                f"Kafka's own share group, {ack}",
                Cell(Consumer.KAFKA_SHARE, ack=ack),
            ),
            Contender(
                f"sharecoord-{ack}",
                f"sharecoord, {ack}",
                Cell(Consumer.SHARECOORD, ack=ack),
                peer=f"kafka-{ack}",
            ),
        )
    ),
)
_OURS: Final = tuple(each for each in CONTENDERS if each.peer)
_PROMISED: Final = (
    ("speed against Kafka's own share group", "records_per_s", {1000: 2.5, 100: 1.8}, True),
    ("CPU per record against Kafka's own", "cpu_total_s_per_million", {1000: 0.6, 100: 0.6}, False),
)
TARGETS: Final = (
    *(
        Target(
            f"{each.title}, {'1 kB' if size == 1000 else '100 B'}: {what}",
            *(figure, bound, "x", (each.key,), size),
            against_peer=True,
            at_least=at_least,
        )
        for what, figure, bounds, at_least in _PROMISED
        for size, bound in bounds.items()
        for each in _OURS
    ),
    Target(
        "first record of a fresh group", "first_record_s", 0.5, "s", [each.key for each in _OURS]
    ),
    Target(
        "resident memory of an idle coordinator",
        *("idle_rss_mb", 120.0, "MB", [each.key for each in _OURS]),
    ),
)


def throughput_plan(options: Options) -> Plan:
    """Measures one consumer on one partition with SQLite: speed, CPU, first record and memory."""
    return Plan(
        name="throughput: one consumer, one partition",
        settings=options.settings(),
        contenders=CONTENDERS,
        sizes=options.sizes,
        batch_bytes=options.batch_bytes,
        warm_up_records=options.warm_up_records,
        targets=TARGETS,
        about="The coordinator keeps its state in SQLite with synchronous=FULL. Ratios are to "
        "Kafka's own share group in the same mode and the same repeat.",
        compared="against Kafka's own",
        with_core=True,
    )


# -- stores ---------------------------------------------------------------------------------------

JUDGED: Final = (StoreKind.SQLITE, StoreKind.POSTGRESQL)
"""The stores that every plan measures; MariaDB is measured where its programs are."""
POSTGRESQL_RATIO_MIN: Final = 0.7
COMMIT_EXTENTS: Final = ((10, 2), (1, 2000))
"""Share-partitions and ranges of a transaction. Few ranges: what batches that are taken and
accepted leave. Many: each second record belongs to another member."""


def stores_plan(options: Options) -> Plan:
    """Measures one consumer on one partition with each store in turn; then the stores alone."""
    kinds = [kind for kind in StoreKind if kind in JUDGED or has_programs(kind)]
    seconds = QUICK_COMMIT_SECONDS if options.quick else COMMIT_SECONDS
    return Plan(
        name="stores: one consumer, one partition, SQLite and servers",
        settings=options.settings(),
        contenders=[_on_store(kind) for kind in kinds],
        sizes=options.sizes,
        batch_bytes=options.batch_bytes,
        warm_up_records=options.warm_up_records,
        targets=[
            Target(
                f"PostgreSQL, {size} B: speed against SQLite",
                *("records_per_s", POSTGRESQL_RATIO_MIN, "x"),
                (_on_store(StoreKind.POSTGRESQL).key,),
                size,
                against_peer=True,
                at_least=True,
            )
            for size in options.sizes
        ],
        trials=[
            StoreTrial(TrialKind.COMMITS, kind, partitions, ranges, seconds=seconds)
            for partitions, ranges in COMMIT_EXTENTS
            for kind in kinds
        ],
        about="The servers run on this machine, with the settings that a new one has but for 64 MB "
        "of buffers; what they say is committed is on disk. Ratios are to SQLite in the same "
        "repeat.",
        compared="against SQLite",
    )


def _on_store(kind: StoreKind) -> Contender:
    return Contender(
        f"sharecoord-{kind.lower()}",
        f"sharecoord on {kind}",
        Cell(Consumer.SHARECOORD, store=kind),
        None if kind is StoreKind.SQLITE else f"sharecoord-{StoreKind.SQLITE.lower()}",
    )


# -- recovery, restart ----------------------------------------------------------------------------

RECOVERY_MAX_S: Final = 10.0
RESTART_MAX_S: Final = 1.0


def recovery_plan(options: Options) -> Plan:
    """A coordinator starts on a store that is full of ranges in flight."""
    partitions, ranges = (20, 100) if options.quick else (1000, 2000)
    trials = [StoreTrial(TrialKind.RECOVERY, kind, partitions, ranges) for kind in JUDGED]
    return _trial_plan(
        *("recovery: a full store, one member", options, trials),
        *("all share-partitions served", "all_served_s", RECOVERY_MAX_S),
        about="Each range is one record under a lock, and no two neighbours are alike. One record "
        "behind them is new: its delivery shows that a share-partition is loaded and served. "
        "Seconds are from when the coordinator serves, which is when the member begins to join. "
        "memory.limit is 2 GiB (so many ranges count for 1.1 GB, the default is 512 MiB) and "
        "share.partition.max.record.locks 4000 (the default lets 2,000 be held).",
    )


def restart_plan(options: Options) -> Plan:
    """A coordinator is killed under load and started again."""
    records = 600_000 if options.quick else 1_000_000
    trials = [StoreTrial(TrialKind.RESTART, kind, records=records) for kind in JUDGED]
    return _trial_plan(
        *("restart: kill -9 at half of what one member can take", options, trials),
        *("first delivery after the port opened", "first_delivery_s", RESTART_MAX_S),
        about="A member first takes records of 1 kB as fast as it can, then half as fast; then its "
        "coordinator is ended by kill -9. When nothing more comes, it is started again on the same "
        "port. Seconds are from when that port accepts connections.",
    )


def _trial_plan(
    name: str,
    options: Options,
    trials: Sequence[StoreTrial],
    promise: str,
    figure: str,
    bound_s: float,
    *,
    about: str,
) -> Plan:
    """A plan of trials alone, each with the same promise."""
    targets = [
        Target(f"{each.title}: {promise}", figure, bound_s, "s", (each.key,)) for each in trials
    ]
    return Plan(name, options.settings(), about, trials=trials, targets=targets)


PLANS: Final[Mapping[str, Callable[[Options], Plan]]] = {
    "throughput": throughput_plan,
    "stores": stores_plan,
    "recovery": recovery_plan,
    "restart": restart_plan,
}
ALL: Final = "all"


def make_plan(name: str, options: Options) -> Plan:
    """The plan of a name; InvalidConfigError when there is none, or an option is out of bounds."""
    if name not in PLANS:
        raise InvalidConfigError(
            f"plan: {name!r} is not known; give one of {', '.join(PLANS)}, {ALL}"
        )
    return PLANS[name](options)
