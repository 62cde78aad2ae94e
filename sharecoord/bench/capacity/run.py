"""The course of `sharecoord bench capacity`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sharecoord.bench.capacity.disk import measure_disk
from sharecoord.bench.capacity.figures import (
    FULL,
    QUICK,
    CapacityResult,
    IdleFigures,
    RecordFigures,
    Section,
    StoreFigures,
    WorkerFigures,
    read_sections,
)
from sharecoord.bench.capacity.report import check_page, markdown, update_page, write_result
from sharecoord.bench.capacity.trials import Measurements
from sharecoord.bench.cluster import open_cluster, say
from sharecoord.bench.machine import describe_machine
from sharecoord.bench.output import output_directory
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.progress import open_progress
from sharecoord.devenv.maven import DEFAULT_VERSION
from sharecoord.errors import InvalidConfigError

T = TypeVar("T")
_START_S: Final = 3.0
"""Roughly: start a coordinator, make a topic, end both."""
_DRIVE_S: Final = 6.0
_EACH_THOUSAND_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement."""

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
    """Measures, prints the tables, writes the result folder.

    Args:
        only: Names of sections with commas between them; None measures all.
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new.
        kafka: Address of a cluster; None starts a broker.
        update: A page with the two marks, between which the tables are put.
        quick: Little of everything: a look, not a result.

    Returns:
        The exit code.

    Raises:
        SharecoordError: It could not be measured; what was measured before is written all the
            same, but not to the page.
    """
    check_procfs()
    sections = read_sections(only)
    if update is not None:
        if only is not None or quick:
            raise InvalidConfigError(
                "update: a page is for all figures; drop --only and --quick, or --update"
            )
        check_page(update)
    directory = output_directory(output)
    extent = QUICK if quick else FULL
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharecoord-bench-")))
        machine = describe_machine(kafka=kafka or DEFAULT_VERSION, store_directory=scratch)
        result = CapacityResult(machine, extent)
        try:
            _measure(stack, result, sections, scratch, kafka)
        except BaseException:
            write_result(result, directory)
            print(f"not finished; what was measured is in {directory}", file=sys.stderr)
            raise
    result.complete = True
    write_result(result, directory)
    tables = markdown(result)
    if update is not None:
        update_page(update, tables)
    print(tables)
    print(f"written to {directory}", file=sys.stderr)
    return 0


def _measure(
    stack: ExitStack,
    result: CapacityResult,
    sections: Sequence[Section],
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
    result: CapacityResult, sections: Sequence[Section], by: Measurements, scratch: Path
) -> Iterator[Step]:
    """What is to be done, in order; each step puts its figures into the result."""
    extent = result.extent
    drive_s = _START_S + _DRIVE_S * extent.repeats
    work_s = _START_S + 2 * _DRIVE_S + extent.idle_s

    def idle(
        what: str, count: int, rows: list[IdleFigures], measure: Callable[[], IdleFigures]
    ) -> Step:
        expected_s = _START_S + extent.idle_s + _EACH_THOUSAND_S * count / 1000
        return Step(what, expected_s, partial(_keep, rows, measure, _idle_said))

    def counted(
        what: str,
        counts: Sequence[int],
        rows: list[IdleFigures],
        measure: Callable[[int], IdleFigures],
    ) -> list[Step]:
        return [
            idle(f"{what}: {count:,}", count, rows, partial(measure, count)) for count in counts
        ]

    made: dict[Section, list[Step]] = {
        Section.DISK: [Step("disk", extent.fsync_s, partial(_disk, result, scratch))],
        Section.RECORD: [
            Step(
                f"records of {size} B",
                drive_s,
                partial(_keep, result.records, partial(by.record, size), _record_said),
            )
            for size in extent.records
        ],
        Section.WORKER: [
            Step(
                f"members at work: {count:,} x {work_ms:g} ms",
                work_s,
                partial(_keep, result.workers, partial(by.workers, count, work_ms), _worker_said),
            )
            for count, work_ms in extent.workers
        ],
        Section.STORE: [
            Step(
                f"store, {pattern}",
                _START_S + _DRIVE_S,
                partial(_keep, result.store, partial(by.store, pattern), _store_said),
            )
            for pattern in extent.store_records
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


def _keep(rows: list[T], measure: Callable[[], T], said: Callable[[T], str]) -> str:
    """Measures once, keeps the figures, and says the most important one."""
    row = measure()
    rows.append(row)
    return said(row)


def _disk(result: CapacityResult, scratch: Path) -> str:
    result.disk = measure_disk(scratch, result.extent.fsync_s)
    return f"{result.disk.median_ms:.3f} ms to write and sync 4 KiB"


def _record_said(row: RecordFigures) -> str:
    costs = ", ".join(f"{name} {cost.median:.2f} us" for name, cost in row.cpu_us.items())
    return f"{row.records_per_s.median:,.0f} records/s, {costs}"


def _worker_said(row: WorkerFigures) -> str:
    costs = ", ".join(f"{name} {cost:.2f} us" for name, cost in row.cpu_us.items())
    return f"{row.records_per_s:,.0f} records/s, {costs}"


def _store_said(row: StoreFigures) -> str:
    return f"{row.rows:.3g} rows per record"


def _idle_said(row: IdleFigures) -> str:
    return f"{row.rss_mb:.1f} MB, {row.idle_cpu_percent:.1f}% of a core idle"
