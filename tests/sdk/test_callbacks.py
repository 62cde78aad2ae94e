"""The acknowledgement commit callback, and what a program hears that polls too seldom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sharecoord_sdk import KafkaError, KafkaException, TopicPartition
from sharecoord_sdk._proto import share_service_pb2 as service_pb

from tests.sdk.driver import EXPLICIT, Driver, Drivers, inner, joined
from tests.sdk.fake_coordinator import FakeCoordinator, FakeStream, make_batch
from tests.sdk.world import World

T0 = TopicPartition("t", 0)


class BoomError(Exception):
    """What a callback raises."""


class Raising:
    """A consumer's callback that raises each time; notes what it heard."""

    def __init__(self, consumer: Driver) -> None:
        self.heard: list[Any] = []
        consumer.set_acknowledgement_commit_callback(self)

    def __call__(self, offsets: Any, error: Any) -> None:
        """Is told."""
        self.heard.append((offsets, error))
        raise BoomError


def committed(
    drivers: Drivers, coordinator: FakeCoordinator, *topics: str
) -> tuple[Driver, FakeStream]:
    """A consumer that has acknowledged the record of each topic without waiting for the answer."""
    names = topics or ("t",)
    consumer, stream = joined(drivers, coordinator, *names, **EXPLICIT)
    # One message, so that one poll takes them all.
    stream.send(*(make_batch([b"a"], topic=name, token=n + 1) for n, name in enumerate(names)))
    for message in consumer.poll(10):
        consumer.acknowledge(message)
    return consumer, stream


def raised_by(consumer: Driver, call: Callable[[], object]) -> Raising:
    """A callback; what it raises has come out of the call."""
    raising = Raising(consumer)
    with pytest.raises(BoomError):
        call()
    return raising


def _until(done: Callable[[], bool], step: Callable[[], None]) -> None:
    while not done():
        step()


def heard_of(consumer: Driver, raising: Raising, count: int) -> None:
    """Polls until the callback was called so often; each time it raises."""
    while len(raising.heard) < count:
        try:
            consumer.poll(0.02)
        except BoomError:
            pass


def test_what_a_callback_raises_comes_out_of_poll_and_loses_no_record(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = committed(drivers, coordinator)
    raising = Raising(consumer)
    stream.send(make_batch([b"b"], base=1, token=9))
    got: list[bytes] = []

    def take() -> None:
        found = consumer.poll(0.5)
        got.extend(message.value() for message in found)
        for message in found:
            consumer.acknowledge(message)

    with pytest.raises(BoomError):
        _until(lambda: bool(raising.heard), take)
    consumer.set_acknowledgement_commit_callback(None)
    while not got:
        got += [message.value() for message in consumer.poll(10)]
    assert got == [b"b"]


def test_what_a_callback_raises_comes_out_of_commit_sync_which_has_committed(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = committed(drivers, coordinator)
    raising = raised_by(consumer, lambda: consumer.commit_sync(10))
    assert raising.heard == [({T0: {0}}, None)]
    assert consumer.commit_sync(10) == {}
    assert [ack.kind for ack in stream.acks()] == ["ACCEPT"]


def test_one_outcome_that_raises_hides_none_behind_it(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, _ = committed(drivers, coordinator, "t", "u")
    raising = raised_by(consumer, lambda: consumer.commit_sync(10))
    heard_of(consumer, raising, 2)
    assert {place.topic for offsets, _ in raising.heard for place in offsets} == {"t", "u"}


def test_what_a_callback_raises_comes_out_of_close_which_has_left(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = committed(drivers, coordinator, "t", "u")
    raising = raised_by(consumer, consumer.close)
    assert len(raising.heard) == 2
    assert stream.requests[-1].leave
    consumer.close()


def test_what_error_cb_raises_comes_out_and_hides_nothing(coordinator: FakeCoordinator) -> None:
    drivers = Drivers("sync")
    heard: list[KafkaError] = []

    def hear(error: KafkaError) -> None:
        heard.append(error)
        raise BoomError

    consumer = drivers.make_with(
        {"bootstrap.servers": coordinator.address, "group.id": "g", "error_cb": hear}
    )
    consumer.subscribe(["t"])
    core = inner(consumer)._core
    for text in ("one", "two"):
        core._note(10, text, KafkaError(KafkaError._TRANSPORT, text))
    for _ in range(2):
        with pytest.raises(BoomError):
            consumer.poll(0)
    assert [error.str() for error in heard] == ["one", "two"]
    drivers.finish()


@pytest.mark.parametrize("by", ["commit_async", "poll"])
def test_a_new_callback_hears_of_a_commit_that_was_sent_before(
    drivers: Drivers, coordinator: FakeCoordinator, by: str
) -> None:
    coordinator.script.answers_acknowledgements = False
    consumer, stream = committed(drivers, coordinator)
    former: list[Any] = []
    heard: list[Any] = []
    consumer.set_acknowledgement_commit_callback(lambda *given: former.append(given))
    if by == "poll":
        consumer.poll(0)
    else:
        consumer.commit_async()
    stream.wait_acks(1)
    consumer.set_acknowledgement_commit_callback(lambda *given: heard.append(given))
    stream.answer(1)
    while not heard:
        consumer.poll(0.02)
    assert heard == [({T0: {0}}, None)]
    assert former == []


def test_an_outcome_that_came_while_nobody_listened_is_told_to_nobody(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = committed(drivers, coordinator)
    consumer.commit_async()
    stream.wait_acks(1)
    arrived = inner(consumer)
    while not (arrived._inbox.qsize() if drivers.kind == "sync" else not arrived._inbox.is_empty):
        pass
    heard: list[Any] = []
    consumer.set_acknowledgement_commit_callback(lambda *given: heard.append(given))
    consumer.poll(0)
    assert heard == []


# -- max.poll.interval.ms ---------------------------------------------------------------------


def assigned(**config: Any) -> World:
    """A core that has joined and has a partition."""
    world = World(max_poll_interval_ms=2_000, **config)
    world.join()
    topics = [service_pb.AssignedTopic(topic="t", partitions=[0])]
    world.receive(assignment=service_pb.Assignment(topics=topics))
    return world


def test_a_program_that_polls_too_seldom_is_told_once() -> None:
    world = assigned()
    world.core.check_interval(world.now)
    world.now += 1.9
    world.core.check_interval(world.now)
    world.now += 2.479
    with pytest.raises(KafkaException) as caught:
        world.core.check_interval(world.now)
    error = caught.value.args[0]
    assert error.code() == KafkaError._MAX_POLL_EXCEEDED
    assert error.str() == "Application maximum poll interval (2000ms) exceeded by 479ms"
    world.core.check_interval(world.now)


def test_a_poll_that_waits_is_a_call_all_the_time() -> None:
    world = assigned()
    for _ in range(10):
        world.now += 1.0
        world.poll()
    world.core.check_interval(world.now)


def test_who_has_no_partition_is_not_late() -> None:
    world = World(max_poll_interval_ms=2_000)
    world.join()
    world.now += 9
    world.core.check_interval(world.now)


def test_poll_raises_once_and_the_consumer_joins_again(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, max_poll_interval_ms=60_000, **EXPLICIT)
    topics = [service_pb.AssignedTopic(topic="t", partitions=[0])]
    stream.send(assignment=service_pb.Assignment(topics=topics))
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    core = inner(consumer)._core
    core.called_at -= 61.0
    # What was not acknowledged is said first, as by the twin, and costs nothing.
    with pytest.raises(RuntimeError, match="must be acknowledged"):
        consumer.poll(0)
    consumer.acknowledge(message)
    core.called_at -= 61.0
    with pytest.raises(KafkaException) as caught:
        consumer.poll(0)
    assert caught.value.args[0].code() == KafkaError._MAX_POLL_EXCEEDED
    stream.end()
    again = None
    while again is None:
        consumer.poll(0.01)
        again = coordinator.stream_now()
