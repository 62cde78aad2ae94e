"""The transition table, specification 1.3 (T1-T18), and the rules that are easy to get wrong."""

from __future__ import annotations

import pytest

from sharecoord.core.states import AcknowledgeType, ForceAction, RecordState
from tests.invariants import archiving
from tests.unit.core.scene import (
    ACCEPT,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    FINISHED,
    REJECT,
    RELEASE,
    RENEW,
    RETURN,
    Scene,
)


def test_t1_a_new_offset_is_acquired_with_count_1_and_a_lock() -> None:
    scene = Scene(lock_duration_ms=5_000)
    assert scene.acquire("ann", new=[(0, 9)]) == [(0, 9, 1)]
    value = scene.at(4)
    assert value is not None
    assert (value.state, value.member_id, value.deadline_ms) == (ACQUIRED, "ann", 6_000)
    assert scene.span() == (0, 10)


def test_t2_an_available_offset_is_acquired_with_count_plus_1() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 9)])
    scene.acknowledge(RELEASE, 0, 9)
    assert scene.acquire("bob") == [(0, 9, 2)]
    assert scene.at(0).member_id == "bob"  # type: ignore[union-attr]


def test_t3_accept_finishes() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    assert scene.acknowledge(ACCEPT, 2, 3) == []
    assert scene.states() == [(0, 1, "ACQUIRED", 1), (4, 9, "ACQUIRED", 1)]
    assert scene.state(2) is FINISHED


def test_t4_release_below_the_limit_is_available_with_the_same_count() -> None:
    scene = Scene(delivery_limit=2)
    scene.acquire(new=[(0, 0)])
    scene.acknowledge(RELEASE, 0)
    assert scene.states() == [(0, 0, "AVAILABLE", 1)]


def test_t5_release_at_the_limit_is_archived() -> None:
    scene = Scene(delivery_limit=2)
    scene.acquire(new=[(0, 1)])
    scene.acknowledge(RELEASE, 0, 1)
    scene.acquire()
    scene.acknowledge(RELEASE, 1, reason="bad row")
    assert scene.states() == [(0, 0, "ACQUIRED", 2), (1, 1, "ARCHIVED", 2)]
    assert scene.at(1).reason == "DELIVERY_LIMIT: bad row"  # type: ignore[union-attr]


def test_t6_reject_is_archived_whatever_the_count() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 1)])
    scene.acknowledge(REJECT, 1, reason="poison")
    assert scene.states() == [(0, 0, "ACQUIRED", 1), (1, 1, "ARCHIVED", 1)]
    assert scene.at(1).reason == "REJECTED: poison"  # type: ignore[union-attr]


def test_t8_renew_restarts_the_lock_with_the_duration_in_force() -> None:
    scene = Scene(lock_duration_ms=5_000)
    scene.acquire(new=[(0, 9)])
    token = scene.tokens()[0]
    scene.set(lock_duration_ms=9_000)
    scene.now += 4_000
    assert scene.acknowledge(RENEW, 0, 4) == []
    renewed, other = scene.at(0), scene.at(5)
    assert renewed is not None
    assert other is not None
    assert (renewed.deadline_ms, renewed.granted_ms) == (14_000, 9_000)
    assert (other.deadline_ms, other.granted_ms) == (6_000, 5_000)
    assert renewed.lock_token == token
    assert renewed.delivery_count == 1


def test_t8_renew_after_the_duration_was_lowered_ends_the_lock_sooner_as_kafka_does() -> None:
    scene = Scene(lock_duration_ms=30_000)
    scene.acquire(new=[(0, 9)])
    scene.set(lock_duration_ms=2_000)
    scene.now += 4_000
    assert scene.acknowledge(RENEW, 0, 9) == []
    renewed = scene.at(0)
    assert renewed is not None
    assert (renewed.deadline_ms, renewed.granted_ms) == (7_000, 2_000)


def test_t8_renew_in_the_millisecond_of_the_acquisition_changes_nothing() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    before = scene.states()
    assert scene.acknowledge(RENEW, 3, 4) == []
    assert scene.states() == before
    assert scene.window.acquired == 10


def test_t9_a_lock_that_ends_below_the_limit_makes_due_again() -> None:
    scene = Scene(lock_duration_ms=5_000)
    scene.acquire(new=[(0, 9)])
    scene.pass_time(4_999)
    assert scene.states() == [(0, 9, "ACQUIRED", 1)]
    scene.pass_time(1)
    assert scene.states() == [(0, 9, "AVAILABLE", 1)]
    assert scene.window.next_deadline_ms() is None


def test_t10_a_lock_that_ends_at_the_limit_archives() -> None:
    scene = Scene(lock_duration_ms=5_000, delivery_limit=1)
    scene.acquire(new=[(0, 8)])
    scene.acquire("bob", new=[(9, 9)])
    scene.acknowledge(RENEW, 9, member="bob")
    scene.now += 1
    scene.acknowledge(RENEW, 9, member="bob")
    scene.pass_time(4_999)
    assert scene.span() == (9, 10)


def test_t10_a_lock_that_ends_below_the_log_start_archives() -> None:
    scene = Scene(lock_duration_ms=5_000)
    scene.acquire(new=[(0, 9)])
    scene.log_start(4)
    scene.pass_time(5_000)
    assert scene.states() == [(4, 9, "AVAILABLE", 1)]


@pytest.mark.parametrize("kind", [RELEASE, RETURN])
def test_what_comes_back_below_the_log_start_is_archived(kind: AcknowledgeType) -> None:
    scene = Scene()
    scene.acquire("bob", new=[(0, 0)])
    scene.acquire(new=[(1, 9)])
    scene.log_start(5)
    scene.acknowledge(kind, 1, 9)
    count = 1 if kind is RELEASE else 0
    assert scene.states() == [
        (0, 0, "ACQUIRED", 1),
        (1, 4, "ARCHIVED", count),
        (5, 9, "AVAILABLE", count),
    ]
    assert scene.at(1).reason == "LOG_START"  # type: ignore[union-attr]


def test_t11_a_departed_member_releases_and_the_count_stays() -> None:
    scene = Scene(delivery_limit=2)
    scene.acquire("ann", new=[(0, 1)])
    scene.acquire("bob", new=[(2, 3)])
    scene.acknowledge(RELEASE, 1)
    scene.acquire("ann", 1)
    scene.leave("ann")
    assert scene.states() == [
        (0, 0, "AVAILABLE", 1),
        (1, 1, "ARCHIVED", 2),
        (2, 3, "ACQUIRED", 1),
    ]
    assert scene.window.held == {"bob": 2}


def test_t12_log_start_archives_what_is_due_and_counts_it() -> None:
    scene = Scene(dead_letter_topic="dead")
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RELEASE, 2, 3)
    scene.acknowledge(RELEASE, 4, 5, delay_ms=60_000)
    scene.log_start(5)
    assert scene.states() == [
        (0, 1, "ACQUIRED", 1),
        (2, 4, "ARCHIVED", 1),
        (5, 5, "AVAILABLE", 1),
        (6, 9, "ACQUIRED", 1),
    ]
    assert scene.at(2).reason == "LOG_START"  # type: ignore[union-attr]


def test_t12_records_that_were_never_acquired_are_archived_too() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.log_start(50)
    assert scene.states() == [(0, 9, "ACQUIRED", 1), (10, 49, "ARCHIVED", 0)]
    assert scene.span() == (0, 50)
    assert scene.partition.head.finished_count == 40


def test_log_start_leaves_what_is_kept_and_so_do_gaps() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    for first, last in ((1, 2), (4, 4), (7, 7)):
        scene.partition.kept.add(first, last)
    scene.acknowledge(RELEASE, 1, 5)
    scene.log_start(8)
    left = [(0, 0, "ACQUIRED", 1), (1, 2, "AVAILABLE", 1), (3, 3, "ARCHIVED", 1)]
    left += [(4, 4, "AVAILABLE", 1), (5, 5, "ARCHIVED", 1), (6, 9, "ACQUIRED", 1)]
    assert scene.states() == left
    scene.acknowledge(RELEASE, 6, 9)
    left[5:] = [(6, 6, "ARCHIVED", 1), (7, 9, "AVAILABLE", 1)]
    left[4:6] = [(5, 6, "ARCHIVED", 1)]
    assert scene.states() == left
    scene.apply(scene.partition.decide_gap(0, 9))
    assert scene.states()[-2:] == [(5, 6, "ARCHIVED", 1), (7, 7, "AVAILABLE", 1)]
    assert scene.acquire(records=10) == [(1, 2, 2), (4, 4, 2), (7, 7, 2)]


def test_t13_log_start_leaves_acquired_records_alone() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.log_start(100)
    assert scene.acknowledge(ACCEPT, 0, 9) == []
    assert scene.span() == (100, 100)


def test_t14_a_proven_gap_finishes_what_is_due_in_it() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RELEASE, 3, 6)
    scene.apply(scene.partition.decide_gap(5, 8))
    assert scene.states() == [
        (0, 2, "ACQUIRED", 1),
        (3, 4, "AVAILABLE", 1),
        (7, 9, "ACQUIRED", 1),
    ]


def test_t16_a_new_owner_keeps_holder_token_deadline_and_count() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 9)])
    before, token = list(scene.window.ranges), scene.tokens()[0]
    scene.recover()
    assert list(scene.window.ranges) == before
    assert scene.acknowledge(ACCEPT, 0, 4, token=token) == []
    assert scene.acquire("bob", new=[(10, 10)]) == [(10, 10, 1)]
    assert scene.tokens("bob")[10] >> 32 == 2
    assert token >> 32 == 1


def test_t18_with_dead_letters_on_a_reject_and_a_worn_out_record_wait_for_the_outbox() -> None:
    scene = Scene(dead_letter_topic="dead", delivery_limit=1)
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(REJECT, 0, 1, reason="poison")
    assert [(a, b, v.reason) for a, b, v in archiving(scene.last)] == [(0, 1, "REJECTED: poison")]
    scene.acknowledge(RELEASE, 2)
    assert [(a, b, v.reason) for a, b, v in archiving(scene.last)] == [(2, 2, "DELIVERY_LIMIT")]
    scene.acknowledge(ACCEPT, 3, 9)
    assert archiving(scene.last) == []
    assert scene.span() == (0, 10), "ARCHIVING is not final"
    scene.apply(scene.partition.decide_dead_letter_done(0, 0))
    assert scene.states() == [(1, 1, "ARCHIVING", 1), (2, 2, "ARCHIVING", 1)]
    scene.apply(scene.partition.decide_dead_letter_done(0, 9))
    assert scene.span() == (10, 10)


def test_a_confirmed_dead_letter_keeps_reason_and_count() -> None:
    scene = Scene(dead_letter_topic="dead")
    scene.acquire(new=[(0, 1)])
    scene.acknowledge(REJECT, 1, reason="poison")
    scene.apply(scene.partition.decide_dead_letter_done(1, 1))
    value = scene.at(1)
    assert value is not None
    assert (value.state, value.delivery_count, value.reason) == (ARCHIVED, 1, "REJECTED: poison")
    assert not scene.partition.decide_dead_letter_done(1, 1).changes_anything


def test_archiving_does_not_use_up_the_window() -> None:
    scene = Scene(dead_letter_topic="dead", record_locks_max=5)
    scene.acquire(new=[(0, 4)])
    assert scene.partition.room == 0
    scene.acknowledge(REJECT, 0, 2)
    assert scene.partition.room == 3


def failed_once(last: int, *, limit: int) -> Scene:
    """Records from 0 on that were handed out and released once."""
    scene = Scene(delivery_limit=limit)
    scene.acquire(new=[(0, last)])
    scene.release_all()
    return scene


def test_a_record_is_handed_out_as_often_as_the_limit_says() -> None:
    scene = Scene(delivery_limit=5)
    deliveries = scene.acquire(new=[(0, 0)])
    for _ in range(10):
        scene.release_all()
        deliveries += scene.acquire()
    assert [count for _, _, count in deliveries] == [1, 2, 3, 4, 5]
    assert scene.span() == (1, 1)


def test_lowering_the_limit_archives_at_the_next_release() -> None:
    scene = failed_once(9, limit=5)
    scene.acquire()
    scene.set(delivery_limit=2)
    scene.release_all()
    assert scene.span() == (10, 10)


def test_lowering_the_limit_archives_what_is_due_at_the_next_acquire() -> None:
    scene = failed_once(9, limit=5)
    scene.set(delivery_limit=1)
    assert scene.acquire(new=[(10, 12)]) == [(10, 12, 1)]
    assert scene.span() == (10, 13)


def test_raising_the_limit_lets_a_record_go_on() -> None:
    scene = failed_once(0, limit=2)
    scene.acquire()
    scene.set(delivery_limit=3)
    scene.release_all()
    assert scene.acquire() == [(0, 0, 3)]


def test_handed_back_unseen_takes_the_delivery_back_and_counts_the_hand_out() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RETURN, 0, 9)
    value = scene.at(0)
    assert value is not None
    assert (value.state, value.delivery_count, value.hand_outs) == (AVAILABLE, 0, 1)


def test_handed_back_too_often_waits_from_1_s_to_60_s() -> None:
    scene = Scene(delivery_limit=1)
    scene.acquire(new=[(0, 0)])
    waits = []
    for _ in range(19):
        scene.acknowledge(RETURN, 0)
        value = scene.at(0)
        assert value is not None
        wait_ms = max(value.available_at_ms - scene.now, 0)
        waits.append(wait_ms)
        scene.pass_time(wait_ms)
        assert scene.acquire() == [(0, 0, 1)]
    assert waits[:10] == [0] * 10
    assert waits[10:] == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]


def test_a_released_record_waits_for_its_delay_and_uses_no_room() -> None:
    scene = Scene(record_locks_max=10)
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RELEASE, 0, 4, delay_ms=500)
    assert (scene.window.due, scene.window.delayed, scene.partition.room) == (0, 5, 5)
    assert scene.window.next_due_ms() == 1_500
    assert scene.acquire("bob") == []
    scene.pass_time(500)
    assert scene.acquire("bob") == [(0, 4, 2)]


def test_an_earlier_wait_of_the_same_record_does_not_end_a_later_one() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 0)])
    scene.acknowledge(RELEASE, 0, delay_ms=500)
    scene.force(ForceAction.RELEASE, 0, 0)
    scene.acquire()
    scene.acknowledge(RELEASE, 0, delay_ms=900)
    scene.pass_time(500)
    assert scene.acquire() == []
    scene.pass_time(400)
    assert scene.acquire() == [(0, 0, 3)]


def test_the_back_off_grows_with_failures() -> None:
    scene = Scene(retry_backoff_ms=100, retry_backoff_max_ms=250, delivery_limit=9)
    scene.acquire(new=[(0, 0)])
    waits = []
    for _ in range(4):
        scene.release_all()
        value = scene.at(0)
        assert value is not None
        waits.append(value.available_at_ms - scene.now)
        scene.pass_time(waits[-1])
        scene.acquire()
    assert waits == [100, 200, 250, 250]


def test_a_delay_of_the_worker_goes_before_the_back_off() -> None:
    scene = Scene(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    scene.acquire(new=[(0, 0)])
    scene.acknowledge(RELEASE, 0, delay_ms=7_000)
    assert scene.window.next_due_ms() == 8_000


def test_an_operator_releases_locks_and_waits() -> None:
    scene = Scene(delivery_limit=2)
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(RELEASE, 3, 4, delay_ms=60_000)
    scene.force(ForceAction.RELEASE, 2, 4)
    assert scene.window.due == 3
    assert scene.acquire("bob") == [(2, 4, 2)]
    scene.force(ForceAction.RELEASE, 2, 2)
    assert scene.state(2) is ARCHIVED


def test_an_operator_archives_without_a_dead_letter() -> None:
    scene = Scene(dead_letter_topic="dead")
    scene.acquire(new=[(0, 9)])
    token = scene.tokens()[2]
    scene.acknowledge(REJECT, 4)
    scene.force(ForceAction.SKIP, 2, 4)
    assert scene.states()[1] == (2, 3, "ARCHIVED", 1)
    assert scene.state(4) is ARCHIVING
    assert scene.at(2).reason == "ADMIN"  # type: ignore[union-attr]
    (refused,) = scene.acknowledge(ACCEPT, 2, token=token)
    assert refused.final_state is ARCHIVED


def test_an_operator_finishes_what_is_held_and_what_waits() -> None:
    scene = Scene(dead_letter_topic="dead")
    scene.acquire(new=[(0, 9)])
    token = scene.tokens()[2]
    scene.acknowledge(RELEASE, 3, delay_ms=60_000)
    scene.acknowledge(REJECT, 4)
    scene.force(ForceAction.FINISH, 2, 4)
    assert [scene.state(at) for at in (2, 3, 4)] == [FINISHED, FINISHED, ARCHIVING]
    assert (scene.window.acquired, scene.window.delayed, scene.window.finished) == (7, 0, 2)
    (refused,) = scene.acknowledge(ACCEPT, 2, token=token)
    assert refused.final_state is RecordState.ACKNOWLEDGED
    scene.force(ForceAction.FINISH, 0, 9)
    assert scene.window.start_offset == 4


def test_truncation_drops_everything_from_an_offset_on() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 9)])
    scene.acquire("bob", new=[(10, 19)])
    token = scene.tokens("ann")[7]
    decision = scene.apply(scene.partition.decide_truncate(5))
    assert [taken[:3] for taken in decision.taken_back] == [("ann", 5, 9), ("bob", 10, 19)]
    assert scene.states() == [(0, 4, "ACQUIRED", 1)]
    assert scene.span() == (0, 5)
    assert scene.window.held == {"ann": 5}
    assert scene.acquire("bob", new=[(5, 9)]) == [(5, 9, 1)]
    (refused,) = scene.acknowledge(ACCEPT, 7, token=token)
    assert refused.outcome.name == "LOCK_LOST"


def test_truncation_below_the_start_offset_moves_it_back() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    scene.acknowledge(ACCEPT, 0, 9)
    scene.apply(scene.partition.decide_truncate(4))
    assert scene.span() == (4, 4)
    assert not scene.partition.decide_truncate(4).changes_anything


def test_lock_tokens_are_never_used_twice_across_owners() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 0)])
    scene.acquire("bob", new=[(1, 1)])
    seen = {*scene.tokens("ann").values(), *scene.tokens("bob").values()}
    scene.recover()
    scene.acquire("cy", new=[(2, 2)])
    assert len({*seen, *scene.tokens("cy").values()}) == 3
