"""What a raw reading makes of what its fetcher says."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from sharecoord.config.process_settings import ReaderKind
from sharecoord.core.records import RecordChunk
from sharecoord.errors import InvalidConfigError, UnauthorizedError
from sharecoord.ingest import pool, raw_reader
from sharecoord.ingest.log_reader import KafkaLogReader
from sharecoord.ingest.raw_reader import RawLogReader, RawReading, checks_crcs
from sharecoord.ingest.readers import make_reader
from sharecoord.kafka.refusals import Refusals
from sharecoord.kafka.wire.fetch import Found
from sharecoord.kafka.wire.fetcher import FetchSink
from tests.raw_batches import Rec, batch

SETTINGS = {"bootstrap.servers": "localhost:1"}


class FakeFetching:
    """A partition that is fetched by hand."""

    drained_s = 5.0

    def __init__(self, place: tuple[str, int], offset: int, sink: FetchSink) -> None:
        self.place, self.position, self.sink = place, offset, sink
        self.last_epoch = -1
        self.wanted, self.closed = True, False

    def want_more(self, *, wanted: bool) -> None:
        self.wanted = wanted

    def advance(self, offset: int, last_epoch: int) -> None:
        self.position, self.last_epoch = offset, last_epoch

    def close(self) -> None:
        self.closed = True

    def found(self, data: bytes = b"", *, end: int, stable: int = -1) -> None:
        """The broker answers."""
        answer = Found(*self.place, 0, end, stable, 0, None, None, [], -1, memoryview(data))
        self.sink.on_fetched(answer)


class FakeFetcher:
    """A fetcher that asks nobody."""

    made: list[FakeFetcher]

    def __init__(self, cluster: object, settings: object, *, committed: bool) -> None:
        self.committed, self.closed = committed, False
        self.buffered_bytes = 0
        self.fetchings: list[FakeFetching] = []
        self.made.append(self)

    def fetch(
        self, topic: str, partition: int, offset: int, last_epoch: int, sink: FetchSink
    ) -> FakeFetching:
        self.fetchings.append(FakeFetching((topic, partition), offset, sink))
        return self.fetchings[-1]

    async def close(self) -> None:
        self.closed = True


class Sink:
    """A sink that may refuse a chunk."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.fails = False

    def on_chunk(self, chunk: RecordChunk) -> None:
        if self.fails:
            raise RuntimeError("not now")
        self.said.append((chunk.covers_from, chunk.first, chunk.last))

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        self.said.append(end_offset)

    def on_out_of_range(self) -> None:
        self.said.append("out of range")

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self.said.append((epoch, end_offset))

    def on_gone(self) -> None:
        self.said.append("gone")


@pytest.fixture
def fetchers(monkeypatch: pytest.MonkeyPatch) -> list[FakeFetcher]:
    FakeFetcher.made = []
    monkeypatch.setattr(raw_reader, "Fetcher", FakeFetcher)
    return FakeFetcher.made


def recs(first: int, count: int) -> bytes:
    return batch([Rec(first + i, b"v") for i in range(count)])


def begun(reader: RawLogReader, sink: Sink, offset: int = 0) -> tuple[RawReading, FakeFetching]:
    reading = reader.read("t", 0, offset, last_epoch=-1, committed=True, sink=sink)
    return reading, cast("FakeFetching", reading._fetching)


async def test_chunks_and_ends(fetchers: list[FakeFetcher]) -> None:
    reader, sink = RawLogReader(SETTINGS), Sink()
    reading, fetching = begun(reader, sink)
    fetching.found(end=0, stable=0)
    fetching.found(end=0, stable=0)
    fetching.found(recs(0, 3) + recs(3, 2), end=9, stable=5)
    fetching.found(end=9, stable=5)
    fetching.found(recs(5, 1), end=9, stable=9)
    assert sink.said == [0, (0, 0, 4), 5, (5, 5, 5)]
    assert (fetching.position, fetching.last_epoch, reading.drained_s) == (6, 5, 5.0)
    await reader.close()
    assert fetching.closed
    assert fetchers[0].closed


async def test_records_that_a_sink_did_not_take_come_again(fetchers: list[FakeFetcher]) -> None:
    reader, sink = RawLogReader(SETTINGS), Sink()
    _, fetching = begun(reader, sink)
    fetching.found(recs(0, 3), end=9)
    sink.fails = True
    with pytest.raises(RuntimeError, match="not now"):
        fetching.found(recs(3, 2), end=9)
    sink.fails = False
    fetching.found(recs(3, 2), end=9)
    assert sink.said == [(0, 0, 2), (3, 3, 4)]
    await reader.close()


async def test_a_damaged_batch_is_fetched_again_and_nothing_behind_it_comes_before(
    fetchers: list[FakeFetcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_reader, "UNREADABLE_AGAIN_S", 0.0)
    reader, sink = RawLogReader(SETTINGS), Sink()
    reading, fetching = begun(reader, sink)
    fetching.found(recs(0, 3) + batch([Rec(3, b"v")], crc=1) + recs(4, 1), end=5)
    assert sink.said == [(0, 0, 2)]
    assert (fetching.position, fetching.wanted) == (3, False)
    reading.want_more(wanted=True)
    assert not fetching.wanted
    while not fetching.wanted:  # noqa: ASYNC110 - a timer of 0 s
        await asyncio.sleep(0)
    fetching.found(recs(3, 1) + recs(4, 1), end=5)
    assert sink.said == [(0, 0, 2), (3, 3, 4), 5]
    await reader.close()


@pytest.mark.parametrize(
    ("how", "said", "told"),
    [
        ("on_out_of_range", (), "out of range"),
        ("on_gone", (), "gone"),
        ("on_diverged", (3, 7), (3, 7)),
    ],
)
async def test_what_ends_a_reading_is_told_once(
    fetchers: list[FakeFetcher], how: str, said: tuple[int, ...], told: object
) -> None:
    reader, sink = RawLogReader(SETTINGS), Sink()
    reading, fetching = begun(reader, sink)
    for _ in range(2):
        getattr(fetching.sink, how)(*said)
    assert sink.said == [told]
    assert reading.closed
    await reader.close()


async def test_a_refusal_holds_until_kafka_answers(fetchers: list[FakeFetcher]) -> None:
    refusals = Refusals()
    reader = RawLogReader(SETTINGS, refusals)
    _, fetching = begun(reader, Sink())
    fetching.sink.on_refused(UnauthorizedError("no"))
    assert set(refusals) == {"t"}
    fetching.found(end=0)
    assert set(refusals) == set()
    await reader.close()


async def test_several_readings_of_a_partition_take_several_fetchers(
    fetchers: list[FakeFetcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "OPEN_AGAIN_S", 0.0)
    may_open = True
    reader = RawLogReader(SETTINGS, may_open=lambda: may_open)
    first, second = begun(reader, Sink())[0], begun(reader, Sink())[0]
    assert len(fetchers) == 2
    may_open = False
    third = reader.read("t", 0, 0, last_epoch=-1, committed=True, sink=Sink())
    assert (reader.waiting, len(fetchers)) == (1, 2)
    assert third.drained_s < 0
    second.close()
    await asyncio.sleep(0)
    assert fetchers[1].closed
    may_open = True
    while reader.waiting:  # noqa: ASYNC110 - a timer of 0 s
        await asyncio.sleep(0)
    assert len(fetchers) == 3
    first.close()
    assert not fetchers[0].closed
    await reader.close()
    assert all(fetcher.closed for fetcher in fetchers)


@pytest.mark.parametrize(("value", "checked"), [(None, True), ("true", True), ("false", False)])
def test_checksums_are_checked_unless_told_not_to(value: str | None, checked: bool) -> None:
    assert checks_crcs({} if value is None else {"check.crcs": value}) is checked


async def test_the_reader_is_chosen_by_its_setting_and_by_what_only_librdkafka_can_do() -> None:
    kerberos = SETTINGS | {"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI"}
    for kind, settings, wanted in (
        (ReaderKind.AUTO, SETTINGS, RawLogReader),
        (ReaderKind.RAW, SETTINGS, RawLogReader),
        (ReaderKind.LIBRDKAFKA, SETTINGS, KafkaLogReader),
        (ReaderKind.AUTO, kerberos, KafkaLogReader),
    ):
        reader = make_reader(kind, settings, Refusals())
        assert type(reader) is wanted
        await reader.close()
    with pytest.raises(InvalidConfigError, match=r"kafka.sasl.mechanism=GSSAPI"):
        make_reader(ReaderKind.RAW, kerberos, Refusals())


async def test_memory_of_records_on_their_way_counts_until_their_fetcher_is_gone(
    fetchers: list[FakeFetcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RawLogReader(SETTINGS)
    reader._new_fetcher({}, committed=True)
    reader._new_fetcher({}, committed=False)
    fetchers[0].buffered_bytes, fetchers[1].buffered_bytes = 100, 20
    assert reader.open_bytes == 120
    monkeypatch.setattr(type(reader.cluster), "receiving_bytes", 3)
    assert reader.open_bytes == 123
    del fetchers[0]
    gc.collect()
    assert reader.open_bytes == 23
    await reader.close()
