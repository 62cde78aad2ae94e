"""What `ports.LogReader` promises, kept by both readers on a real Kafka."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from sharecoord.core.records import Record
from sharecoord.devenv.topics import Topics
from sharecoord.errors import (
    KafkaUnavailableError,
    LimitExceededError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ingest.scanner import CHUNK_RECORDS_MAX, SCANS_MAX
from sharecoord.ports import Stretch
from tests.conftest import TopicFactory
from tests.contract.log_readers import READERS, Noted, follow, reading, records_of
from tests.raw_records import RawRecord, produce_raw
from tests.support import KafkaUnderTest

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("kind", READERS),
]


def numbered(first: int, count: int) -> list[tuple[bytes | None, bytes, tuple[()]]]:
    return [(None, b"%d" % (first + i), ()) for i in range(count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_come_whole_in_order_and_then_the_end(
    kind: str, codec: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    sent = [
        (b"k", b"first", [("h", b"1"), ("h", None), ("ключ", b"")]),
        (None, None, []),
        (b"", b"", []),
        *((b"%d" % i, b"v" * (i % 50), []) for i in range(2_000)),
    ]
    topics.produce(name, sent, compression=codec)
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = follow(reader, name)
        await noted.until_end(len(sent))
        found = noted.records
        assert list(found) == list(range(len(sent)))
        assert [(r.key, r.value, list(r.headers)) for r in found.values()] == sent
        assert all(chunk.timestamp_type == 1 for chunk in noted.chunks)
        assert all(record.timestamp_ms > 1_600_000_000_000 for record in found.values())
        topics.produce(name, numbered(0, 1), compression=codec)
        await noted.until_end(len(sent) + 1)
        assert noted.records[len(sent)].value == b"0"


async def test_the_end_of_an_empty_log_is_told(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        await follow(reader, name).until_end(0)
        topics.produce(name, numbered(0, 5))
        await follow(reader, name, 5).until_end(5)


async def test_a_read_begins_in_the_middle_of_a_batch(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, numbered(0, 100))
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = follow(reader, name, 37)
        await noted.until_end(100)
        assert list(noted.records) == list(range(37, 100))


async def test_times_of_appending(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    topics.produce(name, numbered(0, 10))
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = follow(reader, name)
        await noted.until_end(10)
        assert {chunk.timestamp_type for chunk in noted.chunks} == {2}
        assert len({record.timestamp_ms for record in noted.records.values()}) == 1


async def test_transactions(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce_transaction(name, numbered(0, 3), commit=False)
    topics.produce_transaction(name, numbered(10, 2), commit=True)
    topics.produce(name, numbered(20, 1))
    topics.produce_transaction(name, numbered(30, 4), commit=False)
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        committed, everything = follow(reader, name), follow(reader, name, committed=False)
        await committed.until_end(13)
        await everything.until_end(13)
        assert list(committed.records) == [4, 5, 7]
        assert list(everything.records) == [0, 1, 2, 4, 5, 7, 8, 9, 10, 11]
        again = await reader.reread(name, 0, 0, 12, committed=True)
        assert list(records_of(again)) == [4, 5, 7]
        assert await reader.reread(name, 0, 8, 12, committed=True) == []
        await follow(reader, name, 9).until_end(13)


async def test_gaps_of_compaction(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.001",
            "max.compaction.lag.ms": "100",
        }
    )
    records = [(b"a" if i % 3 else b"%d" % i, b"%d" % i, ()) for i in range(30)]
    topics.produce(name, records)
    await asyncio.sleep(0.2)
    topics.produce(name, [(b"z", b"roll", ())])
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        wanted = [*(i for i in range(30) if i % 3 == 0), 29, 30]

        async def read() -> Noted:
            noted = follow(reader, name)
            await noted.until_end(31)
            assert noted.reading is not None
            noted.reading.close()
            return noted

        for _ in range(600):
            found = await read()
            if len(found.records) < 31:
                break
            topics.produce(name, [], compression="none")
            await asyncio.sleep(0.1)
        assert sorted(found.records) == sorted(set(wanted))
        assert all(found.records[i].value == b"%d" % i for i in wanted[:-1])
        runs = [run for chunk in found.chunks for run in chunk.runs(0)]
        assert sum(last - first + 1 for first, last in runs) == len(found.records)


async def test_names_of_headers_that_are_no_text(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    produce_raw(kafka_broker.bootstrap_servers, name, [RawRecord(b"v", [(b"x\xff", b"1")], b"k")])
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = follow(reader, name)
        await noted.until_end(1)
        (record,) = noted.records.values()
        assert record == Record(b"k", b"v", [("x\udcff", b"1")], record.timestamp_ms)


async def test_a_record_larger_than_a_fetch(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, [(None, b"x" * 600_000, ()), (None, b"y", ())])
    small = {"fetch_message_max_bytes": 1_000, "fetch_max_bytes": 2_000_000}
    async with reading(kind, kafka_broker.bootstrap_servers, **small) as reader:
        noted = follow(reader, name)
        await noted.until_end(2)
        assert [len(record.value or b"") for record in noted.records.values()] == [600_000, 1]
        chunks = await reader.reread(name, 0, 0, 0, committed=False)
        assert len(records_of(chunks)[0].value or b"") == 600_000


async def test_positions_that_the_log_does_not_have(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, numbered(0, 10))
    topics.delete_records(name, {0: 4})
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        beyond, below, good = follow(reader, name, 11), follow(reader, name, 3), Noted(4)
        await beyond.until(lambda: beyond.out_of_range)
        await below.until(lambda: below.out_of_range)
        reader.read(name, 0, 4, last_epoch=-1, committed=True, sink=good)
        await good.until_end(10)
        with pytest.raises(OffsetOutOfRangeError, match="offset 3"):
            await reader.reread(name, 0, 3, 5, committed=True)


async def test_a_topic_that_is_deleted(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, numbered(0, 10))
    if kind == "librdkafka":
        pytest.skip("librdkafka only logs it; the group's look at its topics finds out")
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = follow(reader, name)
        await noted.until_end(10)
        await asyncio.to_thread(topics.delete, name)
        await noted.until(lambda: noted.gone)
        topics.create(name)


async def test_back_pressure(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        full, other = follow(reader, name), follow(reader, name, partition=1)
        await full.until_end(0)
        await other.until_end(0)
        assert full.reading is not None
        full.reading.want_more(wanted=False)
        topics.produce(name, numbered(0, 1))
        topics.produce(name, numbered(0, 1), partition=1)
        await other.until_end(1)
        # What was asked for already may come; then nothing more does.
        for i in range(20):
            topics.produce(name, numbered(i, 1))
        topics.produce(name, numbered(1, 1), partition=1)
        await other.until_end(2)
        full.reading.want_more(wanted=True)
        await full.until_end(21)
        assert list(full.records) == list(range(21))


async def test_several_groups_on_one_partition_and_many_partitions(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(partitions=30)
    for partition in range(30):
        topics.produce(name, numbered(0, 5 + partition), partition=partition)
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        groups = [[follow(reader, name, partition=p) for p in range(30)] for _ in range(3)]
        for group in groups:
            for partition, noted in enumerate(group):
                await noted.until_end(5 + partition)
                assert len(noted.records) == 5 + partition
        for group in groups[1:]:
            for noted in group:
                assert noted.reading is not None
                noted.reading.close()
        topics.produce(name, numbered(5, 1))
        await groups[0][0].until_end(6)
        assert groups[1][0].covered == 5


async def test_a_closed_reading_says_nothing_more(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, numbered(0, 3), one_record_batches=True)
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = Noted()

        def close(_: object) -> None:
            assert noted.reading is not None
            noted.reading.close()
            noted.covered = -1

        first = noted.on_chunk
        noted.on_chunk = lambda chunk: (first(chunk), close(chunk))  # type: ignore[assignment, func-returns-value, return-value]
        noted.reading = reader.read(name, 0, 0, last_epoch=-1, committed=True, sink=noted)
        await noted.until(lambda: noted.covered == -1)
        topics.produce(name, numbered(3, 3))
        other = follow(reader, name)
        await other.until_end(6)
        assert noted.covered == -1


async def test_ranges_are_read_again(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    topics.produce(name, numbered(0, 500), compression="lz4")
    soon = {"topic_metadata_propagation_max_ms": 0}
    async with reading(kind, kafka_broker.bootstrap_servers, **soon) as reader:
        found = await reader.reread(name, 0, 100, 199, committed=True)
        assert list(records_of(found)) == list(range(100, 200))
        assert (found[0].covers_from, found[-1].last) == (100, 199)
        beyond = await reader.reread(name, 0, 490, 600, committed=True)
        assert list(records_of(beyond)) == list(range(490, 500))
        with pytest.raises((UnknownTopicOrPartitionError, KafkaUnavailableError)):
            await reader.reread("never-made", 0, 0, 1, committed=True)


async def test_scans(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    topics.produce(name, numbered(0, 1_000))
    topics.produce(name, numbered(0, 50), partition=1)
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        found: dict[int, list[int]] = {0: [], 1: []}
        async with aclosing(reader.scan(name, [Stretch(1, 7, 50), Stretch(0, 3, 900)])) as scan:
            async for partition, chunk in scan:
                assert chunk.count <= CHUNK_RECORDS_MAX
                found[partition] += records_of([chunk])
        assert found == {1: list(range(7, 50)), 0: list(range(3, 900))}
        topics.delete_records(name, {0: 10})
        with pytest.raises(OffsetOutOfRangeError):
            async for _ in reader.scan(name, [Stretch(0, 3, 900)]):
                pass
        running = [reader.scan(name, [Stretch(0, 10, 900)]) for _ in range(SCANS_MAX)]
        for scan in running:
            await anext(scan)
        with pytest.raises(LimitExceededError):
            await anext(reader.scan(name, [Stretch(0, 10, 900)]))
        for scan in running:
            await scan.aclose()
        assert [p async for p, _ in reader.scan(name, [Stretch(0, 899, 900)])] == [0]


async def test_reading_goes_on_after_the_broker_was_away(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    if kafka_broker.broker is None:
        pytest.skip("the broker is not ours")
    name = topic()
    topics.produce(name, numbered(0, 10))
    async with reading(kind, kafka_broker.bootstrap_servers) as reader:
        noted = follow(reader, name)
        await noted.until_end(10)
        await asyncio.to_thread(kafka_broker.broker.restart)
        await asyncio.to_thread(topics.produce, name, numbered(10, 5))
        await noted.until_end(15)
        assert list(noted.records) == list(range(15))
        assert list(records_of(await reader.reread(name, 0, 2, 12, committed=True))) == list(
            range(2, 13)
        )
