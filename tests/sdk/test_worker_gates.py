"""What holds a handler back: rates and breakers, on a clock of the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sharecoord_sdk import Breaker, Reject, Retry
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._worker.gates import KEYS_MAX, KeyRates, Rate
from sharecoord_sdk._worker.options import Behaviour

from tests.sdk.fake_coordinator import make_batch
from tests.sdk.worker_world import WorkerWorld, value_of


def held_world(count: int, keys: Sequence[bytes | None] = (), **settings: Any) -> WorkerWorld:
    """A worker whose handler is held back, and that has received records."""
    world = WorkerWorld(**settings)
    world.join()
    assigned = service_pb.AssignedTopic(topic="t", partitions=[0, 1])
    world.receive(assignment=service_pb.Assignment(topics=[assigned]))
    if count:
        send(world, count, keys=keys)
    return world


def send(
    world: WorkerWorld, count: int, *, base: int = 0, keys: Sequence[bytes | None] = ()
) -> None:
    values: list[bytes | None] = [b"%d" % (base + at) for at in range(count)]
    batch = make_batch(values, base=base, token=base + 1, keys=keys, remaining_ms=3_600_000)
    world.receive(batch)


def run_for(world: WorkerWorld, seconds: float) -> list[tuple[float, int]]:
    """Handlers that return at once; when each record ran."""
    ran: list[tuple[float, int]] = []
    end = world.now + seconds
    while True:
        for part in world.start():
            ran.append((world.now, int(value_of(part))))
            world.accept(part)
        world.publish()
        at = world.core.wake_at(world.now)
        if at is None or at > end:
            return ran
        assert at > world.now, "no timer for what is over"
        world.pass_time(at - world.now)


# -- rates ------------------------------------------------------------------------------------


def test_a_rate_holds_over_any_time_and_lets_a_little_through_at_once() -> None:
    world = held_world(1000, behaviour=Behaviour(rate_per_s=100.0))
    begin = world.now
    ran = run_for(world, 5.0)
    assert 500 <= len(ran) <= 511, "the rate, and a tenth of a second of it"
    for start in (0.0, 1.0, 2.5):
        second = [at for at, _ in ran if begin + start <= at < begin + start + 1]
        assert 99 <= len(second) <= 110


def test_a_slow_rate_has_no_burst() -> None:
    world = held_world(10, behaviour=Behaviour(rate_per_s=0.5))
    ran = run_for(world, 7.0)
    begin = ran[0][0]
    assert [at - begin for at, _ in ran] == pytest.approx([0, 2, 4, 6])


def test_a_rate_counts_the_records_of_batches() -> None:
    world = held_world(1000, behaviour=Behaviour(rate_per_s=1000.0), batch=500)
    parts = world.start_batch()
    assert sum(part.stop - part.start for part in parts) == 100
    assert world.core.head(world.now) is None
    world.core.settle(parts, None)


def test_a_rate_of_one_handler_holds_up_no_other() -> None:
    world = WorkerWorld(both=True, behaviour=Behaviour(rate_per_s=1.0))
    world.core.subscribe(["t", "u"], world.now)
    world.drive()
    world.receive(make_batch([b"0", b"1"]), make_batch([b"2", b"3"], topic="u"))
    assert sorted(value_of(part) for part in world.start()) == [b"0", b"2", b"3"]


def test_a_rate_of_each_key_spaces_its_records_and_no_others() -> None:
    keys: list[bytes | None] = [b"a", b"a", b"b", None, b"a", None]
    world = held_world(6, keys, behaviour=Behaviour(rate_per_key_per_s=2.0))
    begin = world.now
    ran = [(round(at - begin, 3), offset) for at, offset in run_for(world, 3.0)]
    assert sorted(ran) == [(0.0, 0), (0.0, 2), (0.0, 3), (0.0, 5), (0.5, 1), (1.0, 4)]


def test_a_rate_of_each_key_does_not_wait_for_handlers() -> None:
    world = held_world(2, [b"a", b"a"], behaviour=Behaviour(rate_per_key_per_s=2.0))
    (first,) = world.start()
    world.pass_time(0.5)
    (second,) = world.start()
    world.accept(first, second)


def test_a_drain_does_not_wait_for_a_rate() -> None:
    world = held_world(10, behaviour=Behaviour(rate_per_s=0.5))
    (part,) = world.start()
    world.core.begin_stop(world.now)
    world.drive()
    assert [(a.first, a.last, a.kind) for a in world.acks()] == [(1, 9, "RETURN")]
    world.accept(part)
    assert world.core.free == 0


def test_the_table_of_keys_is_bounded_and_forgets_what_is_over() -> None:
    rates = KeyRates(1.0)
    for key in range(KEYS_MAX + 10):
        rates.take(key, 0.0)
    assert len(rates._due) == KEYS_MAX
    assert rates.opens_at(0) < 0, "the oldest was forgotten"
    assert rates.opens_at(KEYS_MAX) == 1.0
    rates.take("x", 2.0)
    assert len(rates._due) == 1


def test_room_of_a_rate_is_what_may_start_at_once() -> None:
    rate = Rate(100.0)
    assert rate.room(5.0) == 10
    rate.take(10, 5.0)
    assert rate.opens_at() == pytest.approx(5.01)
    assert rate.room(5.015) == 1
    assert rate.room(9.0) == 10


# -- breakers ---------------------------------------------------------------------------------

POLICY = Breaker(failures=3, window_s=10, probe_after_s=30, errors=(OSError,))


def fail(world: WorkerWorld, error: Exception | None) -> None:
    """The next record's handler ends."""
    part = world.start_one()
    assert part is not None
    world.core.settle([part], error, world.now)


def paused(world: WorkerWorld) -> list[int]:
    """What the coordinator was told last."""
    world.drive()
    said = [r.paused for r in world.sent if r.HasField("paused")]
    return [place.partition for place in said[-1].partitions] if said else []


def opened_world(**settings: Any) -> WorkerWorld:
    world = held_world(10, behaviour=Behaviour(breaker=POLICY), concurrency=1, **settings)
    for _ in range(3):
        fail(world, OSError("down"))
    world.publish()
    return world


def test_failures_within_the_window_open_it_and_what_waits_goes_back_unseen() -> None:
    world = opened_world()
    assert world.core.states() == {"t": "open"}
    assert paused(world) == [0, 1]
    back = [(a.first, a.last) for a in world.acks() if a.kind == "RETURN"]
    assert back == [(3, 9)]
    assert world.start_one() is None
    assert any("the breaker of handler handle opens: t is paused" in t for t in world.notices())


def test_failures_that_are_far_apart_or_of_another_kind_do_not() -> None:
    world = held_world(10, behaviour=Behaviour(breaker=POLICY), concurrency=1)
    for error in (OSError(), OSError(), ValueError(), Retry(1), Reject("x"), None):
        fail(world, error)
    world.now += 11
    fail(world, OSError())
    assert world.core.states() == {"t": "closed"}
    assert paused(world) == []


def test_after_a_while_one_record_tries_and_then_all_go_on() -> None:
    world = opened_world()
    assert world.core.wake_at(world.now) == pytest.approx(world.now + 30, abs=1)
    world.pass_time(30)
    assert world.core.states() == {"t": "probing"}
    assert paused(world) == []
    send(world, 5, base=20)
    world.core._concurrency = 5
    probe = world.start()
    assert len(probe) == 1
    world.pass_time(5)
    assert world.start() == []
    world.core.settle(probe, None, world.now)
    assert world.core.states() == {"t": "closed"}
    assert len(world.start()) == 4


def test_a_probe_that_fails_leaves_it_open_for_as_long_again() -> None:
    world = opened_world()
    world.pass_time(30)
    send(world, 3, base=20)
    fail(world, OSError("still down"))
    world.publish()
    assert world.core.states() == {"t": "open"}
    assert paused(world) == [0, 1]
    world.pass_time(29)
    assert world.core.states() == {"t": "open"}
    world.pass_time(1)
    assert world.core.states() == {"t": "probing"}


def test_a_probe_of_a_batch_is_one_record() -> None:
    world = held_world(0, behaviour=Behaviour(breaker=POLICY), batch=4)
    for base in (0, 4, 8):
        send(world, 4, base=base)
        world.core.settle(world.start_batch(), OSError(), world.now)
    world.pass_time(30)
    send(world, 4, base=20)
    (probe,) = world.start_batch()
    assert (probe.start, probe.stop) == (0, 1)
    world.core.settle([probe], None, world.now)
    assert world.core.states() == {"t": "closed"}


def test_handlers_that_end_while_it_is_open_change_nothing() -> None:
    world = held_world(10, behaviour=Behaviour(breaker=POLICY), concurrency=5)
    parts = world.start()
    for part in parts[:3]:
        world.core.settle([part], OSError(), world.now)
    world.core.settle([parts[3]], None, world.now)
    world.core.settle([parts[4]], OSError(), world.now + 5)
    assert world.core.states() == {"t": "open"}
    world.pass_time(30)
    assert world.core.states() == {"t": "probing"}


def test_partitions_that_come_while_it_is_open_are_paused_too() -> None:
    world = opened_world()
    assigned = service_pb.AssignedTopic(topic="t", partitions=[0, 1, 2])
    world.receive(assignment=service_pb.Assignment(topics=[assigned]))
    assert paused(world) == [0, 1, 2]


def test_a_drain_does_not_wait_for_a_breaker() -> None:
    world = opened_world()
    world.core.begin_stop(world.now)
    world.pass_time(60)
    assert world.core.states() == {"t": "open"}, "nothing tries any more"
    for number in sorted({r.acknowledge_id for r in world.sent if r.acknowledge_id}):
        world.receive(results=[service_pb.AcknowledgeResult(acknowledge_id=number)])
    assert world.core.is_settled


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"failures": 0}, ValueError),
        ({"failures": 1.5}, TypeError),
        ({"window_s": 0}, ValueError),
        ({"probe_after_s": -1}, ValueError),
        ({"errors": OSError}, TypeError),
        ({"errors": ()}, TypeError),
        ({"errors": (5,)}, TypeError),
    ],
)
def test_a_breaker_that_can_not_be_is_refused(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        Breaker(**arguments)


def test_outcomes_count_as_failures_only_when_they_are_named() -> None:
    assert not Breaker().counts(Retry(1))
    assert Breaker().counts(ValueError())
    assert Breaker(errors=(Retry,)).counts(Retry(1))
    assert not Breaker(errors=(Retry,)).counts(Reject("x"))


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"ordering": "topic"}, ValueError),
        ({"timeout_s": 0}, ValueError),
        ({"timeout_s": "5"}, TypeError),
        ({"rate_per_s": 0}, ValueError),
        ({"rate_per_key_per_s": float("nan")}, ValueError),
        ({"breaker": 5}, TypeError),
    ],
)
def test_what_a_handler_can_not_be_told_is_refused(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=next(iter(arguments)).removesuffix("_s")):
        Behaviour(**arguments)
