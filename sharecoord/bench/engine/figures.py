"""Figures of a trial from its raw samples, and of a cell from all its repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sharecoord.bench.engine.cell import (
    Cell,
    Consumer,
    Events,
    Mode,
    SecurityKind,
    canonical,
    cell_from_json,
)
from sharecoord.bench.engine.samples import NO_LATENCY, Samples
from sharecoord.bench.engine.stats import fairness, percentiles, ratios, spreads
from sharecoord.bench.text import Spread, spread_text
from sharecoord.devenv.stores import StoreKind

BROKER: Final = "broker"
COORDINATOR: Final = "coordinator"
DATABASE: Final = "database"
CLIENT: Final = "client"
PROCESSES: Final = (BROKER, COORDINATOR, DATABASE, CLIENT)
"""Processes whose CPU time is read, in the order in which they are shown."""


def cpu_figure(process: str) -> str:
    """Name of the CPU seconds per million records of a process, or of `total`."""
    return f"cpu_{process}_s_per_million"


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure: its title with the unit, its format, and whether more (1) or less (-1) is better.

    `better` is 0 for a figure that is neither.
    """

    title: str
    form: str
    better: int


METRICS: Final[Mapping[str, Metric]] = {
    "records_per_s": Metric("records/s", ",.0f", 1),
    "max_rate_per_s": Metric("highest rate, records/s", ",.0f", 1),
    "busy_percent": Metric("handlers busy, %", ".1f", 1),
    "p50_ms": Metric("p50, ms", ".2f", -1),
    "p95_ms": Metric("p95, ms", ".2f", -1),
    "p99_ms": Metric("p99, ms", ".2f", -1),
    "max_ms": Metric("max, ms", ".2f", -1),
    "drain_s": Metric("backlog drained, s", ".2f", -1),
    "jain_ratio": Metric("Jain's index", ".3f", 1),
    "fewest_records": Metric("fewest per consumer", ",.0f", 1),
    "most_records": Metric("most per consumer", ",.0f", 0),
    "starved_consumers": Metric("starved consumers", ",.0f", -1),
    "first_record_s": Metric("first record, s", ".2f", -1),
    "joined_s": Metric("all members joined, s", ".2f", -1),
    "cpu_broker_s_per_million": Metric("CPU s per million: broker", ".2f", -1),
    "cpu_coordinator_s_per_million": Metric("CPU s per million: coordinator", ".2f", -1),
    "cpu_database_s_per_million": Metric("CPU s per million: database", ".2f", -1),
    "cpu_client_s_per_million": Metric("CPU s per million: client", ".2f", -1),
    "cpu_total_s_per_million": Metric("CPU s per million: all", ".2f", -1),
    "commits_per_1000": Metric("store transactions per 1,000", ".2f", -1),
    "store_bytes_per_record": Metric("bytes written per record", ",.1f", -1),
    "idle_rss_mb": Metric("coordinator before its first client, MB", ".0f", -1),
    "rss_after_mb": Metric("coordinator after the last record, MB", ".0f", -1),
    "coordinator_rss_mb": Metric("coordinator at the end, MB", ".0f", -1),
    "coordinator_peak_mb": Metric("coordinator at most, MB", ".0f", -1),
    "member_kb": Metric("coordinator per member, kB", ".1f", -1),
    "batch_records": Metric("records per stored batch", ",.0f", 0),
    "batch_stored_bytes": Metric("bytes per stored batch", ",.0f", 0),
    "value_bytes_per_stored": Metric("value bytes per stored byte", ".2f", 0),
    "missing_records": Metric("never arrived", ",.0f", -1),
    "repeated_records": Metric("handed out again", ",.0f", -1),
    "producer_late_ms": Metric("producer late, ms", ".2f", -1),
}
"""All figures, in the order in which they are shown."""
_RATIOS: Final = (
    "records_per_s",
    "max_rate_per_s",
    "drain_s",
    "p50_ms",
    "p99_ms",
    "first_record_s",
    "cpu_total_s_per_million",
)


@dataclass(frozen=True, slots=True)
class Interval:
    """The measured time on the monotonic clock, from `begin_ns` to before `end_ns`.

    Attributes:
        cpu_s: CPU seconds that processes used meanwhile, by name of `PROCESSES`.
        commits_per_1000: Transactions of the coordinator's store per 1,000 settled records; None
            without a coordinator, or when nothing was settled.
        written_bytes: Bytes that the coordinator wrote to the disk; None when it is not known.
    """

    begin_ns: int
    end_ns: int
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    commits_per_1000: float | None = None
    written_bytes: int | None = None

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return (self.end_ns - self.begin_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Trial:
    """A measurement of a cell; repeat 1 is the first that counts, 0 the rehearsal.

    `per_consumer` are records in the window, `probes` the rates that were tried and whether they
    held (mode max-rate), `load_average` that of the last minute, when the trial began.
    """

    cell: int
    repeat: int
    figures: Mapping[str, float]
    per_consumer: Sequence[int]
    probes: Sequence[tuple[float, bool]] = ()
    load_average: float = 0.0


@dataclass(frozen=True, slots=True)
class CellSummary:
    """All counted repeats of a cell."""

    cell: Cell
    figures: Mapping[str, Spread]
    repeats: int

    def text(self, name: str) -> str:
        """Median (least-greatest) of a metric; `-` when the cell has none."""
        return spread_text(self.figures.get(name), METRICS[name].form)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CellSummary:
        """Reads `asdict` of a summary; TypeError, KeyError or ValueError for anything else."""
        figures = {
            str(name): Spread(*map(float, spread)) for name, spread in values["figures"].items()
        }
        return cls(cell_from_json(values["cell"]), figures, int(values["repeats"]))


def summarize(cells: Sequence[Cell], trials: Iterable[Trial]) -> list[CellSummary]:
    """Median, least and greatest by cell and metric; cells without a counted trial are left out."""
    listed = [trial for trial in trials if trial.repeat > 0]
    lines = []
    for number, cell in enumerate(cells):
        own = [trial for trial in listed if trial.cell == number]
        if own:
            found = spreads([trial.figures for trial in own])
            figures = {name: found[name] for name in METRICS if name in found}
            lines.append(CellSummary(cell, figures, len(own)))
    return lines


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of a figure of this project to a peer's, or to its own without something.

    `peer` names the other side: a client, a store, or what it is without. Each ratio of the spread
    is taken within one repeat.
    """

    cell: int
    peer: str
    metric: str
    spread: Spread

    @property
    def text(self) -> str:
        """Median (least-greatest), as in `2.50x (2.40-2.60)`."""
        return spread_text(self.spread, ".2f", "x")


def peer_ratios(cells: Sequence[Cell], trials: Iterable[Trial], mode: Mode) -> list[Ratio]:
    """Ratios to the cells that differ in one of consumer, store, events and security only."""
    numbers = {cell: number for number, cell in enumerate(cells)}
    listed = list(trials)
    found = []
    for number, cell in enumerate(cells):
        if not cell.has_coordinator:
            continue
        for peer, changed in _peers(cell):
            other = numbers.get(canonical(changed, mode))
            if other is None:
                continue
            # Without a queue there is neither a first record nor a broker to pay for.
            for metric in _RATIOS[:1] if changed.consumer is Consumer.NONE else _RATIOS:
                values = cell_ratios(listed, number, other, metric)
                if values:
                    found.append(Ratio(number, peer, metric, Spread.of(values)))
    return found


def cell_figures(trials: Iterable[Trial], cell: int, metric: str) -> dict[int, float]:
    """A figure of a cell by repeat, without the rehearsal and repeats that do not have it."""
    return {
        trial.repeat: trial.figures[metric]
        for trial in trials
        if trial.cell == cell and trial.repeat > 0 and metric in trial.figures
    }


def cell_ratios(trials: Sequence[Trial], cell: int, peer: int, metric: str) -> list[float]:
    """A cell's figure over that of another cell, once for each repeat that both have."""
    return ratios(cell_figures(trials, cell, metric), cell_figures(trials, peer, metric))


def _peers(cell: Cell) -> Iterator[tuple[str, Cell]]:
    for peer in Consumer:
        if peer is not cell.consumer:
            yield str(peer), replace(cell, consumer=peer)
    if cell.events is not Events.NONE:
        yield "without events", replace(cell, events=Events.NONE)
    if cell.store is not StoreKind.SQLITE:
        yield str(StoreKind.SQLITE), replace(cell, store=StoreKind.SQLITE)
    if cell.security is SecurityKind.RULES:
        yield "without security", replace(cell, security=SecurityKind.SOCKET)


def records_per_consumer(samples: Samples, window: Interval, consumers: int) -> list[int]:
    """Records whose handler ended within the window, by consumer."""
    counts = [0] * consumers
    for consumer, records, began_ns, busy_ns, _ in zip(*samples.columns(), strict=True):
        if window.begin_ns <= began_ns + busy_ns < window.end_ns:
            counts[consumer] += records
    return counts


def speed_figures(cell: Cell, samples: Samples, window: Interval) -> dict[str, float]:
    """Speed, use, fairness and cost of a window."""
    counts = records_per_consumer(samples, window, cell.consumers)
    total = sum(counts)
    figures: dict[str, float] = {"records_per_s": total / window.seconds}
    if cell.work_ms:
        # How much of each handler's time lies in the window.
        busy = sum(
            max(0, min(began + took, window.end_ns) - max(began, window.begin_ns))
            for began, took in zip(samples.began_ns, samples.busy_ns, strict=True)
        )
        figures["busy_percent"] = 100 * busy / (cell.slots * (window.end_ns - window.begin_ns))
    if cell.consumer is not Consumer.NONE:
        figures |= fairness(counts)
    if total:
        costs = {name: used * 1e6 / total for name, used in window.cpu_s.items()}
        figures |= {cpu_figure(name): cost for name, cost in costs.items()}
        if costs:
            figures[cpu_figure("total")] = sum(costs.values())
        if window.written_bytes is not None:
            figures["store_bytes_per_record"] = window.written_bytes / total
    if window.commits_per_1000 is not None:
        figures["commits_per_1000"] = window.commits_per_1000
    return figures


def exact_interval(samples: Samples, window: Interval) -> Interval:
    """Interval from the first handler's begin to the last one's end; costs of the window."""
    end_ns = max(map(sum, zip(samples.began_ns, samples.busy_ns, strict=True)))
    return replace(window, begin_ns=min(samples.began_ns), end_ns=end_ns + 1)


def latency_figures(
    samples: Samples, window: Interval, missing_ns: Sequence[int] = ()
) -> dict[str, float]:
    """Percentiles over the records that were intended to be sent within the window.

    Each record that never arrived counts with the time for which it was waited (`missing_ns`),
    which is less than its true latency.
    """
    values = [latency / 1e6 for latency in interval_latencies_ns(samples, window)]
    values += [waited / 1e6 for waited in missing_ns]
    return {**percentiles(values), "missing_records": len(missing_ns)}


def interval_latencies_ns(samples: Samples, window: Interval) -> list[int]:
    """Latencies of the records that were intended to be sent within the window."""
    return [
        latency_ns
        for began_ns, latency_ns in zip(samples.began_ns, samples.latency_ns, strict=True)
        if latency_ns != NO_LATENCY and window.begin_ns <= began_ns - latency_ns < window.end_ns
    ]
