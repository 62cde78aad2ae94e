"""Order of a handler: records of a key one at a time, and what goes back when one fails."""

from __future__ import annotations

import pytest
from sharecoord_sdk import Reject, Retry
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker.leases import Part
from sharecoord_sdk._worker.options import Behaviour

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, make_batch
from tests.sdk.worker_world import WorkerWorld, credit_of, value_of

LOST = types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST


def ordered_world(
    keys: list[bytes | None], ordering: str = "key", **settings: object
) -> WorkerWorld:
    """A worker with order that has received a record for each of these keys; values are offsets."""
    world = WorkerWorld(behaviour=Behaviour(ordering=ordering), **settings)  # type: ignore[arg-type]
    world.join()
    send(world, keys)
    return world


def send(
    world: WorkerWorld,
    keys: list[bytes | None],
    *,
    base: int = 0,
    token: int = 7,
    partition: int = 0,
) -> None:
    values: list[bytes | None] = [b"%d" % (base + row) for row in range(len(keys))]
    world.receive(make_batch(values, keys=keys, base=base, token=token, partition=partition))


def started(world: WorkerWorld) -> list[Part]:
    parts = world.start()
    assert not (world.locks.startable and world.core.free), "no slot is made for nothing"
    return parts


def offsets(parts: list[Part]) -> list[int]:
    return [int(value_of(part)) for part in parts]


def outcome(first: int, last: int) -> types_pb.PartitionOutcome:
    return types_pb.PartitionOutcome(
        partition=types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID),
        exceptions=[types_pb.RangeOutcome(first_offset=first, last_offset=last, outcome=LOST)],
    )


def test_records_of_a_key_run_one_at_a_time_in_order_and_other_keys_go_on() -> None:
    world = ordered_world([b"a", b"a", b"b", b"a", b"b"])
    first = started(world)
    assert offsets(first) == [0, 2]
    world.accept(first[1])
    second = started(world)
    assert offsets(second) == [4]
    world.accept(first[0])
    third = started(world)
    assert offsets(third) == [1]
    world.accept(third[0], second[0])
    last = started(world)
    assert offsets(last) == [3]
    world.accept(*last)
    world.publish()
    assert world.acks() == [Ack("t", 0, 0, 4, "ACCEPT", 7)]
    assert (world.locks.waiting, world.locks.running, world.locks.leases) == (0, 0, {})


def test_no_key_is_no_order_and_an_empty_key_is_a_key() -> None:
    world = ordered_world([None, b"", None, b"", None])
    assert sorted(offsets(started(world))) == [0, 1, 2, 4]


def test_records_of_a_topic_without_keys_have_no_order() -> None:
    world = WorkerWorld(behaviour=Behaviour(ordering="key"))
    world.join()
    world.receive(make_batch([b"0", b"1"]))
    assert offsets(started(world)) == [0, 1]


def test_keys_of_two_partitions_are_two() -> None:
    world = ordered_world([b"a", b"a"])
    send(world, [b"a"], partition=1)
    assert sorted(offsets(started(world))) == [0, 0]


def test_order_of_a_partition_is_that_of_all_its_records() -> None:
    world = ordered_world([b"a", None, b"b"], "partition")
    send(world, [b"c"], base=9, partition=1)
    parts = started(world)
    assert offsets(parts) == [0, 9]
    world.accept(parts[0])
    (second,) = started(world)
    assert offsets([second]) == [1]


@pytest.mark.parametrize("error", [Retry(5), ValueError("no")])
def test_a_record_that_is_released_takes_the_later_ones_of_its_key_with_it(
    error: Exception,
) -> None:
    world = ordered_world([b"a", b"b", b"a", b"a"])
    first, other = started(world)
    world.core.settle([first], error)
    world.publish()
    by_offset = {ack.first: ack.kind for ack in world.acks()}
    assert by_offset == {0: "RELEASE", 2: "RETURN"}
    assert world.acks()[-1].last == 3
    assert started(world) == [], "nothing of the key runs before the coordinator knows"
    world.answer()
    send(world, [b"a", b"b", b"a", b"a"], token=8)
    assert offsets(started(world)) == [0]
    world.accept(other)


def test_what_comes_of_the_key_before_the_coordinator_knows_goes_back_unseen() -> None:
    world = ordered_world([b"a", b"a"])
    (first,) = started(world)
    world.core.settle([first], ValueError("no"))
    world.publish()
    send(world, [b"a", b"b"], base=2, token=7)
    assert offsets(started(world)) == [3]
    world.publish()
    assert Ack("t", 0, 2, 2, "RETURN", 7) in world.acks()
    # The first message was answered; the second one has only what came after it.
    result = service_pb.AcknowledgeResult(acknowledge_id=1)
    world.receive(results=[result])
    send(world, [b"a", b"a", b"a"], token=9)
    assert offsets(started(world)) == [0]


def test_an_answer_to_a_renewal_is_none_to_the_failure() -> None:
    world = ordered_world([b"a", b"a"])
    (first,) = started(world)
    world.pass_time(15)
    assert [ack.kind for ack in world.acks()] == ["RENEW"]
    world.core.settle([first], ValueError("no"))
    world.answer()
    send(world, [b"a"], base=2)
    assert started(world) == []


def test_a_record_that_is_rejected_lets_the_next_run() -> None:
    world = ordered_world([b"a", b"a"])
    (first,) = started(world)
    world.core.settle([first], Reject("bad"))
    assert offsets(started(world)) == [1]


def test_a_lock_that_was_lost_takes_the_rest_of_the_key_with_it() -> None:
    world = ordered_world([b"a", b"b", b"a"])
    first, other = started(world)
    world.accept(first)
    world.publish()
    (second,) = started(world)
    send(world, [b"a"], base=3)
    world.answer(outcome(0, 0))
    world.accept(second, other)
    assert started(world) == [], "the server has taken the rest of the chain back"
    world.publish()
    assert Ack("t", 0, 3, 3, "RETURN", 7) in world.acks()
    send(world, [b"a"], base=3, token=8)
    assert offsets(started(world)) == [3]


def test_a_renewal_that_is_refused_takes_the_rest_of_the_key_with_it() -> None:
    world = ordered_world([b"a", b"b", b"a"])
    first, other = started(world)
    world.pass_time(15)
    world.answer(outcome(0, 0))
    send(world, [b"a"], base=5, token=9)
    assert started(world) == [], "its handler runs, though its lock is gone"
    world.accept(first)
    (after,) = started(world)
    assert offsets([after]) == [5]
    world.accept(after, other)
    world.publish()
    kinds = {(ack.first, ack.kind) for ack in world.acks()}
    assert (2, "RETURN") in kinds
    assert (0, "ACCEPT") not in kinds


def test_a_join_shows_what_waits_and_what_was_lost_runs_not() -> None:
    world = ordered_world([b"a", b"a", b"a", b"b", b"b"])
    parts = started(world)
    world.fail()
    world.pass_time(1)
    join = next(r.join for r in reversed(world.sent) if r.HasField("join"))
    assert [(h.first_offset, h.last_offset) for h in join.lock_book] == [(0, 4)]
    world.rejoin(1, 1)
    world.accept(*parts)
    assert offsets(started(world)) == [4]
    world.publish()
    returned = [(ack.first, ack.last) for ack in world.acks() if ack.kind == "RETURN"]
    assert returned == [(2, 2)], "after a record that is gone none of its key runs"


def test_a_redelivery_comes_before_what_waits() -> None:
    world = ordered_world([b"x", b"a"], concurrency=1)
    send(world, [b"a"], base=5)
    (first,) = started(world)
    send(world, [b"a"], base=3, token=9)
    seen = []
    while True:
        world.accept(first)
        parts = world.start()
        if not parts:
            break
        (first,) = parts
        seen.append(int(value_of(first)))
    assert seen == [1, 3, 5]


def test_locks_are_renewed_of_what_runs_alone_and_each_record_in_time() -> None:
    world = ordered_world([b"a", b"a"])
    (first,) = started(world)
    world.pass_time(15)
    assert world.acks() == [Ack("t", 0, 0, 0, "RENEW", 7)]
    world.answer()
    world.accept(first)
    (second,) = started(world)
    assert offsets([second]) == [1]
    # Its first lock ends at 30: half of what was left is over at 22.5.
    world.pass_time(7.5)
    assert world.acks()[-1] == Ack("t", 0, 1, 1, "RENEW", 7)
    world.accept(second)
    assert world.locks.leases == {}


def test_what_waits_for_its_key_too_long_goes_back_while_its_lock_lasts() -> None:
    world = ordered_world([b"a", b"a", b"a"], concurrency=5)
    (first,) = started(world)
    world.pass_time(15)
    world.answer()
    assert world.core.wake_at(world.now) == pytest.approx(world.now + 9)
    world.pass_time(9)
    assert Ack("t", 0, 1, 2, "RETURN", 7) in world.acks()
    world.accept(first)
    assert started(world) == []
    assert world.locks.leases == {}


def test_a_drain_hands_back_what_waits_and_lets_run_what_runs() -> None:
    world = ordered_world([b"a", b"a", None, b"a"], concurrency=1)
    (first,) = started(world)
    world.core.begin_stop(world.now)
    world.drive()
    returned = [(a.first, a.last) for a in world.acks() if a.kind == "RETURN"]
    assert returned == [(1, 3)]
    world.accept(first)
    assert started(world) == []
    world.publish()
    assert world.locks.leases == {}


def test_a_batch_has_the_records_of_a_key_in_order_and_no_other_call_has_any_of_them() -> None:
    world = ordered_world([b"a", b"b", b"a", b"a", b"b"], batch=3)
    first = world.start_batch()
    assert [p.lease.columns.offset_at(r) for p in first for r in range(p.start, p.stop)] == [
        0,
        2,
        3,
    ]
    second = world.start_batch()
    assert [p.lease.columns.offset_at(r) for p in second for r in range(p.start, p.stop)] == [1, 4]
    send(world, [b"a", b"c"], base=5)
    third = world.start_batch()
    assert [p.lease.columns.offset_at(r) for p in third for r in range(p.start, p.stop)] == [6]
    world.core.settle(first, ValueError("no"))
    world.core.settle(second, None)
    world.publish()
    kinds = sorted((ack.first, ack.last, ack.kind) for ack in world.acks())
    assert kinds == [
        (0, 0, "RELEASE"),
        (1, 1, "ACCEPT"),
        (2, 3, "RELEASE"),
        (4, 4, "ACCEPT"),
        (5, 5, "RETURN"),
    ]


def test_a_handler_with_order_does_not_hold_up_another() -> None:
    world = WorkerWorld(both=True, behaviour=Behaviour(ordering="partition"), concurrency=3)
    world.core.subscribe(["t", "u"], world.now)
    world.drive()
    world.receive(make_batch([b"a", b"b", b"c"]), make_batch([b"u"] * 3, topic="u"))
    parts = world.start()
    assert [part.lease.handler.name for part in parts] == ["handle", "handle_other", "handle_other"]
    world.accept(*parts)
    assert [part.lease.handler.name for part in world.start()] == ["handle", "handle_other"]


def test_one_slow_key_is_asked_for_no_more_than_it_works_off_soon() -> None:
    world = WorkerWorld(behaviour=Behaviour(ordering="key"), concurrency=100)
    world.join()
    received = 0
    for _ in range(60):
        count = credit_of(world) - received
        if count > 0:
            send(world, [b"a"] * count, base=received)
            received += count
        parts = world.start()
        world.pass_time(1.0)
        world.accept(*parts)
        world.publish()
    assert world.locks.waiting <= 10
    returned = [ack for ack in world.acks() if ack.kind == "RETURN"]
    assert sum(ack.last - ack.first + 1 for ack in returned) <= 64, "of the first promise alone"


@pytest.mark.parametrize(
    ("mine", "group", "concurrency", "words"),
    [
        (None, "unordered", 100, None),
        ("key", "key", 100, None),
        (None, "", 100, None),
        (None, "of-tomorrow", 100, None),
        (None, "key", 1, None),
        ("key", "unordered", 1, "set share.ordering=key for the group"),
        ("partition", "key", 100, "set share.ordering=partition for the group"),
        (None, "key", 2, "give the handler ordering='key'"),
        ("key", "partition", 2, "give the handler ordering='partition'"),
    ],
)
def test_a_worker_says_that_its_group_keeps_another_order(
    mine: str | None, group: str, concurrency: int, words: str | None
) -> None:
    world = WorkerWorld(behaviour=Behaviour(ordering=mine), concurrency=concurrency)
    world.core.subscribe(["t"], world.now)
    world.drive()
    joined = service_pb.Joined(lock_duration_ms=30_000, ordering=group)
    world.receive(joined=joined)
    # Not each time that it joins.
    world.receive(joined=joined)
    texts = [text for text in world.notices() if "share.ordering" in text]
    if words is None:
        assert texts == []
    else:
        (text,) = texts
        assert text.endswith(words)
        assert "handle" in text
