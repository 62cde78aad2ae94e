"""Acknowledgements wait for those of the next polls while much is at hand, and never for long."""

from __future__ import annotations

import math

import pytest
from sharecoord_sdk._core.acks import HOLD_AT_HAND, HOLD_RECORDS, HOLD_S

from tests.sdk.driver import EXPLICIT, Drivers, served
from tests.sdk.fake_coordinator import FakeCoordinator, acks_of, make_batch
from tests.sdk.world import World

POLL = 500


def world_with(records: int) -> World:
    """A member with so many records at hand, and one poll more."""
    world = World()
    world.join()
    world.receive(make_batch([b"x"] * (records + POLL)))
    world.poll()
    world.sent.clear()
    return world


def spans_of(world: World) -> list[list[tuple[int, int]]]:
    """The offsets that each message acknowledged."""
    return [[(ack.first, ack.last) for ack in acks_of(sent)] for sent in world.sent]


def test_what_many_polls_acknowledge_goes_in_one_message() -> None:
    world = world_with(2 * HOLD_RECORDS + POLL)
    for _ in range(HOLD_RECORDS // POLL):
        assert not world.sent
        world.poll()
    assert spans_of(world) == [[(0, HOLD_RECORDS - 1)]]
    (sent,) = world.sent
    assert sent.may_wait
    assert world.core.held_until == math.inf


@pytest.mark.parametrize("at_hand", [0, HOLD_AT_HAND - 1])
def test_with_little_at_hand_they_go_at_once(at_hand: int) -> None:
    world = world_with(at_hand + POLL)
    world.poll()
    assert spans_of(world) == [[(0, POLL - 1)]]


def test_they_go_when_their_time_is_over() -> None:
    world = world_with(2 * HOLD_RECORDS)
    world.poll()
    assert world.core.held_until == world.now + HOLD_S
    world.now += HOLD_S / 2
    world.poll()
    assert not world.sent, "the first ones are waited for"
    world.now += HOLD_S / 2
    world.core.flush(world.now)
    world.drive()
    assert spans_of(world) == [[(0, 2 * POLL - 1)]]


def test_a_commit_that_is_waited_for_takes_them_along() -> None:
    world = world_with(2 * HOLD_RECORDS)
    world.poll()
    world.core.begin_commit(world.now)
    world.drive()
    assert spans_of(world) == [[(0, 2 * POLL - 1)]]
    assert not world.sent[0].may_wait


def test_a_commit_that_nobody_waits_for_is_like_a_poll() -> None:
    world = world_with(2 * HOLD_RECORDS)
    world.core.begin_commit_async(world.now)
    world.drive()
    assert not world.sent
    assert world.core.held_until == world.now + HOLD_S


def test_what_is_held_when_a_stream_ends_goes_with_the_next_one() -> None:
    world = world_with(2 * HOLD_RECORDS)
    world.poll()
    world.fail()
    world.sent.clear()
    world.now += 10
    world.drive()
    world.core.flush(world.now, polling=True, may_hold=True)
    world.drive()
    assert (0, POLL - 1) in [offsets for sent in spans_of(world) for offsets in sent]


def test_nothing_is_held_by_who_leaves() -> None:
    world = world_with(2 * HOLD_RECORDS)
    world.poll()
    world.core.begin_close(world.now)
    world.drive()
    assert (0, POLL - 1) in [offsets for sent in spans_of(world) for offsets in sent]


def test_ranges_that_differ_stay_apart() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"x"] * POLL, token=1))
    world.receive(make_batch([b"x"] * 2 * HOLD_RECORDS, base=POLL, token=2))
    for _ in range(4):
        world.poll()
    world.core.flush(world.now)
    world.drive()
    assert spans_of(world)[-1] == [(0, POLL - 1), (POLL, 3 * POLL - 1)]


@pytest.mark.parametrize("mode", [{}, EXPLICIT], ids=["implicit", "explicit"])
def test_a_program_that_works_for_long_holds_nothing_back(
    drivers: Drivers, coordinator: FakeCoordinator, mode: dict[str, str]
) -> None:
    """What it did is known to the coordinator although it makes no call."""
    batch = make_batch([b"x"] * 2 * HOLD_RECORDS)
    consumer, stream, first = served(drivers, coordinator, batch, **mode)
    if mode:
        consumer.acknowledge(first)
        consumer.commit_async()
    assert len(consumer.poll(10)) == POLL
    (ack,) = stream.wait_acks(1)
    assert (ack.first, ack.last, ack.kind) == (0, POLL - 1, "ACCEPT")


def test_it_does_so_again_and_again(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    batch = make_batch([b"x"] * 3 * HOLD_RECORDS)
    consumer, stream, _ = served(drivers, coordinator, batch)
    for polls in range(1, 5):
        assert len(consumer.poll(10)) == POLL
        stream.wait_for(lambda s, polls=polls: s.acks() and s.acks()[-1].last == polls * POLL - 1)
