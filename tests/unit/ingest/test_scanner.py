"""Scans of topics, on a consumer that is made up."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from sharecoord.errors import (
    KafkaUnavailableError,
    LimitExceededError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ingest import scanner
from sharecoord.ingest.log_reader import KafkaLogReader
from sharecoord.ingest.scans import CHUNK_RECORDS_MAX, SCANS_MAX
from sharecoord.kafka.client import KafkaError
from sharecoord.ports import Stretch
from tests.unit.ingest.test_columns import FakeMessage


class Record(FakeMessage):
    """A record, or with `code` an event, of a partition."""

    def __init__(self, partition: int, offset: int, code: int | None = None) -> None:
        super().__init__(offset, str(offset).encode(), None, None)
        self._partition, self._code = partition, code

    def partition(self) -> int:
        return self._partition

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)


class FakeConsumer:
    """Gives what a test has put in, call by call; then nothing."""

    def __init__(self, *answers: list[Record]) -> None:
        self.assigned: list[tuple[int, int]] = []
        self.answers = list(answers)
        self.closed = threading.Event()

    def assign(self, places: list[Any]) -> None:
        self.assigned += [(place.partition, place.offset) for place in places]

    def consume(self, count: int, timeout_s: float) -> list[Record]:
        assert count <= CHUNK_RECORDS_MAX
        return self.answers.pop(0) if self.answers else []

    def close(self) -> None:
        self.closed.set()


def reader_with(consumer: FakeConsumer, patch: pytest.MonkeyPatch) -> KafkaLogReader:
    def make(_: object, *, committed: bool) -> FakeConsumer:
        assert committed, "what was aborted is no record"
        return consumer

    patch.setattr(scanner, "make_consumer", make)
    return KafkaLogReader({})


async def scanned(reader: KafkaLogReader, *stretches: Stretch) -> dict[int, list[bytes | None]]:
    found: dict[int, list[bytes | None]] = {}
    async with aclosing(reader.scan("t", stretches)) as scan:
        async for partition, chunk in scan:
            found.setdefault(partition, []).extend(chunk.values)
    return found


async def test_stretches_are_read_to_their_end_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eof = KafkaError._PARTITION_EOF
    consumer = FakeConsumer(
        [Record(0, 5), Record(0, 6)],
        [Record(0, 9), Record(0, 10), Record(0, 11)],
        # Left over from the partition before.
        [Record(0, 12), Record(2, 0)],
        # The end of the log comes before the end of the stretch: control records.
        [Record(2, 3), Record(2, 5, eof), Record(2, 6)],
        # And the record at the end was compacted away.
        [Record(3, 0), Record(3, 9)],
    )
    reader = reader_with(consumer, monkeypatch)
    found = await scanned(reader, Stretch(0, 5, 11), Stretch(2, 0, 8), Stretch(3, 0, 4))
    assert found == {0: [b"5", b"6", b"9", b"10"], 2: [b"0", b"3"], 3: [b"0"]}
    assert consumer.assigned == [(0, 5), (2, 0), (3, 0)]
    assert await asyncio.to_thread(consumer.closed.wait, 20)
    await reader.close()


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError._AUTO_OFFSET_RESET, OffsetOutOfRangeError, r"offset 1 of t\[0\]"),
        (KafkaError._UNKNOWN_PARTITION, UnknownTopicOrPartitionError, r"t\[0\] does not exist"),
        (KafkaError._TRANSPORT, KafkaUnavailableError, r"reading t\[0\] failed"),
    ],
)
async def test_what_can_not_be_read_is_said(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[SharecoordError], text: str
) -> None:
    consumer = FakeConsumer([Record(0, 0), Record(0, 1, code)])
    reader = reader_with(consumer, monkeypatch)
    with pytest.raises(kind, match=text):
        await scanned(reader, Stretch(0, 0, 5))
    assert await asyncio.to_thread(consumer.closed.wait, 20)
    await reader.close()


async def test_silence_ends_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([Record(0, 0)])
    reader = reader_with(consumer, monkeypatch)
    with pytest.raises(KafkaUnavailableError, match=r"nothing came of t\[0\] at 1 for 10 s"):
        await scanned(reader, Stretch(0, 0, 5))
    await reader.close()


async def test_so_many_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer(*([Record(0, 0)] for _ in range(SCANS_MAX + 1)))
    reader = reader_with(consumer, monkeypatch)
    scans = [reader.scan("t", [Stretch(0, 0, 5)]) for _ in range(SCANS_MAX)]
    for scan in scans:
        await anext(scan)
    with pytest.raises(LimitExceededError, match="4 scans of topics run already") as caught:
        await anext(reader.scan("t", [Stretch(0, 0, 5)]))
    assert caught.value.retriable
    await scans[0].aclose()
    after = reader.scan("t", [Stretch(0, 0, 1)])
    assert (await anext(after))[0] == 0
    await after.aclose()
    await reader.close()
    for scan in scans:
        await scan.aclose()


async def test_the_end_of_the_reader_ends_its_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([Record(0, 0)])
    reader = reader_with(consumer, monkeypatch)
    scan = reader.scan("t", [Stretch(0, 0, 5)])
    await anext(scan)
    await reader.close()
    assert consumer.closed.is_set()
    await scan.aclose()
