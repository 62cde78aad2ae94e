"""Headers whose names are not UTF-8, on a real Kafka: to members, and as dead letters and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from sharecoord_sdk import AcknowledgeType, AdminClient, ShareConsumer
from sharecoord_sdk.admin import DeadLetterFilter

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.kafka.client import Consumer, TopicPartition
from sharecoord.kafka.headers import read_headers
from tests.raw_records import RawRecord, produce_raw
from tests.support import KafkaUnderTest, eventually, unique_name

ODD = [(b"fine", b"1"), (b"x\xffy", b"2"), (b"\xfe\xfe", None), ("ключ".encode(), b"3")]
TO_A_MEMBER = [("fine", b"1"), ("x\\xffy", b"2"), ("\\xfe\\xfe", None), ("ключ", b"3")]
WARM_ROUNDS = 30
WAIT_S = 60


@pytest.mark.parametrize("once", ["false", "true"])
def test_they_reach_members_and_dead_letters_and_come_back(
    topic: Callable[..., str],
    kafka_broker: KafkaUnderTest,
    coordinator: CoordinatorProcess,
    once: str,
) -> None:
    servers, name, dead, group = kafka_broker.bootstrap_servers, topic(), topic(), unique_name("g")
    config = {
        "bootstrap.servers": coordinator.address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(
            group,
            {
                "errors.deadletterqueue.topic.name": dead,
                "errors.deadletterqueue.exactly.once": once,
                "share.retry.keep.payload": "true",
            },
        )
        with ShareConsumer(config) as consumer:
            consumer.subscribe([name])
            for _ in range(WARM_ROUNDS):
                produce_raw(servers, name, [RawRecord(b"warm", [(b"ok", b"1")])])
                assert taken(consumer, AcknowledgeType.ACCEPT) == [("ok", b"1")]
            produce_raw(servers, name, [RawRecord(b"odd", ODD)])
            # Again from the store, to the dead-letter topic, and as a redriven record.
            assert taken(consumer, AcknowledgeType.RELEASE) == TO_A_MEMBER
            assert taken(consumer, AcknowledgeType.REJECT) == TO_A_MEMBER
            assert names_in(servers, dead)[: len(ODD)] == [each for each, _ in ODD]
            wanted = DeadLetterFilter(headers=[("\\xfe\\xfe", None)])
            (listed,) = admin.list_dead_letters(group, wanted).letters
            shown = admin.show_dead_letter(group, listed.id)
            assert list(shown.headers) == TO_A_MEMBER
            assert admin.redrive_dead_letters(group, wanted).letters == 1
            assert taken(consumer, AcknowledgeType.ACCEPT) == TO_A_MEMBER
    assert coordinator.exit_code is None


def taken(consumer: ShareConsumer, kind: AcknowledgeType) -> list[tuple[str, bytes | None]] | None:
    """Settles the next record, and returns its headers."""
    (message,) = eventually(lambda: consumer.poll(0.2), WAIT_S, what="the next record")
    consumer.acknowledge(message, kind)
    assert set(consumer.commit_sync(10).values()) <= {None}
    headers: list[tuple[str, bytes | None]] | None = message.headers()
    return headers


def names_in(servers: str, topic: str) -> list[bytes]:
    """The names of the headers of a topic's only record."""
    with closing(Consumer({"bootstrap.servers": servers, "group.id": unique_name("r")})) as reader:
        reader.assign([TopicPartition(topic, 0, 0)])
        (message,) = eventually(lambda: reader.consume(1, 0.2), WAIT_S, what="the dead letter")
        (headers,), lost = read_headers([message])
    assert not lost
    return [name.encode(errors="surrogateescape") for name, _ in headers or []]
