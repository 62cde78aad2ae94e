"""The plans about stores: their speed, how soon a full one is recovered, a restart under load."""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.bench.plans.plan import Contender, Metric, Plan, Server, Target, Trial, TrialKind
from sharecoord.bench.plans.throughput import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_SIZES,
    QUICK_WARM_UP_RECORDS,
    WARM_UP_RECORDS,
    checked_batch_bytes,
    records_of,
    repeats_of,
)
from sharecoord.devenv.stores import StoreKind, has_programs

POSTGRESQL_RATIO_MIN = 0.7
RECOVERY_MAX_S = 10.0
RESTART_MAX_S = 1.0

COMMIT_PARTITIONS = 10
COMMIT_RANGES = (2, 2000)
"""Few: what batches that are taken and accepted leave. Many: each second record is another's."""
RECOVERY_PARTITIONS = 1000
RECOVERY_RANGES = 2000
RESTART_RECORDS = 1_000_000
QUICK_RECOVERY_PARTITIONS = 20
QUICK_RECOVERY_RANGES = 100
QUICK_RESTART_RECORDS = 600_000

JUDGED = (StoreKind.SQLITE, StoreKind.POSTGRESQL)
"""Stores without which a plan says nothing."""


def stores_plan(
    *,
    sizes: Sequence[int] = DEFAULT_SIZES,
    records: int | None = None,
    repeats: int | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    quick: bool = False,
) -> Plan:
    """One consumer, one partition, with each store in turn; then the stores alone.

    MariaDB is measured where its programs are. Arguments as of `throughput_plan`.

    Raises:
        InvalidConfigError: An argument is out of bounds.
    """
    kinds = [kind for kind in StoreKind if kind in JUDGED or has_programs(kind)]
    return Plan(
        name="stores: one consumer, one partition, SQLite and servers",
        contenders=[_contender(kind) for kind in kinds],
        records=records_of(sizes, records, quick=quick),
        repeats=repeats_of(repeats, quick=quick),
        batch_bytes=checked_batch_bytes(batch_bytes),
        warm_up_records=QUICK_WARM_UP_RECORDS if quick else WARM_UP_RECORDS,
        targets=[
            Target(
                f"PostgreSQL, {size} B: speed against SQLite",
                Metric.RATIO,
                POSTGRESQL_RATIO_MIN,
                _contender(StoreKind.POSTGRESQL).key,
                size,
            )
            for size in sizes
        ],
        trials=[
            Trial(f"commits-{ranges}-{kind.lower()}", TrialKind.COMMITS, kind, partitions, ranges)
            for partitions, ranges in ((COMMIT_PARTITIONS, COMMIT_RANGES[0]), (1, COMMIT_RANGES[1]))
            for kind in kinds
        ],
        about="The servers run on this machine, with the settings that a new one has but for 64 MB "
        "of buffers; what they say is committed is on disk. Ratios are to SQLite in the same "
        "repeat.",
        compared="against SQLite",
    )


def _contender(kind: StoreKind) -> Contender:
    return Contender(
        f"sharecoord-{kind.lower()}",
        f"sharecoord on {kind}",
        "sharecoord_share",
        Server.COORDINATOR,
        peer=None if kind is StoreKind.SQLITE else f"sharecoord-{StoreKind.SQLITE.lower()}",
        store=kind,
    )


def recovery_plan(*, repeats: int | None = None, quick: bool = False) -> Plan:
    """A coordinator starts on a store that is full of ranges in flight.

    Raises:
        InvalidConfigError: An argument is out of bounds.
    """
    trials = [
        Trial(
            f"recovery-{kind.lower()}",
            TrialKind.RECOVERY,
            kind,
            QUICK_RECOVERY_PARTITIONS if quick else RECOVERY_PARTITIONS,
            QUICK_RECOVERY_RANGES if quick else RECOVERY_RANGES,
        )
        for kind in JUDGED
    ]
    return _plan_of_trials(
        "recovery: a full store, one member",
        trials,
        repeats_of(repeats, quick=quick),
        [
            Target(
                f"{trial.title}: all share-partitions served",
                Metric.ALL_SERVED_S,
                RECOVERY_MAX_S,
                trial.key,
            )
            for trial in trials
        ],
        "Each range is one record under a lock, and no two neighbours are alike. One record behind "
        "them is new: its delivery shows that a share-partition is loaded and served. Seconds are "
        "from when the coordinator serves, which is when the member begins to join. "
        "memory.limit is 2 GiB (so many ranges count for 1.1 GB, the default is 512 MiB) and "
        "share.partition.max.record.locks 4000 (the default lets 2,000 be held).",
    )


def restart_plan(*, repeats: int | None = None, quick: bool = False) -> Plan:
    """A coordinator is killed under load and started again.

    Raises:
        InvalidConfigError: An argument is out of bounds.
    """
    records = QUICK_RESTART_RECORDS if quick else RESTART_RECORDS
    trials = [
        Trial(f"restart-{kind.lower()}", TrialKind.RESTART, kind, records=records)
        for kind in JUDGED
    ]
    return _plan_of_trials(
        "restart: kill -9 at half of what one member can take",
        trials,
        repeats_of(repeats, quick=quick),
        [
            Target(
                f"{trial.title}: first delivery after the port opened",
                Metric.FIRST_DELIVERY_S,
                RESTART_MAX_S,
                trial.key,
            )
            for trial in trials
        ],
        "A member first takes records of 1 kB as fast as it can, then half as fast; then its "
        "coordinator is ended by kill -9. When nothing more comes, it is started again on the same "
        "port. Seconds are from when that port accepts connections.",
    )


def _plan_of_trials(
    name: str, trials: Sequence[Trial], repeats: int, targets: Sequence[Target], about: str
) -> Plan:
    return Plan(
        name=name,
        contenders=(),
        records={},
        repeats=repeats,
        batch_bytes=DEFAULT_BATCH_BYTES,
        warm_up_records=0,
        targets=targets,
        trials=trials,
        about=about,
    )
