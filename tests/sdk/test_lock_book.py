"""The lock book of a join: few ranges for many records, and never more than a coordinator takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sharecoord_sdk import KafkaError
from sharecoord_sdk._core.acks import mark_row
from sharecoord_sdk._core.columns import NO_DETAILS, Span
from sharecoord_sdk._core.records import AcknowledgeType
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from sharecoord.api.checks import TOPICS_MAX
from sharecoord.api.grpc.validation import MAX_POLL_RECORDS_MAX
from sharecoord.config.process_settings import LimitsConfig
from tests.sdk.driver import EXPLICIT
from tests.sdk.fake_coordinator import make_batch
from tests.sdk.world import World, equal_ranges, take_notices

LONGEST_TOPIC = "t" * 249
HIGHEST_PARTITION = 2**31 - 1
FAR = 2**62
REQUEST_BYTES = LimitsConfig().request_max_bytes
TOO_LARGE = StreamFailure("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 8)")


def single_locks(count: int, base: int = 0) -> list[types_pb.AcquiredRange]:
    """One lock per record, as redeliveries have them."""
    return [
        types_pb.AcquiredRange(
            first_offset=base + row,
            last_offset=base + row,
            lock_token=2**63 + base + row,
            lock_remaining_ms=60_000,
        )
        for row in range(count)
    ]


def batch_of(count: int, base: int = 0, **fields: Any) -> types_pb.RecordBatch:
    """Records with one lock each."""
    ranges = single_locks(count, base)
    return make_batch([b"x"] * count, base=base, ranges=ranges, **fields)


def join_again(world: World) -> service_pb.ConsumeRequest:
    """The stream breaks; returns the request that joins."""
    world.fail()
    return next_join(world)


def next_join(world: World) -> service_pb.ConsumeRequest:
    """The request of the next attempt."""
    world.now += 10
    world.sent.clear()
    world.drive()
    return world.sent[0]


def bounds(book: Sequence[types_pb.HeldRange]) -> list[tuple[int, int, int]]:
    """First and last offset and token of each range."""
    return sorted((h.first_offset, h.last_offset, h.lock_token) for h in book)


def size(request: service_pb.ConsumeRequest) -> int:
    return len(request.SerializeToString())


def test_whatever_state_the_records_of_a_lock_are_in_it_is_one_range() -> None:
    world = World(max_poll_records=40, **EXPLICIT)
    world.join()
    world.receive(make_batch([b"x"] * 100, token=4))
    (span,) = world.poll()
    for row in range(40):
        span.columns.states[row] = row % 5
    world.core.begin_commit(world.now)
    for row in range(0, 40, 5):
        span.columns.states[row] = AcknowledgeType.REJECT if row % 2 else 0
    assert bounds(join_again(world).join.lock_book) == [(0, 99, 4)]


def test_records_that_are_settled_are_not_shown_while_there_is_room() -> None:
    world = World(**EXPLICIT)
    world.join()
    world.receive(make_batch([b"x"] * 6, token=4))
    (span,) = world.poll()
    span.columns.states[2] = span.columns.states[3] = AcknowledgeType.ACCEPT
    world.core.begin_commit(world.now)
    world.drive()
    world.answer()
    assert bounds(join_again(world).join.lock_book) == [(0, 1, 4), (4, 5, 4)]


def place_of(topic_id: bytes) -> types_pb.TopicPartition:
    return types_pb.TopicPartition(topic="t", topic_id=topic_id)


def of_topic(topic_id: bytes) -> types_pb.RecordBatch:
    """Records under token 4, as of every topic that was made again at the same coordinator."""
    batch = make_batch([b"x"] * 6, token=4)
    batch.partition.topic_id = topic_id
    return batch


def lost_of(topic_id: bytes, first: int, last: int) -> types_pb.HeldRange:
    return types_pb.HeldRange(
        partition=place_of(topic_id), first_offset=first, last_offset=last, lock_token=4
    )


def topics_in(book: Sequence[types_pb.HeldRange]) -> list[tuple[bytes, int, int]]:
    return sorted((held.partition.topic_id, held.first_offset, held.last_offset) for held in book)


def test_a_topic_that_was_made_again_keeps_its_locks_when_the_old_ones_are_lost() -> None:
    world = World(max_poll_records=3, **EXPLICIT)
    world.join()
    world.receive(of_topic(b"old"), of_topic(b"new"))
    world.poll()
    taken = service_pb.TakenBackRange(first_offset=4, last_offset=4, lock_token=4)
    notice = service_pb.TakenBack(partition=place_of(b"new"), ranges=[taken])
    world.receive(taken_back=[notice])
    book = join_again(world).join.lock_book
    assert topics_in(book) == [(b"new", 0, 3), (b"new", 5, 5), (b"old", 0, 5)]
    world.receive(joined=service_pb.Joined(lost=[lost_of(b"old", 0, 5)]))
    assert topics_in(join_again(world).join.lock_book) == [(b"new", 0, 3), (b"new", 5, 5)]


def test_what_is_answered_about_an_old_topic_says_nothing_of_the_new_one() -> None:
    world = World(**EXPLICIT)
    world.core.reports_outcomes = True
    world.join()
    world.receive(of_topic(b"old"), of_topic(b"new"))
    for span in world.poll():
        span.mark(AcknowledgeType.ACCEPT)
    world.core.begin_commit(world.now)
    world.drive()
    gone = types_pb.PartitionOutcome(
        partition=place_of(b"old"), error_reason="UNKNOWN_TOPIC_OR_PARTITION"
    )
    world.answer(gone)
    found = {outcome.key.topic_id: outcome.error for outcome in world.core.take_outcomes()}
    assert list(found) == [b"old", b"new"]
    assert (found[b"old"] is None, found[b"new"]) == (False, None)


def worst_in_hands() -> tuple[World, list[Span]]:
    """As many records as a coordinator lets a poll return, each under a lock of its own."""
    topics = [LONGEST_TOPIC, *(f"{number:04}".ljust(249, "x") for number in range(1, TOPICS_MAX))]
    world = World(max_poll_records=MAX_POLL_RECORDS_MAX, **EXPLICIT)
    world.core.subscribe(topics, world.now)
    world.drive()
    world.receive(joined=service_pb.Joined())
    place = {"topic": LONGEST_TOPIC, "partition": HIGHEST_PARTITION}
    world.receive(batch_of(MAX_POLL_RECORDS_MAX, FAR, **place))
    return world, world.poll()


def test_all_that_handlers_can_have_fits_into_the_default_limit() -> None:
    """The worst case: longest names, most topics, highest numbers, a lock per record."""
    world, spans = worst_in_hands()
    assert sum(map(len, spans)) == MAX_POLL_RECORDS_MAX
    request = join_again(world)
    assert len(request.join.topics) == TOPICS_MAX
    assert len(request.join.lock_book) == MAX_POLL_RECORDS_MAX
    assert size(request) <= REQUEST_BYTES
    for span in spans:
        span.mark(AcknowledgeType.ACCEPT)
    world.core.begin_commit(world.now)
    assert len(join_again(world).join.lock_book) == MAX_POLL_RECORDS_MAX, "nor on their way"


def test_alternating_states_shrink_to_one_range_per_lock_when_room_is_short() -> None:
    count = 50_000
    place: dict[str, Any] = {"topic": LONGEST_TOPIC, "partition": HIGHEST_PARTITION}
    world = World(**EXPLICIT)
    # More than one poll may return: as many as a program has from several.
    world.core.config = replace(world.core.config, max_poll_records=count)
    world.core.subscribe([LONGEST_TOPIC], world.now)
    world.drive()
    world.receive(joined=service_pb.Joined())
    world.receive(make_batch([b"x"] * count, base=FAR, token=8, **place))
    (span,) = world.poll()
    span.columns.states[1 : count - 1 : 2] = b"\x01" * len(range(1, count - 1, 2))
    world.core.begin_commit(world.now)
    world.drive()
    for request in [r for r in world.sent if r.acknowledge_id]:
        world.receive(results=[service_pb.AcknowledgeResult(acknowledge_id=request.acknowledge_id)])
    request = join_again(world)
    assert bounds(request.join.lock_book) == [(FAR, FAR + count - 1, 8)]
    # The coordinator says that the settled ones are not held: nobody here is touched by that.
    settled = [
        types_pb.HeldRange(
            partition=request.join.lock_book[0].partition,
            first_offset=FAR + row,
            last_offset=FAR + row,
            lock_token=8,
        )
        for row in range(1, 99, 2)
    ]
    world.receive(joined=service_pb.Joined(lost=settled))
    ticket = world.core.begin_commit(world.now)
    assert ticket.is_done
    span.columns.states[0] = AcknowledgeType.ACCEPT
    world.core.begin_commit(world.now)
    world.drive()
    assert [(ack.first, ack.last) for ack in world.acks()] == [(FAR, FAR)]


def test_records_that_nobody_saw_make_room_for_those_that_handlers_have() -> None:
    world = World(max_poll_records=10, sharecoord_buffer_records=200_000)
    world.join()
    room = next_credit(world)
    for first in range(0, 100_000, 10_000):
        world.receive(batch_of(10_000, FAR + first))
    assert sum(map(len, world.poll())) == 10
    request = join_again(world)
    shown = bounds(request.join.lock_book)
    assert REQUEST_BYTES - 4096 < size(request) <= REQUEST_BYTES, "as many as fit"
    assert [first for first, _, _ in shown] == [FAR + row for row in range(len(shown))]
    # The rest is not here any more: its room is free, and no handler gets it.
    waiting = len(shown) - 10
    assert request.join.credit.records_total == room - waiting
    (warning,) = [n.text for n in take_notices(world.core) if "no room in the join" in n.text]
    assert warning.startswith(f"{100_000 - len(shown)} locks")
    assert world.core.locks.credit.buffered_records == waiting
    world.receive(joined=service_pb.Joined())
    assert [span.first_offset for span in world.poll()] == [FAR + row for row in range(10, 20)]


def next_credit(world: World) -> int:
    """Records that the first join promised room for."""
    return world.sent[0].join.credit.records_total


def test_a_join_that_a_coordinator_finds_too_large_gets_smaller_until_it_takes_it() -> None:
    world = World(max_poll_records=2000, **EXPLICIT)
    world.join()
    world.receive(batch_of(4000))
    spans = world.poll()
    limit = 64 * 1024
    request = join_again(world)
    attempts = 0
    while size(request) > limit:
        attempts += 1
        assert attempts < 10
        world.fail(TOO_LARGE)
        request = next_join(world)
    shown = bounds(request.join.lock_book)
    assert 500 < len(shown) < 2000
    # Of those that handlers have, some could not be shown: they fail as lost locks do.
    for span in spans:
        span.mark(AcknowledgeType.ACCEPT) if span.columns.states[span.start] == 0 else None
    world.receive(joined=service_pb.Joined())
    world.core.begin_commit(world.now)
    world.drive()
    assert len(world.acks()) == len(shown)
    assert world.core.locks.has_unacknowledged(), "the lost ones wait for the application's word"


def test_a_lock_that_found_no_room_fails_when_it_is_acknowledged() -> None:
    world = World(**EXPLICIT)
    world.join()
    world.receive(batch_of(500))
    spans = world.poll()
    world.core._join_bytes = 0
    assert bounds(join_again(world).join.lock_book) == []
    for span in spans:
        assert mark_row(span.columns, span.start, AcknowledgeType.ACCEPT, NO_DETAILS), (
            "no complaint"
        )
    ticket = world.core.begin_commit(world.now)
    error = ticket.results["t", 0]
    assert ticket.is_done
    assert error is not None
    assert error.code() == KafkaError.INVALID_RECORD_STATE


def test_a_full_group_is_not_taken_for_a_join_that_is_too_large() -> None:
    world = World(**EXPLICIT)
    world.join()
    world.receive(batch_of(500))
    world.poll()
    before = size(join_again(world))
    for _ in range(10):
        world.fail(StreamFailure("RESOURCE_EXHAUSTED", "full", "GROUP_MAX_SIZE_REACHED", 5))
        assert size(next_join(world)) == before


STATES = st.lists(st.sampled_from("hwsr"), min_size=1, max_size=30)


@given(states=STATES, locks=st.integers(1, 4), room=st.sampled_from([0, 100, 300, 10**6]))
def test_a_book_shows_what_is_held_within_its_room(states: str, locks: int, room: int) -> None:
    """h in hands, w on its way, s settled, r returned unseen (last ones, from the buffer)."""
    count = len(states)
    ranges = equal_ranges(count, locks)
    world = World(**EXPLICIT)
    world.join()
    world.receive(make_batch([b"x"] * count, ranges=ranges))
    columns = world.poll()[0].columns
    for wanted, answered in (("s", True), ("w", False)):
        for row, state in enumerate(states):
            if state == wanted:
                columns.states[row] = 1
        world.core.begin_commit(world.now)
        world.drive()
        if answered and wanted in states:
            world.answer()
    book, left_out = world.core.locks.show(list(world.core._acks.ranges()), room)
    covered = {o for h in book for o in range(h.first_offset, h.last_offset + 1)}
    held = {row for row, state in enumerate(states) if state != "s"}
    step = -(-count // locks)
    for item in book:
        assert (item.last_offset // step) * step + 1 == item.lock_token, "within its lock"
    join = service_pb.Join(lock_book=book)
    assert len(join.SerializeToString()) <= room
    assert left_out or held <= covered
    if room == 10**6:
        assert covered == held
