"""Record batches have the size that was asked for: what producers are told, what brokers store."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from sharecoord.bench.engine.cell import Compression, TopicKey
from sharecoord.bench.engine.send import batch_settings, fill_backlog
from sharecoord.bench.engine.stored import StoredBatches, stored_batches
from sharecoord.bench.engine.values import json_texts
from sharecoord.bench.errors import BenchError
from tests.conftest import TopicFactory
from tests.support import KafkaUnderTest

MEGABYTE = 1_000_000


def batch(records: int, body: int) -> bytes:
    """A batch with a head as Kafka's of format 2, and so many bytes behind it."""
    return struct.pack(">qi", 0, 49 + body) + bytes(45) + struct.pack(">i", records) + bytes(body)


def segments(directory: Path, **content: bytes) -> None:
    for name, written in content.items():
        partition, segment = name.split("_")
        folder = directory / f"t-{partition[1:]}"
        folder.mkdir(exist_ok=True)
        (folder / f"{segment}.log").write_bytes(written)


def test_the_heads_of_all_batches_are_read_to_the_last_whole_one(tmp_path: Path) -> None:
    half = batch(9, 30)[:-1]
    segments(
        tmp_path, p0_0=batch(5, 10) + batch(4, 0), p0_1=batch(3, 7) + half, p1_0=batch(2, 1) + b"x"
    )
    found = stored_batches(tmp_path, "t", 2)
    assert found == StoredBatches(((5, 4, 3), (2,)), 4 * 61 + 10 + 7 + 1)
    assert found.figures(TopicKey(2, 100)) == {
        "batch_records": 4.5,
        "batch_stored_bytes": 262 / 4,
        "value_bytes_per_stored": 1400 / 262,
    }


def test_a_length_that_can_not_be_ends_the_reading(tmp_path: Path) -> None:
    segments(tmp_path, p0_0=batch(5, 0) + struct.pack(">qi", 0, 48) + bytes(100))
    assert stored_batches(tmp_path, "t", 1).records == ((5,),)
    segments(tmp_path, p0_0=bytes(60))
    with pytest.raises(BenchError, match=r"topic t: .* has no batch of it"):
        stored_batches(tmp_path, "t", 1)


def test_batches_that_did_not_fill_up_are_refused() -> None:
    key = TopicKey(1, 100, batch_bytes=1000)
    StoredBatches(((7, 7, 1),), 1).check(key, "t")
    # A topic with less than a batch in each partition has nothing but rests.
    StoredBatches(((3,), (2,)), 1).check(key, "t")
    # What is larger than a batch is one by itself.
    StoredBatches(((1, 1),), 1).check(TopicKey(1, 5000, batch_bytes=1000), "t")
    with pytest.raises(BenchError, match="topic t: its batches have 6 records, and 7 of 100 B go"):
        StoredBatches(((7, 6, 6, 1),), 1).check(key, "t")


def test_each_partition_has_room_for_an_unfinished_batch() -> None:
    for partitions in (1, 1000):
        found = batch_settings(TopicKey(partitions, 100, batch_bytes=MEGABYTE))
        assert int(found["queue.buffering.max.kbytes"]) * 1024 > partitions * MEGABYTE
        # Neither time nor a number of records ends a batch before its bytes do.
        assert (found["batch.size"], found["queue.buffering.max.messages"]) == (MEGABYTE, 0)
        assert int(found["batch.num.messages"]) * 16 > MEGABYTE


@pytest.mark.parametrize(
    ("key", "records", "least"),
    [
        (TopicKey(1, 100), 20_000, 0.95 * 16_384),
        (TopicKey(1, 1000), 5_000, 0.95 * 16_384),
        (TopicKey(1, 100, batch_bytes=MEGABYTE), 40_000, 0.99 * MEGABYTE),
        (TopicKey(1, 1000, batch_bytes=MEGABYTE), 5_000, 0.98 * MEGABYTE),
        (TopicKey(3, 1000, batch_bytes=MEGABYTE), 6_500, 0.98 * MEGABYTE),
        (TopicKey(3, 1000, 1.0, 10, MEGABYTE), 8_000, 0.98 * MEGABYTE),
    ],
)
def test_the_broker_stores_batches_of_the_size_that_was_asked_for(
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
    key: TopicKey,
    records: int,
    least: float,
) -> None:
    found = filled(kafka_broker, topic(partitions=key.partitions), key, records)
    assert sum(map(sum, found.records)) == records
    assert least <= found.typical_records * (key.payload_bytes + 10) <= key.batch_bytes + 100
    assert found.figures(key)["value_bytes_per_stored"] == pytest.approx(0.95, abs=0.05)
    found.check(key, "t")


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [(Compression.LZ4, 2.4, 4.5), (Compression.ZSTD, 3.5, 6.0)],
)
@pytest.mark.parametrize("batch_bytes", [16_384, MEGABYTE])
def test_compressed_batches_have_as_many_records_in_fewer_bytes(
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
    codec: Compression,
    low: float,
    high: float,
    batch_bytes: int,
) -> None:
    key = TopicKey(1, 1000, batch_bytes=batch_bytes, compression=codec)
    found = filled(kafka_broker, topic(), key, 2_500)
    assert found.typical_records == pytest.approx(batch_bytes / 1010, rel=0.02)
    assert low <= found.figures(key)["value_bytes_per_stored"] <= high


def filled(kafka: KafkaUnderTest, name: str, key: TopicKey, records: int) -> StoredBatches:
    if kafka.broker is None:
        pytest.skip("the files of this cluster's broker are out of reach")
    fill_backlog(kafka.bootstrap_servers, name, key, records, seed=1)
    return stored_batches(kafka.broker.log_dir, name, key.partitions)


@pytest.mark.parametrize("length", [-4, 0, 1, 84, 984, 300_000])
def test_values_are_of_one_length_and_the_same_for_a_seed(length: int) -> None:
    texts = json_texts(length, 1)
    assert {len(text) for text in texts} == {max(0, length)}
    assert texts == json_texts(length, 1)
    if length >= 84:
        assert len(set(texts)) == len(texts)
        assert texts != json_texts(length, 2)
        # No batch has a text twice.
        assert len(texts) * length >= MEGABYTE


def test_values_compress_as_json_of_applications_does() -> None:
    text = b"".join(json_texts(984, 1)[:16])
    assert 3 < len(text) / len(zlib.compress(text)) < 6
