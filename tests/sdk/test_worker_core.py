"""The rules of a worker on a clock of the test: slots, outcomes, renewals, credit, the end."""

from __future__ import annotations

import pytest
from sharecoord_sdk import KafkaException, Reject, Retry
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker.demand import FIRST, PREFETCH_MAX, Demand, Pace
from sharecoord_sdk._worker.leases import runs_of

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, make_batch
from tests.sdk.worker_world import WorkerWorld, credit_of, value_of
from tests.sdk.world import take_notices


class BrokenError(Exception):
    """Can not be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def exceptions(
    kind: types_pb.AcknowledgeOutcome, first: int, last: int
) -> types_pb.PartitionOutcome:
    """An answer that makes an exception of some offsets of t [0]."""
    return types_pb.PartitionOutcome(
        partition=types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID),
        exceptions=[types_pb.RangeOutcome(first_offset=first, last_offset=last, outcome=kind)],
    )


def joined_world(count: int = 0, **settings: object) -> WorkerWorld:
    """A worker that has joined and received so many records."""
    world = WorkerWorld(**settings)  # type: ignore[arg-type]
    world.join()
    if count:
        world.receive(make_batch([b"%d" % i for i in range(count)], token=7))
    return world


# -- slots and outcomes -----------------------------------------------------------------------


def test_a_free_slot_takes_the_next_record_before_anything_was_sent() -> None:
    world = joined_world(5, concurrency=2)
    first, second = world.start()
    assert (world.core.free, world.core.head(world.now)) == (0, None), "no third one"
    world.accept(second)
    (third,) = world.start()
    assert value_of(third) == b"2"
    assert world.acks() == []
    world.accept(third, first)
    world.publish()
    assert world.acks() == [Ack("t", 0, 0, 2, "ACCEPT", 7)], "one range"


def test_results_go_out_as_ranges_and_each_once() -> None:
    world = joined_world(6)
    parts = world.start()
    world.accept(parts[4], parts[0], parts[2], parts[1])
    world.publish()
    assert world.acks() == [Ack("t", 0, 0, 2, "ACCEPT", 7), Ack("t", 0, 4, 4, "ACCEPT", 7)]
    world.accept(parts[3])
    world.publish()
    world.publish()
    assert world.acks()[2:] == [Ack("t", 0, 3, 3, "ACCEPT", 7)]
    assert world.locks.running == 1


@pytest.mark.parametrize(
    ("error", "kind", "delay_ms", "reason"),
    [
        (None, "ACCEPT", 0, ""),
        (Retry(after_s=1.5), "RELEASE", 1500, ""),
        (Retry(reason="busy"), "RELEASE", 0, "busy"),
        (Retry(0), "RELEASE", 1, ""),
        (Retry(0.0001), "RELEASE", 1, ""),
        (Retry(after_s=1e300), "RELEASE", 2**53, ""),
        (Reject("bad order"), "REJECT", 0, "bad order"),
        (Reject("ä" * 600), "REJECT", 0, "ä" * 512),
        (Reject("half \ud800"), "REJECT", 0, r"half \ud800"),
        (ValueError("no"), "RELEASE", 0, "ValueError: no"),
        (BrokenError(), "RELEASE", 0, "BrokenError: (its text can not be read)"),
        (SystemExit(1), "RELEASE", 0, "SystemExit"),
    ],
)
def test_what_a_handler_does_is_the_outcome(
    error: BaseException | None, kind: str, delay_ms: int, reason: str
) -> None:
    world = joined_world(1)
    world.core.settle(world.start(), error)
    world.publish()
    assert world.acks() == [Ack("t", 0, 0, 0, kind, 7, delay_ms, reason)]


def test_an_error_is_logged_with_the_place_and_retries_are_not_errors() -> None:
    world = joined_world(3)
    first, second, third = world.start()
    world.notices()
    world.core.settle([first], ValueError("no"))
    world.core.settle([second], Retry(5))
    world.core.settle([third], Reject("bad"))
    notices = take_notices(world.core)
    assert [n.level for n in notices] == [40, 10, 10]
    assert notices[0].text == (
        "handler handle of t [0] offset 0 failed, the record is released: ValueError: no"
    )


def test_outcomes_of_different_kinds_stay_apart() -> None:
    world = joined_world(5)
    parts = world.start()
    for part, error in zip(parts, [Retry(1), Retry(1), None, Retry(2), Reject("x")], strict=True):
        world.core.settle([part], error)
    world.publish()
    assert [(a.first, a.last, a.kind, a.delay_ms) for a in world.acks()] == [
        (0, 1, "RELEASE", 1000),
        (2, 2, "ACCEPT", 0),
        (3, 3, "RELEASE", 2000),
        (4, 4, "REJECT", 0),
    ]


def test_runs_of_rows() -> None:
    assert list(runs_of([])) == []
    assert list(runs_of([3, 1, 2])) == [(1, 4)]
    assert list(runs_of([5, 1, 2, 9])) == [(1, 3), (5, 6), (9, 10)]


def test_each_topic_has_its_handler() -> None:
    world = WorkerWorld(both=True)
    world.core.subscribe(["t", "u"], world.now)
    world.drive()
    world.receive(make_batch([b"a"]), make_batch([b"b"], topic="u"))
    assert [part.lease.handler.name for part in world.start()] == ["handle", "handle_other"]


# -- batches ----------------------------------------------------------------------------------


def test_a_batch_takes_what_waits_over_spans_and_partitions() -> None:
    world = joined_world(concurrency=2, batch=4)
    world.receive(make_batch([b"a", b"b"], token=1), make_batch([b"c"], partition=1, token=2))
    world.receive(make_batch([b"d", b"e", b"f"], base=2, token=3))
    first = world.start_batch()
    assert [(p.lease.columns.partition, p.start, p.stop) for p in first] == [
        (0, 0, 2),
        (1, 0, 1),
        (0, 0, 1),
    ]
    second = world.start_batch()
    assert world.core.head(world.now) is None
    assert (world.locks.jobs, world.locks.running, world.locks.waiting) == (2, 6, 0)
    world.core.settle(first, None)
    world.core.settle(second, Reject("all of it"))
    world.publish()
    assert world.acks() == [
        Ack("t", 0, 0, 1, "ACCEPT", 1),
        Ack("t", 0, 2, 2, "ACCEPT", 3),
        Ack("t", 0, 3, 4, "REJECT", 3, 0, "all of it"),
        Ack("t", 1, 0, 0, "ACCEPT", 2),
    ]


def test_a_batch_holds_records_of_one_topic_only() -> None:
    world = WorkerWorld(both=True, batch=10)
    world.core.subscribe(["t", "u"], world.now)
    world.drive()
    world.receive(make_batch([b"a"]), make_batch([b"b"], topic="u"), make_batch([b"c"], base=1))
    (part,) = world.start_batch()
    assert value_of(part) == b"a"


# -- locks ------------------------------------------------------------------------------------


def test_locks_are_renewed_at_half_their_time_while_a_handler_runs() -> None:
    world = joined_world(3, concurrency=2)
    first, second = world.start()
    assert world.core.wake_at(world.now) == pytest.approx(world.now + 15)
    world.pass_time(14.9)
    assert world.acks() == []
    world.pass_time(0.1)
    assert world.acks() == [Ack("t", 0, 0, 1, "RENEW", 7)], "not the one that waits"
    world.answer()
    world.accept(first)
    world.publish()
    assert world.acks()[1:] == [Ack("t", 0, 0, 0, "ACCEPT", 7)]
    world.pass_time(15)
    assert world.acks()[2:] == [Ack("t", 0, 1, 1, "RENEW", 7)]
    world.accept(second)
    world.publish()
    world.pass_time(60)
    assert [ack.kind for ack in world.acks()].count("RENEW") == 2


def test_a_record_that_waited_long_is_renewed_when_half_of_the_rest_is_over() -> None:
    world = joined_world(2, concurrency=1)
    (first,) = world.start()
    world.pass_time(15)
    world.answer()
    world.pass_time(5)
    world.accept(first)
    (second,) = world.start()
    assert second.lease is not first.lease
    world.pass_time(5)
    assert world.acks()[1:] == [Ack("t", 0, 1, 1, "RENEW", 7)]


def test_rows_that_start_after_a_renewal_are_renewed_by_themselves() -> None:
    world = joined_world(3, concurrency=2)
    first, second = world.start()
    world.pass_time(15)
    world.answer()
    world.accept(first)
    (third,) = world.start()
    world.pass_time(7.5)
    world.answer()
    world.pass_time(7.5)
    renewed = [(ack.first, ack.last) for ack in world.acks() if ack.kind == "RENEW"]
    assert renewed == [(0, 1), (2, 2), (1, 1)]
    world.accept(second, third)
    assert world.locks.leases == {}


def test_what_waited_longer_than_its_lock_goes_back_unseen() -> None:
    world = joined_world(3, concurrency=1)
    world.start()
    world.pass_time(30)
    world.receive(make_batch([b"new"], base=3, token=8))
    world.locks.jobs = 0
    (part,) = world.start()
    assert value_of(part) == b"new"
    world.publish()
    assert Ack("t", 0, 1, 2, "RETURN", 7) in world.acks()


def test_what_waits_beside_busy_slots_goes_back_while_its_lock_lasts_and_none_comes_anew() -> None:
    world = joined_world(3, concurrency=1)
    (part,) = world.start()
    world.publish()
    world.pass_time(15)
    world.answer()
    promised = credit_of(world)
    assert world.core.wake_at(world.now) == pytest.approx(world.now + 9)
    world.pass_time(8.9)
    assert [ack.kind for ack in world.acks()] == ["RENEW"]
    world.pass_time(0.1)
    assert world.acks()[1:] == [Ack("t", 0, 1, 2, "RETURN", 7)]
    for _ in range(20):
        world.pass_time(15)
        world.answer()
        world.publish()
    assert credit_of(world) == promised
    world.accept(part)
    world.publish()
    assert credit_of(world) > promised


def test_what_waits_beside_a_free_slot_is_started_though_little_of_its_lock_is_left() -> None:
    world = joined_world(2, concurrency=1)
    (part,) = world.start()
    world.pass_time(15)
    world.answer()
    world.accept(part)
    world.pass_time(10)
    assert len(world.start()) == 1


def test_a_worker_gives_signs_while_a_lock_may_end_that_it_does_not_renew() -> None:
    """The coordinator keeps records from it after the end of that lock, and it has a free slot."""
    world = joined_world(1, concurrency=2, renew_max_s=20)
    (part,) = world.start()
    world.publish()
    for _ in range(2):
        world.pass_time(15)
        world.answer()
    renewed = world.now
    signs: list[float] = []
    for _ in range(200):
        world.pass_time(0.5)
        world.publish()
        signs += [world.now for _ in range(sum(r.polled for r in world.sent) - len(signs))]
    assert any(renewed + 30 < at <= renewed + 31 for at in signs)
    assert len([at for at in signs if at > renewed + 76]) <= 1, "again as seldom as others"
    world.accept(part)


def test_renewals_end_after_their_time_with_a_warning() -> None:
    world = joined_world(1, renew_max_s=40)
    (part,) = world.start()
    for _ in range(8):
        world.pass_time(15)
    assert [ack.kind for ack in world.acks()] == ["RENEW"] * 3
    (warning,) = [text for text in world.notices() if "renew" in text]
    assert "handler handle of t [0] offset 0 still runs" in warning
    assert "renew_max_s = 40 s" in warning
    world.accept(part)
    world.publish()
    assert world.acks()[-1].kind == "ACCEPT", "the coordinator decides"


def test_renewals_end_when_the_group_allows_none() -> None:
    world = joined_world(2, concurrency=1)
    (first,) = world.start()
    world.pass_time(15)
    world.notices()
    world.answer(exceptions(types_pb.ACKNOWLEDGE_OUTCOME_RENEW_DISABLED, 0, 0))
    (warning,) = world.notices()
    assert "handler handle of t [0] offset 0" in warning
    assert "share.renew.acknowledge.enable" in warning
    assert world.core.take_outcomes() == []
    world.pass_time(8)
    world.accept(first)
    world.publish()
    assert [ack.kind for ack in world.acks()] == ["RENEW", "ACCEPT"], "its lock went on"
    (second,) = world.start()
    world.pass_time(6)
    assert len(world.acks()) == 2, "no second try"
    assert "offset 1 still runs" in world.notices()[-1]
    world.accept(second)


def test_the_result_of_a_lost_lock_is_dropped_and_told() -> None:
    world = joined_world(2)
    first, second = world.start()
    world.pass_time(15)
    world.answer(exceptions(types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST, 1, 1))
    assert world.core.take_outcomes() == [], "the renewal itself is nobody's result"
    world.accept(first)
    world.core.settle([second], Reject("bad"))
    world.publish()
    assert world.acks()[1:] == [Ack("t", 0, 0, 0, "ACCEPT", 7)]
    (outcome,) = world.core.take_outcomes()
    assert outcome.error is not None
    assert [list(span.offsets()) for span in outcome.spans] == [[1]]
    assert (world.locks.running, world.locks.jobs, world.locks.leases) == (0, 0, {})


def test_a_result_that_the_coordinator_refuses_is_told() -> None:
    world = joined_world(1)
    world.accept(*world.start())
    world.publish()
    world.answer(exceptions(types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST, 0, 0))
    (outcome,) = world.core.take_outcomes()
    assert outcome.error is not None


def test_a_new_stream_shows_what_runs_and_waits_and_was_not_answered() -> None:
    world = joined_world(5, concurrency=3)
    parts = world.start()
    world.accept(parts[1])
    world.publish()
    world.fail()
    world.accept(parts[0])
    world.pass_time(1)
    join = world.sent[-2].join if world.sent[-2].HasField("join") else world.sent[-1].join
    assert [(h.first_offset, h.last_offset, h.lock_token) for h in join.lock_book] == [(0, 4, 7)]
    world.rejoin(2, 3)
    world.accept(parts[2])
    (rest,) = world.start()
    assert value_of(rest) == b"4", "3 waited, and is lost"
    world.publish()
    outcomes = [o for o in world.core.take_outcomes() if o.error is not None]
    assert [list(span.offsets()) for o in outcomes for span in o.spans] == [[2]]
    again = [ack for ack in world.acks() if ack.kind == "ACCEPT"]
    assert [(ack.first, ack.last) for ack in again] == [(1, 1), (0, 0), (1, 1)]


# -- what is asked for ------------------------------------------------------------------------


def test_the_join_promises_little_and_grows_while_everything_is_started() -> None:
    world = joined_world(concurrency=10_000)
    assert credit_of(world) == FIRST
    received = 0
    for _ in range(12):
        count = credit_of(world) - received
        world.receive(make_batch([b"x"] * count, base=received))
        received += count
        world.start()
        world.publish()
    assert world.locks.running == 10_000, "all slots"
    assert credit_of(world) - received <= 1, "and, with nothing learnt, one that waits"


def test_handlers_that_compute_get_no_more_than_they_work_off_soon() -> None:
    world = joined_world(concurrency=10_000)
    received = 0
    for turn in range(2000):
        count = credit_of(world) - received
        if count:
            world.receive(make_batch([b"x"] * count, base=received))
        received += count
        part = world.start_one()
        assert part is not None
        world.now += 0.001
        world.accept(part)
        if world.locks.waiting:
            world.core.demand.computing(world.locks.running)
        if turn % 5 == 0:
            world.publish()
    # 1,000 records per second: 200 in 200 ms.
    assert 100 <= world.locks.waiting <= 250


def test_full_slots_prefetch_what_is_worked_off_in_the_time() -> None:
    demand = Demand(100, 1, 100_000)
    now = 0.0
    demand.pace.started(now)
    for _ in range(20):
        now += 0.1
        demand.pace.finished(100, now, drained=False)
    assert demand.room(running=100, jobs=100, waiting=0) == pytest.approx(200, rel=0.01)
    assert demand.room(running=0, jobs=0, waiting=0) >= 200
    assert Demand(100, 1, 50).room(running=0, jobs=0, waiting=0) == 50, "buffer.records"
    demand.pace.records_per_s = 1e9
    assert demand.room(running=100, jobs=100, waiting=0) == PREFETCH_MAX


def test_a_free_slot_of_batches_asks_for_a_whole_one() -> None:
    assert Demand(2, 5000, 100_000).room(running=64, jobs=1, waiting=9) == 5000


def test_a_pace_counts_faster_at_once_and_slower_bit_by_bit() -> None:
    pace = Pace()
    pace.started(0.0)
    pace.finished(10, 0.01, drained=True)
    assert pace.records_per_s == pytest.approx(1000)
    pace.started(5.0)
    pace.finished(10, 5.1, drained=False)
    assert pace.records_per_s == pytest.approx(1000 + 0.3 * (100 - 1000))


def test_the_coordinator_hears_how_long_handlers_ran() -> None:
    world = joined_world(2, concurrency=1)
    (first,) = world.start()
    world.pass_time(0.5)
    world.accept(first)
    (second,) = world.start()
    world.publish()
    assert world.sent[-1].busy_us == 500_000
    world.pass_time(0.25)
    world.accept(second)
    world.publish()
    assert world.sent[-1].busy_us == 250_000
    world.pass_time(9)
    world.receive(make_batch([b"x"], base=2))
    world.accept(*world.start())
    world.publish()
    assert world.sent[-1].busy_us == 0, "nobody ran"


def test_bytes_bound_what_waits_too() -> None:
    world = joined_world(sharecoord_buffer_bytes=1000)
    batch = make_batch([b"x" * 100] * 4)
    world.receive(batch)
    (join,) = [r.join for r in world.sent if r.HasField("join")]
    assert join.credit.bytes_total == 1000
    world.publish()
    assert max(r.credit.bytes_total for r in world.sent) <= 1000
    world.start()
    world.publish()
    assert world.sent[-1].credit.bytes_total == 1000 + batch.credit_bytes


# -- the end ----------------------------------------------------------------------------------


def test_a_drain_lets_run_what_runs_and_hands_back_the_rest() -> None:
    world = joined_world(5, concurrency=2)
    first, second = world.start()
    granted = credit_of(world)
    world.core.begin_stop(world.now)
    world.drive()
    assert world.acks() == [Ack("t", 0, 2, 4, "RETURN", 7)]
    assert any(r.HasField("subscription") and not r.subscription.topics for r in world.sent)
    world.receive(make_batch([b"late"], base=5, token=8))
    world.accept(first)
    assert world.core.head(world.now) is None
    world.publish()
    assert world.acks()[1:] == [Ack("t", 0, 0, 0, "ACCEPT", 7), Ack("t", 0, 5, 5, "RETURN", 8)]
    world.pass_time(15)
    assert world.acks()[-1] == Ack("t", 0, 1, 1, "RENEW", 7), "renewed to the end"
    world.accept(second)
    world.core.begin_close(world.now)
    world.drive()
    assert world.acks()[-1] == Ack("t", 0, 1, 1, "ACCEPT", 7)
    world.answer()
    assert credit_of(world) == granted, "no more was asked for"
    assert not world.core.is_close_done
    world.receive(left=True)
    assert world.core.is_close_done


def test_nothing_follows_a_leave() -> None:
    world = joined_world(1)
    world.start()
    world.core.begin_close(world.now)
    world.drive()
    world.receive(make_batch([b"late"], base=1))
    world.pass_time(2)
    world.publish()
    assert world.sent[-1].leave


def test_a_drain_is_settled_when_everything_is_confirmed() -> None:
    world = joined_world(2, concurrency=1)
    (part,) = world.start()

    def settled() -> bool:
        return world.core.is_settled

    assert settled()
    world.core.begin_stop(world.now)
    world.drive()
    assert not settled()
    world.receive(make_batch([b"late"], base=2))
    world.answer()
    assert not settled(), "what was on its way went back too"
    world.publish()
    world.answer()
    assert settled()
    world.accept(part)
    assert not settled()


def test_what_does_not_finish_in_time_is_left_to_the_coordinator() -> None:
    world = joined_world(2)
    world.start()
    world.core.begin_stop(world.now)
    world.core.begin_close(world.now)
    world.drive()
    assert world.acks() == []
    assert world.sent[-1].leave


def test_a_drain_without_a_coordinator_ends_when_nothing_runs() -> None:
    world = WorkerWorld()
    world.core.subscribe(["t"], world.now)
    world.core.begin_stop(world.now)
    world.core.begin_close(world.now)
    world.drive()
    assert world.core.is_close_done
    assert world.opened == []


def test_results_of_a_drain_reach_a_coordinator_that_comes_back() -> None:
    world = joined_world(1)
    (part,) = world.start()
    world.core.begin_stop(world.now)
    world.fail()
    world.pass_time(1)
    assert len(world.opened) == 2, "a handler runs: its lock must be shown"
    assert [len(r.join.lock_book) for r in world.sent if r.HasField("join")] == [0, 1]
    world.receive(joined=service_pb.Joined(lock_duration_ms=30_000))
    world.accept(part)
    world.publish()
    assert world.acks()[-1] == Ack("t", 0, 0, 0, "ACCEPT", 7)


def test_a_coordinator_that_goes_down_gets_the_rest_back_and_the_next_the_results() -> None:
    world = joined_world(3, concurrency=1)
    (part,) = world.start()
    world.receive(drain=service_pb.DrainNotice(addresses=["c:3"], grace_ms=2000))
    world.drive()
    assert world.core.head(world.now) is None
    world.publish()
    assert world.acks() == [Ack("t", 0, 1, 2, "RETURN", 7)]
    world.answer()
    world.drive()
    assert world.opened[-1] == "c:3"
    world.receive(joined=service_pb.Joined(lock_duration_ms=30_000))
    world.accept(part)
    world.publish()
    assert world.acks()[-1] == Ack("t", 0, 0, 0, "ACCEPT", 7)


def test_a_refusal_is_a_failure_with_the_coordinators_words() -> None:
    world = WorkerWorld()
    world.core.subscribe(["t"], world.now)
    world.drive()
    world.fail(StreamFailure("PERMISSION_DENIED", "not yours", "AUTHORIZATION_FAILED"))
    assert world.core.failure
    with pytest.raises(KafkaException, match="not yours"):
        world.core.raise_error()
