"""From fetched bytes to chunks: what is a record for a reader, and what is a proven gap."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import pytest

from sharecoord.core.records import ColumnChunk, RecordChunk
from sharecoord.ingest import log_bytes
from sharecoord.ingest.batch_chunk import BatchChunk, Source
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.kafka.wire.fetch import Aborted
from tests.raw_batches import ABORT, COMMIT, Rec, batch, marker


def log_at(offset: int = 0, *, committed: bool = True, checks_crc: bool = True) -> LogBytes:
    source = Source(("orders", 3), OpenBatches())
    return LogBytes(source, offset, committed=committed, checks_crc=checks_crc)


def taken(log: LogBytes, *batches: bytes, aborted: Sequence[Aborted] = ()) -> list[RecordChunk]:
    chunks, error = log.take(memoryview(b"".join(batches)), aborted)
    assert error is None
    return chunks


def runs(chunks: Sequence[RecordChunk]) -> list[tuple[int, int]]:
    return [run for chunk in chunks for run in chunk.runs(0)]


def recs(first: int, count: int) -> list[Rec]:
    return [Rec(first + i, b"%d" % (first + i)) for i in range(count)]


def test_batches_with_one_type_of_timestamps_are_one_chunk() -> None:
    log = log_at(10)
    (chunk,) = taken(log, batch(recs(10, 3), epoch=6), batch(recs(13, 2), codec=4, epoch=6))
    assert (chunk.covers_from, chunk.first, chunk.last, chunk.count) == (10, 10, 14, 5)
    assert (chunk.timestamp_type, chunk.leader_epoch) == (1, 6)
    assert chunk.offsets is None
    assert (log.position, log.covered, log.last_epoch) == (15, 15, 6)


def test_another_leader_begins_another_chunk() -> None:
    log = log_at(10)
    log.last_epoch = 4
    made = taken(
        log, *(batch(recs(at, 2), epoch=epoch) for at, epoch in ((10, 5), (12, 5), (14, 7)))
    )
    assert [(each.first, each.last, each.leader_epoch) for each in made] == [
        (10, 13, 5),
        (14, 15, 7),
    ]
    assert log.last_epoch == 7


def test_what_a_reader_knows_of_the_epoch_before_its_offset_is_shown_first() -> None:
    source = Source(("orders", 3), OpenBatches())
    log = LogBytes(source, 10, committed=True, last_epoch=4)
    assert log.last_epoch == 4
    log.back_to(10)
    assert log.last_epoch == -1, "the epoch of what is fetched again is not known"


def test_another_type_of_timestamps_begins_another_chunk() -> None:
    log = log_at(10)
    made = taken(log, batch(recs(10, 1)), batch(recs(11, 2), append_ms=77), batch(recs(13, 1)))
    assert [chunk.timestamp_type for chunk in made] == [1, 2, 1]
    assert [chunk.covers_from for chunk in made] == [10, 11, 13]
    assert made[1].columns(0, 2).timestamps == [77, 77]
    assert made[1].timestamp(1) == 77


def test_records_below_the_position_are_left_out() -> None:
    (chunk,) = taken(log_at(12), batch(recs(9, 2)), batch(recs(11, 5)))
    assert (chunk.covers_from, chunk.first, chunk.last) == (12, 12, 15)
    assert chunk.columns(0, 1).values == [b"12"]


def test_a_batch_that_was_cut_is_left_for_the_next_fetch() -> None:
    log = log_at(10)
    (chunk,) = taken(log, batch(recs(10, 3)), batch(recs(13, 3))[:-1])
    assert (chunk.last, log.position) == (12, 13)


def test_nothing_is_nothing() -> None:
    log = log_at(10)
    assert taken(log) == []
    assert log.position == 10


def test_control_batches_are_gaps_to_all() -> None:
    for committed in (True, False):
        log = log_at(0, committed=committed)
        (chunk,) = taken(log, batch(recs(0, 2)), marker(2, 7, COMMIT), batch(recs(3, 1)))
        assert runs([chunk]) == [(0, 1), (3, 3)]
        assert chunk.offsets == [0, 1, 3]


def test_gaps_at_the_end_are_covered_by_the_next_chunk() -> None:
    log = log_at(0)
    taken(log, batch(recs(0, 2)), marker(2, 7, COMMIT))
    assert (log.position, log.covered) == (3, 2)
    assert taken(log, marker(3, 7, COMMIT)) == []
    (chunk,) = taken(log, batch(recs(4, 1)))
    assert (chunk.covers_from, chunk.first) == (2, 4)


def aborted_log() -> list[bytes]:
    return [
        batch(recs(0, 2), producer=7, transactional=True),
        batch(recs(2, 2), producer=8, transactional=True),
        marker(4, 7, ABORT),
        batch(recs(5, 1)),
        batch(recs(6, 1), producer=7, transactional=True),
        marker(7, 8, COMMIT),
        marker(8, 7, COMMIT),
    ]


def test_aborted_transactions_are_gaps_to_readers_of_committed_records() -> None:
    aborted = [Aborted(7, 0)]
    made = taken(log_at(0), *aborted_log(), aborted=aborted)
    assert runs(made) == [(2, 3), (5, 6)]
    made = taken(log_at(0, committed=False), *aborted_log(), aborted=aborted)
    assert runs(made) == [(0, 3), (5, 6)]


def test_a_transaction_that_aborts_after_one_that_was_committed() -> None:
    log = [
        batch(recs(0, 2), producer=7, transactional=True),
        marker(2, 7, COMMIT),
        batch(recs(3, 2), producer=7, transactional=True),
        marker(5, 7, ABORT),
        batch(recs(6, 1), producer=7, transactional=True),
    ]
    assert runs(taken(log_at(0), *log, aborted=[Aborted(7, 3)])) == [(0, 1), (6, 6)]


def test_a_batch_of_the_aborted_producer_outside_of_transactions_is_read() -> None:
    log = [batch(recs(0, 1), producer=7, transactional=True), batch(recs(1, 1), producer=7)]
    assert runs(taken(log_at(0), *log, aborted=[Aborted(7, 0)])) == [(1, 1)]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_gaps_that_compaction_made_within_a_batch(codec: int) -> None:
    kept = [Rec(11, b"a"), Rec(12, b"b"), Rec(17, None)]
    log = log_at(5)
    (chunk,) = taken(log, batch(kept, base=10, last=20, codec=codec), batch(recs(21, 2)))
    assert (chunk.covers_from, chunk.first, chunk.last, chunk.count) == (5, 11, 22, 5)
    assert runs([chunk]) == [(11, 12), (17, 17), (21, 22)]
    assert chunk.columns(0, 3).values == [b"a", b"b", None]
    (later,) = taken(log_at(12), batch(kept, base=10, last=20, codec=codec))
    assert runs([later]) == [(12, 12), (17, 17)]
    assert taken(log_at(18), batch(kept, base=10, last=20, codec=codec)) == []


def test_a_batch_that_compaction_emptied_moves_the_position() -> None:
    log = log_at(0)
    assert taken(log, batch([], base=0, last=9)) == []
    assert (log.position, log.covered) == (10, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (batch(recs(2, 2), crc=1), "its checksum is not 0x1"),
        (batch(recs(2, 2), count=3), "not possible"),
        (batch([Rec(2, b"x")], last=5, count=2), "at offset 2"),
        (batch(recs(1, 1)), "follows offset 1"),
        (batch(recs(2, 2)).replace(b"\2", b"\5", 1)[:17] + b"\0" * 80, "offset 2"),
    ],
)
def test_what_can_not_be_read_stops_the_log_there(data: bytes, says: str) -> None:
    log = log_at(0)
    chunks, error = log.take(memoryview(batch(recs(0, 2)) + data), [])
    assert runs(chunks) == [(0, 1)]
    assert log.position == 2
    assert error is not None
    assert "orders[3] at offset 2" in error.message
    assert says in error.message


def test_a_length_that_is_never_reached_is_an_error() -> None:
    log = log_at(0)
    chunks, error = log.take(memoryview(batch(recs(0, 2))[:-1]), [])
    assert chunks == []
    assert error is not None
    assert "not one whole batch" in error.message


def test_checksums_are_looked_at_only_where_wanted() -> None:
    (chunk,) = taken(log_at(0, checks_crc=False), batch(recs(0, 2), crc=1))
    assert chunk.count == 2


def test_a_chunk_holds_the_answer_only_while_it_is_most_of_it() -> None:
    small, large = batch(recs(0, 1)), batch([Rec(1, b"x" * 5_000)])
    answer = small + large
    (first,) = log_at(0).take(memoryview(answer)[: len(small)], []).chunks
    (second,) = log_at(0).take(memoryview(answer)[len(small) :], []).chunks
    assert isinstance(first, BatchChunk)
    assert isinstance(second, BatchChunk)
    assert first._data.obj is not answer
    assert second._data.obj is answer
    assert first.size_bytes < 1_000
    assert len(answer) < second.size_bytes < len(answer) + 1_000
    assert first.record(0).value == b"0"
    assert second.record(0).value == b"x" * 5_000


def old_message(offset: int, value: bytes, magic: int, timestamp_ms: int = 7) -> bytes:
    """A message as brokers stored it before Kafka 0.11."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", timestamp_ms) if magic else b"")
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def test_messages_of_old_formats_are_columns_beside_batches() -> None:
    log = log_at(3)
    old = [old_message(2, b"below", 0), old_message(3, b"a", 0), old_message(5, b"b", 0)]
    made = taken(log, *old, old_message(6, b"c", 1), batch(recs(7, 2)))
    assert [type(chunk) for chunk in made] == [ColumnChunk, ColumnChunk, BatchChunk]
    assert [chunk.timestamp_type for chunk in made] == [0, 1, 1]
    assert [chunk.covers_from for chunk in made] == [3, 6, 7]
    assert runs(made) == [(3, 3), (5, 5), (6, 6), (7, 8)]
    assert made[0].columns(0, 2).values == [b"a", b"b"]
    assert made[1].columns(0, 1).timestamps == [7]


def test_a_damaged_message_of_an_old_format_stops_the_log_there() -> None:
    log = log_at(0)
    damaged = old_message(1, b"xyz", 1).replace(b"xyz", b"xyZ")
    chunks, error = log.take(memoryview(old_message(0, b"a", 1) + damaged), [])
    assert runs(chunks) == [(0, 0)]
    assert log.position == 1
    assert error is not None
    assert "checksum" in error.message


def test_much_that_is_compressed_becomes_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch(recs(0, 2), codec=3))
    monkeypatch.setattr(log_bytes, "CHUNK_BYTES_MAX", 2 * size)
    made = taken(log_at(0), *(batch(recs(2 * i, 2), codec=3) for i in range(5)))
    assert [(chunk.covers_from, chunk.last) for chunk in made] == [(0, 3), (4, 7), (8, 9)]
