"""The tables of `sharecoord bench capacity` as Markdown, the size of a fleet, and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from sharecoord.bench.capacity.figures import (
    ALL_THERE_S,
    CapacityResult,
    IdleFigures,
    Pattern,
    RecordFigures,
    Section,
    each_kb,
)
from sharecoord.bench.engine.figures import BROKER, CLIENT, COORDINATOR
from sharecoord.bench.text import (
    PageMarks,
    figure_text,
    markdown_table,
    named_values,
    size_text,
    spread_text,
    write_result,
)

# -- the size of a fleet for a rate: arithmetic with margins -----------------------------------

RATE_PER_S: Final = 1_000_000
VALUE_BYTES: Final = 1000
MEMBERS: Final = 10_000
LOAD: Final = 0.6
"""Part of its core that a coordinator is planned to use: the rest is for peaks and catching up."""


class Line(NamedTuple):
    """A resource that the rate needs."""

    what: str
    value: str
    because: str


def size(result: CapacityResult) -> list[Line]:
    """The resources for `RATE_PER_S` records per second; empty without figures of 1 kB values."""
    row = next((row for row in result.records if row.value_bytes == VALUE_BYTES), None)
    if row is None or COORDINATOR not in row.cpu_us:
        return []
    cost_us = row.cpu_us[COORDINATOR].median
    processes = processes_for(cost_us)
    return [
        _processes("coordinator processes, few members that take all they can", cost_us),
        *(
            _processes(
                f"the same, members at work as {work.members:,} x {work.work_ms:g} ms",
                work.cpu_us[COORDINATOR],
            )
            for work in result.workers
        ),
        *_cores(row),
        *_store(result, row, processes),
        *_memory(result, row, processes),
        Line(
            "network of the coordinators",
            f"{2 * RATE_PER_S * VALUE_BYTES * 8 / 1e9:.0f} Gbit/s",
            f"{RATE_PER_S:,} x {VALUE_BYTES:,} B, in from Kafka and out to workers",
        ),
    ]


def processes_for(cost_us: float) -> int:
    """How many coordinators deliver `RATE_PER_S` when a record costs `cost_us` of CPU time."""
    return math.ceil(RATE_PER_S * cost_us / 1e6 / LOAD)


def _processes(what: str, cost_us: float) -> Line:
    return Line(
        what,
        f"{processes_for(cost_us)} + 1 spare",
        f"{RATE_PER_S:,} x {cost_us:.2f} us = {RATE_PER_S * cost_us / 1e6:.1f} cores at "
        f"{LOAD:.0%}: {LOAD * 1e6 / cost_us:,.0f} records/s each",
    )


def _cores(row: RecordFigures) -> list[Line]:
    names = {BROKER: "cores of brokers, for reading", CLIENT: "cores of workers, for receiving"}
    return [
        Line(
            names[name],
            f"{RATE_PER_S * row.cpu_us[name].median / 1e6 / LOAD:.0f}",
            f"{RATE_PER_S:,} x {row.cpu_us[name].median:.2f} us at {LOAD:.0%}",
        )
        for name in names
        if name in row.cpu_us
    ]


def _store(result: CapacityResult, row: RecordFigures, processes: int) -> list[Line]:
    found = []
    if row.commits_per_1000 is not None:
        done = row.commits_per_1000.median
        per_s = RATE_PER_S / processes * done / 1000
        because = f"{done:.2f} transactions per 1,000 records"
        if result.disk is not None:
            because += f"; this disk does {result.disk.per_s:,.0f} waits per second"
        found.append(
            Line("transactions of each process", f"{per_s:,.0f} per second", because),
        )
    for pattern, what in ((Pattern.RANGES, "implicit"), (Pattern.ALTERNATING, "at worst")):
        found += [
            Line(
                f"rows of all stores, {what}",
                f"{RATE_PER_S * each.rows:,.0f} per second",
                f"{each.rows:.3g} rows per record ({each.pattern})",
            )
            for each in result.store
            if each.pattern is pattern
        ]
    return found


def _memory(result: CapacityResult, row: RecordFigures, processes: int) -> list[Line]:
    peak_mb = row.peak_mb.median
    because = f"{processes + 1} x {peak_mb:.0f} MB, the most at full speed"
    total_mb = (processes + 1) * peak_mb
    member_kb = each_kb(result.members)
    if member_kb is not None:
        total_mb += MEMBERS * member_kb / 1000
        because += f", and {MEMBERS:,} members x {member_kb:.1f} kB"
    return [Line("memory of all coordinators", f"{total_mb / 1000:.1f} GB", because)]


# -- the tables -----------------------------------------------------------------------------------

MARKS: Final = PageMarks(
    "<!-- measured: begin (written by `sharecoord bench capacity --update`) -->",
    "<!-- measured: end -->",
)
COMMAND: Final = "sharecoord bench capacity"
_FORMAT: Final = 1


def markdown(result: CapacityResult) -> str:
    """All tables that were measured, each with the command that makes it again."""
    parts = [_head(result)]
    for section, title, table in _tables(result):
        parts += [f"### {title}", f"`{COMMAND} --only {section}`", table]
    lines = size(result)
    if lines:
        title = f"### {RATE_PER_S:,} records/s of {size_text(VALUE_BYTES)}"
        note = (
            f"Arithmetic on the tables above: one coordinator uses {LOAD:.0%} of a core like this "
            "one. Not measured as a whole."
        )
        rows = [[line.what, line.value, line.because] for line in lines]
        parts += [title, note, markdown_table(["what", "how much", "because"], rows)]
    parts += ["### Machine", markdown_table(["what", "value"], result.machine.rows())]
    return "\n\n".join(parts) + "\n"


def write_tables(result: CapacityResult, directory: Path) -> None:
    """Writes the files of a result."""
    summary = {"format": _FORMAT, "mode": "capacity", **named_values(result)}
    write_result(directory, summary, result.machine, markdown(result))


def _head(result: CapacityResult) -> str:
    machine = result.machine
    text = (
        f"Measured on {machine.cpu_model}, {machine.cores} cores for everything (broker, "
        f"coordinator and clients), {machine.started_at}, commit {machine.commit or 'unknown'}, "
        f"load average at the start {machine.load_average[0]:.2f}. Where there are three figures: "
        f"median (least-greatest) of {result.extent.repeats}."
    )
    if machine.busy:
        text += " **The machine was busy with other work: the figures are too high.**"
    if not result.complete:
        text = f"**Broken off before the end.** {text}"
    return text


def _tables(result: CapacityResult) -> Iterable[tuple[Section, str, str]]:
    if result.records:
        yield Section.RECORD, "Per record", _record_table(result)
    if result.workers:
        yield Section.WORKER, "Per record, with members at work", _worker_table(result)
    if result.store:
        yield Section.STORE, "Rows and bytes of the store", _store_table(result)
    if result.disk is not None:
        yield Section.DISK, "The disk under the store", _disk_table(result)
    idle = (
        (Section.MEMBER, "Per member", "members", "all joined, s", result.members),
        (Section.PARTITION, "Per share-partition", "share-partitions", _FIRST, result.partitions),
        (Section.GROUP, "Per group with a topic of its own", "groups", _FIRST, result.groups),
        (Section.FANOUT, "Per group on the same partition", "groups", _FIRST, result.fanouts),
    )
    for section, title, what, until, rows in idle:
        if rows:
            yield section, title, _idle_table(what, until, rows)


_FIRST: Final = "first record of all, s"


_PROCESSES: Final = (BROKER, COORDINATOR, CLIENT)
_COSTS: Final = (
    *(f"CPU us: {name}" for name in _PROCESSES),
    "transactions per 1,000",
    "bytes written",
)


def _record_table(result: CapacityResult) -> str:
    rows = [
        [
            size_text(row.value_bytes),
            spread_text(row.records_per_s, ",.0f"),
            *(spread_text(row.cpu_us.get(name), ".2f") for name in _PROCESSES),
            spread_text(row.commits_per_1000, ".2f"),
            spread_text(row.written_bytes, ".1f"),
            spread_text(row.peak_mb, ".0f", " MB"),
        ]
        for row in result.records
    ]
    return markdown_table(["value", "records/s", *_COSTS, "coordinator at most"], rows)


def _worker_table(result: CapacityResult) -> str:
    rows = [
        [
            f"{row.members:,} x {row.work_ms:g} ms",
            f"{row.records_per_s:,.0f}",
            *(figure_text(row.cpu_us.get(name), ".2f") for name in _PROCESSES),
            figure_text(row.commits_per_1000, ".2f"),
            figure_text(row.written_bytes, ".1f"),
        ]
        for row in result.workers
    ]
    return markdown_table(["members", "records/s", *_COSTS], rows)


def _store_table(result: CapacityResult) -> str:
    head = ["acknowledged", "records", "rows per record", "transactions per 1,000", "bytes written"]
    rows = [
        [
            str(row.pattern),
            f"{row.records:,}",
            f"{row.rows:.3g}",
            f"{row.commits_per_1000:.2f}",
            figure_text(row.written_bytes, ",.0f"),
        ]
        for row in result.store
    ]
    return markdown_table(head, rows)


def _disk_table(result: CapacityResult) -> str:
    disk = result.disk
    assert disk is not None, "asked before"
    head = ["4 KiB and fdatasync", "median", "p99", "one after the other"]
    cells = [f"{disk.median_ms:.3f} ms", f"{disk.p99_ms:.3f} ms", f"{disk.per_s:,.0f}/s"]
    return markdown_table(head, [[result.machine.store_file_system, *cells]])


def _idle_table(what: str, until: str, rows: Sequence[IdleFigures]) -> str:
    restarts = any(row.restart_s is not None for row in rows)
    head = [what, until, "coordinator, MB", "idle CPU, % of a core"]
    head += ["first record of all after kill -9, s"] if restarts else []
    lines = []
    for row in rows:
        until_s = figure_text(row.all_there_s, ".2f")
        if row.missing:
            until_s = f"{row.count - row.missing:,} after {ALL_THERE_S:.0f}"
        cells = [f"{row.count:,}", until_s, f"{row.rss_mb:.1f}", f"{row.idle_cpu_percent:.1f}"]
        lines.append([*cells, *([figure_text(row.restart_s, ".2f")] if restarts else [])])
    table = markdown_table(head, lines)
    kb = each_kb(rows)
    return table if kb is None else f"{table}\n\nOne more: {kb:.1f} kB."
