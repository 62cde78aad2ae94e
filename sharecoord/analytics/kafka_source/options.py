"""The options of `format("sharecoord")`, read and checked; no Kafka, no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from sharecoord.config.setting import invalid_config, nearest
from sharecoord.config.values import parse_bool, parse_int
from sharecoord.errors import InvalidConfigError

EARLIEST: Final = -2
LATEST: Final = -1
"""Numbers in the place of offsets, as in Spark's own connector and librdkafka."""
_ENDS: Final = {"earliest": EARLIEST, "latest": LATEST}

POLL_TIMEOUT_MS: Final = 60_000
"""How long a task waits for a message that has to be there: brokers elect leaders in less time."""
OFFSETS_PER_PARTITION: Final = 2_000
"""Most offsets of a task: messages have up to 512 KiB, so that is 1 GB at worst, and usually some
seconds of work."""

NAMES: Final = (
    *("topic", "startingOffsets", "endingOffsets", "startingTimestamp", "failOnDataLoss"),
    *("max.offsets.per.partition", "max.offsets.per.trigger", "skip.corrupt", "poll.timeout.ms"),
)
_BY_FOLDED: Final = {name.lower(): name for name in NAMES}
_KAFKA: Final = "kafka."

OWNED_KEYS: Final = {
    "auto.offset.reset": "startingOffsets says where reading begins",
    "enable.auto.commit": "the checkpoint of the query keeps the offsets",
    "enable.auto.offset.store": "the checkpoint of the query keeps the offsets",
    "enable.partition.eof": "the end of a partition has to be seen",
    "allow.auto.create.topics": "reading must not create topics",
    "partition.assignment.strategy": "Spark decides which task reads which partition",
}

Offsets = int | Mapping[int, int]
"""`EARLIEST` or `LATEST` of all partitions, or an offset (or one of the two) of each."""


@dataclass(frozen=True)
class SourceOptions:
    """Options of a read.

    Attributes:
        topic: The topic.
        kafka: librdkafka's keys, without `kafka.`.
        starting: Where to begin; None: the earliest in a batch, the latest in a stream.
        ending: Where a batch ends, exclusive.
        starting_time_ms: Begin at the first message of this time (ms since the epoch); None: at
            `starting`.
        fail_on_data_loss: Whether offsets that the log no longer has are an error.
        offsets_per_partition: Most offsets of one Spark partition.
        offsets_per_trigger: Most offsets of a micro-batch; None: all.
        skip_corrupt: Leave out messages that are no events, and count them.
        poll_timeout_ms: How long a task waits for the next message.
    """

    topic: str
    kafka: Mapping[str, str] = field(repr=False)
    starting: Offsets | None = None
    ending: Offsets = LATEST
    starting_time_ms: int | None = None
    fail_on_data_loss: bool = True
    offsets_per_partition: int = OFFSETS_PER_PARTITION
    offsets_per_trigger: int | None = None
    skip_corrupt: bool = False
    poll_timeout_ms: int = POLL_TIMEOUT_MS


def parse_options(given: Mapping[str, str], *, stream: bool | None = None) -> SourceOptions:
    """Reads the options of a data source; their names have no case, as everywhere in Spark.

    Whether it is a stream may not be known yet (None).

    Raises:
        InvalidConfigError: An option is unknown, malformed, missing, or has no place here; names
            it, and the nearest for one that is unknown.
    """
    kafka, own = _divide(given)
    topic = own.get("topic", "").strip()
    if not topic:
        raise InvalidConfigError('option "topic" is missing: .option("topic", "TOPIC")')
    if not kafka.get("bootstrap.servers", "").strip():
        raise InvalidConfigError(
            'option "kafka.bootstrap.servers" is missing: .option("kafka.bootstrap.servers", '
            '"HOST:PORT")'
        )
    if stream is not None:
        _check_place(own, stream=stream)
    limit, timeout = own.get("max.offsets.per.trigger"), own.get("poll.timeout.ms")
    size, time_ms = own.get("max.offsets.per.partition"), own.get("startingTimestamp")
    starting = own.get("startingOffsets")
    if starting is not None and time_ms is not None:
        _refuse("startingTimestamp", time_ms, "startingOffsets is set too", "Keep one of them")
    return SourceOptions(
        topic,
        kafka,
        None if starting is None else _offsets("startingOffsets", starting, topic),
        _offsets("endingOffsets", own.get("endingOffsets", "latest"), topic),
        None if time_ms is None else _number("startingTimestamp", time_ms, 0),
        _flag("failOnDataLoss", own.get("failOnDataLoss", "true")),
        OFFSETS_PER_PARTITION if size is None else _number("max.offsets.per.partition", size, 1),
        None if limit is None else _number("max.offsets.per.trigger", limit, 1),
        _flag("skip.corrupt", own.get("skip.corrupt", "false")),
        POLL_TIMEOUT_MS if timeout is None else _number("poll.timeout.ms", timeout, 1),
    )


def _divide(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of librdkafka, and our own options by their proper names."""
    kafka, own = {}, {}
    for name, text in given.items():
        folded = name.lower()
        if folded.startswith(_KAFKA):
            key = folded.removeprefix(_KAFKA)
            reason = OWNED_KEYS.get(key) or (key.endswith("_cb") and "it takes a function")
            if reason:
                raise InvalidConfigError(f'option "{name}" can not be set: {reason}. Remove it')
            kafka[key] = str(text)
        elif folded in _BY_FOLDED:
            own[_BY_FOLDED[folded]] = str(text)
        else:
            near = nearest(name, (*NAMES, "kafka.bootstrap.servers"))
            fix = f'Did you mean "{near}"?' if near else f"There are kafka.*, {', '.join(NAMES)}."
            raise InvalidConfigError(f'unknown option "{name}". {fix}')
    return kafka, own


def _check_place(own: Mapping[str, str], *, stream: bool) -> None:
    """Refuses options of a batch in a stream, and options of a stream in a batch."""
    if stream and "endingOffsets" in own:
        _refuse("endingOffsets", own["endingOffsets"], "a stream has no end", "Remove it")
    if not stream and own.get("startingOffsets", "").strip().lower() == "latest":
        _refuse("startingOffsets", "latest", "a batch would be empty", "Begin at an offset")
    if not stream and "max.offsets.per.trigger" in own:
        shown = own["max.offsets.per.trigger"]
        _refuse("max.offsets.per.trigger", shown, "a batch has no triggers", "Remove it")


def _refuse(name: str, shown: str, problem: str, fix: str) -> NoReturn:
    raise invalid_config(name, shown, problem, fix=fix)


def _number(name: str, text: str, least: int) -> int:
    try:
        number = parse_int(text)
    except ValueError as error:
        _refuse(name, text, f"it must be {error}", "Correct it")
    if number < least:
        _refuse(name, text, f"it must be at least {least}", "Correct it")
    return number


def _flag(name: str, text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError as error:
        _refuse(name, text, f"it must be {error}", "Correct it")


def _offsets(name: str, text: str, topic: str) -> Offsets:
    """Reads `earliest`, `latest`, or Spark's JSON: {"topic": {"0": 23, "1": -2}}."""
    word = text.strip().lower()
    if word in _ENDS:
        return _ENDS[word]
    expected = f'earliest, latest, or JSON such as {{"{topic}":{{"0":23,"1":-2}}}}'
    fail: Callable[[str], NoReturn] = lambda problem: _refuse(  # noqa: E731 - three uses below
        name, text, problem, f"Write {expected}"
    )
    try:
        data = json.loads(text)
    except ValueError:
        fail("it is neither a word nor JSON")
    if not isinstance(data, dict) or list(data) != [topic] or not isinstance(data[topic], dict):
        fail(f'it must hold the topic "{topic}" alone')
    for partition, offset in data[topic].items():
        whole = isinstance(offset, int) and not isinstance(offset, bool)
        if not partition.isdecimal() or not whole or offset < EARLIEST:
            fail(f'"{partition}": {json.dumps(offset)} is no partition with an offset')
    return {int(partition): offset for partition, offset in data[topic].items()}


def offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets as the options take them."""
    return json.dumps({topic: {str(key): offsets[key] for key in sorted(offsets)}})
