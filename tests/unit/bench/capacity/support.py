"""A capacity result with round figures."""

from __future__ import annotations

from sharecoord.bench.capacity.figures import (
    FULL,
    CapacityResult,
    DiskFigures,
    IdleFigures,
    Pattern,
    RecordFigures,
    StoreFigures,
    WorkerFigures,
)
from sharecoord.bench.text import Spread
from tests.unit.bench.support import MACHINE


def make_record(value_bytes: int = 1000, *, cost_us: float = 3.0) -> RecordFigures:
    """One member at 100,000 records/s; the broker's CPU time is not known."""
    return RecordFigures(
        value_bytes=value_bytes,
        records_per_s=Spread(100_000, 90_000, 110_000),
        cpu_us={"coordinator": Spread(cost_us, 2.0, 4.0), "client": Spread(1.2, 1.2, 1.2)},
        commits_per_1000=Spread(2.0, 2.0, 2.0),
        written_bytes=None,
        peak_mb=Spread(150, 140, 160),
    )


def make_result() -> CapacityResult:
    """All sections, complete."""
    return CapacityResult(
        machine=MACHINE,
        extent=FULL,
        complete=True,
        disk=DiskFigures(0.5, 2.0, 1500),
        records=[make_record(100), make_record()],
        workers=[WorkerFigures(100, 5.0, 19_000, {"coordinator": 12.0, "client": 40.0}, 9.0, None)],
        store=[
            StoreFigures(Pattern.RANGES, 1000, 0.01, 2.0, 20.0),
            StoreFigures(Pattern.ALTERNATING, 100, 1.5, 9.0, None),
        ],
        members=[
            IdleFigures(0, None, 80.0, 0.5),
            IdleFigures(1, 0.2, 90.0, 0.5),
            IdleFigures(1001, 2.5, 120.0, 1.0),
        ],
        partitions=[IdleFigures(1, 0.3, 90.0, 0.5, 1.25), IdleFigures(101, 0.6, 92.0, 1.0, 1.5)],
        fanouts=[IdleFigures(1, 0.3, 90.0, 0.5)],
        groups=[IdleFigures(1, 0.3, 90.0, 0.5)],
    )
