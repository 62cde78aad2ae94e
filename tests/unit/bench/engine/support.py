"""Samples, trials and results with round figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sharecoord.bench.engine.cell import Cell, Consumer
from sharecoord.bench.engine.figures import Trial
from sharecoord.bench.engine.samples import NO_LATENCY, Samples
from sharecoord.bench.engine.settings import Settings
from sharecoord.bench.run.folder import RunResult
from tests.unit.bench.support import MACHINE

OURS = Cell(Consumer.SHARECOORD, consumers=2, work_ms=5.0)
PEER = Cell(Consumer.KAFKA_SHARE, consumers=2, work_ms=5.0)
MS = 1_000_000


def make_samples(*rows: tuple[int, int, int, int] | tuple[int, int, int, int, int]) -> Samples:
    """Rows of consumer, records, begin in ms, work in ms, and latency in ms if there is one."""
    samples = Samples()
    for consumer, records, began_ms, busy_ms, *latency_ms in rows:
        latency_ns = latency_ms[0] * MS if latency_ms else NO_LATENCY
        samples.add(consumer, records, began_ms * MS, busy_ms * MS, latency_ns)
    return samples


def make_trial(
    cell: int, repeat: int, per_consumer: Sequence[int] = (500, 500), **figures: float
) -> Trial:
    """A trial with these figures."""
    return Trial(cell, repeat, figures, list(per_consumer))


def make_result(
    trials: Sequence[Trial],
    cells: Sequence[Cell] = (OURS, PEER),
    *,
    settings: Settings | None = None,
    latencies_ms: Mapping[int, Sequence[float]] | None = None,
    complete: bool = True,
) -> RunResult:
    """A result of these trials."""
    return RunResult(
        settings=settings or Settings(),
        machine=MACHINE,
        cells=cells,
        left_out=["plain can not <refill>"],
        trials=trials,
        complete=complete,
        latencies_ms=latencies_ms or {},
    )
