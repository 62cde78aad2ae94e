"""The end of a consumer, on a clock of the test: what it says, what it waits for, what it shows."""

from __future__ import annotations

import pytest
from sharecoord_sdk._core.records import AcknowledgeType
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, acks_of, make_batch
from tests.sdk.world import World


def test_close_gives_up_when_the_coordinator_refuses() -> None:
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.receive(make_batch([b"a"]))
    (span,) = world.poll()
    span.mark(AcknowledgeType.ACCEPT)
    world.core.begin_close(world.now)
    world.drive()
    assert not world.core.is_close_done
    world.fail(StreamFailure("PERMISSION_DENIED", "no"))
    assert world.core.is_close_done


def test_a_leave_shows_what_the_application_has() -> None:
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.receive(make_batch([b"a", b"b", b"c"]))
    world.poll()
    world.receive(make_batch([b"d"], base=3))
    world.core.begin_close(world.now)
    last = world.core.take_outbox()[-1]
    assert last.leave
    assert last.HasField("lock_book")
    assert [(each.first_offset, each.last_offset) for each in last.lock_book.held] == [(0, 2)]


AWAY = types_pb.PartitionOutcome(
    partition=types_pb.TopicPartition(topic="t", topic_id=TOPIC_ID),
    error_reason="NOT_COORDINATOR",
    error_retriable=True,
)
"""The answer to an acknowledgement whose share-partition moves."""


def closing_with_a_word(timeout_ms: int = 60_000) -> World:
    """A consumer that has acknowledged two records, and closes."""
    world = World(share_acknowledgement_mode="explicit", socket_timeout_ms=timeout_ms)
    world.join()
    world.receive(make_batch([b"a", b"b"]))
    (span,) = world.poll()
    span.mark(AcknowledgeType.ACCEPT)
    world.core.begin_close(world.now)
    world.drive()
    return world


def test_a_leave_waits_for_the_answers_to_what_was_said() -> None:
    world = closing_with_a_word()
    assert acks_of(world.sent[-1]) == [Ack("t", 0, 0, 1, "ACCEPT", 1)]
    assert not world.sent[-1].leave
    world.receive(make_batch([b"c"], base=2))
    world.answer()
    world.drive()
    assert acks_of(world.sent[-1]) == [Ack("t", 0, 2, 2, "RETURN", 1)]
    assert world.sent[-1].leave
    assert not world.sent[-1].lock_book.held
    assert not world.core.is_close_done
    world.receive(left=True)
    assert world.core.is_close_done


def test_what_finds_no_owner_is_said_again_before_the_leave() -> None:
    world = closing_with_a_word()
    for _ in range(3):
        sent = len(world.sent)
        world.answer(AWAY)
        assert not world.core.is_close_done
        world.now = world.core.wake_at(world.now) or world.now
        world.core.flush(world.now)
        world.drive()
        (again,) = world.sent[sent:]
        assert acks_of(again) == [Ack("t", 0, 0, 1, "ACCEPT", 1)]
        assert not again.leave
    world.answer()
    world.drive()
    assert world.sent[-1].leave


def test_a_close_whose_stream_breaks_says_its_word_on_the_next_one_and_leaves() -> None:
    world = closing_with_a_word()
    world.fail()
    world.now += 1
    world.drive()
    assert acks_of(world.sent[-1]) == [Ack("t", 0, 0, 1, "ACCEPT", 1)]
    world.receive(joined=service_pb.Joined())
    assert not any(request.leave for request in world.sent)
    world.answer()
    world.drive()
    assert world.sent[-1].leave


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize(("timeout_ms", "waits_s"), [(2_000, 1.0), (60_000, 5.0)])
def test_a_leave_waits_so_long_and_shows_what_was_not_answered(
    refused: bool, timeout_ms: int, waits_s: float
) -> None:
    """An acknowledgement may find no owner any more: its records were delivered all the same."""
    world = closing_with_a_word(timeout_ms)
    if refused:
        world.answer(AWAY)
    world.receive(make_batch([b"c"], base=2))
    world.now += waits_s - 0.1
    world.drive()
    assert not world.sent[-1].leave
    world.now = world.core.wake_at(world.now) or world.now
    world.drive()
    last = world.sent[-1]
    assert last.leave
    assert [(each.first_offset, each.last_offset) for each in last.lock_book.held] == [(0, 1)]


def test_a_leave_of_who_has_nothing_says_so() -> None:
    world = World()
    world.join()
    world.core.begin_close(world.now)
    (last,) = world.core.take_outbox()
    assert last.leave
    assert last.HasField("lock_book")
    assert not last.lock_book.held


def test_close_without_a_connection_waits_for_nothing_but_a_last_word() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"a", b"b"]))
    world.poll()
    world.fail()
    world.core.begin_close(world.now)
    assert world.core.is_close_done
