"""Messages of the stream are read alike, whether protobuf reads all of them or not."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_sdk._core import frames
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

LARGE = frames.APART_BYTES_MIN


@st.composite
def batches(draw: st.DrawFn) -> types_pb.RecordBatch:
    """A delivery: whole batches, columns, or neither."""
    made = types_pb.RecordBatch(
        partition=types_pb.TopicPartition(topic=draw(st.text(max_size=3)), partition=3),
        base_offset=draw(st.integers(0, 1 << 62)),
        record_count=draw(st.integers(0, 1 << 31)),
        offset_deltas=draw(st.lists(st.integers(0, 1 << 31), max_size=3)),
    )
    for first in draw(st.lists(st.integers(0, 1 << 40), max_size=3)):
        made.ranges.add(first_offset=first, last_offset=first + 5, lock_token=7)
    sizes = st.sampled_from([0, 1, 127, 128, LARGE])
    contents = [bytes([at % 251]) * size for at, size in enumerate(draw(st.lists(sizes)))]
    if draw(st.booleans()):
        made.whole_batches.extend(contents)
    else:
        made.values.extend(contents)
    return made


def whole_of(response: service_pb.ConsumeResponse) -> list[list[bytes]]:
    """The whole batches of each batch."""
    return [list(batch.whole_batches) for batch in response.batches]


def without(response: service_pb.ConsumeResponse) -> service_pb.ConsumeResponse:
    """The message without its whole batches."""
    for batch in response.batches:
        batch.ClearField("whole_batches")
    return response


@given(st.lists(batches(), max_size=3), st.booleans())
def test_a_message_is_what_protobuf_makes_of_it(
    some: list[types_pb.RecordBatch], more: bool
) -> None:
    response = service_pb.ConsumeResponse(batches=some, left=more)
    if more:
        response.joined.lock_duration_ms = 300
        response.results.add(acknowledge_id=1 << 40)
    frame = frames.read(response.SerializeToString())
    assert [list(map(bytes, each)) for each in frame.whole] == whole_of(response)
    assert without(frame.response) == without(response)


def large(**fields: Any) -> bytes:
    """A message with a whole batch of some size."""
    batch = types_pb.RecordBatch(record_count=5, whole_batches=[b"w" * LARGE], **fields)
    return service_pb.ConsumeResponse(batches=[batch], left=True).SerializeToString()


def test_whole_batches_of_a_large_message_are_not_copied() -> None:
    data = large()
    frame = frames.read(data)
    ((content,),) = frame.whole
    assert isinstance(content, memoryview)
    assert content.obj is data
    assert not frame.response.batches[0].whole_batches
    assert frame.response.left


def test_what_is_kept_of_columns_does_not_keep_their_message() -> None:
    """Else values would be there twice once they are Python's: in the message, too."""
    response = service_pb.ConsumeResponse(batches=[types_pb.RecordBatch(values=[b"v"])])
    (batch,) = response.batches
    before = sys.getrefcount(batch)
    whole = frames.frame_of(response).whole
    assert sys.getrefcount(batch) == before
    assert [list(each) for each in whole] == [[]]


def test_of_a_message_with_many_fields_protobuf_reads_all() -> None:
    ranges = [types_pb.AcquiredRange(first_offset=at) for at in range(frames.FIELDS_MAX)]
    frame = frames.read(large(ranges=ranges))
    assert len(frame.response.batches[0].ranges) == frames.FIELDS_MAX
    assert [list(each) for each in frame.whole] == [[b"w" * LARGE]]


@given(st.integers(0, 40), st.binary(max_size=12), st.integers(0, 60))
def test_what_is_no_message_is_read_or_refused_as_protobuf_does(
    at: int, ruin: bytes, cut: int
) -> None:
    data = bytearray(large())
    data[at : at + len(ruin)] = ruin
    damaged = bytes(data[: len(data) - cut])
    try:
        wanted = service_pb.ConsumeResponse.FromString(damaged)
    except DecodeError:
        with pytest.raises(DecodeError):
            frames.read(damaged)
        return
    frame = frames.read(damaged)
    assert [list(map(bytes, each)) for each in frame.whole] == whole_of(wanted)
    assert without(frame.response) == without(wanted)
