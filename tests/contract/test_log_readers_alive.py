"""Readers on a real Kafka: whoever reads, however often that changes, gets each record once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sharecoord.core.records import RecordChunk
from sharecoord.devenv.topics import Topics
from sharecoord.ports import LogReader, LogReading
from tests.conftest import TopicFactory
from tests.contract.log_readers import READERS, make
from tests.support import KafkaUnderTest, eventually_async

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

PARTITIONS = 6
CHANGES = 120
PATIENCE_S = 30.0
SEED = 1


class Life:
    """Readings of all partitions that come, pause, go and come back while records arrive."""

    def __init__(self, reader: LogReader, topic: str, seed: int) -> None:
        self._reader, self._topic = reader, topic
        self._random = random.Random(seed)
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.readings: dict[int, LogReading] = {}
        self._full: set[int] = set()
        self.records = 0
        self.faults: list[str] = []

    def open(self, partition: int) -> None:
        self._full.discard(partition)
        self.readings[partition] = self._reader.read(
            self._topic,
            partition,
            self.positions[partition],
            last_epoch=-1,
            committed=False,
            sink=PartitionSink(self, partition),
        )

    def close(self, partition: int) -> None:
        self.readings.pop(partition).close()

    def change(self) -> None:
        """Something happens to one partition; now and then all but one are given up at once."""
        partition = self._random.randrange(PARTITIONS)
        if self._random.random() < 0.1:
            for other in set(self.readings) - {partition}:
                self.close(other)
        reading = self.readings.get(partition)
        if reading is None:
            self.open(partition)
        elif self._random.random() < 0.5:
            self._full ^= {partition}
            reading.want_more(wanted=partition not in self._full)
        else:
            self.close(partition)
            if self._random.random() < 0.5:
                self.open(partition)
        self.keep_going()

    def keep_going(self) -> None:
        """At least one partition is being read."""
        if not self.readings.keys() - self._full:
            self.open_all()

    def open_all(self) -> None:
        """All are read again."""
        for partition in range(PARTITIONS):
            if partition not in self.readings:
                self.open(partition)
            elif partition in self._full:
                self._full.discard(partition)
                self.readings[partition].want_more(wanted=True)

    def take(self, partition: int, chunk: RecordChunk) -> None:
        """A chunk must go on where the last one ended, without gaps and with its own records."""
        position = self.positions[partition]
        wanted = [_value(partition, position + i) for i in range(chunk.count)]
        chunk_values = chunk.columns(0, chunk.count).values
        if (chunk.covers_from, chunk.first) != (position, position) or chunk_values != wanted:
            self.faults.append(
                f"{partition}: {chunk.covers_from}, {chunk.first} to {chunk.last} at {position}"
            )
        self.positions[partition] = chunk.last + 1
        self.records += chunk.count

    async def more(self, records: int) -> None:
        """Waits for further records: however it changes, it never stands still."""
        goal = self.records + records
        await eventually_async(lambda: self.records >= goal, PATIENCE_S, f"{goal} records")


class PartitionSink:
    """What one reading says."""

    def __init__(self, life: Life, partition: int) -> None:
        self._life, self._partition = life, partition

    def on_chunk(self, chunk: RecordChunk) -> None:
        self._life.take(self._partition, chunk)

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        if end_offset != self._life.positions[self._partition]:
            self._life.faults.append(f"{self._partition}: ends at {end_offset}")

    def on_out_of_range(self) -> None:
        self._life.faults.append(f"{self._partition}: out of range")

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self._life.faults.append(f"{self._partition}: cut at {end_offset}, after {epoch}")

    def on_gone(self) -> None:
        self._life.faults.append(f"{self._partition}: gone")


def _value(partition: int, offset: int) -> bytes:
    return f"{partition}/{offset}".encode()


@contextmanager
def produced(topics: Topics, topic: str, seed: int) -> Iterator[dict[int, int]]:
    """Records come all the time, in bursts; how many there are of each partition."""
    counts = dict.fromkeys(range(PARTITIONS), 0)
    ended = threading.Event()
    drawn = random.Random(seed)

    def run() -> None:
        while not ended.wait(drawn.choice([0.0, 0.002, 0.02, 0.1])):
            partition, count = drawn.randrange(PARTITIONS), drawn.choice([1, 3, 100])
            first = counts[partition]
            records = [(None, _value(partition, first + i), ()) for i in range(count)]
            topics.produce(topic, records, partition=partition)
            counts[partition] += count

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("kind", READERS)
async def test_readings_come_and_go_and_no_record_is_missed(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(partitions=PARTITIONS)
    reader = make(kind, kafka_broker.bootstrap_servers)
    life = Life(reader, name, SEED)
    drawn = random.Random(SEED)
    try:
        with produced(topics, name, SEED) as counts:
            life.open_all()
            for _ in range(CHANGES):
                life.change()
                await life.more(drawn.choice([0, 0, 1, 30]))
                await asyncio.sleep(0)
        life.open_all()
        await eventually_async(lambda: life.positions == counts, PATIENCE_S, "all records")
    finally:
        await reader.close()
    assert life.faults == []


REREADS = 300
LOG_RECORDS = 1_000


@pytest.mark.parametrize("kind", READERS)
async def test_ranges_of_many_partitions_are_read_again_at_a_time(
    kind: str, kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        records = [(None, _value(partition, offset), ()) for offset in range(LOG_RECORDS)]
        topics.produce(name, records, partition=partition)
    reader = make(kind, kafka_broker.bootstrap_servers)
    drawn = random.Random(SEED)

    async def look() -> None:
        partition, first = drawn.randrange(PARTITIONS), drawn.randrange(LOG_RECORDS)
        last = min(first + drawn.choice([0, 3, 400]), LOG_RECORDS - 1)
        chunks = await reader.reread(name, partition, first, last, committed=False)
        values = [value for chunk in chunks for value in chunk.columns(0, chunk.count).values]
        assert values == [_value(partition, offset) for offset in range(first, last + 1)]

    try:
        # Ranges of one partition follow each other; what an ended one has fetched is nobody's.
        await asyncio.gather(*(look() for _ in range(REREADS)))
    finally:
        await reader.close()
