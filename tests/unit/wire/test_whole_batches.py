"""Whole batches say to an SDK what columns of the same records say, for whichever are acquired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_sdk._core.columns import Columns, HandOut, PartitionKey
from sharecoord_sdk._core.core import _problem_of_whole
from sharecoord_sdk._core.records import Messages, message_at

from sharecoord.core.delivery import Delivery, Slice
from sharecoord.core.partition.share_partition import AcquiredRange
from sharecoord.core.records import RawBatch
from sharecoord.ingest.batch_chunk import BatchChunk, Source
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.kafka.wire.fetch import Aborted
from sharecoord.runtime.partition import whole_batches as forms
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire import share_types_pb2 as types
from tests.raw_batches import ABORT, Rec, batch, marker
from tests.unit.ingest.test_batch_chunk import KEY, NOW_MS, chunks_of, logs

ALL = frozenset(range(5))


@pytest.fixture(autouse=True, scope="module")
def small_batches_pay() -> Iterator[None]:
    """Uncompressed batches of these tests are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "BYTES_MIN", 0)
        yield


@st.composite
def acquisitions(draw: st.DrawFn) -> tuple[BatchChunk, list[Slice], list[AcquiredRange]]:
    """A chunk of some log, and some of its records under locks, which may cover gaps."""
    chunk, columns = chunks_of(draw(logs()))
    count = columns.count
    cuts = sorted(draw(st.sets(st.integers(0, count), min_size=2, max_size=6)))
    slices, ranges = [], []
    for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
        slices.append(Slice(chunk, start, stop))
        ranges.append(AcquiredRange(chunk.offset(start), chunk.offset(stop - 1), 1, start + 7, 0))
    return chunk, slices, ranges


def delivery_of(
    slices: list[Slice], ranges: list[AcquiredRange], whole: Sequence[RawBatch] = ()
) -> Delivery:
    records = sum(each.stop - each.start for each in slices)
    checkpoints = [(ranges[0].first, b"so far")]
    return Delivery(KEY, slices, ranges, records, 99, checkpoints, 3, whole)


def whole_of(slices: Iterable[Slice], ranges: Iterable[AcquiredRange]) -> Sequence[RawBatch]:
    """All batches with some of the records, however few these are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "UNWANTED_MAX", 1 << 60)
        return forms.whole_batches(slices, ranges, ALL, opened=False)


def sent(delivery: Delivery) -> types.RecordBatch:
    """What a member gets; a stream and a Fetch give the same."""
    (found,) = service.ConsumeResponse.FromString(codec.delivery_frame(delivery, NOW_MS)).batches
    polled = types.RecordBatch()
    codec.fill_record_batch(polled, delivery, NOW_MS)
    assert polled == found
    return found


def received(found: types.RecordBatch) -> Columns:
    assert _problem_of_whole(found) == ""
    columns = Columns(found, PartitionKey.of(found.partition), 0.0, found.whole_batches)
    columns.unpack()
    return columns


def told(found: types.RecordBatch) -> list[tuple[Any, ...]]:
    """What a program sees of each record."""
    columns = received(found)
    spans = columns.spans()
    by_columns = Messages[bytes, bytes]._of(HandOut(spans))
    values, keys, offsets = by_columns.values(), by_columns.keys(), by_columns.offsets()
    messages = Messages[bytes, bytes]._of(HandOut(received(found).spans())).records()
    assert (values, keys) == ([m.value() for m in messages], [m.key() for m in messages])
    assert offsets == [m.offset() for m in messages]
    assert not columns.unopened
    return [
        (*message._fields(), message.delivery_count(), message.checkpoint_data())
        for message in by_columns
    ]


@given(acquisitions())
def test_both_forms_say_the_same_of_any_acquired_records(
    acquired: tuple[BatchChunk, list[Slice], list[AcquiredRange]],
) -> None:
    _, slices, ranges = acquired
    whole = whole_of(slices, ranges)
    assert whole
    in_columns = sent(delivery_of(slices, ranges))
    in_batches = sent(delivery_of(slices, ranges, whole))
    assert not in_columns.whole_batches
    assert len(in_batches.whole_batches) == len(whole)
    columns = (in_batches.values, in_batches.timestamps_ms, in_batches.headers)
    assert not any(columns)
    assert told(in_batches) == told(in_columns)


@given(acquisitions(), st.randoms(use_true_random=False))
def test_records_are_opened_in_any_order(
    acquired: tuple[BatchChunk, list[Slice], list[AcquiredRange]], chance: Any
) -> None:
    _, slices, ranges = acquired
    columns = received(sent(delivery_of(slices, ranges)))
    batches = received(sent(delivery_of(slices, ranges, whole_of(slices, ranges))))
    kept = columns.spans(), batches.spans()
    rows = list(range(columns.count))
    chance.shuffle(rows)
    for row in rows:
        assert message_at(batches, row) == message_at(columns, row)
    assert kept


def log_of(*parts: bytes, aborted: Sequence[Aborted] = (), start: int = 0) -> list[BatchChunk]:
    log = LogBytes(Source(("orders", 3), OpenBatches()), start, committed=True)
    chunks, error = log.take(memoryview(b"".join(parts)), aborted)
    assert error is None
    assert all(isinstance(chunk, BatchChunk) for chunk in chunks)
    return chunks  # type: ignore[return-value]


def recs(*offsets: int, **fields: Any) -> list[Rec]:
    return [Rec(**{"offset": at, "value": b"v%d" % at, **fields}) for at in offsets]


def acquired_of(chunk: BatchChunk, *spans: tuple[int, int]) -> tuple[list[Slice], list[Any]]:
    slices = [Slice(chunk, *chunk.span(first, last)) for first, last in spans]
    return slices, [AcquiredRange(first, last, 1, 7, 0) for first, last in spans]


@pytest.mark.parametrize("compression", range(5))
def test_every_compression_goes_to_a_member_that_names_it(compression: int) -> None:
    (chunk,) = log_of(batch(recs(0, 1, 2), codec=compression))
    slices, ranges = acquired_of(chunk, (0, 2))
    (found,) = forms.whole_batches(slices, ranges, {compression}, opened=False)
    assert (found.compression, found.records) == (compression, 3)
    assert forms.whole_batches(slices, ranges, ALL - {compression}, opened=False) == ()
    seen = told(sent(delivery_of(slices, ranges, [found])))
    assert [row[2:5] for row in seen] == [(i, None, b"v%d" % i) for i in range(3)]


def test_aborted_transactions_and_markers_never_come() -> None:
    chunks = log_of(
        batch(recs(0, 1)),
        batch(recs(2, 3), producer=9, transactional=True),
        marker(4, 9, ABORT),
        batch(recs(5, 6)),
        aborted=[Aborted(9, 2)],
    )
    (chunk,) = chunks
    slices, _ = acquired_of(chunk, (0, 6))
    ranges = [AcquiredRange(0, 1, 1, 7, 0), AcquiredRange(5, 6, 1, 8, 0)]
    whole = forms.whole_batches(slices, ranges, ALL, opened=False)
    assert [(each.first, each.last) for each in whole] == [(0, 1), (5, 6)]
    assert [row[2] for row in told(sent(delivery_of(slices, ranges, whole)))] == [0, 1, 5, 6]


def test_a_batch_without_some_records_needs_deltas_only_where_ranges_cover_the_gaps() -> None:
    (chunk,) = log_of(batch(recs(0, 1, 4), base=0, last=5))
    slices, _ = acquired_of(chunk, (0, 4))
    named = [AcquiredRange(0, 1, 1, 7, 0), AcquiredRange(4, 4, 1, 8, 0)]
    covering = [AcquiredRange(0, 4, 1, 7, 0)]
    for ranges, deltas in ((named, []), (covering, [0, 1, 4])):
        found = sent(
            delivery_of(slices, ranges, forms.whole_batches(slices, ranges, ALL, opened=False))
        )
        assert list(found.offset_deltas) == deltas
        assert [row[2] for row in told(found)] == [0, 1, 4]


def test_names_of_headers_come_in_their_order_and_as_text() -> None:
    headers = [("a", b"1"), ("a", None), ("x\udcff", b""), ("ключ", b"2")]
    (chunk,) = log_of(batch(recs(0, headers=headers), codec=4))
    slices, ranges = acquired_of(chunk, (0, 0))
    whole = forms.whole_batches(slices, ranges, ALL, opened=False)
    (seen,) = told(sent(delivery_of(slices, ranges, whole)))
    assert seen[5] == [("a", b"1"), ("a", None), ("x\\xff", b""), ("ключ", b"2")]


# -- which form -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "is_whole"), [(5, True), (4, False), (10, True)])
def test_half_of_the_records_must_be_wanted(wanted: int, is_whole: bool) -> None:
    (chunk,) = log_of(batch(recs(*range(10)), codec=3))
    slices, ranges = acquired_of(chunk, (0, wanted - 1))
    assert bool(forms.whole_batches(slices, ranges, ALL, opened=False)) == is_whole


def test_records_that_come_again_come_as_columns() -> None:
    (chunk,) = log_of(batch(recs(0, 1)))
    slices, ranges = acquired_of(chunk, (0, 1))
    again = [AcquiredRange(0, 0, 1, 7, 0), AcquiredRange(1, 1, 2, 8, 0)]
    assert forms.whole_batches(slices, again, ALL, opened=False) == ()
    assert forms.whole_batches(slices, ranges, frozenset(), opened=False) == ()
    assert len(forms.whole_batches(slices, ranges, ALL, opened=False)) == 1


def test_uncompressed_batches_go_whole_if_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    (chunk,) = log_of(batch(recs(0, 1)), batch(recs(2, 3, value=b"x" * 500)))
    sizes = [len(each.content) for each in chunk.whole(0, 4)]
    slices, ranges = acquired_of(chunk, (0, 3))
    for least, is_whole in ((sum(sizes) // 2, True), (sum(sizes) // 2 + 1, False)):
        monkeypatch.setattr(forms, "BYTES_MIN", least)
        assert bool(forms.whole_batches(slices, ranges, ALL, opened=False)) == is_whole


def test_small_compressed_batches_go_whole_if_nobody_opens_them_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forms, "BYTES_MIN", 1_000)
    (chunk,) = log_of(batch(recs(0, 1), codec=3))
    slices, ranges = acquired_of(chunk, (0, 1))
    for opened in (False, True):
        found = forms.whole_batches(slices, ranges, ALL, opened=opened)
        assert len(found) == (not opened)


def test_a_batch_in_two_chunks_goes_once_and_one_that_was_rewritten_not_at_all() -> None:
    data = batch(recs(0, 1, 2, 3))
    (first,), (second,) = log_of(data), log_of(data, start=2)
    ranges = [AcquiredRange(0, 3, 1, 7, 0)]
    slices = [Slice(first, 0, 2), Slice(second, 0, 2)]
    (found,) = forms.whole_batches(slices, ranges, ALL, opened=False)
    assert [row[2] for row in told(sent(delivery_of(slices, ranges, [found])))] == [0, 1, 2, 3]
    (rewritten,) = log_of(batch(recs(1, 2, 3), base=1), start=2)
    assert forms.whole_batches([slices[0], Slice(rewritten, 0, 2)], ranges, ALL, opened=False) == ()


def test_what_the_coordinator_decides_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    (chunk,) = log_of(batch(recs(0, 1, 2), codec=4), batch(recs(3, 4, 5), codec=3))
    slices, ranges = acquired_of(chunk, (0, 5))
    monkeypatch.setattr(OpenBatches, "records", None)
    whole = forms.whole_batches(slices, ranges, ALL, opened=False)
    assert len(sent(delivery_of(slices, ranges, whole)).whole_batches) == 2
