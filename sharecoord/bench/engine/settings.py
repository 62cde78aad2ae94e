"""Settings of a run, their limits, and their YAML file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from sharecoord.bench.engine.cell import (
    BY_NAME,
    DIMENSIONS,
    MAX_CELLS,
    MAX_RATE,
    Cell,
    Consumer,
    Dimension,
    Mode,
    Product,
    TopicKey,
    product,
)
from sharecoord.bench.engine.targets import Target, read_targets
from sharecoord.errors import InvalidConfigError

PLANS: Final = Path(__file__).resolve().parents[1] / "plans"

MAX_RECORDS: Final = 5_000_000
"""Most records of a topic."""
MAX_TOPIC_BYTES: Final = 2_000_000_000
MAX_ALL_TOPICS_BYTES: Final = 10_000_000_000
MAX_DURATION_S: Final = 600.0
MAX_SETTLE_S: Final = 60.0
SETTLE_S: Final = 1.5
"""A coordinator counts once a second what it has done, and gives memory back meanwhile."""
MAX_REPEATS: Final = 20
MAX_STEPS: Final = 16
MAX_DRAIN_S: Final = 900.0
"""Longest time until a backlog is worked off."""
MAX_RUN_S: Final = 12 * 3600.0
"""Longest expected time of a whole run."""

SMALL_VALUE_BYTES: Final = 300
SMALL_RECORDS: Final = 1_500_000
BACKLOG_BYTES: Final = 1_000_000_000
THREADS_PER_PROCESS: Final = 25
SLOTS_PER_PROCESS: Final = 2_500
# What a trial takes besides: processes, joining (5 s with Kafka's share groups), closing.
_OVERHEAD_S: Final = 9.0
_DRAIN_RECORDS: Final = 100_000
# The slowest peer's pace without work, for the estimate of the time left.
_ASSUMED_RECORDS_PER_S: Final = 80_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run of `sharecoord bench run`.

    Attributes:
        mode: The kind of measurement.
        dimensions: Values by name of dimension; those that are missing have their default.
        variants: Further values that only go together: each makes a product of its own with
            `dimensions`, and names none of those. Empty: there is one product.
        records: Records of a backlog (throughput, drain); None takes what the cells need.
        duration_s: Length of the measured window; of one probe in mode max-rate.
        warm_up_s: From the first record to the window.
        repeats: How often every cell is measured.
        rehearsal: Whether each kind of consumer runs once before, uncounted.
        p99_ms: The bound of mode max-rate.
        min_rate: The least rate that max-rate tries, in records per second.
        max_rate: The greatest rate that max-rate tries.
        steps: Most probes of a search for the greatest rate.
        seed: Of work times and keys.
        per_process: Consumers in one process; None decides by their work.
        settle_s: How long a coordinator is left alone before its first client and after the last
            record of a backlog. Only then a trial tells the memory of an idle coordinator, and what
            the whole trial cost the store. 0: it is not left alone.
        targets: Promises that are judged.
        kafka: Address of a cluster; None starts a broker on loopback.
    """

    mode: Mode = Mode.THROUGHPUT
    dimensions: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Sequence[Any]]] = ()
    records: int | None = None
    duration_s: float = 20.0
    warm_up_s: float = 6.0
    repeats: int = 3
    rehearsal: bool = True
    p99_ms: float = 25.0
    min_rate: float = 200.0
    max_rate: float = 50_000.0
    steps: int = 8
    seed: int = 1
    per_process: int | None = None
    settle_s: float = 0.0
    targets: Sequence[Target] = ()
    kafka: str | None = None

    def product(self) -> Product:
        """The cells of all variants together; InvalidConfigError as of `cell.product`."""
        made = [
            product({**self.dimensions, **variant}, self.mode) for variant in self.variants or [{}]
        ]
        cells = tuple(dict.fromkeys(cell for each in made for cell in each.cells))
        if len(cells) > MAX_CELLS:
            raise InvalidConfigError(
                f"variants: they make {len(cells)} cells, and {MAX_CELLS} is the limit; "
                "give fewer values, or make several runs and compare them"
            )
        return Product(cells, tuple(dict.fromkeys(why for each in made for why in each.left_out)))

    def to_yaml(self) -> str:
        """All settings and all dimensions, defaults included."""
        values: dict[str, Any] = {"mode": str(self.mode)}
        for each in dataclasses.fields(self):
            if each.name not in ("mode", "dimensions", "variants", "targets"):
                values[each.name] = getattr(self, each.name)
        vary = {name for variant in self.variants for name in variant}
        values["dimensions"] = {
            each.flag: _texts(each, self.dimensions.get(each.name) or each.read(each.default))
            for each in DIMENSIONS
            if each.name not in vary
        }
        if self.variants:
            values["variants"] = [
                {BY_NAME[name].flag: _texts(BY_NAME[name], given) for name, given in each.items()}
                for each in self.variants
            ]
        if self.targets:
            values["targets"] = [each.to_json() for each in self.targets]
        return yaml.safe_dump(values, sort_keys=False)


def _texts(dimension: Dimension, values: Sequence[Any]) -> list[str]:
    return [dimension.text(value) for value in values]


_LIMITS: Final[Mapping[str, tuple[type, float, float]]] = {
    "records": (int, 100, MAX_RECORDS),
    "duration_s": (float, 1, MAX_DURATION_S),
    "warm_up_s": (float, 0, MAX_DURATION_S),
    "repeats": (int, 1, MAX_REPEATS),
    "p99_ms": (float, 0.1, 60_000),
    "min_rate": (float, 1, MAX_RATE),
    "max_rate": (float, 1, MAX_RATE),
    "steps": (int, 1, MAX_STEPS),
    "seed": (int, 0, 2**31),
    "per_process": (int, 1, 10_000),
    "settle_s": (float, 0, MAX_SETTLE_S),
}


def read_settings(given: Mapping[str, Any]) -> Settings:
    """Checks and completes what a YAML file or a command line says.

    Args:
        given: Fields of `Settings` by name, and dimensions either there or under `dimensions`,
            with dashes or underscores; None means not given. `variants` is a list of mappings of
            dimensions; what is given outside of them wins. `targets` is a list as of `Target`.

    Raises:
        InvalidConfigError: An unknown name, or a value out of bounds.
    """
    flat = flatten(given)
    variants, targets = flat.pop("variants", []), flat.pop("targets", [])
    dimensions = {
        name: BY_NAME[name].read(flat.pop(name)) for name in list(flat) if name in BY_NAME
    }
    known = {each.name for each in dataclasses.fields(Settings)}
    known -= {"dimensions", "variants", "targets"}
    _check_names(flat, known | set(BY_NAME), "{}: is not a setting of the benchmark")
    values: dict[str, Any] = {name: _checked(name, value) for name, value in flat.items()}
    settings = Settings(
        dimensions=dimensions,
        variants=_read_variants(variants, dimensions),
        targets=read_targets(targets),
        **values,
    )
    if settings.min_rate > settings.max_rate:
        raise InvalidConfigError(
            f"min_rate: {settings.min_rate:g} is above max_rate ({settings.max_rate:g})"
        )
    _check_amounts(settings)
    return settings


def _check_names(given: Iterable[str], known: Iterable[str], problem: str) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        names = ", ".join(sorted(known))
        raise InvalidConfigError(f"{problem.format(unknown[0])}; use {names}")


def _read_variants(
    given: object, outside: Mapping[str, Sequence[Any]]
) -> tuple[Mapping[str, Sequence[Any]], ...]:
    """Reads variants, without the dimensions that are given outside of them."""
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise InvalidConfigError(
            "variants: must be a list of dimensions with values, as in [{consumers: 1, work-ms: 5}]"
        )
    read = []
    for each in given:
        variant = {str(name).replace("-", "_"): value for name, value in each.items()}
        _check_names(variant, BY_NAME, "variants: {} is not a dimension")
        wanted = {name: value for name, value in variant.items() if name not in outside}
        read.append({name: BY_NAME[name].read(value) for name, value in wanted.items()})
    return tuple(read)


def flatten(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and dimensions in one mapping with underscores, without those that are None."""
    inner = given.get("dimensions") or {}
    if not isinstance(inner, Mapping):
        raise InvalidConfigError("dimensions: must be names with values, as in consumers: [1, 4]")
    flat = {
        str(name).replace("-", "_"): value
        for source in (given, inner)
        for name, value in source.items()
        if value is not None
    }
    flat.pop("dimensions", None)
    return flat


def _checked(name: str, value: Any) -> Any:
    if name == "mode":
        try:
            return Mode(value)
        except ValueError:
            raise InvalidConfigError(f"mode: {value!r} is none of {', '.join(Mode)}") from None
    if name == "rehearsal":
        if not isinstance(value, bool):
            raise InvalidConfigError(f"rehearsal: {value!r} must be true or false")
        return value
    if name == "kafka":
        return str(value)
    kind, low, high = _LIMITS[name]
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise InvalidConfigError(f"{name}: {value!r} is not a number") from None
    if not low <= number <= high:
        raise InvalidConfigError(f"{name}: {value} must be from {low:g} to {high:g}")
    return number


def _check_amounts(settings: Settings) -> None:
    cells = settings.product().cells
    topics = backlogs(settings, cells)
    for key, count in topics.items():
        if count * key.payload_bytes > MAX_TOPIC_BYTES or count > MAX_RECORDS:
            raise InvalidConfigError(
                f"records: {count:,} x {key.payload_bytes:,} B are needed in one topic, and "
                f"{MAX_RECORDS:,} records and {MAX_TOPIC_BYTES / 1e9:g} GB are the limits; give "
                "fewer consumers, a smaller payload-bytes, a longer work-ms or a shorter duration"
            )
    total = sum(count * key.payload_bytes for key, count in topics.items())
    if total > MAX_ALL_TOPICS_BYTES:
        raise InvalidConfigError(
            f"dimensions: the topics take {total / 1e9:.1f} GB, and "
            f"{MAX_ALL_TOPICS_BYTES / 1e9:g} GB is the limit; make several runs"
        )
    for cell in cells:
        if settings.mode is Mode.LATENCY and cell.rate is not None:
            _check_rate(settings, "rate", cell.rate, cell.payload_bytes)
        if settings.mode is Mode.MAX_RATE:
            _check_rate(settings, "max_rate", settings.max_rate, cell.payload_bytes)
        if settings.mode is Mode.DRAIN:
            _check_drain(settings, cell)
        if cell.consumer is Consumer.NONE:
            _check_samples(settings, cell)
    seconds = expected_run_s(settings)
    if seconds > MAX_RUN_S:
        raise InvalidConfigError(
            f"repeats: {len(cells)} cells x {settings.repeats} would take about "
            f"{seconds / 3600:.0f} h, and {MAX_RUN_S / 3600:.0f} h is the limit; "
            "give fewer values, fewer repeats or a shorter duration"
        )


def _check_rate(settings: Settings, name: str, rate: float, payload_bytes: int) -> None:
    records = rate * (settings.duration_s + settings.warm_up_s + 1)
    if records > MAX_RECORDS or records * payload_bytes > MAX_TOPIC_BYTES:
        raise InvalidConfigError(
            f"{name}: {rate:g} records/s of {payload_bytes} B are {records:,.0f} records, over the "
            f"limits of {MAX_RECORDS:,} and {MAX_TOPIC_BYTES / 1e9:g} GB; shorten the duration"
        )


def _check_samples(settings: Settings, cell: Cell) -> None:
    """Refuses too many samples: consumer `none` has one for each record, and no backlog."""
    records = (cell.capacity_per_s or 0.0) * (settings.warm_up_s + settings.duration_s)
    if records > MAX_RECORDS:
        raise InvalidConfigError(
            f"consumers: {cell.consumers} x {cell.parallelism} of consumer none with "
            f"{cell.work_ms:g} ms of work handle {records:,.0f} records, and {MAX_RECORDS:,} is "
            "the limit; give fewer consumers, a longer work-ms or a shorter duration"
        )


def _check_drain(settings: Settings, cell: Cell) -> None:
    seconds = backlog_records(settings, cell) / (cell.capacity_per_s or math.inf)
    if seconds > MAX_DRAIN_S:
        raise InvalidConfigError(
            f"records: {cell.consumers} x {cell.parallelism} with {cell.work_ms:g} ms of work need "
            f"{seconds:,.0f} s at least, and {MAX_DRAIN_S:.0f} s is the limit; give fewer records"
        )


def topic_key(cell: Cell) -> TopicKey:
    """The layout of the topic that a cell consumes."""
    return TopicKey(
        cell.partitions,
        cell.payload_bytes,
        cell.key_skew,
        cell.keys,
        cell.batch_bytes,
        cell.compression,
    )


def backlog_records(settings: Settings, cell: Cell) -> int:
    """The number of records that a cell has to find in its topic; 0 when it needs no backlog."""
    if settings.mode in (Mode.LATENCY, Mode.MAX_RATE) or cell.consumer is Consumer.NONE:
        return 0
    if settings.records is not None:
        return settings.records
    if settings.mode is Mode.DRAIN:
        return _DRAIN_RECORDS
    if cell.capacity_per_s is None:
        if cell.payload_bytes <= SMALL_VALUE_BYTES:
            return SMALL_RECORDS
        return max(100, BACKLOG_BYTES // cell.payload_bytes)
    # More than can be worked off: the last tenth of a backlog is not measured.
    needed = cell.capacity_per_s * (settings.warm_up_s + settings.duration_s) * 1.25
    return max(1000, math.ceil(needed))


def backlogs(settings: Settings, cells: Sequence[Cell]) -> dict[TopicKey, int]:
    """The topics that are filled before the first trial, each with its number of records."""
    found: dict[TopicKey, int] = {}
    for cell in cells:
        records = backlog_records(settings, cell)
        if records:
            key = topic_key(cell)
            found[key] = max(records, found.get(key, 0))
    return found


def consumers_per_process(settings: Settings, cell: Cell) -> int:
    """The number of consumers of a process: as many as do not distort the measurement.

    Handlers that wait leave the interpreter alone, so many threads or tasks share a process.
    Without work the interpreter lock would be what is measured, so every consumer has a process of
    its own, up to four for each core. Java has no such lock, and one process.
    """
    if settings.per_process is not None:
        return settings.per_process
    if cell.consumer is Consumer.PARALLEL_CONSUMER:
        return cell.consumers
    most = SLOTS_PER_PROCESS if cell.on_loop else THREADS_PER_PROCESS
    together = max(1, most // cell.parallel.slots)
    if cell.work_ms:
        return together
    alone = math.ceil(cell.consumers / min(cell.consumers, 4 * (os.cpu_count() or 1)))
    return min(alone, together) if cell.on_loop else alone


def expected_trial_s(settings: Settings, cell: Cell) -> float:
    """Roughly how long one trial of a cell takes."""
    window = settings.warm_up_s + settings.duration_s
    if settings.mode is Mode.MAX_RATE:
        return settings.steps * (window + _OVERHEAD_S)
    if settings.mode is Mode.LATENCY or cell.consumer is Consumer.NONE:
        return window + _OVERHEAD_S
    pace = cell.capacity_per_s or _ASSUMED_RECORDS_PER_S
    backlog = backlog_records(settings, cell) / pace
    if settings.mode is Mode.DRAIN:
        return backlog + _OVERHEAD_S
    return min(window, backlog) + _OVERHEAD_S


def expected_run_s(settings: Settings) -> float:
    """Roughly how long the whole run takes."""
    cells = settings.product().cells
    trials = settings.repeats * sum(expected_trial_s(settings, cell) for cell in cells)
    return trials + sum(expected_trial_s(settings, cell) for cell in rehearsals(settings, cells))


def rehearsals(settings: Settings, cells: Sequence[Cell]) -> list[Cell]:
    """The first cell of each kind of consumer, when there is a rehearsal."""
    if not settings.rehearsal or settings.mode is Mode.MAX_RATE:
        return []
    first: dict[Consumer, Cell] = {}
    for cell in cells:
        if cell.consumer is not Consumer.NONE:
            first.setdefault(cell.consumer, cell)
    return list(first.values())


def read_plan(name: str) -> dict[str, Any]:
    """The settings of a plan that ships, or of a YAML file such as a result's settings.yaml."""
    path = Path(name)
    if not path.is_file():
        path = PLANS / f"{name}.yaml"
    if not path.is_file() or path.name == name:
        known = ", ".join(plan_names())
        raise InvalidConfigError(f"plan: {name!r} is neither a file nor one of {known}")
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidConfigError(f"plan: {path} can not be read: {error}") from error
    if not isinstance(read, dict):
        raise InvalidConfigError(f"plan: {path} has no settings in it")
    return read


def plan_names() -> list[str]:
    """The plans that ship."""
    return sorted(path.stem for path in PLANS.glob("*.yaml"))
