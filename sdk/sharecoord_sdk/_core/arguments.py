"""Checks of arguments, with the errors that the twin raises for them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .columns import AckDetails
from .errors import KafkaError
from .records import Message, Messages, TopicPartition
from .texts import check_name, check_secret, escaped_text

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
INVALID_TEXT: Final = "Local: Invalid argument or configuration"
REASON_MAX_BYTES: Final = 1024
DELAY_MAX_MS: Final = 2**53


def read_timeout(value: object) -> float | None:
    """Seconds to wait, or None for no limit (any negative number).

    Raises:
        TypeError: Not a number (`Decimal` and `Fraction` are numbers).
        ValueError: NaN, which is no time.
        OverflowError: More than a float holds.
    """
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"must be real number, not {_name(value)}")
    seconds = float(value)  # type: ignore[arg-type]
    if math.isnan(seconds):
        raise ValueError("timeout must be a number of seconds, not NaN; -1 waits for ever")
    return seconds if seconds >= 0 else None


def read_topics(topics: object) -> list[str]:
    """Checks the topics of a subscription: a list of different, printable names.

    Raises:
        TypeError: Not a list.
        ValueError: An empty name, a name twice, or one that is no valid text.
    """
    if not isinstance(topics, list):
        raise TypeError("expected list of topic unicode strings")
    names = [str(topic) for topic in topics]
    for name in names:
        if not name or names.count(name) > 1:
            what = "is empty" if not name else "is given twice"
            raise ValueError(f"Failed to subscribe: {INVALID_TEXT}: topic {name!r} {what}")
        if "\x00" in name or not name.isprintable():
            raise ValueError(f"Failed to subscribe: {INVALID_TEXT}: topic {name!r} is no name")
    return names


def read_message(message: object) -> Message:
    """A message; one of another library, such as `confluent_kafka`, stands for its coordinates.

    Raises:
        TypeError: Something else.
    """
    if isinstance(message, Message):
        return message
    if not all(callable(getattr(message, name, None)) for name in ("topic", "partition", "offset")):
        raise TypeError(f"argument 1 must be sharecoord_sdk.Message, not {_name(message)}")
    other: Any = message
    return Message(other.topic(), other.partition(), other.offset())


def read_messages(messages: object) -> Messages | list[Message]:
    """Messages of a poll, or any others, as `read_message` reads each.

    Raises:
        TypeError: Something else.
    """
    if isinstance(messages, Messages):
        return messages
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(
        messages, Iterable
    ):
        raise TypeError(f"argument 1 must be sharecoord_sdk.Message, not {_name(messages)}")
    return [read_message(each) for each in messages]


def read_place(topic: object, partition: object, offset: object) -> tuple[str, int, int]:
    """Coordinates of a record, of the right types; bounds are checked by `check_place`.

    Raises:
        TypeError: Not a str and two integers.
        OverflowError: Beyond Kafka's numbers.
    """
    if not isinstance(topic, str):
        raise TypeError(f"argument 1 must be str, not {_name(topic)}")
    check_name("topic", topic)
    return topic, read_integer(partition, _INT32_MAX), read_integer(offset, _INT64_MAX)


def read_integer(value: object, largest: int = _INT32_MAX) -> int:
    """Checks an integer of bounded size.

    Raises:
        TypeError: Not an integer.
        OverflowError: Too large.
    """
    number = operator.index(value)  # type: ignore[arg-type]
    if abs(number) > largest:
        raise OverflowError("signed integer is greater than maximum")
    return number


def check_place(what: str, topic: str | None, partition: int | None, offset: int | None) -> None:
    """Refuses coordinates that no record has.

    Raises:
        ValueError: No topic, or a negative number.
    """
    if topic is None or partition is None or offset is None or partition < 0 or offset < 0:
        place = f"topic {topic!r}, partition {partition}, offset {offset}"
        raise ValueError(f"Failed to acknowledge {what}: {INVALID_TEXT}: {place}")


def check_details(kind: int, delay_ms: object, reason: object) -> AckDetails:
    """Checks what an acknowledgement says beside its type; see `BaseShareConsumer.acknowledge`.

    Raises:
        TypeError: Not an integer or not a str.
        ValueError: Out of bounds, or not with this type.
    """
    if isinstance(delay_ms, bool) or not hasattr(delay_ms, "__index__"):
        raise TypeError(f"delay_ms must be int, not {_name(delay_ms)}")
    delay = operator.index(delay_ms)
    if not isinstance(reason, str):
        raise TypeError(f"reason must be str, not {_name(reason)}")
    if not 0 <= delay <= DELAY_MAX_MS:
        raise ValueError(f"delay_ms must be 0 to {DELAY_MAX_MS}, not {delay}")
    if delay and kind != 2:
        raise ValueError("delay_ms goes with AcknowledgeType.RELEASE only")
    if reason and kind not in (2, 3):
        raise ValueError("reason goes with AcknowledgeType.REJECT and RELEASE only")
    said = escaped_text(reason)
    if len(said.encode()) > REASON_MAX_BYTES:
        raise ValueError(f"reason must have at most {REASON_MAX_BYTES} bytes in UTF-8")
    return AckDetails(delay, said)


def read_partitions(partitions: object) -> set[tuple[str, int]]:
    """Partitions of topics.

    Raises:
        TypeError: Not a list of `TopicPartition`.
        ValueError: A negative partition.
    """
    if not isinstance(partitions, list):
        raise TypeError("expected list of TopicPartition")
    for item in partitions:
        if not isinstance(item, TopicPartition):
            raise TypeError(f"expected list of TopicPartition, not of {_name(item)}")
        if item.partition < 0:
            raise ValueError(f"partition must not be negative: {item}")
        check_name("topic", item.topic)
    return {(item.topic, item.partition) for item in partitions}


def check_texts(*values: object) -> None:
    """Refuses, by position, what is no str (TypeError) or can not be sent (ValueError)."""
    for number, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise TypeError(f"argument {number} must be str, not {_name(value)}")
        check_secret(f"argument {number}", value)


def bad_state_text(what: str, why: str) -> str:
    return f"Failed to acknowledge {what}: {KafkaError(KafkaError._STATE).str()}: {why}"


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__
