"""The course of `sharecoord bench capacity`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from sharecoord.bench.capacity.figures import (
    FULL,
    QUICK,
    CapacityResult,
    DiskFigures,
    IdleFigures,
    RecordFigures,
    Section,
    StoreFigures,
    WorkerFigures,
)
from sharecoord.bench.capacity.report import MARKS, markdown, write_tables
from sharecoord.bench.capacity.trials import Measurements, measure_disk
from sharecoord.bench.cluster import begin, open_cluster, say
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.progress import open_progress
from sharecoord.bench.text import output_directory, read_names
from sharecoord.errors import InvalidConfigError

_START_S: Final = 3.0
"""Rough time to start a coordinator, to make a topic, and to end both."""
_DRIVE_S: Final = 6.0
_EACH_THOUSAND_S: Final = 40.0


class Step(NamedTuple):
    """A measurement that is to be made; `measure` returns its most important figure in words."""

    what: str
    expected_s: float
    measure: Callable[[], str]


def run(
    *,
    only: str | None = None,
    output: Path | None = None,
    kafka: str | None = None,
    update: Path | None = None,
    quick: bool = False,
) -> int:
    """Measures, prints the tables, writes the result folder; returns the exit code.

    Args:
        only: Names of sections with commas between them; None measures all.
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new.
        kafka: Address of a cluster; None starts a broker.
        update: A page with the two marks, between which the tables are put.
        quick: Little of everything: a look, not a result.

    Raises:
        SharecoordError: It could not be measured; what was measured before is written all the
            same, but not to the page.
    """
    check_procfs()
    sections = read_names(only, Section)
    if update is not None:
        if only is not None or quick:
            raise InvalidConfigError(
                "update: a page is for all figures; drop --only and --quick, or --update"
            )
        MARKS.check(update)
    directory = output_directory(output)
    extent = QUICK if quick else FULL
    with ExitStack() as stack:
        scratch, machine = begin(stack, kafka)
        result = CapacityResult(machine, extent)
        try:
            _measure(stack, result, sections, scratch, kafka)
        except BaseException:
            write_tables(result, directory)
            print(f"not finished; what was measured is in {directory}", file=sys.stderr)
            raise
    result.complete = True
    write_tables(result, directory)
    tables = markdown(result)
    if update is not None:
        MARKS.update(update, tables)
    print(tables)
    print(f"written to {directory}", file=sys.stderr)
    return 0


def _measure(
    stack: ExitStack,
    result: CapacityResult,
    sections: Sequence[str],
    scratch: Path,
    kafka: str | None,
) -> None:
    cluster = open_cluster(stack, kafka, say=say)
    measurements = Measurements(cluster, scratch, result.extent)
    todo = list(steps(result, sections, measurements, scratch))
    progress = stack.enter_context(open_progress(len(todo), sum(each.expected_s for each in todo)))
    measurements.tick = progress.tick
    for step in todo:
        progress.begin(step.what, step.expected_s)
        progress.end(step.measure())


def steps(
    result: CapacityResult, sections: Sequence[str], by: Measurements, scratch: Path
) -> Iterator[Step]:
    """The measurements in order; each puts its figures into the result."""
    extent = result.extent
    drive_s = _START_S + _DRIVE_S * extent.repeats
    work_s = _START_S + 2 * _DRIVE_S + extent.idle_s

    def step(what: str, expected_s: float, rows: list[Any], measure: Callable[[], Any]) -> Step:
        def keep() -> str:
            rows.append(measure())
            return _said(rows[-1])

        return Step(what, expected_s, keep)

    def idle(what: str, count: int, rows: list[IdleFigures], measure: Callable[[], Any]) -> Step:
        expected_s = _START_S + extent.idle_s + _EACH_THOUSAND_S * count / 1000
        return step(what, expected_s, rows, measure)

    def counted(
        what: str, counts: Sequence[int], rows: list[IdleFigures], measure: Callable[[int], Any]
    ) -> list[Step]:
        return [idle(f"{what}: {each:,}", each, rows, partial(measure, each)) for each in counts]

    def disk() -> str:
        result.disk = measure_disk(scratch, extent.fsync_s)
        return _said(result.disk)

    made: dict[Section, list[Step]] = {
        Section.DISK: [Step("disk", extent.fsync_s, disk)],
        Section.RECORD: [
            step(f"records of {size} B", drive_s, result.records, partial(by.record, size))
            for size in extent.records
        ],
        Section.WORKER: [
            step(
                f"members at work: {count:,} x {work_ms:g} ms",
                *(work_s, result.workers, partial(by.workers, count, work_ms)),
            )
            for count, work_ms in extent.workers
        ],
        Section.STORE: [
            step(f"store, {each}", _START_S + _DRIVE_S, result.store, partial(by.store, each))
            for each in extent.store_records
        ],
        Section.MEMBER: [
            idle("bare process", 0, result.members, by.bare),
            *counted("members", extent.members, result.members, by.members),
        ],
        Section.PARTITION: counted(
            "share-partitions", extent.partitions, result.partitions, by.partitions
        ),
        Section.GROUP: counted("groups", extent.groups, result.groups, by.groups),
        Section.FANOUT: counted(
            "groups on one partition", extent.fanouts, result.fanouts, by.fanouts
        ),
    }
    for section in Section:
        if section in sections:
            yield from made[section]


def _said(
    row: DiskFigures | RecordFigures | WorkerFigures | StoreFigures | IdleFigures,
) -> str:
    """The most important figure of a measurement, in words."""
    match row:
        case DiskFigures():
            return f"{row.median_ms:.3f} ms to write and sync 4 KiB"
        case RecordFigures():
            costs = ", ".join(f"{name} {cost.median:.2f} us" for name, cost in row.cpu_us.items())
            return f"{row.records_per_s.median:,.0f} records/s, {costs}"
        case WorkerFigures():
            costs = ", ".join(f"{name} {cost:.2f} us" for name, cost in row.cpu_us.items())
            return f"{row.records_per_s:,.0f} records/s, {costs}"
        case StoreFigures():
            return f"{row.rows:.3g} rows per record"
        case IdleFigures():
            return f"{row.rss_mb:.1f} MB, {row.idle_cpu_percent:.1f}% of a core idle"
