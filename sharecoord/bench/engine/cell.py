"""Dimensions of a run, their values, and the cells of their product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from sharecoord.bench.engine.work import Distribution
from sharecoord.devenv.stores import StoreKind
from sharecoord.errors import InvalidConfigError

T = TypeVar("T", int, float)

MAX_CELLS: Final = 100
MAX_THREADS: Final = 1_000
"""Greatest product of consumers and slots of `blocking` cells, which are threads."""
MAX_SLOTS: Final = 20_000
"""Greatest product of consumers and slots of cells with `continuous` or `tasks`: all are tasks."""
MAX_POLL_RECORDS: Final = 10_000
"""Greatest `max.poll.records` that a consumer of this project takes."""
MAX_BATCH: Final = 10_000
MIN_PAYLOAD_BYTES: Final = 16
"""The intended send time and the number of the record take so much."""
MAX_PAYLOAD_BYTES: Final = 900_000
DEFAULT_BATCH_BYTES: Final = 16_384
"""The default of a Java producer; that of librdkafka is 1,000,000."""
MAX_BATCH_BYTES: Final = 1_000_000
"""A broker takes a little more than a megabyte."""
MAX_PARTITIONS: Final = 1_000
MAX_WORK_MS: Final = 60_000.0
MAX_RATE: Final = 200_000.0
MAX_SKEW: Final = 5.0
MAX_KEYS: Final = 100_000
KEYS_DEFAULT: Final = 1_000
_DEFAULT: Final = "default"
_NONE: Final = "none"


class Mode(StrEnum):
    """The kind of measurement."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    DRAIN = "drain"
    MAX_RATE = "max-rate"


class Consumer(StrEnum):
    """The client that consumes."""

    NONE = "none"
    PLAIN = "plain"
    KAFKA_SHARE = "kafka-share"
    SHARECOORD = "sharecoord"
    KAFKA_PORT = "kafka-port"
    """The client of `kafka-share`, unchanged, at the Kafka port of a coordinator."""
    PARALLEL_CONSUMER = "parallel-consumer"


class Client(StrEnum):
    """Whether each consumer of a process has a thread, or all are tasks on one event loop."""

    THREADS = "threads"
    TASKS = "tasks"


class Events(StrEnum):
    """Destination of a coordinator's events (`events.sink`)."""

    NONE = "none"
    PARQUET = "parquet"
    KAFKA = "kafka"


class SecurityKind(StrEnum):
    """What a coordinator asks of its clients.

    `socket` is without security at a Unix socket; `rules` is there, too, since clients show tokens
    without TLS nowhere else.
    """

    NONE = "none"
    SOCKET = "socket"
    RULES = "rules"


class Order(StrEnum):
    """Records that a consumer with continuous slots runs one after the other."""

    UNORDERED = "unordered"
    KEY = "key"
    PARTITION = "partition"


class Compression(StrEnum):
    """The codec of a producer (`compression.type`)."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Ack(StrEnum):
    """Acknowledgement mode of a share consumer."""

    IMPLICIT = "implicit"
    EXPLICIT = "explicit"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one consumer spreads its records inside its process.

    `continuous` says that a free slot is filled at once; else a poll's records are all finished
    before the next poll. `slots` is the number of handlers that run at the same time.
    """

    continuous: bool
    slots: int

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """Reads `blocking`, `blocking:N` or `continuous:N`; ValueError for anything else."""
        kind, colon, number = text.partition(":")
        slots = int(number) if colon else 1
        if kind not in ("blocking", "continuous") or slots < 1 or (kind[0] == "c" and not colon):
            raise ValueError(text)
        return cls(kind == "continuous", slots)

    def __str__(self) -> str:
        if self.continuous:
            return f"continuous:{self.slots}"
        return "blocking" if self.slots == 1 else f"blocking:{self.slots}"


def batch_of(handler: str) -> int:
    """The most records of one call, from `record` (0: no list) or `batch:N`; else ValueError."""
    kind, colon, number = handler.partition(":")
    if kind == "record" and not colon:
        return 0
    if kind != "batch" or not 1 <= int(number) <= MAX_BATCH:
        raise ValueError(handler)
    return int(number)


@dataclass(frozen=True, slots=True)
class Cell:
    """A combination of values, one of each dimension; `--help` and docs/benchmark.md explain them.

    Attributes:
        consumer: The client that consumes; `none` hands records out of memory, which shows the
            most that is possible.
        batch_bytes: Most bytes of a producer's record batch, before it is compressed.
        compression: The producer's codec.
        work_ms: Mean time that a handler takes for a record; 0 for none.
        work_distribution: `constant`, `uniform` (0 to twice the mean) or `lognormal:SIGMA`.
        max_poll_records: `max.poll.records` of each consumer; None leaves it alone.
        record_locks: `share.partition.max.record.locks` of the group; None leaves it alone.
        parallelism: Inside each consumer: `blocking[:N]` or `continuous:N`.
        key_skew: Zipf exponent of the keys; None for records without keys.
        ordering: Whether records of one key, or of one partition, run one after the other.
        rate: Records per second that are produced (mode `latency`); None otherwise.
        handler: `record`, or `batch:N`: handlers of workers take up to N records at once.
    """

    consumer: Consumer
    consumers: int = 1
    partitions: int = 1
    payload_bytes: int = 1000
    batch_bytes: int = DEFAULT_BATCH_BYTES
    compression: Compression = Compression.NONE
    work_ms: float = 0.0
    work_distribution: str = "constant"
    max_poll_records: int | None = None
    record_locks: int | None = None
    ack: Ack = Ack.IMPLICIT
    parallelism: str = "blocking"
    key_skew: float | None = None
    keys: int = KEYS_DEFAULT
    ordering: Order = Order.UNORDERED
    rate: float | None = None
    handler: str = "record"
    client: Client = Client.THREADS
    events: Events = Events.NONE
    store: StoreKind = StoreKind.SQLITE
    security: SecurityKind = SecurityKind.NONE

    @property
    def batch(self) -> int:
        """`handler`, read: the most records of one call, 0 for single records."""
        return batch_of(self.handler)

    @property
    def has_coordinator(self) -> bool:
        """Whether a coordinator of this project serves the consumers."""
        return self.consumer in (Consumer.SHARECOORD, Consumer.KAFKA_PORT)

    @property
    def on_loop(self) -> bool:
        """Whether the consumers of a process are Python tasks on one event loop."""
        if self.consumer is Consumer.PARALLEL_CONSUMER:
            return False
        return self.parallel.continuous or self.client is Client.TASKS

    @property
    def parallel(self) -> Parallelism:
        """`parallelism`, read."""
        return Parallelism.parse(self.parallelism)

    @property
    def distribution(self) -> Distribution:
        """`work_distribution`, read."""
        return Distribution.parse(self.work_distribution)

    @property
    def slots(self) -> int:
        """Handlers of all consumers together."""
        return self.consumers * self.parallel.slots

    @property
    def capacity_per_s(self) -> float | None:
        """Records that all handlers together can work off; None without work."""
        return self._useful_slots * 1000 / self.work_ms if self.work_ms else None

    @property
    def _useful_slots(self) -> int:
        """Number of handlers that can run at the same time under the order of the cell."""
        match self.ordering:
            case Order.UNORDERED:
                return self.slots
            case Order.PARTITION:
                return min(self.slots, self.partitions)
            case Order.KEY:
                return self.slots if self.key_skew is None else min(self.slots, self.keys)


def cell_from_json(values: Mapping[str, Any]) -> Cell:
    """Reads the plain values of a cell; TypeError, KeyError or ValueError for anything else."""
    given = dict(values)
    given["consumer"] = Consumer(given["consumer"])
    # Results of older versions do not know all of these.
    for name, default in _ENUMS.items():
        given[name] = type(default)(given.get(name, default))
    return Cell(**given)


_ENUMS: Final = {
    "compression": Compression.NONE,
    "ack": Ack.IMPLICIT,
    "client": Client.THREADS,
    "events": Events.NONE,
    "store": StoreKind.SQLITE,
    "security": SecurityKind.NONE,
    "ordering": Order.UNORDERED,
}


@dataclass(frozen=True, slots=True)
class TopicKey:
    """Layout of a topic's records; fields as of `Cell`."""

    partitions: int
    payload_bytes: int
    key_skew: float | None = None
    keys: int = KEYS_DEFAULT
    batch_bytes: int = DEFAULT_BATCH_BYTES
    compression: Compression = Compression.NONE


@dataclass(frozen=True, slots=True)
class Dimension:
    """A setting of a cell, which can be given several values.

    Attributes:
        name: The field of `Cell`; the flag is the same with dashes.
        parse: Reads one value; ValueError for what it can not be.
        wanted: What a value may be, in words.
        default: The values when none are given.
        text: How a value is shown and written.
    """

    name: str
    parse: Callable[[str], Any]
    wanted: str
    default: str
    text: Callable[[Any], str] = str

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.name.replace("_", "-")

    def read(self, given: object) -> list[Any]:
        """The values of a comma separated text, a list of texts, or a single value.

        InvalidConfigError: there is none, one stands there twice, or one can not be.
        """
        parts = given if isinstance(given, Sequence) and not isinstance(given, str) else None
        texts = [str(part) for part in parts] if parts is not None else str(given).split(",")
        values = [self._one(text.strip()) for text in texts]
        if not values:
            raise InvalidConfigError(f"{self.flag}: no value is given; use {self.wanted}")
        if len(set(values)) != len(values):
            raise InvalidConfigError(f"{self.flag}: {','.join(texts)} names one twice; drop it")
        return values

    def _one(self, text: str) -> Any:
        try:
            return self.parse(text)
        except ValueError:
            raise InvalidConfigError(
                f"{self.flag}: {text!r} can not be used; give {self.wanted}"
            ) from None


def _within(kind: Callable[[str], T], low: T, high: T) -> Callable[[str], T]:
    """A reader of numbers within bounds."""

    def read(text: str) -> T:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return read


def _plain(value: Any) -> str:
    return format(value, "g") if isinstance(value, float) and value < 1e6 else str(value)


def _optional(
    name: str,
    none: str,
    read: Callable[[str], Any],
    wanted: str,
    default: str | None = None,
) -> Dimension:
    """A dimension whose word `none` stands for None; the word is the usual default."""
    return Dimension(
        name,
        lambda text: None if text in (none, "None") else read(text),
        wanted,
        default or none,
        lambda value: none if value is None else _plain(value),
    )


def _store(text: str) -> StoreKind:
    return next((kind for kind in StoreKind if kind.lower() == text), None) or StoreKind(text)


def _handler(text: str) -> str:
    size = batch_of(text)
    return f"batch:{size}" if size else "record"


DIMENSIONS: Final[tuple[Dimension, ...]] = (
    Dimension(
        "consumer", Consumer, f"some of {', '.join(sorted(Consumer))}", "kafka-share,sharecoord"
    ),
    Dimension("consumers", _within(int, 1, MAX_SLOTS), f"integers from 1 to {MAX_SLOTS}", "1"),
    Dimension("partitions", _within(int, 1, MAX_PARTITIONS), f"1 to {MAX_PARTITIONS}", "1"),
    Dimension(
        "payload_bytes",
        _within(int, MIN_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES),
        f"bytes from {MIN_PAYLOAD_BYTES} to {MAX_PAYLOAD_BYTES}",
        "1000",
    ),
    Dimension(
        "batch_bytes",
        _within(int, 1, MAX_BATCH_BYTES),
        f"bytes from 1 to {MAX_BATCH_BYTES}",
        str(DEFAULT_BATCH_BYTES),
    ),
    Dimension("compression", Compression, f"some of {', '.join(Compression)}", "none"),
    Dimension(
        "work_ms", _within(float, 0, MAX_WORK_MS), f"ms from 0 to {MAX_WORK_MS:g}", "0", _plain
    ),
    Dimension(
        "work_distribution",
        lambda text: str(Distribution.parse(text)),
        "constant, uniform or lognormal:SIGMA",
        "constant",
    ),
    _optional("max_poll_records", _DEFAULT, _within(int, 1, 100_000), "default or 1 to 100000"),
    _optional("record_locks", _DEFAULT, _within(int, 100, 100_000), "default or 100 to 100000"),
    Dimension("ack", Ack, "implicit or explicit", "implicit"),
    Dimension(
        "parallelism",
        lambda text: str(Parallelism.parse(text)),
        "blocking, blocking:N or continuous:N",
        "blocking",
    ),
    _optional(
        "key_skew",
        _NONE,
        _within(float, 0, MAX_SKEW),
        f"none or a Zipf exponent from 0 to {MAX_SKEW:g}",
    ),
    Dimension("keys", _within(int, 1, MAX_KEYS), f"integers from 1 to {MAX_KEYS}", "1000"),
    Dimension("ordering", Order, f"some of {', '.join(Order)}", "unordered"),
    _optional(
        "rate",
        _NONE,
        _within(float, 1, MAX_RATE),
        f"records/s from 1 to {MAX_RATE:.0f}",
        "1000",
    ),
    Dimension("handler", _handler, f"record or batch:N with N from 1 to {MAX_BATCH}", "record"),
    Dimension("client", Client, "threads or tasks", "threads"),
    Dimension("events", Events, "none, parquet or kafka", "none"),
    Dimension("store", _store, "sqlite, postgresql or mariadb", "sqlite", str.lower),
    Dimension("security", SecurityKind, "none, socket or rules", "none"),
)
BY_NAME: Final = {dimension.name: dimension for dimension in DIMENSIONS}


@dataclass(frozen=True, slots=True)
class Product:
    """The cells of a run, peers beside each other, and why other combinations are left out."""

    cells: tuple[Cell, ...]
    left_out: tuple[str, ...]


def product(values: Mapping[str, Sequence[Any]], mode: Mode) -> Product:
    """Every combination of the values, without impossible ones and without duplicates.

    InvalidConfigError: there are more than `MAX_CELLS` combinations or none that can be, or a cell
    has more handlers than one machine can hold.
    """
    lists = [values.get(each.name) or each.read(each.default) for each in DIMENSIONS]
    # The consumer changes fastest, so that peers run one after the other.
    combinations = math.prod(map(len, lists))
    if combinations > MAX_CELLS:
        raise InvalidConfigError(
            f"dimensions: they make {combinations} cells, and {MAX_CELLS} is the limit; "
            "give fewer values, or make several runs and compare them"
        )
    cells: dict[Cell, None] = {}
    left_out: dict[str, None] = {}
    for rest in itertools.product(*lists[1:]):
        # The consumer changes fastest, so that peers run one after the other.
        for consumer in lists[0]:
            cell = canonical(Cell(consumer, *rest), mode)
            reason = _impossible(cell, mode)
            if reason:
                left_out[reason] = None
            else:
                _check_size(cell)
                cells[cell] = None
    if not cells:
        raise InvalidConfigError(f"dimensions: no cell is left: {'; '.join(left_out)}")
    return Product(tuple(cells), tuple(left_out))


def canonical(cell: Cell, mode: Mode) -> Cell:
    """The same cell with the default for every value that has no meaning in it."""
    if mode is not Mode.LATENCY:
        cell = replace(cell, rate=None)
    if not cell.work_ms:
        cell = replace(cell, work_distribution="constant")
    if not (cell.has_coordinator or cell.consumer is Consumer.KAFKA_SHARE):
        cell = replace(cell, record_locks=None, ack=Ack.IMPLICIT)
    if not cell.has_coordinator:
        cell = replace(cell, events=Events.NONE, store=StoreKind.SQLITE)
    if cell.consumer is not Consumer.SHARECOORD:
        cell = replace(cell, security=SecurityKind.NONE)
    if cell.consumer is Consumer.NONE:
        cell = replace(cell, partitions=1, payload_bytes=1000, max_poll_records=None, key_skew=None)
        cell = replace(cell, batch_bytes=DEFAULT_BATCH_BYTES, compression=Compression.NONE)
        cell = replace(cell, ordering=Order.UNORDERED)
    if cell.key_skew is None:
        cell = replace(cell, keys=KEYS_DEFAULT)
    if cell.parallel.continuous:
        # Workers have a loop of their own, or their own threads.
        cell = replace(cell, client=Client.THREADS)
    if cell.parallel.continuous and cell.consumer is Consumer.SHARECOORD:
        # A worker has no polls, and acknowledges each record when its handler has ended.
        cell = replace(cell, ack=Ack.EXPLICIT, max_poll_records=None)
    elif cell.consumer is not Consumer.PARALLEL_CONSUMER:
        cell = replace(cell, handler="record")
    return cell


def _impossible(cell: Cell, mode: Mode) -> str | None:
    if cell.consumer is Consumer.NONE and (mode is not Mode.THROUGHPUT or not cell.work_ms):
        return "consumer none has no queue: it is measured in mode throughput, with work-ms"
    if mode is Mode.LATENCY and cell.rate is None:
        return "mode latency needs a rate"
    if cell.batch and cell.work_ms:
        return "handler batch is measured without work: what a batch would work is not defined"
    if cell.consumer is Consumer.SHARECOORD and (cell.max_poll_records or 0) > MAX_POLL_RECORDS:
        return f"sharecoord takes at most {MAX_POLL_RECORDS} as max.poll.records"
    return _impossible_client(cell)


def _impossible_client(cell: Cell) -> str | None:
    """Why the consumer can not have this parallelism, order or client; None when it can."""
    consumer, parallel = cell.consumer, cell.parallel
    if cell.ordering is not Order.UNORDERED and not parallel.continuous:
        return f"ordering {cell.ordering} is that of one consumer's slots: it needs continuous:N"
    librdkafka = (Consumer.PLAIN, Consumer.KAFKA_SHARE, Consumer.KAFKA_PORT)
    if parallel.continuous and consumer in librdkafka:
        return (
            f"{consumer} can not refill single slots: continuous needs sharecoord, "
            "parallel-consumer or none"
        )
    if cell.client is Client.TASKS:
        if consumer not in (Consumer.SHARECOORD, Consumer.NONE):
            return f"{consumer} has no asynchronous client: tasks needs sharecoord or none"
        if parallel.slots > 1:
            return "a task takes one record after the other: tasks needs blocking"
    if consumer is Consumer.PARALLEL_CONSUMER:
        if not parallel.continuous and parallel.slots > 1:
            return "parallel-consumer waits for no poll's end: it needs blocking or continuous:N"
        if cell.slots > MAX_THREADS:
            return f"parallel-consumer has a thread for each slot, and {MAX_THREADS} is the limit"
    return None


def _check_size(cell: Cell) -> None:
    limit = MAX_SLOTS if cell.on_loop else MAX_THREADS
    if cell.slots > limit:
        raise InvalidConfigError(
            f"consumers: {cell.consumers} x {cell.parallelism} are {cell.slots} handlers at once, "
            f"and {limit} is the limit; use continuous:N or client tasks for more than "
            f"{MAX_THREADS}"
        )
    if cell.consumer is Consumer.KAFKA_SHARE and (cell.record_locks or 0) > 10_000:
        raise InvalidConfigError(
            f"record-locks: Kafka's own share group takes at most 10000, not {cell.record_locks}"
        )


def varied(cells: Iterable[Cell]) -> list[Dimension]:
    """The dimensions in which the cells differ."""
    listed = list(cells)
    return [each for each in DIMENSIONS if len({getattr(cell, each.name) for cell in listed}) > 1]


def label(cell: Cell, dimensions: Iterable[Dimension]) -> str:
    """The values of some dimensions; the consumer stands first and without its name."""
    rest = values_text(cell, dimensions)
    return f"{cell.consumer}, {rest}" if rest else str(cell.consumer)


def values_text(cell: Cell, dimensions: Iterable[Dimension]) -> str:
    """The values of some dimensions without the consumer; empty when there are no others."""
    return ", ".join(
        f"{each.flag} {each.text(getattr(cell, each.name))}"
        for each in dimensions
        if each.name != "consumer"
    )
