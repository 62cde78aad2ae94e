"""The course of `sharecoord bench capacity`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sharecoord.bench.capacity.disk import measure_disk
from sharecoord.bench.capacity.figures import (
    FULL,
    QUICK,
    CapacityResult,
    Extent,
    IdleFigures,
    RecordFigures,
    Section,
    StoreFigures,
    WorkerFigures,
    read_sections,
)
from sharecoord.bench.capacity.report import check_page, markdown, update_page, write_result
from sharecoord.bench.capacity.trials import Measurements
from sharecoord.bench.grid.progress import open_progress
from sharecoord.bench.machine import describe_machine
from sharecoord.bench.main import output_directory
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.runner import open_cluster
from sharecoord.devenv.maven import DEFAULT_VERSION
from sharecoord.errors import InvalidConfigError

_START_S: Final = 3.0
"""Roughly: start a coordinator, make a topic, end both."""
_DRIVE_S: Final = 6.0
_EACH_THOUSAND_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement.

    Attributes:
        what: In words.
        expected_s: Roughly how long it takes.
        measure: Does it, keeps the figures, and says the most important one.
    """

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
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

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
    make: dict[Section, Callable[[], Iterator[Step]]] = {
        Section.DISK: partial(_disk_steps, result, scratch),
        Section.RECORD: partial(_record_steps, result, by),
        Section.WORKER: partial(_worker_steps, result, by),
        Section.STORE: partial(_store_steps, result, by),
        Section.MEMBER: partial(_member_steps, result, by),
        Section.PARTITION: partial(_partition_steps, result, by),
        Section.GROUP: partial(_group_steps, result, by),
        Section.FANOUT: partial(_fanout_steps, result, by),
    }
    for section in Section:
        if section in sections:
            yield from make[section]()


def _disk_steps(result: CapacityResult, scratch: Path) -> Iterator[Step]:
    seconds = result.extent.fsync_s
    yield Step("disk", seconds, partial(_disk, result, scratch))


def _record_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    for value_bytes in result.extent.records:
        keep = partial(_record, result, partial(by.record, value_bytes))
        expected_s = _START_S + _DRIVE_S * result.extent.repeats
        yield Step(f"records of {value_bytes} B", expected_s, keep)


def _worker_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    for members, work_ms in result.extent.workers:
        keep = partial(_worker, result, partial(by.workers, members, work_ms))
        expected_s = _START_S + 2 * _DRIVE_S + result.extent.idle_s
        yield Step(f"members at work: {members:,} x {work_ms:g} ms", expected_s, keep)


def _store_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    for pattern in result.extent.store_records:
        keep = partial(_store, result, partial(by.store, pattern))
        yield Step(f"store, {pattern}", _START_S + _DRIVE_S, keep)


def _member_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    yield _idle_step("bare process", 0, result.members, by.bare, result.extent)
    for count in result.extent.members:
        measure = partial(by.members, count)
        yield _idle_step(f"members: {count:,}", count, result.members, measure, result.extent)


def _partition_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    for count in result.extent.partitions:
        what = f"share-partitions: {count:,}"
        measure = partial(by.partitions, count)
        yield _idle_step(what, count, result.partitions, measure, result.extent)


def _group_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    for count in result.extent.groups:
        measure = partial(by.groups, count)
        yield _idle_step(f"groups: {count:,}", count, result.groups, measure, result.extent)


def _fanout_steps(result: CapacityResult, by: Measurements) -> Iterator[Step]:
    for count in result.extent.fanouts:
        what = f"groups on one partition: {count:,}"
        measure = partial(by.fanouts, count)
        yield _idle_step(what, count, result.fanouts, measure, result.extent)


def _idle_step(
    what: str,
    count: int,
    rows: list[IdleFigures],
    measure: Callable[[], IdleFigures],
    extent: Extent,
) -> Step:
    def keep() -> str:
        row = measure()
        rows.append(row)
        return f"{row.rss_mb:.1f} MB, {row.idle_cpu_percent:.1f}% of a core idle"

    return Step(what, _START_S + extent.idle_s + _EACH_THOUSAND_S * count / 1000, keep)


def _disk(result: CapacityResult, scratch: Path) -> str:
    result.disk = measure_disk(scratch, result.extent.fsync_s)
    return f"{result.disk.median_ms:.3f} ms to write and sync 4 KiB"


def _record(result: CapacityResult, measure: Callable[[], RecordFigures]) -> str:
    row = measure()
    result.records.append(row)
    costs = ", ".join(f"{name} {cost.median:.2f} us" for name, cost in row.cpu_us.items())
    return f"{row.records_per_s.median:,.0f} records/s, {costs}"


def _worker(result: CapacityResult, measure: Callable[[], WorkerFigures]) -> str:
    row = measure()
    result.workers.append(row)
    costs = ", ".join(f"{name} {cost:.2f} us" for name, cost in row.cpu_us.items())
    return f"{row.records_per_s:,.0f} records/s, {costs}"


def _store(result: CapacityResult, measure: Callable[[], StoreFigures]) -> str:
    row = measure()
    result.store.append(row)
    return f"{row.rows:.3g} rows per record"
