"""What sharecoord_batches makes of a broker's bytes, beside what librdkafka makes of them."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest
from sharecoord_batches import opener, records
from sharecoord_batches.checksums import is_intact
from sharecoord_batches.codecs import decompressed_records
from sharecoord_batches.headers import (
    APPEND_TIME,
    COMPRESSION,
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    batches,
)
from sharecoord_batches.records import Part

from tests.conftest import TopicFactory
from tests.support import KafkaUnderTest, eventually, unique_name

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 30.0
FETCH_BYTES = 100_000
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Offset, timestamp, key, value, headers."""


def fetch(servers: str, topic: str, offset: int) -> tuple[int, memoryview]:
    """The log's end and the bytes from an offset on (Fetch, version 4, by a plain connection)."""
    name = topic.encode()
    body = struct.pack(">hhih", 1, 4, 1, -1)  # Fetch, version, correlation id, no client id
    body += struct.pack(">iiiib", -1, 100, 1, FETCH_BYTES, 0)  # read_uncommitted
    body += struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iiqi", 1, 0, offset, FETCH_BYTES)
    host, port = servers.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # Correlation id, throttle time, number of topics, the topic, number of partitions.
    at = 4 + 4 + 4 + 2 + len(name) + 4
    _, error, end, _, aborted = struct.unpack_from(">ihqqi", answer, at)
    assert error == 0, f"Kafka's error code {error}"
    at += 26 + 16 * max(aborted, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return end, memoryview(answer)[at + 4 : at + 4 + size]


def raw(servers: str, topic: str) -> Iterator[tuple[memoryview, BatchHeader]]:
    """The batches of a topic's only partition."""
    offset = 0
    while True:
        end, data = fetch(servers, topic, offset)
        for header in batches(data):
            assert is_intact(data, header)
            yield data, header
            offset = header.last_offset + 1
        if offset >= end:
            return


def rows(module: Any, data: memoryview, header: BatchHeader) -> list[Row]:
    """The records of a batch."""
    content: memoryview | bytes = data
    start, end = header.start + HEADER_BYTES, header.end
    if header.attributes & COMPRESSION:
        content = decompressed_records(data, header)
        start, end = 0, len(content)
    part = Part(
        content, start, 0, -1, end, header.count, header.base_offset,
        header.last_offset - header.base_offset, header.first_timestamp,
        header.max_timestamp if header.attributes & APPEND_TIME else -1, 0, header.last_offset,
    )  # fmt: skip
    deltas, timestamps, keys, values, headers = module.columns(part)
    return [
        (header.base_offset + delta, timestamps[i], keys and keys[i], values[i], headers.get(i, []))
        for i, delta in enumerate(deltas)
    ]


def raw_rows(servers: str, topic: str, module: Any = opener) -> list[Row]:
    """All records but those that end transactions."""
    found = [
        rows(module, data, header)
        for data, header in raw(servers, topic)
        if not header.attributes & CONTROL
    ]
    return list(itertools.chain(*found))


def seen(servers: str, topic: str) -> list[Row]:
    """The same as librdkafka has it."""
    config = {
        "bootstrap.servers": servers,
        "group.id": unique_name("unused"),
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "isolation.level": "read_uncommitted",
    }
    found: list[Row] = []
    with closing(confluent_kafka.Consumer(config)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while True:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                    return found
                offset, headers = message.offset(), message.headers()
                assert offset is not None
                found.append(
                    (offset, message.timestamp()[1], message.key(), message.value(), headers or [])  # type: ignore[arg-type]
                )


def producer(servers: str, **config: object) -> confluent_kafka.Producer:
    """Small batches, so that there are many."""
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "batch.num.messages": 70,
            "linger.ms": 5,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )


def produce(client: confluent_kafka.Producer, topic: str, count: int = 500) -> None:
    """Records of all kinds."""
    sizes = (0, 1, 60, 70, 900, 9_000, 20_000)
    now_ms = time.time_ns() // 1_000_000
    for i in range(count):
        headers: Sequence[tuple[str, bytes | None]] = [
            ("a", b"1"),
            ("", None),
            ("a", b""),
            ("ключ", b"x"),
        ]
        client.produce(
            topic,
            None if i % 11 == 0 else b"value %d " % i * (sizes[i % len(sizes)] // 8),
            None if i % 3 == 0 else b"k%d" % (i % 5),
            headers=list(headers[: i % 5]),
            timestamp=now_ms + (i * 37) % 5_000 - (3_000_000 if i % 50 == 0 else 0),
        )
        client.poll(0)
    assert client.flush(TIMEOUT_S) == 0


def both(servers: str, topic: str) -> list[Row]:
    """What both openers find, which is what librdkafka has."""
    wanted = seen(servers, topic)
    assert raw_rows(servers, topic, opener) == wanted
    assert raw_rows(servers, topic, records) == wanted
    return wanted


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("by", ["producer", "broker"])
def test_every_codec(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, codec: str, by: str
) -> None:
    """librdkafka's codecs, and Java's: a broker compresses anew where the topic asks for it."""
    if by == "broker":
        name = topic(config={"compression.type": codec.replace("none", "uncompressed")})
        client = producer(kafka_broker.bootstrap_servers, compression_type="gzip")
    else:
        name = topic()
        client = producer(kafka_broker.bootstrap_servers, compression_type=codec)
    produce(client, name)
    assert len(both(kafka_broker.bootstrap_servers, name)) == 500
    found = {h.attributes & COMPRESSION for _, h in raw(kafka_broker.bootstrap_servers, name)}
    assert CODECS.index(codec) in found


def test_log_append_time(kafka_broker: KafkaUnderTest, topic: TopicFactory) -> None:
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(producer(kafka_broker.bootstrap_servers, compression_type="lz4"), name)
    assert len(both(kafka_broker.bootstrap_servers, name)) == 500
    assert all(h.attributes & APPEND_TIME for _, h in raw(kafka_broker.bootstrap_servers, name))


def test_transactions(kafka_broker: KafkaUnderTest, topic: TopicFactory) -> None:
    servers, name = kafka_broker.bootstrap_servers, topic()
    client = producer(servers, transactional_id=unique_name("tx"), compression_type="zstd")
    client.init_transactions(TIMEOUT_S)
    for is_kept in (True, False, True):
        client.begin_transaction()
        produce(client, name, 100)
        end = client.commit_transaction if is_kept else client.abort_transaction
        end(TIMEOUT_S)
    assert len(both(servers, name)) == 300
    found = [header for _, header in raw(servers, name)]
    assert all(header.attributes & TRANSACTIONAL and header.producer_id >= 0 for header in found)
    markers = [header for header in found if header.attributes & CONTROL]
    assert [header.count for header in markers] == [1, 1, 1]
    ends = [rows(opener, d, h)[0][2] for d, h in raw(servers, name) if h.attributes & CONTROL]
    # Version and type: 1 = commit, 0 = abort.
    assert ends == [b"\0\0\0\1", b"\0\0\0\0", b"\0\0\0\1"]


def test_holes_of_compaction(kafka_broker: KafkaUnderTest, topic: TopicFactory) -> None:
    servers, name = kafka_broker.bootstrap_servers, topic(config=COMPACTED)
    client = producer(servers, compression_type="snappy")

    def batch_has_holes() -> bool:
        # Only closed segments are compacted, and a segment is closed by a later append.
        for i in range(100):
            client.produce(name, b"value %d" % i, b"k%d" % (i % 60 if i % 2 else 0))
        client.flush(TIMEOUT_S)
        return any(
            0 < header.count <= header.last_offset - header.base_offset
            for _, header in raw(servers, name)
        )

    eventually(batch_has_holes, 60, what="compaction left a batch with holes")

    def are_equal() -> bool:
        """Compaction may go on between the two looks."""
        return bool(both(servers, name))

    eventually(are_equal, 30, what="both see the same")
