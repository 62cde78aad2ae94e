"""The figures of `sharecoord bench capacity`, and how much of everything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sharecoord.bench.machine import Machine
from sharecoord.bench.text import Spread

ALL_THERE_S: Final = 120.0
"""Longest time that joining, or the first record of every share-partition, may take."""


class Section(StrEnum):
    """A table of the report; each can be measured alone."""

    DISK = "disk"
    RECORD = "record"
    WORKER = "worker"
    STORE = "store"
    MEMBER = "member"
    PARTITION = "partition"
    GROUP = "group"
    FANOUT = "fanout"


class Pattern(StrEnum):
    """How a consumer acknowledges."""

    RANGES = "implicit, in ranges"
    ALTERNATING = "every second record released once"


@dataclass(frozen=True, slots=True)
class Extent:
    """Amounts of a run.

    Attributes:
        records: Number of records per length of value in bytes; at least 50,000 each.
        repeats: How often each length is measured.
        workers: Numbers of members at work, and how long each takes for a record in milliseconds.
        store_records: Records of each way to acknowledge.
        members: Numbers of members.
        partitions: Numbers of share-partitions.
        groups: Numbers of groups with a topic each.
        fanouts: Numbers of groups on the same partition.
        idle_s: How long the CPU time of a coordinator, idle or with members at work, is looked at.
        fsync_s: How long writes to the disk are timed.
    """

    records: Mapping[int, int]
    repeats: int
    workers: Sequence[tuple[int, float]]
    store_records: Mapping[Pattern, int]
    members: Sequence[int]
    partitions: Sequence[int]
    groups: Sequence[int]
    fanouts: Sequence[int]
    idle_s: float
    fsync_s: float


FULL: Final = Extent(
    records={100: 500_000, 1000: 250_000, 10_000: 50_000},
    repeats=3,
    workers=((100, 5.0), (1000, 50.0)),
    store_records={Pattern.RANGES: 100_000, Pattern.ALTERNATING: 20_000},
    members=(1, 100, 1000),
    partitions=(1, 10, 100, 1000),
    groups=(1, 100, 1000),
    fanouts=(1, 10, 100),
    idle_s=8.0,
    fsync_s=3.0,
)
QUICK: Final = Extent(
    records={100: 50_000},
    repeats=1,
    workers=((4, 5.0),),
    store_records={Pattern.RANGES: 5_000, Pattern.ALTERNATING: 1_000},
    members=(1, 20),
    partitions=(1, 4),
    groups=(1, 4),
    fanouts=(1, 3),
    idle_s=1.0,
    fsync_s=0.2,
)
"""Amounts of `--quick`: a look, not a result."""


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """How long it takes to append 4 KiB to a file and to wait until they are on the disk."""

    median_ms: float
    p99_ms: float
    per_s: float


@dataclass(frozen=True, slots=True)
class RecordFigures:
    """Speed and costs when one member takes one partition as fast as it can.

    `cpu_us` is CPU time per record by process, `written_bytes` what the coordinator had written to
    the disk per record (None where the kernel does not tell), `peak_mb` the coordinator's greatest
    memory.
    """

    value_bytes: int
    records_per_s: Spread
    cpu_us: Mapping[str, Spread]
    commits_per_1000: Spread | None
    written_bytes: Spread | None
    peak_mb: Spread


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """Costs with members at work, who get many small deliveries; fields as in `RecordFigures`.

    `work_ms` is the time that each member takes for a record; `records_per_s` is of all together,
    as far as this machine could.
    """

    members: int
    work_ms: float
    records_per_s: float
    cpu_us: Mapping[str, float]
    commits_per_1000: float | None
    written_bytes: float | None


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Costs of one record in the store, by the way in which records were acknowledged.

    `rows` were inserted, changed or deleted per record; `written_bytes` is as in `RecordFigures`.
    """

    pattern: Pattern
    records: int
    rows: float
    commits_per_1000: float
    written_bytes: float | None


@dataclass(frozen=True, slots=True)
class IdleFigures:
    """An idle coordinator with a number of members, share-partitions or groups.

    Attributes:
        count: How many members, share-partitions or groups; 0 for the bare process.
        all_there_s: Until all members had joined, or every share-partition had delivered its first
            record, from the start of the clients; None for the bare process, and when some are
            missing.
        rss_mb: Memory then.
        idle_cpu_percent: CPU time while nothing happened; 100 is one core.
        restart_s: From the restart after kill -9 until every share-partition had delivered a new
            record; None where it was not measured, or not all of them had.
        missing: How many had not delivered when that was given up after `ALL_THERE_S`.
    """

    count: int
    all_there_s: float | None
    rss_mb: float
    idle_cpu_percent: float
    restart_s: float | None = None
    missing: int = 0


@dataclass(slots=True)
class CapacityResult:
    """All figures of a run, by the amount that was varied.

    `disk` is None when it was not asked for. `members` begin with the bare process. `fanouts` are
    groups on the same partition.
    """

    machine: Machine
    extent: Extent
    complete: bool = False
    disk: DiskFigures | None = None
    records: list[RecordFigures] = field(default_factory=list)
    workers: list[WorkerFigures] = field(default_factory=list)
    store: list[StoreFigures] = field(default_factory=list)
    members: list[IdleFigures] = field(default_factory=list)
    partitions: list[IdleFigures] = field(default_factory=list)
    groups: list[IdleFigures] = field(default_factory=list)
    fanouts: list[IdleFigures] = field(default_factory=list)


def each_kb(rows: Sequence[IdleFigures]) -> float | None:
    """Memory of one more member, share-partition or group, in kB (10^3 bytes).

    Taken between the least and the greatest number that is not 0 and of which none is missing,
    because the first one loads code as well. None without two such numbers.
    """
    counted = [row for row in rows if row.count and not row.missing]
    if len(counted) < 2:
        return None
    first, last = counted[0], counted[-1]
    return 1000 * (last.rss_mb - first.rss_mb) / (last.count - first.count)
