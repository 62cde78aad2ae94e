"""Records that the coordinator took back, and keys that wait: no program gets one of them."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from sharecoord_sdk import KafkaError
from sharecoord_sdk._core.columns import Span
from sharecoord_sdk._core.records import AcknowledgeType
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker.options import Behaviour

from tests.sdk.driver import EXPLICIT, Drivers, inner, joined, served
from tests.sdk.fake_coordinator import TOPIC_ID, FakeCoordinator, make_batch
from tests.sdk.worker_world import WorkerWorld
from tests.sdk.world import World
from tests.support import eventually

RELEASE = AcknowledgeType.RELEASE
ORDERS = ("key", "partition")


def notice(first: int, last: int, token: int, topic: str = "t") -> service_pb.TakenBack:
    """Ranges of partition 0 that the coordinator took back."""
    return service_pb.TakenBack(
        partition=types_pb.TopicPartition(topic=topic, partition=0, topic_id=TOPIC_ID),
        ranges=[service_pb.TakenBackRange(first_offset=first, last_offset=last, lock_token=token)],
        reason=service_pb.TAKEN_BACK_REASON_CHAIN_BROKE,
    )


def offsets(spans: list[Span]) -> list[int]:
    return [offset for span in spans for offset in span.offsets()]


def ordered(ordering: str = "key", **config: Any) -> World:
    """A consumer of a group that keeps order."""
    world = World(**config)
    world.core.subscribe(["t"], world.now)
    world.drive()
    world.receive(joined=service_pb.Joined(lock_duration_ms=30_000, ordering=ordering))
    return world


# -- both shells -----------------------------------------------------------------------------------


def test_what_was_taken_back_is_not_handed_out_and_what_the_program_has_fails(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, first = served(
        drivers,
        coordinator,
        make_batch([b"a", b"b", b"c", b"d", b"e"], token=7),
        max_poll_records=2,
        **EXPLICIT,
    )
    assert [m.offset() for m in first] == [0, 1]
    # The record of token 8 is its own still; a token that it never saw means nothing.
    stream.send(taken_back=[notice(1, 3, 7), notice(0, 9, 6)])
    stream.send(make_batch([b"x"], base=9, token=8))

    def has_heard() -> bool:
        """It takes in what has arrived, and holds 4 and 9."""
        consumer.acquisition_lock_timeout_ms()
        return bool(inner(consumer)._core.locks.credit.buffered_records == 2)

    eventually(has_heard, 10)
    for message in first:
        consumer.acknowledge(message)
    results = consumer.commit_sync(10)
    (error,) = results.values()
    assert error.args[0].code() == KafkaError.INVALID_RECORD_STATE
    # Without a round trip: of what was lost nothing was said.
    assert [(ack.first, ack.last, ack.kind) for ack in stream.acks()] == [(0, 0, "ACCEPT")]
    seen = [m.offset() for m in consumer.poll(10)]
    assert seen == [4, 9]


def test_notice_and_records_in_one_message(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    """The coordinator joins small messages: their order is that of their fields."""
    consumer, stream = joined(drivers, coordinator)
    stream.send(make_batch([b"a", b"b"], token=7), taken_back=[notice(0, 0, 7)])
    assert [m.offset() for m in consumer.poll(10)] == [1]


def test_who_does_not_poll_hands_back_what_waits_in_half_of_its_lock_and_takes_no_more(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, max_poll_records=1)
    stream.send(make_batch([b"a", b"b", b"c"], token=7, remaining_ms=2_000))
    began = time.monotonic()
    assert [m.offset() for m in consumer.poll(10)] == [0]
    # The program is at work; nobody calls the consumer.
    (back,) = stream.wait_acks(1)
    assert time.monotonic() - began < 2.0, "while the lock lasts"
    assert (back.first, back.last, back.kind) == (1, 2, "RETURN")
    assert [r.not_polling for r in stream.requests if r.acknowledgements] == [True]
    assert len(consumer.poll(0.1)) == 0
    stream.wait_for(lambda s: any(r.polled or r.HasField("credit") for r in s.requests[2:]))


# -- the core: time --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_what_nobody_took_goes_back_when_half_of_its_lock_is_over(mode: str) -> None:
    world = World(share_acknowledgement_mode=mode, max_poll_records=1)
    world.join()
    assert world.core.hand_back_unseen_at == math.inf
    world.receive(make_batch([b"a", b"b"], remaining_ms=30_000))
    assert offsets(world.poll()) == [0]
    world.now += 5
    world.receive(make_batch([b"c"], base=2, token=2, remaining_ms=30_000))
    assert world.core.hand_back_unseen_at == 115.0
    world.now = 114.9
    world.sent.clear()
    world.core.hand_back_unseen(world.now)
    world.drive()
    assert world.sent == []
    world.now = 115.0
    world.core.hand_back_unseen(world.now)
    world.drive()
    assert [(ack.first, ack.kind) for ack in world.acks()] == [(1, "RETURN")]
    assert [request.not_polling for request in world.sent] == [True]
    assert world.core.hand_back_unseen_at == 120.0
    # A poll that comes after all asks for records again, at once.
    world.sent.clear()
    if mode == "explicit":
        world.core.locks.find("t", 0, 0)[0].states[0] = AcknowledgeType.ACCEPT  # type: ignore[index]
    assert offsets(world.poll()) == [2]
    assert world.sent[-1].polled or world.sent[-1].HasField("credit")


def test_a_new_stream_is_told_anew_and_nothing_goes_back_without_one() -> None:
    world = World(max_poll_records=1)
    world.join()
    world.receive(make_batch([b"a", b"b"]))
    world.now += 20
    world.fail()
    assert world.core.hand_back_unseen_at == math.inf
    world.core.hand_back_unseen(world.now)
    assert world.core.take_outbox() == []


@pytest.mark.parametrize("reason", ["LOCK_ENDED", "CHAIN_BROKE"])
def test_who_has_lost_a_lock_by_its_time_says_that_it_polls(reason: str) -> None:
    """The coordinator waits for that, and the late acknowledgement is not sent any more."""
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.receive(make_batch([b"x"], token=5))
    (span,) = world.poll()
    span.mark(AcknowledgeType.ACCEPT)
    lost = notice(0, 0, 5)
    lost.reason = service_pb.TakenBackReason.Value(f"TAKEN_BACK_REASON_{reason}")
    world.receive(taken_back=[lost])
    world.sent.clear()
    world.poll()
    assert [request.polled for request in world.sent] == [True] * (reason == "LOCK_ENDED")
    world.sent.clear()
    world.poll()
    assert world.sent == []


# -- the core: order -------------------------------------------------------------------------------


def test_in_explicit_mode_a_program_has_one_record_of_a_key_at_a_time() -> None:
    world = ordered(share_acknowledgement_mode="explicit")
    keys = [b"a", b"a", None, b"b", b"a", None]
    world.receive(make_batch([b"x"] * 6, keys=keys))
    for wanted in ([0, 2, 3, 5], [1], [4], []):
        spans = world.poll()
        assert offsets(spans) == wanted
        for span in spans:
            span.mark(AcknowledgeType.ACCEPT)


def test_in_implicit_mode_a_chain_comes_at_once() -> None:
    """Its program can not release one of them."""
    world = ordered()
    world.receive(make_batch([b"x"] * 4, keys=[b"a", b"a", b"b", b"a"]))
    assert offsets(world.poll()) == [0, 1, 2, 3]


def test_a_partition_in_order_is_one_key() -> None:
    world = ordered("partition", share_acknowledgement_mode="explicit")
    world.receive(make_batch([b"x"] * 2, keys=[b"a", b"b"]), make_batch([b"y"], partition=1))
    assert [(s.columns.partition, s.start) for s in world.poll()] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("ordering", ORDERS)
def test_what_follows_a_release_waits_until_the_coordinator_has_taken_it_back(
    ordering: str,
) -> None:
    world = ordered(ordering, share_acknowledgement_mode="explicit")
    world.receive(make_batch([b"x"] * 3, keys=[b"a"] * 3, token=5))
    (first,) = world.poll()
    first.mark(RELEASE)
    assert world.poll() == []
    assert world.poll() == []
    world.receive(taken_back=[notice(1, 2, 5)])
    world.answer()
    assert world.poll() == []
    world.receive(make_batch([b"x"], base=0, keys=[b"a"], token=6, delivery_count=2))
    assert offsets(world.poll()) == [0]


def test_what_follows_a_release_that_failed_waits_until_it_is_back() -> None:
    """The coordinator still has the record locked by this member, and delivers it again later."""
    world = ordered(share_acknowledgement_mode="explicit")
    first = make_batch([b"x"], keys=[b"a"], token=5, remaining_ms=1_000)
    world.receive(first, make_batch([b"y", b"z"], base=1, keys=[b"a", b"b"], token=6))
    spans = world.poll()
    assert offsets(spans) == [0, 2]
    spans[0].mark(RELEASE)
    spans[1].mark(AcknowledgeType.ACCEPT)
    assert world.poll() == []
    place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
    world.answer(types_pb.PartitionOutcome(partition=place, error_reason="INTERNAL"))
    assert world.poll() == []
    # A coordinator that loaded the share-partition anew has extended the lock.
    world.now += 1
    assert world.poll() == []
    world.receive(taken_back=[notice(0, 0, 5)])
    assert offsets(world.poll()) == [1]


@pytest.mark.parametrize("sign", ["delivered again", "told by the next coordinator", "no"])
def test_what_follows_a_return_that_failed_waits_for_a_sign_that_it_is_back(sign: str) -> None:
    world = ordered()
    first = make_batch([b"x"], keys=[b"a"], token=5, remaining_ms=1_000)
    rest = make_batch([b"y", b"z"], base=1, keys=[b"a", b"b"], token=6, remaining_ms=900_000)
    world.receive(first, rest)
    # The lock ends while the record waits: it goes back, and that fails.
    world.now += 1
    assert offsets(world.poll()) == [2]
    place = types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID)
    world.answer(types_pb.PartitionOutcome(partition=place, error_reason="INTERNAL"))
    assert world.poll() == []
    if sign == "delivered again":
        world.receive(make_batch([b"x"], keys=[b"a"], token=7, delivery_count=2))
        assert offsets(world.poll()) == [0, 1]
    elif sign == "no":
        world.now += 299
        assert world.poll() == []
        world.now += 1.1
        assert offsets(world.poll()) == [1]
    else:
        world.fail()
        world.now += 30
        world.drive()
        (book,) = [r.join.lock_book for r in world.sent[1:] if r.HasField("join")]
        held = [(e.first_offset, e.last_offset, e.lock_token) for e in book]
        assert held == [(0, 0, 5), (1, 2, 6)]
        lost = [types_pb.HeldRange(partition=place, last_offset=0, lock_token=5)]
        world.receive(joined=service_pb.Joined(lock_duration_ms=30_000, lost=lost))
        assert offsets(world.poll()) == [1]


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_what_follows_a_record_whose_lock_ended_in_the_buffer_waits(mode: str) -> None:
    world = ordered(share_acknowledgement_mode=mode)
    ended = make_batch([b"x"], keys=[b"a"], token=1, remaining_ms=1_000)
    world.receive(ended, make_batch([b"y", b"z"], base=1, keys=[b"a", b"b"], token=2))
    world.now += 1
    assert offsets(world.poll()) == [2]


def test_order_that_is_switched_on_is_kept_from_then_on() -> None:
    world = ordered("unordered", share_acknowledgement_mode="explicit")
    world.receive(assignment=service_pb.Assignment(ordering="key"))
    world.receive(make_batch([b"x"] * 2, keys=[b"a", b"a"]))
    assert offsets(world.poll()) == [0]
    assert world.core.ordering == "key"
    world.receive(assignment=service_pb.Assignment())
    assert world.core.ordering == "key", "an older coordinator does not say"


def test_credit_counts_what_waits_for_its_key_and_what_was_taken_back() -> None:
    world = ordered(share_acknowledgement_mode="explicit")
    world.receive(make_batch([b"x"] * 4, keys=[b"a"] * 4, token=5))
    world.poll()
    credit = world.core.locks.credit
    assert credit.buffered_records == 3
    world.receive(taken_back=[notice(2, 3, 5)])
    assert credit.buffered_records == 1
    world.receive(taken_back=[notice(1, 1, 5)])
    assert (credit.buffered_records, credit.buffered_bytes) == (0, 0)


# -- a worker --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", [None, "key"])
def test_a_worker_starts_nothing_that_was_taken_back(ordering: str | None) -> None:
    behaviour = None if ordering is None else Behaviour(ordering=ordering)
    world = WorkerWorld(concurrency=1, behaviour=behaviour)
    world.join()
    world.receive(make_batch([b"x"] * 4, keys=[b"a"] * 4, token=5))
    (running,) = world.start()
    world.receive(taken_back=[notice(0, 2, 5)])
    world.accept(running)
    # What its handler did is too late; of the key only what is still its own goes on.
    started = world.start()
    world.publish()
    assert [part.start for part in started] == ([3] if ordering is None else [])
    (lost,) = [outcome for outcome in world.core.take_outcomes() if outcome.error is not None]
    assert lost.error is not None
    assert lost.error.code() == KafkaError.INVALID_RECORD_STATE
    assert offsets(lost.spans) == [0]
    assert {ack.kind for ack in world.acks()} == (set() if ordering is None else {"RETURN"})
