"""The outbox of a stream: small messages that wait together go out as one."""

from __future__ import annotations

from sharecoord.api.grpc.channel import JOINED_BYTES_MAX, StreamChannel
from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, PartitionResult, Slice
from sharecoord.core.partition.share_partition import AcquiredRange
from sharecoord.core.records import ColumnChunk
from sharecoord.errors import InvalidRequestError, LimitExceededError
from sharecoord.wire import share_service_pb2 as service

KEY = PartitionKey("g", "orders", "00" * 16, 0)
ASSIGNMENT = Assignment({"orders": ("00" * 16, (0,))}, ())


def delivery(offset: int, size: int = 10) -> Delivery:
    chunk = ColumnChunk(offset, offset, offset, None, [0], 1, None, [b"v" * size], {}, size)
    return Delivery(KEY, [Slice(chunk, 0, 1)], [AcquiredRange(offset, offset, 1, 7, 99)], 1, size)


class Outbox(StreamChannel):
    """Counts how often its writer would have been woken."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = 0

    def _wake(self) -> None:
        self.woken += 1


def frames(channel: StreamChannel) -> list[service.ConsumeResponse]:
    """What a writer takes."""
    found: list[service.ConsumeResponse] = []
    while (frame := channel.take()) is not None:
        found.append(service.ConsumeResponse.FromString(frame))
    assert channel.unsent_bytes == 0
    return found


def said(message: service.ConsumeResponse) -> tuple[list[int], list[int], bool]:
    """Offsets, acknowledge ids, and whether there is an assignment."""
    return (
        [batch.base_offset for batch in message.batches],
        [result.acknowledge_id for result in message.results],
        message.HasField("assignment"),
    )


def test_records_and_answers_that_wait_together_are_one_message() -> None:
    channel = Outbox()
    channel.deliver(delivery(0), 0)
    channel.acknowledged(1, [PartitionResult(KEY)])
    channel.deliver(delivery(1), 0)
    channel.acknowledged(2, [PartitionResult(KEY)])
    assert [said(message) for message in frames(channel)] == [([0, 1], [1, 2], False)]


def test_what_is_said_once_stays_alone_and_in_its_place() -> None:
    channel = Outbox()
    channel.assigned(ASSIGNMENT)
    channel.deliver(delivery(0), 0)
    channel.assigned(ASSIGNMENT)
    channel.assigned(ASSIGNMENT)
    channel.acknowledged(1, [PartitionResult(KEY)])
    channel.deliver(delivery(1), 0)
    found = frames(channel)
    assert [said(message) for message in found] == [
        ([], [], True),
        ([0], [], False),
        ([], [], True),
        ([], [], True),
        ([1], [1], False),
    ]
    assert all(len(m.assignment.topics) == 1 for m in found if m.HasField("assignment"))


def test_a_message_does_not_grow_beyond_its_size() -> None:
    channel = Outbox()
    half = JOINED_BYTES_MAX // 2 - 200
    for offset in range(5):
        channel.deliver(delivery(offset, half), 0)
    channel.deliver(delivery(5, 2 * JOINED_BYTES_MAX), 0)
    channel.acknowledged(1, [PartitionResult(KEY)])
    assert [said(message) for message in frames(channel)] == [
        ([0, 1], [], False),
        ([2, 3], [], False),
        ([4], [], False),
        ([5], [], False),
        ([], [1], False),
    ]


def test_what_the_writer_has_taken_is_not_added_to() -> None:
    channel = Outbox()
    taken: list[list[int]] = []
    for offset in (0, 1):
        channel.deliver(delivery(offset), 0)
        assert channel.woken == offset + 1
        frame = channel.take()
        assert frame is not None
        taken.append(said(service.ConsumeResponse.FromString(frame))[0])
    assert taken == [[0], [1]]
    assert channel.take() is None


def test_the_first_error_is_told_and_ending_wakes_the_writer() -> None:
    channel = Outbox()
    first = InvalidRequestError("first")
    channel.end(first)
    assert (channel.ended, channel.error, channel.woken) == (True, first, 1)
    channel.end(None)
    channel.end(InvalidRequestError("second"))
    assert channel.error is first


def test_what_is_being_written_counts_with_grpcs_copy_until_it_is() -> None:
    channel = Outbox()
    channel.deliver(delivery(0), 0)
    channel.assigned(ASSIGNMENT)
    in_all = channel.unsent_bytes
    first = channel.take()
    assert first is not None
    assert channel.unsent_bytes == in_all + len(first)
    second = channel.take()
    assert second is not None
    assert channel.unsent_bytes == 2 * len(second)
    assert channel.take() is None
    assert channel.unsent_bytes == 0


def test_a_cut_stream_drops_all_but_what_is_being_written() -> None:
    channel = Outbox()
    for offset in range(3):
        channel.deliver(delivery(offset, 2 * JOINED_BYTES_MAX), 0)
    frame = channel.take()
    assert frame is not None
    why = LimitExceededError("not read")
    channel.cut(why)
    assert (channel.ended, channel.error) == (True, why)
    assert channel.unsent_bytes == 2 * len(frame)
    assert channel.take() is None
    assert channel.unsent_bytes == 0
