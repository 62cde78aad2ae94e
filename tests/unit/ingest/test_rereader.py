"""Re-reads, on a consumer that is made up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sharecoord.errors import (
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ingest import rereader
from sharecoord.ingest.rereader import Rereader
from sharecoord.kafka.client import KafkaError, KafkaException
from tests.unit.ingest.test_columns import FakeMessage

RECORDS = 30
"""In each partition that is up."""


class Record(FakeMessage):
    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(offset, b"%d/%d" % (partition, offset), None, None)
        self._partition = partition

    def partition(self) -> int:
        return self._partition

    def error(self) -> None:
        return None


class Said(Record):
    """An error, or the end of a partition."""

    def __init__(self, partition: int, offset: int, code: int) -> None:
        super().__init__(partition, offset)
        self._code = code

    def error(self) -> KafkaError:  # type: ignore[override]
        return KafkaError(self._code)


class FakeConsumer:
    """Has partitions that answer, that say an error, and that are down."""

    def __init__(self, *, down: set[int], errors: dict[int, int] | None = None) -> None:
        self.down = down
        self.errors = errors or {}
        self.at: dict[int, int] = {}
        self.most = 0
        self.refuses = 0
        self.asked = threading.Event()

    def incremental_assign(self, places: list[Any]) -> None:
        for place in places:
            assert place.partition not in self.at, "assigned twice"
            self.at[place.partition] = place.offset
        self.most = max(self.most, len(self.at))
        if self.refuses:
            self.refuses -= 1
            raise KafkaException(KafkaError(KafkaError._STATE))

    def incremental_unassign(self, places: list[Any]) -> None:
        for place in places:
            del self.at[place.partition]

    def unassign(self) -> None:
        self.at.clear()

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        self.asked.set()
        found: list[Any] = []
        for partition, offset in self.at.items():
            if len(found) == count:
                break
            if partition in self.errors:
                found.append(Said(partition, offset, self.errors[partition]))
            elif partition not in self.down and offset < RECORDS:
                found.append(Record(partition, offset))
                self.at[partition] += 1
            elif partition not in self.down:
                found.append(Said(partition, offset, KafkaError._PARTITION_EOF))
        return found

    def close(self) -> None:
        self.at.clear()


Made = Callable[..., tuple[Rereader, FakeConsumer]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    def make(**kwargs: Any) -> tuple[Rereader, FakeConsumer]:
        consumer = FakeConsumer(**kwargs)
        monkeypatch.setattr(rereader, "make_consumer", lambda *_, **__: consumer)
        return Rereader({}, committed=False), consumer

    return make


async def values(reader: Rereader, partition: int, first: int, last: int) -> list[bytes | None]:
    async with asyncio.timeout(20):
        chunks = await reader.read("t", partition, first, last)
    return [value for chunk in chunks for value in chunk.values]


async def test_a_partition_that_does_not_answer_holds_nobody_up(made: Made) -> None:
    reader, _ = made(down={0})
    offline = asyncio.create_task(reader.read("t", 0, 5, 9))
    for partition in (1, 2, 1, 3):
        wanted = [b"%d/%d" % (partition, offset) for offset in range(5, 10)]
        assert await values(reader, partition, 5, 9) == wanted
    assert not offline.done()
    offline.cancel()
    await reader.close()


async def test_it_gives_up_after_a_while_and_others_of_its_partition_come_after(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereader, "REREAD_TIMEOUT_S", 0.1)
    reader, consumer = made(down={0})
    first = asyncio.create_task(reader.read("t", 0, 5, 9))
    second = asyncio.create_task(reader.read("t", 0, 20, 20))
    with pytest.raises(KafkaUnavailableError, match=r"t\[0\] at 5 again within"):
        await first
    with pytest.raises(KafkaUnavailableError, match=r"t\[0\] at 20 again within"):
        await second
    consumer.down.clear()
    assert await values(reader, 0, 5, 6) == [b"0/5", b"0/6"]
    assert consumer.at == {}
    await reader.close()


async def test_many_are_read_at_a_time_up_to_a_bound(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereader, "PLACES_MAX", 3)
    reader, consumer = made(down=set())
    found = await asyncio.gather(*(values(reader, partition, 0, 3) for partition in range(10)))
    assert found == [[b"%d/%d" % (p, o) for o in range(4)] for p in range(10)]
    assert consumer.most == 3
    await reader.close()


async def test_at_the_end_of_the_log_there_is_nothing_more(made: Made) -> None:
    reader, _ = made(down=set())
    assert await values(reader, 0, RECORDS - 1, RECORDS + 5) == [b"0/%d" % (RECORDS - 1)]
    await reader.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._AUTO_OFFSET_RESET, OffsetOutOfRangeError),
        (KafkaError._UNKNOWN_PARTITION, UnknownTopicOrPartitionError),
        (KafkaError._TRANSPORT, KafkaUnavailableError),
    ],
)
async def test_an_error_is_its_partitions_alone(
    made: Made, code: int, error: type[SharecoordError]
) -> None:
    reader, _ = made(down=set(), errors={0: code})
    bad, good = await asyncio.gather(
        reader.read("t", 0, 0, 3), values(reader, 1, 0, 1), return_exceptions=True
    )
    assert type(bad) is error
    assert good == [b"1/0", b"1/1"]
    await reader.close()


async def test_an_assignment_that_is_refused_ends_nothing_for_good(made: Made) -> None:
    reader, consumer = made(down=set())
    consumer.refuses = 1
    with pytest.raises(KafkaUnavailableError, match="failed"):
        await reader.read("t", 0, 0, 1)
    assert await values(reader, 0, 0, 1) == [b"0/0", b"0/1"]
    await reader.close()


async def test_one_that_retires_answers_what_it_was_asked(made: Made) -> None:
    reader, consumer = made(down={0})
    asked = asyncio.create_task(values(reader, 0, 0, 1))
    await asyncio.to_thread(consumer.asked.wait)
    retired = asyncio.create_task(reader.retire())
    consumer.down.clear()
    assert await asked == [b"0/0", b"0/1"]
    await retired
