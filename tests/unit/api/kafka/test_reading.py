"""Requests are read as kio writes them, and no bytes of a stranger take memory or time."""

from __future__ import annotations

import random
import struct

import pytest

from sharecoord.api.kafka.codec import VERSIONS, ProtocolError, head_of, read
from tests.unit.api.kafka.messages import any_request, frame_of

SERVED = [(key, each) for key, (first, last) in VERSIONS.items() for each in range(first, last + 1)]


def read_frame(frame: bytes) -> object:
    view = memoryview(frame)
    return read(head_of(view), view)


@pytest.mark.parametrize(("api_key", "version"), SERVED)
def test_what_kio_writes_is_read(api_key: int, version: int) -> None:
    for seed in range(20):
        request = any_request(api_key, version, seed)
        assert read_frame(frame_of(request)) == ("c", request)
    assert read_frame(frame_of(request, client_id=None)) == ("", request)


@pytest.mark.parametrize(("api_key", "version"), SERVED)
def test_a_request_that_is_cut_is_refused(api_key: int, version: int) -> None:
    frame = frame_of(any_request(api_key, version, 1))
    for size in range(8, len(frame)):
        with pytest.raises(ProtocolError):
            read_frame(frame[:size])
    # As at a broker; librdkafka sends too much where it asks for all topics.
    assert read_frame(frame + b"\1\0\0") == read_frame(frame)
    with pytest.raises(ProtocolError, match="has no head"):
        read_frame(frame[:7])


def test_no_bytes_are_more_than_refused() -> None:
    chance = random.Random(3)
    refused = 0
    for _ in range(5_000):
        body = chance.randbytes(chance.choice([0, 1, 5, 20, 100, 1000]))
        if chance.random() < 0.5:
            body = bytes(chance.choice([0, 1, 127, 128, 255]) for _ in body)
        frame = struct.pack(">hhi", *chance.choice(SERVED), 1) + b"\0\0\0" + body
        try:
            read_frame(frame)
        except ProtocolError:
            refused += 1
    assert refused > 4_500


def test_a_huge_array_takes_no_memory() -> None:
    """kio's own reader ends the process here: it takes memory for each element first."""
    # ShareFetch version 1 up to its topics, of which there are two billion.
    before = b"\x02g\x02m" + struct.pack(">iiiiii", 0, 0, 0, 0, 0, 0)
    frame = struct.pack(">hhih", 78, 1, 1, -1) + b"\0" + before + b"\xff\xff\xff\xff\x07" + b"\0"
    with pytest.raises(ProtocolError, match="2147483646 elements in 1 bytes"):
        read_frame(frame)


def test_tagged_fields_without_end_are_refused() -> None:
    request = frame_of(any_request(76, 1, 2))
    frame = request[:-1] + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(ProtocolError, match="elements in 0 bytes"):
        read_frame(frame)


def test_unknown_tagged_fields_are_passed_over() -> None:
    request = any_request(76, 1, 2)
    frame = frame_of(request)[:-1] + b"\x01\x63\x03abc"
    assert read_frame(frame) == ("c", request)
