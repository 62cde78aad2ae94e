"""The walk over what a broker sent."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_batches.checksums import is_intact
from sharecoord_batches.errors import BrokenBatchError, UnknownFormatError
from sharecoord_batches.headers import HEADER_BYTES, BatchHeader, batches

from tests.batches.encoder import Record, batch, message

BATCH = batch(
    [Record(0, -5), Record(3, 7)], base_offset=10, last_delta=5, attributes=0x38, first_timestamp=9
)


def changed(at: int, kind: str, value: int, data: bytes = BATCH) -> memoryview:
    """A batch with another number in its header."""
    out = bytearray(data)
    struct.pack_into(kind, out, at, value)
    return memoryview(out)


def test_a_header_is_read() -> None:
    (found,) = batches(memoryview(BATCH))
    assert found == BatchHeader(
        start=0, end=len(BATCH), base_offset=10, last_offset=15, count=2, attributes=0x38,
        leader_epoch=7, crc=found.crc, first_timestamp=9, max_timestamp=16, producer_id=-1, magic=2,
    )  # fmt: skip
    assert is_intact(memoryview(BATCH), found)
    assert isinstance(found, BatchHeader)


def test_batches_follow_each_other() -> None:
    data = memoryview(BATCH * 3)
    assert [(h.start, h.end) for h in batches(data)] == [
        (i * len(BATCH), (i + 1) * len(BATCH)) for i in range(3)
    ]


def test_a_batch_that_compaction_emptied_has_a_header() -> None:
    (found,) = batches(memoryview(batch([], base_offset=4, last_delta=9)))
    assert (found.base_offset, found.last_offset, found.count) == (4, 13, 0)


@pytest.mark.parametrize(
    ("at", "kind", "value"),
    [
        (0, ">q", -1),
        (0, ">q", (1 << 63) - 3),
        (8, ">i", 48),
        (8, ">i", 0),
        (8, ">i", -1),
        (8, ">i", -(1 << 31)),
        (23, ">i", -1),
        (23, ">i", 0),
        (57, ">i", -1),
        (57, ">i", 7),
    ],
)
def test_a_header_that_can_not_be_is_refused(at: int, kind: str, value: int) -> None:
    walk = batches(memoryview(BATCH + bytes(changed(at, kind, value))))
    assert next(walk).base_offset == 10
    with pytest.raises(BrokenBatchError, match="the batch at offset"):
        next(walk)


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 13])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_that_can_not_be_is_refused(length: int, magic: int) -> None:
    data = message(5, None, bytes(60), magic=magic)
    for wrong in (changed(8, ">i", length, data), changed(0, ">q", -1, data)):
        with pytest.raises(BrokenBatchError, match="the message at offset"):
            list(batches(wrong))


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_an_unknown_format_is_named(magic: int) -> None:
    for data in (BATCH, message(10, None, b"")):
        with pytest.raises(UnknownFormatError, match=f"offset 10 has the unknown format v{magic}"):
            list(batches(changed(16, ">b", magic, data)))


def test_a_batch_that_is_larger_than_the_answer_gives_nothing() -> None:
    assert list(batches(memoryview(BATCH)[:-1])) == []
    assert list(batches(memoryview(BATCH)[: HEADER_BYTES - 1])) == []
    assert list(batches(memoryview(b""))) == []


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2]))
def test_any_bytes_come_to_an_end(data: bytes, magic: int) -> None:
    out = bytearray(data)
    if len(out) > 16:
        out[16] = magic
    at = 0
    try:
        for header in batches(memoryview(out)):
            assert header.start == at < header.end <= len(out)
            at = header.end
    except (BrokenBatchError, UnknownFormatError):
        pass
