"""What Kafka itself writes, in its three formats, with its codecs; and the same bytes, damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_batches import codecs, opener
from sharecoord_batches.checksums import is_intact
from sharecoord_batches.codecs import decompressed_records
from sharecoord_batches.errors import BatchError, BatchTooLargeError, BrokenBatchError
from sharecoord_batches.headers import (
    APPEND_TIME,
    COMPRESSION,
    HEADER_BYTES,
    UNKNOWN,
    BatchHeader,
    batches,
)
from sharecoord_batches.messages import message_columns
from sharecoord_batches.records import Columns, Part

from tests.batches.encoder import Record, batch, message
from tests.batches.test_records import RUIN, ruined

FILE = Path(__file__).with_name("golden.txt")
GOLDEN = {
    tuple(line.split()[:3]): bytes.fromhex(line.split()[3])
    for line in FILE.read_text(encoding="ascii").splitlines()
    if not line.startswith("#")
}
COMPRESSED_MESSAGES = [key for key in GOLDEN if key[0] != "v2" and key[2] != "none"]


def opened(data: bytes, limit_bytes: int = codecs.LIMIT_BYTES) -> tuple[list[int], Columns]:
    """Offsets and columns of what a broker sent, of one format."""
    view = memoryview(data)
    found = list(batches(view))
    if found[0].magic < 2:
        base, columns = message_columns(view, found, limit_bytes)
    else:
        (header,) = found
        base, columns = header.base_offset, opener.columns(whole(view, header, limit_bytes))
    return [base + delta for delta in columns[0]], columns


def whole(view: memoryview, header: BatchHeader, limit_bytes: int = codecs.LIMIT_BYTES) -> Part:
    """All records of a batch."""
    data: memoryview | bytes = view
    start, end = header.start + HEADER_BYTES, header.end
    if header.attributes & COMPRESSION:
        data = decompressed_records(view, header, limit_bytes)
        start, end = 0, len(data)
    return Part(
        data, start, 0, -1, end, header.count, header.base_offset,
        header.last_offset - header.base_offset, header.first_timestamp,
        header.max_timestamp if header.attributes & APPEND_TIME else -1, 0, header.last_offset,
    )  # fmt: skip


@pytest.mark.parametrize("key", GOLDEN, ids=" ".join)
def test_what_kafka_writes(key: tuple[str, str, str]) -> None:
    offsets, columns = opened(GOLDEN[key])
    times = [1_600_000_000_000, 1_600_000_000_005, 1_600_000_000_003]
    if key[0] == "v0":
        times = [-1] * 3
    elif key[1] == "LogAppendTime":
        times = [1_600_000_000_999] * 3
    value = b"value value value value value "
    assert offsets == [40, 42, 43]
    assert columns[1:] == (times, [b"k0", None, b""], [value + b"0", value + b"1", None], {})


@pytest.mark.parametrize("key", GOLDEN, ids=" ".join)
def test_its_header_and_its_crc(key: tuple[str, str, str]) -> None:
    view = memoryview(GOLDEN[key])
    found = list(batches(view))
    assert found[0].start == 0
    assert found[-1].end == len(view)
    assert found[-1].last_offset == 43
    assert {header.magic for header in found} == {int(key[0][1])}
    assert all(is_intact(view, header) for header in found)
    damaged = bytearray(view)
    damaged[-1] ^= 1
    assert not is_intact(memoryview(damaged), found[-1])
    for header in found:
        assert bool(header.attributes & APPEND_TIME) == (key[1] == "LogAppendTime")
        is_hidden = header.magic < 2 and bool(header.attributes & COMPRESSION)
        assert (header.base_offset == UNKNOWN) == (header.count == UNKNOWN) == is_hidden


def test_formats_mix_in_one_answer() -> None:
    old = message(7, b"k", b"v", magic=0) + message(8, None, b"w", magic=1, timestamp=5)
    data = memoryview(old + batch([Record(0), Record(2)], base_offset=9) + old[:20])
    found = list(batches(data))
    assert [(h.magic, h.base_offset, h.last_offset, h.count) for h in found] == [
        (0, 7, 7, 1),
        (1, 8, 8, 1),
        (2, 9, 11, 2),
    ]
    assert [h.first_timestamp for h in found] == [-1, 5, 1_000]
    base, columns = message_columns(data, found[:2])
    assert (base, columns) == (7, ([0, 1], [-1, 5], [b"k", None], [b"v", b"w"], {}))


@pytest.mark.parametrize("key", GOLDEN, ids=" ".join)
def test_the_last_batch_may_be_cut_anywhere(key: tuple[str, str, str]) -> None:
    first = batch([Record(0)], base_offset=1)
    cut = GOLDEN[key]
    ends = [header.end for header in batches(memoryview(cut))]
    for size in range(len(cut)):
        found = list(batches(memoryview(first + cut[:size])))
        assert len(found) == 1 + sum(end <= size for end in ends)


# -- wrappers of compressed messages ---------------------------------------------------------------


def wrapper(
    inner: bytes, offset: int = 50, *, magic: int = 1, attributes: int = codecs.GZIP
) -> bytes:
    """Messages in a message, with gzip."""
    packed = bytes(cramjam.gzip.compress(inner))
    return message(offset, None, packed, magic=magic, attributes=attributes)


def refusal(data: bytes) -> str:
    """The text of the error."""
    with pytest.raises(BrokenBatchError) as caught:
        opened(data)
    return str(caught.value)


def test_offsets_in_a_wrapper_of_v1_count_from_anywhere() -> None:
    inner = b"".join([message(offset, None, b"v") for offset in (3, 4, 9)])
    assert opened(wrapper(inner, 50))[0] == [44, 45, 50]


def test_offsets_in_a_wrapper_of_v0_are_the_log_s() -> None:
    inner = b"".join([message(offset, None, b"v", magic=0) for offset in (30, 31, 50)])
    assert opened(wrapper(inner, 50, magic=0))[0] == [30, 31, 50]


ONE = message(0, None, b"v")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (message(50, None, None, attributes=1), "it is compressed, and has no value"),
        (wrapper(b""), "it is compressed, and has no messages"),
        (wrapper(ONE + b"1234"), "there are bytes behind the last message in it"),
        (wrapper(wrapper(ONE, 0)), "message 0 in it has another format"),
        (wrapper(message(0, None, b"", magic=0)), "message 0 in it has another format"),
        (wrapper(ONE + ONE[:-1]), "the length of message 1 in it is not possible"),
        (
            wrapper(ONE + ONE),
            "the offset of message 1 in it is not between those of its neighbours",
        ),
        (wrapper(ONE + message(60, None, b"")), "the offset of message 0 in it is not between"),
        (wrapper(message(51, None, b"", magic=0), magic=0), "the offset of message 0 in it is not"),
        (message(50, None, b"no gzip", attributes=1), "the records are no gzip"),
        (message(50, None, b"xxx", attributes=3), "the records are no lz4"),
    ],
)
def test_what_is_wrong_with_a_wrapper(data: bytes, text: str) -> None:
    assert refusal(data).startswith(f"the message at offset 50: {text}")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\0\0\0\7" + b"k" * 6, "its key is longer than the message"),
        (b"\0\0\0\2kk\0\0\0\4v", "its value is longer than the message"),
        (b"\xff\xff\xff\xff\0\0\0\1vv", "it has bytes behind its value"),
        (b"\0\0\0\4kkkk\0\0\0", "its value is longer than the message"),
    ],
)
def test_what_is_wrong_with_a_message(content: bytes, text: str) -> None:
    tail = struct.pack(">bbq", 1, 0, 5) + content
    data = struct.pack(">qiI", 50, len(tail) + 4, 0) + tail
    assert refusal(data) == f"the message at offset 50: {text}"
    inside = refusal(wrapper(struct.pack(">qiI", 0, len(tail) + 4, 0) + tail))
    assert inside == f"the message at offset 50: message 0 in it: {text}"


def test_messages_come_in_order_of_offset() -> None:
    text = "the messages at offsets 8 and 8 are not in order of offset"
    assert refusal(message(8, None, b"") * 2) == text


@pytest.mark.parametrize("key", COMPRESSED_MESSAGES, ids=" ".join)
def test_a_wrapper_has_a_limit(key: tuple[str, str, str]) -> None:
    with pytest.raises(
        BatchTooLargeError, match=r"the message at offset 43: .* more than 99 bytes"
    ):
        opened(GOLDEN[key], 99)


@given(st.sampled_from(list(GOLDEN)), st.lists(RUIN, min_size=1, max_size=4))
def test_damaged_bytes_are_refused_or_opened(
    key: tuple[str, str, str], how: list[tuple[str, int, int]]
) -> None:
    """Never another error, and never more than what is allowed."""
    view = memoryview(ruined(GOLDEN[key], how))
    try:
        for header in batches(view):
            if header.magic < 2:
                message_columns(view, [header], 1 << 20)
            else:
                opener.columns(whole(view, header, 1 << 20))
    except BatchError as error:
        text = str(error)
    else:
        return
    assert "offset" in text
