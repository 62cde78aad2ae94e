"""One consumer, one partition, SQLite: how fast, for how much CPU, how soon, in how much memory."""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.bench.drivers.options import MIN_RECORDS
from sharecoord.bench.plans.plan import Contender, Metric, Plan, Server, Target
from sharecoord.errors import InvalidConfigError

DEFAULT_SIZES = (100, 1000)
DEFAULT_REPEATS = 3
DEFAULT_BATCH_BYTES = 16_384
"""What a Java producer makes by default; librdkafka's default is 1,000,000."""
MAX_BATCH_BYTES = 1_000_000  # a broker takes a little more than a megabyte
QUICK_RECORDS = 200_000
WARM_UP_RECORDS = 200_000
QUICK_WARM_UP_RECORDS = 50_000  # less, and the broker's compiler is still at work
MIN_VALUE_BYTES = 10  # a record's number has as many digits
MAX_VALUE_BYTES = 20_000  # a gigabyte of the fewest records that can be measured
MAX_REPEATS = 100

_SMALL_VALUE_BYTES = 300
_SMALL_RECORDS = 1_500_000
_TOPIC_BYTES = 1_000_000_000

PLAIN = Contender("plain", "plain consumer", "plain", Server.BROKER)
KAFKA_IMPLICIT = Contender(
    "kafka-implicit",
    "Kafka's own share group, implicit",
    "kafka_share",
    Server.BROKER_SHARE_GROUP,
)
KAFKA_EXPLICIT = Contender(
    "kafka-explicit",
    "Kafka's own share group, explicit",
    "kafka_share",
    Server.BROKER_SHARE_GROUP,
    explicit=True,
)
SHARECOORD_IMPLICIT = Contender(
    "sharecoord-implicit",
    "sharecoord, implicit",
    "sharecoord_share",
    Server.COORDINATOR,
    peer=KAFKA_IMPLICIT.key,
)
SHARECOORD_EXPLICIT = Contender(
    "sharecoord-explicit",
    "sharecoord, explicit",
    "sharecoord_share",
    Server.COORDINATOR,
    explicit=True,
    peer=KAFKA_EXPLICIT.key,
)
CONTENDERS = (
    PLAIN,
    KAFKA_IMPLICIT,
    SHARECOORD_IMPLICIT,
    KAFKA_EXPLICIT,
    SHARECOORD_EXPLICIT,
)
TARGETS = (
    *(
        Target(f"{contender.title}, {size}: {what}", metric, bound, contender.key, size_bytes)
        for what, metric, bounds in (
            ("speed against Kafka's own share group", Metric.RATIO, (2.5, 1.8)),
            ("CPU per record against Kafka's own", Metric.CPU_RATIO, (0.6, 0.6)),
        )
        for (size, size_bytes), bound in zip((("1 kB", 1000), ("100 B", 100)), bounds, strict=True)
        for contender in (SHARECOORD_IMPLICIT, SHARECOORD_EXPLICIT)
    ),
    Target("first record of a fresh group", Metric.FIRST_RECORD_S, 0.5),
    Target("resident memory of an idle coordinator", Metric.IDLE_RSS_MB, 120.0),
)


def throughput_plan(
    *,
    sizes: Sequence[int] = DEFAULT_SIZES,
    records: int | None = None,
    repeats: int | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    quick: bool = False,
) -> Plan:
    """The plan of `sharecoord bench`.

    Args:
        sizes: Lengths of values in bytes, each at most once.
        records: How many records per size; None takes 1,500,000 small ones or 1 GB of larger ones.
        repeats: How often everything is measured; None takes 3.
        batch_bytes: Most bytes of one record batch in the topics.
        quick: 200,000 records and one repeat where those are None, and a shorter warm-up.

    Raises:
        InvalidConfigError: An argument is out of bounds.
    """
    return Plan(
        name="throughput: one consumer, one partition",
        contenders=CONTENDERS,
        records=records_of(sizes, records, quick=quick),
        repeats=repeats_of(repeats, quick=quick),
        batch_bytes=checked_batch_bytes(batch_bytes),
        warm_up_records=QUICK_WARM_UP_RECORDS if quick else WARM_UP_RECORDS,
        targets=TARGETS,
        about="The coordinator keeps its state in SQLite with synchronous=FULL. Ratios are to "
        "Kafka's own share group in the same mode and the same repeat.",
        compared="against Kafka's own",
        with_core=True,
    )


def records_of(sizes: Sequence[int], records: int | None, *, quick: bool) -> dict[int, int]:
    """How many records of each size; InvalidConfigError when an argument is out of bounds."""
    _check_sizes(sizes)
    if quick and records is None:
        records = QUICK_RECORDS
    if records is not None and records < MIN_RECORDS:
        raise InvalidConfigError(f"records: {records} are too few, use {MIN_RECORDS} or more")
    return {size: records or _default_records(size) for size in sizes}


def repeats_of(repeats: int | None, *, quick: bool) -> int:
    """How often everything is measured; InvalidConfigError when it is out of bounds."""
    if repeats is None:
        return 1 if quick else DEFAULT_REPEATS
    if not 1 <= repeats <= MAX_REPEATS:
        raise InvalidConfigError(f"repeats: {repeats} must be from 1 to {MAX_REPEATS}")
    return repeats


def checked_batch_bytes(batch_bytes: int) -> int:
    """The same; InvalidConfigError when it is out of bounds."""
    if not 1 <= batch_bytes <= MAX_BATCH_BYTES:
        raise InvalidConfigError(f"batch_bytes: {batch_bytes} must be from 1 to {MAX_BATCH_BYTES}")
    return batch_bytes


def _check_sizes(sizes: Sequence[int]) -> None:
    if not sizes:
        raise InvalidConfigError("sizes: none is given; name at least one, such as 1000")
    if len(set(sizes)) != len(sizes):
        raise InvalidConfigError(f"sizes: {list(sizes)} names one twice; drop it")
    for size in sizes:
        if not MIN_VALUE_BYTES <= size <= MAX_VALUE_BYTES:
            raise InvalidConfigError(
                f"sizes: {size} must be from {MIN_VALUE_BYTES} to {MAX_VALUE_BYTES} bytes"
            )


def _default_records(size_bytes: int) -> int:
    """Some seconds of work for the fastest consumer, and no more than a gigabyte."""
    if size_bytes <= _SMALL_VALUE_BYTES:
        return _SMALL_RECORDS
    return max(MIN_RECORDS, _TOPIC_BYTES // size_bytes)
