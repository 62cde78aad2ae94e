"""Decompression: every codec and framing that producers use, and never more than the limit."""

from __future__ import annotations

import resource
import struct
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_batches import checksums, codecs
from sharecoord_batches.codecs import GZIP, LZ4, SNAPPY, XERIAL, ZSTD, decompress
from sharecoord_batches.errors import (
    BatchError,
    BatchTooLargeError,
    BrokenBatchError,
    CodecMissingError,
    UnknownFormatError,
)
from sharecoord_batches.headers import batches

from tests.batches.encoder import Record, batch


def xerial(data: bytes, block_bytes: int = 1_000) -> bytes:
    """Java's framing: blocks of snappy with their lengths."""
    out = [XERIAL, struct.pack(">ii", 1, 1)]
    for at in range(0, len(data), block_bytes):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes]))
        out += struct.pack(">i", len(block)), block
    return b"".join(out)


WAYS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, lambda data: bytes(cramjam.gzip.compress(data))),
    "gzip, two members": (
        GZIP,
        lambda data: (
            bytes(cramjam.gzip.compress(data[:9])) + bytes(cramjam.gzip.compress(data[9:]))
        ),
    ),
    "snappy": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy, xerial": (SNAPPY, xerial),
    "lz4": (LZ4, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (ZSTD, lambda data: bytes(cramjam.zstd.compress(data))),
}
BOMB_BYTES = 50_000_000


@given(st.sampled_from(list(WAYS)), st.binary(max_size=100), st.integers(1, 3_000), st.booleans())
def test_what_was_compressed_comes_back(way: str, some: bytes, times: int, is_view: bool) -> None:
    codec, compress = WAYS[way]
    data = some * times
    packed = compress(data)
    given_data = memoryview(b"x" + packed + b"x")[1:-1] if is_view else packed
    limit = max(len(data), 1)
    assert decompress(codec, given_data, limit) == data
    assert decompress(codec, given_data, limit + 20) == data
    if len(data) > 1:
        with pytest.raises(BatchTooLargeError, match=f"have more than {len(data) - 1} bytes"):
            decompress(codec, given_data, len(data) - 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_bomb_ends_at_the_limit(way: str) -> None:
    codec, compress = WAYS[way]
    content = bytes(BOMB_BYTES)
    bomb = xerial(content, 32_768) if compress is xerial else compress(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BatchTooLargeError, match="have more than 1000000 bytes"):
        decompress(codec, bomb, 1_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8_000, "kilobytes"


@pytest.mark.parametrize("way", WAYS)
def test_damaged_data_is_named(way: str) -> None:
    codec, compress = WAYS[way]
    packed = compress(b"some text " * 500)
    name = codecs.NAMES[codec]
    for wrong in (packed[:-3], packed + b"\1\2\3\4\5\6\7\x08", b"\xff" * 30, b"\1"):
        with pytest.raises(BrokenBatchError, match=f"the records are no {name}: "):
            decompress(codec, wrong)


@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.binary(max_size=200))
def test_any_bytes_are_refused_or_decompressed(codec: int, data: bytes) -> None:
    starts = {GZIP: b"\x1f\x8b\x08\0\0\0\0\0\0\xff", SNAPPY: XERIAL, LZ4: b"\x04\x22\x4d\x18"}
    for content in (data, starts.get(codec, b"\x28\xb5\x2f\xfd") + data):
        try:
            assert len(decompress(codec, content, 100_000)) <= 100_000
        except BatchError:
            pass


def test_a_block_of_snappy_that_claims_too_much_takes_nothing() -> None:
    claim = b"\xff\xff\xff\x1f" + b"\0x"
    for data in (claim, XERIAL + struct.pack(">iii", 1, 1, len(claim)) + claim):
        with pytest.raises(BrokenBatchError, match="6 bytes claim 67108863"):
            decompress(SNAPPY, data)


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_an_unknown_codec_is_named(codec: int) -> None:
    with pytest.raises(UnknownFormatError, match=f"unknown codec {codec}"):
        decompress(codec, b"")


def test_the_error_of_a_batch_names_its_offset() -> None:
    data = memoryview(batch([Record(0)], base_offset=77, attributes=ZSTD, content=b"no zstd"))
    (header,) = batches(data)
    with pytest.raises(BrokenBatchError, match="the batch at offset 77: the records are no zstd"):
        codecs.decompressed_records(data, header)


def test_without_libraries_the_errors_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "HAS_CRAMJAM", False)
    monkeypatch.setattr(checksums, "HAS_CRC32C", False)
    assert decompress(GZIP, zlib.compress(b"text", wbits=31)) == b"text"
    with pytest.raises(CodecMissingError, match=r"with lz4 .*sharecoord-batches\[compression\]"):
        decompress(LZ4, b"")
    data = memoryview(batch([Record(0)]))
    (header,) = batches(data)
    with pytest.raises(CodecMissingError, match=r"sharecoord-batches\[checksums\]"):
        checksums.is_intact(data, header)
