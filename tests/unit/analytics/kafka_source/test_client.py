"""What the source asks of Kafka, on librdkafka's mock cluster."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from sharecoord.analytics.kafka_source import alert_topic, client
from sharecoord.analytics.kafka_source.alert_topic import AlertTopic
from sharecoord.analytics.kafka_source.client import TopicClient, read_messages
from sharecoord.analytics.kafka_source.options import SourceOptions
from sharecoord.analytics.kafka_source.planning import Part
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from tests.support import unique_name


def options(cluster: MockCluster, topic: str, **given: int) -> SourceOptions:
    kafka = {"bootstrap.servers": cluster.bootstrap_servers, "fetch.wait.max.ms": "5"}
    return SourceOptions(topic, kafka, **given)  # type: ignore[arg-type]


@pytest.fixture
def topic(mock_cluster: MockCluster) -> str:
    """A topic with ten messages in partition 0."""
    name = unique_name("events")
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap_servers, "linger.ms": 0})
    for number in range(10):
        producer.produce(name, value=b"%d" % number, partition=0)
    assert producer.flush(10) == 0
    return name


def read(cluster: MockCluster, topic: str, start: int, end: int) -> list[tuple[int, bytes | None]]:
    return list(read_messages(options(cluster, topic), Part(0, start, end)))


def test_ends_of_the_logs(mock_cluster: MockCluster, topic: str) -> None:
    asked = TopicClient(options(mock_cluster, topic))
    ends = asked.ends()
    asked.close()
    assert ends == {0: (0, 10), 1: (0, 0), 2: (0, 0), 3: (0, 0)}


def test_a_range_is_read_exactly(mock_cluster: MockCluster, topic: str) -> None:
    assert read(mock_cluster, topic, 0, 10) == [(n, b"%d" % n) for n in range(10)]
    assert read(mock_cluster, topic, 3, 5) == [(3, b"3"), (4, b"4")]
    assert read(mock_cluster, topic, 10, 10) == []


def test_offsets_that_are_not_there(mock_cluster: MockCluster, topic: str) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-0: the log no longer has"):
        read(mock_cluster, topic, 50, 60)


def test_messages_that_have_to_be_there_do_not_come(mock_cluster: MockCluster, topic: str) -> None:
    given = options(mock_cluster, topic, poll_timeout_ms=1)
    found = []
    with pytest.raises(KafkaUnavailableError, match=f"{topic}-0: nothing came .* at offset 10"):
        found += list(read_messages(given, Part(0, 8, 12)))


def test_a_topic_that_is_not_there(mock_cluster: MockCluster) -> None:
    asked = TopicClient(options(mock_cluster, "nowhere"))
    with pytest.raises(UnknownTopicOrPartitionError, match='topic "nowhere": the cluster at'):
        asked.ends()
    asked.close()


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.05)
    asked = TopicClient(SourceOptions("t", {"bootstrap.servers": "127.0.0.1:1"}))
    with pytest.raises(KafkaUnavailableError, match=r"no answer from Kafka at 127\.0\.0\.1:1"):
        asked.ends()
    asked.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"securty.protocol": "ssl"}, 'unknown Kafka key "securty.protocol". Did you mean "sec'),
        ({"security.protocol": "none"}, "librdkafka refuses it"),
    ],
)
def test_what_librdkafka_refuses(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        TopicClient(SourceOptions("t", {"bootstrap.servers": "h:1", **settings}))
    assert says in caught.value.message


def test_an_alert_is_durable_when_it_is_sent(mock_cluster: MockCluster) -> None:
    name = unique_name("alerts")
    topic = AlertTopic({"bootstrap.servers": mock_cluster.bootstrap_servers})
    assert topic.send(name, "g", b"{}") is None
    asked = TopicClient(options(mock_cluster, name))
    assert sum(end for _, end in asked.ends().values()) == 1
    asked.close()
    with pytest.raises(InvalidConfigError, match="--kafka"):
        AlertTopic({})


def test_an_alert_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_topic, "DELIVERY_TIMEOUT_MS", 50)
    topic = AlertTopic({"bootstrap.servers": "127.0.0.1:1"})
    assert topic.send("alerts", "g", b"{}") is not None
