"""A chunk of raw batches is the chunk of columns of the same records, for whoever asks it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Delivery, Slice
from sharecoord.core.dispatch.schedule import DELAY_HEADER, DELIVER_AT_HEADER
from sharecoord.core.partition.share_partition import AcquiredRange
from sharecoord.core.records import ColumnChunk, Headers, RecordChunk
from sharecoord.errors import UnreadableRecordsError
from sharecoord.ingest.batch_chunk import DELETE_HORIZON, BatchChunk, Source
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire import share_types_pb2 as types
from tests.raw_batches import Rec, batch

KEY = PartitionKey("g", "orders", "00112233445566778899aabbccddeeff", 3)
NOW_MS = 5_000

payloads = st.none() | st.binary(max_size=20)
names = st.sampled_from(["a", "", "ключ", "x\udcffy", DELAY_HEADER, DELIVER_AT_HEADER])
header_values = payloads | st.integers(0, 2**41).map(lambda n: b"%d" % n)
headers_of_a_record = st.just([]) | st.lists(st.tuples(names, header_values), max_size=3)
gaps = st.integers(0, 3).map(lambda n: max(0, n - 2)) | st.integers(0, 1_000)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[Rec], int | None, int]:
    """The bytes of some batches, their records, the time of appending, and where to begin."""
    append_ms = draw(st.none() | st.integers(0, 2**41))
    has_keys = draw(st.booleans())
    offset = draw(st.integers(0, 2**40))
    start = offset
    data, records = b"", list[Rec]()
    for _ in range(draw(st.integers(1, 4))):
        base = offset
        found: list[Rec] = []
        for gap in draw(st.lists(gaps, min_size=1, max_size=8)):
            offset += gap
            key = draw(payloads) if has_keys else None
            headers = draw(headers_of_a_record)
            found.append(Rec(offset, draw(payloads), key, headers, draw(st.integers(-1, 2**41))))
            offset += 1
        offset += draw(gaps)
        made = batch(
            found, base=base, last=offset - 1, codec=draw(st.integers(0, 4)), append_ms=append_ms
        )
        data += made
        records += found
        offset += draw(gaps)
    return data, records, append_ms, draw(st.integers(start, records[-1].offset))


def columns_of(records: Sequence[Rec], covers_from: int, append_ms: int | None) -> ColumnChunk:
    """The chunk of columns of the same records."""
    first, last = records[0].offset, records[-1].offset
    keys = [each.key for each in records]
    return ColumnChunk(
        covers_from=covers_from,
        first=first,
        last=last,
        offsets=None if last - first + 1 == len(records) else [each.offset for each in records],
        timestamps=[each.timestamp_ms if append_ms is None else append_ms for each in records],
        timestamp_type=1 if append_ms is None else 2,
        keys=keys if any(key is not None for key in keys) else None,
        values=[each.value for each in records],
        headers={i: each.headers for i, each in enumerate(records) if each.headers},
        size_bytes=1_000,
        leader_epoch=5,
    )


def chunks_of(log: tuple[bytes, list[Rec], int | None, int]) -> tuple[BatchChunk, ColumnChunk]:
    data, records, append_ms, start = log
    source = Source(("orders", 3), OpenBatches(bytes_max=200))
    (chunk,), error = LogBytes(source, start, committed=True).take(memoryview(data), [])
    assert error is None
    assert isinstance(chunk, BatchChunk)
    wanted = [each for each in records if each.offset >= start]
    return chunk, columns_of(wanted, start, append_ms)


def check_equal(raw: RecordChunk, columns: RecordChunk, near: Sequence[int]) -> None:
    """Every question of a chunk has one answer; `near` are offsets to ask with."""
    for name in ("covers_from", "first", "last", "count", "timestamp_type", "leader_epoch"):
        assert getattr(raw, name) == getattr(columns, name), name
    assert raw.offsets == columns.offsets
    assert raw.key_hashes() == columns.key_hashes()
    assert raw.size_bytes > 0
    for at in range(raw.count):
        assert raw.offset(at) == columns.offset(at)
        assert raw.record(at) == columns.record(at)
        assert raw.key(at) == columns.key(at)
        assert raw.timestamp(at) == columns.timestamp(at)
    for first in near:
        assert raw.runs(first) == columns.runs(first)
        for last in near:
            start, stop = columns.span(first, last)
            found = raw.span(first, last)
            assert found == (start, stop) or (start >= stop and found[0] >= found[1])
            assert raw.runs(first, last) == columns.runs(first, last)
            if start < stop:
                columns_found = raw.columns(start, stop)
                wanted = columns.columns(start, stop)
                assert columns_found._replace(keys=None) == wanted._replace(keys=None)
                none = [None] * (stop - start)
                assert (columns_found.keys or none) == (wanted.keys or none)
                assert raw.payload_bytes(start, stop) >= 160 * (stop - start)


@given(logs(), st.data())
def test_it_answers_as_columns_do(
    log: tuple[bytes, list[Rec], int | None, int], data: st.DataObject
) -> None:
    raw, columns = chunks_of(log)
    span = st.integers(raw.first - 1, raw.last + 1)
    near = data.draw(st.lists(span, max_size=4))
    check_equal(raw, columns, [raw.first, raw.last, *near])
    first, last = sorted((data.draw(span), data.draw(span)))
    part, wanted = raw.part(first, last), columns.part(first, last)
    assert (part is None) == (wanted is None)
    if part is not None and wanted is not None:
        wanted.leader_epoch = part.leader_epoch
        check_equal(part, wanted, [part.first, part.last])


@given(logs(), st.data())
def test_its_deliveries_are_those_of_columns(
    log: tuple[bytes, list[Rec], int | None, int], data: st.DataObject
) -> None:
    raw, columns = chunks_of(log)
    cuts = data.draw(st.lists(st.integers(0, raw.count), min_size=2, max_size=6))
    pairs = [(a, b) for a, b in itertools.pairwise(cuts) if a < b]
    for start, stop in pairs:
        assert received(raw, start, stop) == received(columns, start, stop)
    ordered = sorted(set(cuts))
    slices = list(zip(ordered[::2], ordered[1::2], strict=False))
    if slices:
        assert message([(raw, *each) for each in slices]) == message(
            [(columns, *each) for each in slices]
        )
        mixed = [(raw if i % 2 else columns, *each) for i, each in enumerate(slices)]
        assert message(mixed) == message([(columns, *each) for each in slices])


def received(chunk: RecordChunk, start: int, stop: int) -> types.RecordBatch:
    return message([(chunk, start, stop)])


def message(slices: Sequence[tuple[RecordChunk, int, int]]) -> types.RecordBatch:
    """The message as it arrives by both ways, which are the same."""
    records = sum(stop - start for _, start, stop in slices)
    runs = [
        run
        for chunk, start, stop in slices
        for run in chunk.runs(chunk.offset(start), chunk.offset(stop - 1))
    ]
    ranges = [AcquiredRange(first, last, 1, 7, NOW_MS + 700) for first, last in runs]
    delivery = Delivery(KEY, [Slice(*each) for each in slices], ranges, records, 12_345)
    filled = types.RecordBatch()
    codec.fill_record_batch(filled, delivery, NOW_MS)
    frame = service.ConsumeResponse.FromString(codec.delivery_frame(delivery, NOW_MS))
    (found,) = frame.batches
    assert found == filled
    return found


def one(*batches: bytes, open_batches: OpenBatches | None = None) -> BatchChunk:
    source = Source(("orders", 3), open_batches or OpenBatches())
    log = LogBytes(source, 0, committed=True, checks_crc=False)
    (chunk,), error = log.take(memoryview(b"".join(batches)), [])
    assert error is None
    assert isinstance(chunk, BatchChunk)
    return chunk


def test_headers_alone_answer_most_questions() -> None:
    opened = OpenBatches()
    made = [batch([Rec(i, b"x" * 10)], codec=4) for i in range(3)]
    chunk = one(*made, open_batches=opened)
    assert (chunk.count, chunk.runs(1), chunk.span(1, 2)) == (3, [(1, 2)], (1, 3))
    assert opened.size_bytes == 0
    assert chunk.record(1).value == b"x" * 10
    assert 0 < opened.size_bytes < 30


def test_due_times_are_found_in_any_batch_and_only_there() -> None:
    headers: Headers = [(DELAY_HEADER, b"500")]
    others: Headers = [("sharecoord-dead", b"500")]
    for codec_number in range(5):
        chunk = one(
            batch([Rec(0, b"a"), Rec(1, b"b", None, headers)], codec=codec_number),
            batch([Rec(2, DELAY_HEADER.encode()), Rec(3, b"d", None, others)], codec=codec_number),
            batch([Rec(4, b"e", None, headers, 9)], codec=codec_number),
        )
        assert chunk.due_times == {1: 1_500, 4: 509}


def test_a_batch_that_can_not_be_opened_is_named_and_hides_no_other() -> None:
    broken = bytearray(batch([Rec(1, bytes(range(100)))], codec=4))
    broken[61:90] = b"\xff" * 29
    chunk = one(batch([Rec(0, b"a")]), bytes(broken), batch([Rec(2, b"c")]))
    with pytest.raises(UnreadableRecordsError, match=r"orders\[3\] at offset 1 .* no zstd"):
        chunk.record(1)
    with pytest.raises(UnreadableRecordsError):
        received(chunk, 0, 3)
    assert [chunk.record(at).value for at in (0, 2)] == [b"a", b"c"]
    assert (chunk.key(1), chunk.timestamp(1)) == (None, 1_000)
    assert chunk.payload_bytes(0, 3) > 3 * 160


def test_open_batches_are_bounded_and_the_latest_stay() -> None:
    opened = OpenBatches(bytes_max=150)
    made = [batch([Rec(i, b"%d" % i * 60)], codec=3) for i in range(4)]
    chunk = one(*made, open_batches=opened)
    for at in (0, 1, 0, 2, 3):
        assert chunk.record(at).value == b"%d" % at * 60
        assert opened.size_bytes <= 150
    assert opened.size_bytes == 2 * 68


def test_one_batch_larger_than_all_that_may_be_open_is_kept() -> None:
    opened = OpenBatches(bytes_max=10)
    chunk = one(batch([Rec(0, b"x" * 60)], codec=3), open_batches=opened)
    assert chunk.record(0).value == b"x" * 60
    assert opened.size_bytes == 68


def test_what_fits_opens_no_more_than_it_must() -> None:
    values = [b"x" * 1_000] * 10
    packed = [
        batch([Rec(base + n, value) for n, value in enumerate(values)], base=base, codec=4)
        for base in range(0, 50, 10)
    ]
    open_batches = OpenBatches()
    chunk = one(*packed, open_batches=open_batches)
    records, size_bytes = chunk.fitting(5, 50, 12_100)
    assert records == 11
    assert 11_000 < size_bytes <= 12_100
    assert 20_000 < open_batches.size_bytes < 21_000, "two batches"
    assert chunk.fitting(5, 8, 1 << 20)[0] == 3
    assert chunk.fitting(0, 50, 1 << 20)[0] == 50
    assert chunk.fitting(7, 50, 999) == (0, 0)


def test_gaps_inside_a_batch_do_not_make_its_records_smaller() -> None:
    """Compaction leaves few records at many offsets."""
    far = batch([Rec(0, b"x" * 1_000), Rec(9_999, b"x" * 1_000)], base=0, last=9_999)
    assert one(far).fitting(0, 2, 1_500)[0] == 1


@pytest.mark.parametrize("codec", [0, 3])
def test_gaps_inside_a_batch_do_not_make_its_records_count_for_less(codec: int) -> None:
    """As columns of the same records count, but for a few bytes; so does a part of them."""
    near = batch([Rec(at, b"x" * 1_000) for at in range(4)], codec=codec)
    ends = (4, b"x" * 1_000), (9_999, b"x" * 1_000)
    chunk = one(near, batch([Rec(*each) for each in ends], base=4, last=20_000, codec=codec))
    for start, stop in ((0, 6), (3, 5), (4, 6), (5, 6)):
        each_bytes = chunk.payload_bytes(start, stop) // (stop - start)
        assert 1_000 + 160 <= each_bytes <= 1_040 + 160


def test_as_many_records_fit_as_their_batches_say_wherever_it_begins_and_ends() -> None:
    sizes = {0: 5, 5: 300, 6: 40, 9: 1, 30: 90}
    ends = [*sizes, 33]
    packed = [
        batch([Rec(at, b"x" * sizes[base]) for at in range(base, end)], base=base)
        for base, end in itertools.pairwise(ends)
    ]
    packed.append(batch([], base=33, last=35, count=3))
    whole = one(*packed)
    for chunk in (whole, whole.part(2, 35)):
        assert chunk is not None
        each = [chunk.payload_bytes(at, at + 1) - 160 for at in range(chunk.count)]
        for start in range(chunk.count):
            for stop in range(start + 1, chunk.count + 1):
                assert chunk.payload_bytes(start, stop) - 160 * (stop - start) == sum(
                    each[start:stop]
                )
                for most_bytes in (0, 6, 50, 400, 1 << 20):
                    records, size_bytes = chunk.fitting(start, stop, most_bytes)
                    assert size_bytes == sum(each[start : start + records]) <= most_bytes
                    if records < stop - start:
                        # Each size is rounded by less than a byte.
                        assert sum(each[start : start + records + 1]) >= most_bytes


def test_batches_that_stay_whole_are_not_opened_and_end_where_they_end() -> None:
    packed = [
        batch([Rec(base + n, b"x" * 1_000) for n in range(10)], base=base, codec=4)
        for base in range(0, 50, 10)
    ]
    open_batches = OpenBatches()
    chunk = one(*packed, open_batches=open_batches)
    each = len(packed[0])
    assert chunk.fitting(5, 50, 2 * each, whole=True) == (15, 2 * each)
    assert chunk.fitting(0, 50, 1 << 20, whole=True) == (50, 5 * each)
    assert chunk.fitting(0, 8, each, whole=True) == (8, each)
    assert chunk.fitting(0, 50, each - 1, whole=True) == (0, 0)
    assert open_batches.size_bytes == 0


def test_batches_that_lie_beside_each_other_go_out_in_one_piece() -> None:
    tens = [batch([Rec(base + n, b"x") for n in range(10)]) for base in range(0, 50, 10)]
    chunk = one(*tens)
    assert chunk.raw(0, 50) == b"".join(tens)
    assert chunk.raw(5, 6) == tens[0]
    assert chunk.raw(9, 21) == b"".join(tens[:3])
    marker = batch([Rec(50, None, key=bytes(4))], control=True)
    apart = one(*tens, marker, batch([Rec(51, b"x")]))
    assert apart.raw(0, 51) is None
    assert len(apart.whole(0, 51)) == 6
    each = len(tens[0])
    assert apart.fitting(0, 51, 2 * each, whole=True) == (20, 2 * each)


def test_the_time_of_a_batchs_first_record_is_told_unopened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = [Rec(at, b"v", timestamp_ms=1_000 + at) for at in range(4)]
    data = bytearray(batch(records[:2], codec=3) + batch(records[2:], codec=3))
    opened = OpenBatches()
    source = Source(("orders", 3), opened)
    (chunk,), _ = LogBytes(source, 0, committed=True, checks_crc=False).take(memoryview(data), [])
    assert [chunk.timestamp(at) for at in range(4)] == [1_000, 1_001, 1_002, 1_003]
    looked: list[object] = []
    monkeypatch.setattr(OpenBatches, "records", lambda *args: looked.append(args) or b"")
    assert [chunk.timestamp(at) for at in (0, 2)] == [1_000, 1_002]
    assert looked == []
    # Compaction has put another time in its place: only the record tells.
    data[22] |= DELETE_HORIZON
    (chunk,), _ = LogBytes(source, 0, committed=True, checks_crc=False).take(memoryview(data), [])
    chunk.timestamp(0)
    assert len(looked) == 1
