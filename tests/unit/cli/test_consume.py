"""`sharecoord consume`: what is printed, what is acknowledged, when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sharecoord_sdk import AcknowledgeType, KafkaError, KafkaException, Message, TopicPartition
from sharecoord_sdk.admin import ConfigEntry, ConfigSource, GroupDescription, PartitionOffsets

from tests.unit.cli.support import FakeAdmin, run

KNOWN = GroupDescription("g", offsets=(PartitionOffsets("orders", 0, start_offset=0),))
NEW = GroupDescription("g")
LATEST = ConfigEntry("share.auto.offset.reset", "latest", ConfigSource.DEFAULT)


def record(offset: int, value: bytes | None = b"v", **more: Any) -> Message:
    return Message("orders", 0, offset, value=value, **more)


class FakeConsumer:
    """Gives batches, then nothing; `then` runs at each empty poll."""

    def __init__(self, *batches: list[Message], then: Callable[[], None] | None = None) -> None:
        self.batches = list(batches)
        self.then = then
        self.settings: dict[str, Any] = {}
        self.topics: list[str] = []
        self.acknowledged: list[tuple[int | None, int]] = []
        self.committed: dict[TopicPartition, KafkaException | None] = {}
        self.closed = False

    def __enter__(self) -> FakeConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics

    def poll(self, timeout: float) -> list[Message]:
        assert 0 <= timeout <= 0.5
        if not self.batches and self.then is not None:
            self.then()
        return self.batches.pop(0) if self.batches else []

    def acknowledge(self, message: Message, kind: int) -> None:
        self.acknowledged.append((message.offset(), kind))

    def commit_sync(self, timeout: float) -> dict[TopicPartition, KafkaException | None]:
        assert timeout > 0
        return self.committed


def consume(
    consumer: FakeConsumer,
    *options: str,
    described: GroupDescription = KNOWN,
    entry: ConfigEntry = LATEST,
) -> Any:
    admin = FakeAdmin(describe_groups=[described], describe_group_configs=[entry])
    arguments = ("--topic", "orders", "--group", "g", "--timeout-ms", "0")
    return run("consume", *arguments, *options, admin=admin, consumer=consumer)


def test_values_are_printed_and_accepted() -> None:
    consumer = FakeConsumer([record(0, b"a\xff"), record(1, None)], [record(2, b"")])
    result = consume(consumer)
    assert result.exit_code == 0
    assert result.stdout_bytes == b"a\xff\nnull\n\n"
    assert result.stderr == "Processed a total of 3 messages\n"
    accept = AcknowledgeType.ACCEPT
    assert consumer.acknowledged == [(0, accept), (1, accept), (2, accept)]
    assert (consumer.topics, consumer.closed) == (["orders"], True)
    assert consumer.settings == {
        "bootstrap.servers": "localhost:7070",
        "client.id": "console-share-consumer",
        "group.id": "g",
        "share.acknowledgement.mode": "explicit",
    }


def test_a_secret_in_a_flag_is_warned_of_and_not_shown() -> None:
    consumer = FakeConsumer([])
    result = consume(consumer, "--consumer-property", "sasl.password=s3cret")
    assert consumer.settings["sasl.password"] == "s3cret"
    assert "every user of this machine can read it (ps)" in result.stderr
    assert "s3cret" not in result.stderr


def test_everything_can_be_printed_in_kafkas_order() -> None:
    message = record(
        7,
        b"value",
        key=b"key",
        headers=[("h", b"1"), ("i", None)],
        timestamp=(1, 1234),
        delivery_count=2,
    )
    bare = record(8, b"x", timestamp=(0, 0))
    names = ("timestamp", "partition", "offset", "delivery", "headers", "key")
    options = [option for name in names for option in ("--property", f"print.{name}=true")]
    result = consume(FakeConsumer([message, bare]), *options, "--property", "key.separator=|")
    assert result.stdout == (
        "CreateTime:1234|Partition:0|Offset:7|Delivery:2|h:1,i:null|key|value\n"
        "NO_TIMESTAMP|Partition:0|Offset:8|Delivery:NONE|NO_HEADERS|null|x\n"
    )


def test_deserializers_and_literals() -> None:
    message = record(0, (258).to_bytes(8, "big"), key="ä".encode())
    result = consume(
        FakeConsumer([message, record(1, None)]),
        "--property",
        "value.deserializer=org.apache.kafka.common.serialization.LongDeserializer",
        *("--property", "key.deserializer=string", "--property", "print.key=true"),
        *("--property", "null.literal=NIL", "--property", "line.separator=;"),
    )
    assert result.stdout == "ä\t258;NIL\tNIL;"


@pytest.mark.parametrize(
    ("option", "kind"),
    [("--reject", AcknowledgeType.REJECT), ("--release", AcknowledgeType.RELEASE)],
)
def test_records_can_be_rejected_or_released(option: str, kind: AcknowledgeType) -> None:
    consumer = FakeConsumer([record(0)])
    assert consume(consumer, option).exit_code == 0
    assert consumer.acknowledged == [(0, kind)]


def test_it_stops_after_so_many_messages() -> None:
    consumer = FakeConsumer([record(0)], [record(1)], [record(2)])
    result = consume(consumer, "--max-messages", "2")
    assert result.stdout == "v\nv\n"
    assert consumer.settings["max.poll.records"] == 1
    assert [offset for offset, _ in consumer.acknowledged] == [0, 1]


def test_a_record_that_can_not_be_printed_ends_it() -> None:
    consumer = FakeConsumer([record(0, b"ok"), record(1, b"\xff"), record(2, b"no")])
    result = consume(consumer, "--property", "value.deserializer=string")
    assert (result.exit_code, result.stdout) == (1, "ok\n")
    assert "error: value of orders[0] at offset 1: 'utf-8' codec" in result.stderr
    assert "--reject-message-on-error goes on" in result.stderr
    assert consumer.acknowledged == [(0, AcknowledgeType.ACCEPT)]
    assert consumer.closed


def test_a_record_that_can_not_be_printed_can_be_rejected() -> None:
    consumer = FakeConsumer([record(0, b"123"), record(1, b"1234")])
    options = ("--reject-message-on-error", "--property", "value.deserializer=integer")
    result = consume(consumer, *options)
    assert result.exit_code == 0
    assert "rejected: value of orders[0] at offset 0: it has 3 bytes, not 4" in result.stderr
    kinds = [AcknowledgeType.REJECT, AcknowledgeType.ACCEPT]
    assert [kind for _, kind in consumer.acknowledged] == kinds


def test_ctrl_c_acknowledges_what_was_printed() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    consumer = FakeConsumer([record(0)], then=interrupt)
    result = consume(consumer)
    assert (result.exit_code, result.stdout) == (130, "v\n")
    assert "Processed a total of 1 messages" in result.stderr
    assert consumer.closed


def test_acknowledgements_that_were_not_taken_are_an_error() -> None:
    consumer = FakeConsumer([record(0)])
    error = KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE, "the lock is lost"))
    consumer.committed = {TopicPartition("orders", 0): error, TopicPartition("orders", 1): None}
    result = consume(consumer)
    assert result.exit_code == 1
    assert "acknowledgements for orders[0] were not taken: the lock is lost" in result.stderr


def test_an_error_of_the_consumer_is_one_line() -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError.GROUP_MAX_SIZE_REACHED, "the group is full"))

    result = consume(FakeConsumer(then=fail))
    assert result.exit_code == 1
    assert result.stderr == "sharecoord: error: the group is full\n"


@pytest.mark.parametrize(
    ("reset", "source", "said"),
    [
        ("earliest", ConfigSource.COORDINATOR, "at the first record"),
        ("latest", ConfigSource.GROUP, "at the end: records that come from now on"),
        ("by_duration:PT1H", ConfigSource.GROUP, "by its reset policy"),
        # The consumer says it itself.
        ("latest", ConfigSource.DEFAULT, None),
    ],
)
def test_a_new_group_is_told_where_it_starts(
    reset: str, source: ConfigSource, said: str | None
) -> None:
    entry = ConfigEntry("share.auto.offset.reset", reset, source)
    result = consume(FakeConsumer(), described=NEW, entry=entry)
    line = f"group 'g' is new on topic 'orders': it starts {said} (share.auto.offset.reset={reset})"
    assert (line in result.stderr) == (said is not None)
    assert ("is new on" in result.stderr) == (said is not None)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--reject --release", "exclude each other"),
        ("--property print.key", "must be NAME=VALUE"),
        ("--property print.keys=true", "print.keys is unknown; known are print.timestamp"),
        ("--property print.key=yes", "must be true or false"),
        ("--property value.deserializer=Avro", "must be one of bytearray, string"),
        ("--consumer-property a", "must be NAME=VALUE"),
        ("--consumer-property group.id=x", "give --group instead"),
        ("--max-messages 0", "'--max-messages'"),
    ],
)
def test_bad_options_are_refused(arguments: str, message: str) -> None:
    result = consume(FakeConsumer(), *arguments.split())
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_consumer_properties_are_handed_on() -> None:
    consumer = FakeConsumer()
    consume(consumer, "--consumer-property", "client.id=me", "--command-property", "client.rack=r")
    assert consumer.settings["client.id"] == "me"
    assert consumer.settings["client.rack"] == "r"
