"""`sharecoord bench jobs`: the jobs on events against a bare `groupBy` over the same files.

All of it runs in one session of Spark, the sizes in order, the jobs in turn with the bare query:
what else the machine does moves both.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sharecoord.analytics import bare
from sharecoord.analytics.fairness import job as fairness
from sharecoord.analytics.generate import job as generate
from sharecoord.analytics.generate.plan import GeneratorSettings
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.locks import job as locks
from sharecoord.analytics.poison import job as poison
from sharecoord.analytics.session import running
from sharecoord.app import event_tools
from sharecoord.bench.cluster import say
from sharecoord.bench.engine import stats
from sharecoord.bench.machine import Machine, describe_machine
from sharecoord.bench.procfs import check_procfs, cpu_s, peak_rss_mb
from sharecoord.bench.text import (
    NONE,
    Spread,
    markdown_table,
    named_values,
    output_directory,
    read_names,
    spread_text,
    write_result,
)
from sharecoord.errors import InvalidConfigError

BARE: Final = "bare groupBy"
JOBS: Final[dict[str, Callable[..., Any]]] = {
    "fairness": fairness.run,
    "lag": lag.run,
    "poison": poison.run,
    "locks": locks.run,
}
RATIO_MOST: Final = 3.0
"""A job may take so many times the seconds of the bare query."""
GROWTH_MOST: Final = 1.1
"""A job on ten times the events may take ten times the time, and so much more."""
MIN_EVENTS, MAX_EVENTS = 10_000, 10_000_000_000
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Pass:
    """A run of a job.

    Attributes:
        events: Rows of the log.
        repeat: From 1 on.
        job: Its name, or `BARE`.
        wall_s: Seconds that it took.
        cpu_s: CPU seconds of Python and the JVM meanwhile.
        peak_mb: Greatest memory of the JVM so far, in MB (10^6 bytes).
    """

    events: int
    repeat: int
    job: str
    wall_s: float
    cpu_s: float
    peak_mb: float


def read_sizes(text: str) -> list[int]:
    """Numbers of events, least first; InvalidConfigError for anything else or out of bounds."""
    wanted = f"use numbers from {MIN_EVENTS} to {MAX_EVENTS} with commas between them"
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InvalidConfigError(f"events: {text!r} can not be used; {wanted}") from None
    if not MIN_EVENTS <= sizes[0] <= sizes[-1] <= MAX_EVENTS:
        raise InvalidConfigError(f"events: {text!r} is out of bounds; {wanted}")
    return sizes


def run(
    *,
    events: str,
    only: str | None = None,
    repeats: int = 3,
    logs: Path | None = None,
    driver_memory: str = "4g",
    output: Path | None = None,
) -> int:
    """Measures, prints the table, writes the result folder; returns the exit code.

    Args:
        events: Sizes of the logs, with commas between them.
        only: Names of jobs with commas between them; None: all.
        repeats: How often each is measured; before that each runs once on the smallest log.
        logs: Where the logs are made, and found again by the next run; None: for this run alone.
        driver_memory: Heap of Spark.
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new.

    Raises:
        SharecoordError: An option can not be used, or Spark fails.
    """
    sizes, names = read_sizes(events), read_names(only, JOBS)
    check_procfs()
    directory = output_directory(output)
    machine = describe_machine(kafka=NONE, store_directory=directory)
    passes: list[Pass] = []
    with (
        tempfile.TemporaryDirectory(prefix="sharecoord-jobs-") as scratch,
        running("sharecoord bench jobs", None, driver_memory) as spark,
    ):
        folders = {size: _log(spark, logs or Path(scratch), size) for size in sizes}
        todo: dict[str, Callable[..., Any]] = {BARE: bare.run, **{n: JOBS[n] for n in names}}
        out = f"{scratch}/tables"
        say("rehearsal")
        for job in todo.values():
            job(spark, folders[sizes[0]], out)
        for size in sizes:
            for repeat in range(1, repeats + 1):
                for name, job in todo.items():
                    work = partial(job, spark, folders[size], out)
                    passes.append(_measured(spark, size, repeat, name, work))
    text = markdown(passes, machine)
    summary = {"format": _FORMAT, "mode": "jobs", "passes": named_values(passes)}
    write_result(directory, summary, machine, f"{text}\n")
    sys.stdout.write(f"{text}\nwritten to {directory}\n")
    return 0


def _log(spark: Any, logs: Path, size: int) -> str:
    """A log of this size; one that an earlier run made is taken as it is."""
    folder = logs / f"events-{size}"
    if not (folder / generate.TRUTH).is_file():
        say(f"making {size:,} events")
        wanted = GeneratorSettings(size, starved=5, poison_keys=3, lag_spikes=4, drop=0.0001)
        generate.run(spark, str(folder), wanted)
        event_tools(folder).roll_up()
    return str(folder)


def _measured(spark: Any, size: int, repeat: int, name: str, work: Callable[[], Any]) -> Pass:
    cpu, wall = cpu_s(os.getpid()), time.monotonic()
    work()
    wall_s, used_s = time.monotonic() - wall, cpu_s(os.getpid()) - cpu
    peak_mb = peak_rss_mb(bare.jvm_pid(spark))
    say(f"{size:,} events, repeat {repeat}, {name}: {wall_s:.1f} s, {used_s:.1f} s of CPU")
    return Pass(size, repeat, name, wall_s, used_s, peak_mb)


# -- figures --------------------------------------------------------------------------------------


def ratios(passes: Sequence[Pass], size: int, job: str, figure: str) -> list[float]:
    """Ratios of a job's `wall_s` or `cpu_s` to those of the bare query, one of each repeat."""
    own, bare_query = (
        {each.repeat: getattr(each, figure) for each in passes_of(passes, size, name)}
        for name in (job, BARE)
    )
    return stats.ratios(own, bare_query)


def passes_of(passes: Sequence[Pass], size: int, job: str | None = None) -> list[Pass]:
    """The passes on a log of this size, of one job or of all."""
    return [each for each in passes if each.events == size and job in (None, each.job)]


def median_s(passes: Sequence[Pass], size: int, job: str) -> float:
    """Median time of a job in seconds."""
    return statistics.median(each.wall_s for each in passes_of(passes, size, job))


def growth(passes: Sequence[Pass], smaller: int, larger: int, job: str) -> float:
    """Growth of the time divided by growth of the events; below 1 the time grows more slowly."""
    times = median_s(passes, larger, job) / median_s(passes, smaller, job)
    return times / (larger / smaller)


def markdown(passes: Sequence[Pass], machine: Machine) -> str:
    """A row for each size and job, and what they were measured on."""
    head = ["events", "job", "s", "of the bare query", "CPU s", "of the bare query's"]
    head += ["growth", "JVM at most, MB"]
    rows = []
    sizes = sorted({each.events for each in passes})
    for at, size in enumerate(sizes):
        for job in dict.fromkeys(each.job for each in passes):
            own = passes_of(passes, size, job)
            grown = f"{growth(passes, sizes[at - 1], size, job):.2f}" if at else NONE
            cells = [f"{size:,}", job, spread_text(Spread.of([each.wall_s for each in own]), ".1f")]
            cells.append(spread_text(Spread.of(ratios(passes, size, job, "wall_s")), ".2f", "x"))
            cells.append(spread_text(Spread.of([each.cpu_s for each in own]), ".1f"))
            cells.append(spread_text(Spread.of(ratios(passes, size, job, "cpu_s")), ".2f", "x"))
            rows.append([*cells, grown, f"{max(each.peak_mb for each in own):.0f}"])
    notes = (
        f"Median (least-greatest) of the repeats. Wanted: at most {RATIO_MOST:g}x of the bare "
        f"query's seconds, and a growth of at most {GROWTH_MOST:g} (seconds of the larger log to "
        "those of the smaller one, divided by the events of both)."
    )
    table = markdown_table(["what", "value"], machine.rows())
    return "\n\n".join([markdown_table(head, rows), notes, table])
