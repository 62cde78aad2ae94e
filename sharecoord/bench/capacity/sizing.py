"""Size of a fleet for a rate, by arithmetic with margins on the figures of one machine."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from sharecoord.bench.capacity.figures import CapacityResult, Pattern, RecordFigures, each_kb
from sharecoord.bench.engine.figures import BROKER, CLIENT, COORDINATOR

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
