"""The plans of `sharecoord bench`: those of the engine's files, and trials of stores as tables.

`standard/run.py` measures whatever stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sharecoord.bench.engine.cell import MIN_PAYLOAD_BYTES
from sharecoord.bench.engine.settings import (
    MAX_REPEATS,
    Settings,
    flatten,
    read_plan,
    read_settings,
)
from sharecoord.devenv.stores import StoreKind, has_programs
from sharecoord.errors import InvalidConfigError

DEFAULT_REPEATS: Final = 3
MIN_RECORDS: Final = 50_000
"""A share group hands out whole batches of the producer, of up to 10,000 records: with so many
records the window begins and ends within the topic."""
MAX_VALUE_BYTES: Final = 20_000
"""A gigabyte of `MIN_RECORDS` records."""
QUICK_RECORDS: Final = 200_000
QUICK_DURATION_S: Final = 5.0
COMMIT_SECONDS: Final = 2.0
QUICK_COMMIT_SECONDS: Final = 0.3

FILES: Final = (
    "shapes",
    "partitions",
    "latency",
    "fairness",
    "members",
    "stores",
    "security",
    "kafka-port",
    "kafka-port-latency",
)
"""Plans that are files of the engine, whose cells have targets."""
_OF_ANY_SIZE: Final = ("shapes", "stores")
"""Plans that are measured with other values, batches and numbers of records, too."""


class TrialKind(StrEnum):
    """The kind of a trial of a store; the value is the title of its table."""

    COMMITS = "The store alone"
    RECOVERY = "Recovery"
    RESTART = "Restart under load"


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
class TrialTarget:
    """The greatest good median of a figure of a trial, in seconds; `key` is that of the trial."""

    title: str
    key: str
    figure: str
    bound_s: float


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """Trials of stores, and what they promise.

    Attributes:
        name: Name in reports.
        repeats: How often each trial is made.
        about: Facts that the reader of the report has to know.
        trials: Those of one kind beside each other.
        targets: Promises that are judged.
        with_core: Whether the pure decisions are timed, too.
    """

    name: str
    repeats: int
    about: str
    trials: Sequence[StoreTrial]
    targets: Sequence[TrialTarget] = ()
    with_core: bool = False

    def steps(self) -> Iterator[tuple[StoreTrial, int]]:
        """All trials with their repeat, by kind; every second round backwards against drift."""
        for kind in dict.fromkeys(trial.kind for trial in self.trials):
            once = [trial for trial in self.trials if trial.kind is kind]
            for repeat in range(1, self.repeats + 1):
                for each in once if repeat % 2 else tuple(reversed(once)):
                    yield each, repeat


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a plan on the command line; None takes the plan's own.

    Attributes:
        sizes: Lengths of values in bytes, each at most once (plans `_OF_ANY_SIZE`).
        batch_bytes: Most bytes of one record batch in the topics (the same plans).
        records: Records of each topic (the same plans).
        repeats: How often everything is measured.
        quick: A look, not a result: one repeat and 200,000 records where those are None, windows of
            5 s at most, no rehearsal.
    """

    sizes: Sequence[int] | None = None
    batch_bytes: int | None = None
    records: int | None = None
    repeats: int | None = None
    quick: bool = False

    def settings(self, name: str, kafka: str | None = None) -> Settings:
        """Settings of a plan that is a file; InvalidConfigError when an option is out of bounds."""
        given: dict[str, Any] = flatten(read_plan(name))
        if self.quick:
            given |= self._quick(given)
        given |= {"kafka": kafka} | ({} if self.repeats is None else {"repeats": self.repeats})
        if name in _OF_ANY_SIZE:
            self._check()
            said = {
                "payload_bytes": self.sizes and list(self.sizes),
                "batch_bytes": self.batch_bytes,
                "records": self.records,
            }
            given |= {key: value for key, value in said.items() if value is not None}
        return read_settings(given)

    def _quick(self, given: Mapping[str, Any]) -> dict[str, Any]:
        settings = read_settings(given)
        quick = {"repeats": 1, "rehearsal": False}
        if all(cell.capacity_per_s is None for cell in settings.product().cells):
            quick["records"] = QUICK_RECORDS
        return {**quick, "duration_s": min(settings.duration_s, QUICK_DURATION_S)}

    @property
    def trial_repeats(self) -> int:
        """How often each trial of a store is made; InvalidConfigError when out of bounds."""
        usual = 1 if self.quick else DEFAULT_REPEATS
        repeats = usual if self.repeats is None else self.repeats
        if not 1 <= repeats <= MAX_REPEATS:
            raise InvalidConfigError(f"repeats: {repeats} must be from 1 to {MAX_REPEATS}")
        return repeats

    def _check(self) -> None:
        for size in self.sizes or ():
            if not MIN_PAYLOAD_BYTES <= size <= MAX_VALUE_BYTES:
                raise InvalidConfigError(
                    f"sizes: {size} must be from {MIN_PAYLOAD_BYTES} to {MAX_VALUE_BYTES} bytes"
                )
        if self.records is not None and self.records < MIN_RECORDS:
            raise InvalidConfigError(
                f"records: {self.records} are too few, use {MIN_RECORDS} or more"
            )


# -- the parts alone ------------------------------------------------------------------------------

JUDGED: Final = (StoreKind.SQLITE, StoreKind.POSTGRESQL)
"""The stores that every plan measures; MariaDB is measured where its programs are."""
COMMIT_EXTENTS: Final = ((10, 2), (1, 2000))
"""Share-partitions and ranges of a transaction. Few ranges: what batches that are taken and
accepted leave. Many: each second record belongs to another member."""


def parts_plan(options: Options) -> TrialPlan:
    """Transactions of each store without a consumer, and the pure decisions."""
    kinds = [kind for kind in StoreKind if kind in JUDGED or has_programs(kind)]
    seconds = QUICK_COMMIT_SECONDS if options.quick else COMMIT_SECONDS
    return TrialPlan(
        name="parts: the stores alone, the pure decisions alone",
        repeats=options.trial_repeats,
        about="The servers run on this machine, with the settings that a new one has but for 64 MB "
        "of buffers; what they say is committed is on disk.",
        trials=[
            StoreTrial(TrialKind.COMMITS, kind, partitions, ranges, seconds=seconds)
            for partitions, ranges in COMMIT_EXTENTS
            for kind in kinds
        ],
        with_core=True,
    )


# -- recovery, restart ----------------------------------------------------------------------------

RECOVERY_MAX_S: Final = 10.0
RESTART_MAX_S: Final = 1.0


def recovery_plan(options: Options) -> TrialPlan:
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


def restart_plan(options: Options) -> TrialPlan:
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
) -> TrialPlan:
    """A plan whose trials all have the same promise."""
    targets = [
        TrialTarget(f"{each.title}: {promise}", each.key, figure, bound_s) for each in trials
    ]
    return TrialPlan(name, options.trial_repeats, about, trials, targets)


TRIALS: Final[Mapping[str, Callable[[Options], TrialPlan]]] = {
    "parts": parts_plan,
    "recovery": recovery_plan,
    "restart": restart_plan,
}
PLANS: Final = (*FILES, *TRIALS)
ALL: Final = "all"


def make_plan(name: str, options: Options, kafka: str | None = None) -> Settings | TrialPlan:
    """The plan of a name; InvalidConfigError when there is none, or an option is out of bounds."""
    if name in FILES:
        return options.settings(name, kafka)
    if name not in TRIALS:
        raise InvalidConfigError(
            f"plan: {name!r} is not known; give one of {', '.join(PLANS)}, {ALL}"
        )
    return TRIALS[name](options)
