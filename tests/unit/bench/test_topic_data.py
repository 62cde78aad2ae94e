"""Batches of a size that is said, on librdkafka's mock cluster."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from sharecoord.bench.topic_data import fill_topic
from sharecoord.devenv.mock_cluster import MockCluster

RECORDS = 3_000


def test_all_records_arrive_in_order_with_their_length() -> None:
    with MockCluster(topics=["t"]) as cluster:
        address = cluster.bootstrap_servers
        fill_topic(address, "t", RECORDS, value_bytes=50, batch_bytes=1_000)
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "g",
                "log_level": 0,
                "fetch.wait.max.ms": 5,
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition("t", 0, 0)])
            messages = consumer.consume(RECORDS, 20.0)
        finally:
            consumer.close()
    values = [message.value() or b"" for message in messages if message.error() is None]
    assert [int(value[:10]) for value in values] == list(range(RECORDS))
    assert {len(value) for value in values} == {50}
