"""Acknowledging: specification 3.1 to 3.4 and design 5.2 (lock tokens, answers per range)."""

from __future__ import annotations

import pytest

from sharecoord.core.partition.share_partition import AcknowledgedRange, HeldRange, RangeOutcome
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from tests.unit.core.scene import (
    ACCEPT,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    FINISHED,
    REJECT,
    RELEASE,
    RENEW,
    RETURN,
    Scene,
)

FORGETS_AFTER_MS = 10_000
ALREADY_FINISHED = AcknowledgeOutcome.ALREADY_FINISHED
INVALID_REQUEST = AcknowledgeOutcome.INVALID_REQUEST
LOCK_LOST = AcknowledgeOutcome.LOCK_LOST
RENEW_DISABLED = AcknowledgeOutcome.RENEW_DISABLED
UNKNOWN_OUTCOME = AcknowledgeOutcome.UNKNOWN_OUTCOME
ACKNOWLEDGED = RecordState.ACKNOWLEDGED
ALL_TYPES = pytest.mark.parametrize("kind", list(AcknowledgeType), ids=lambda k: k.name.lower())


@pytest.fixture
def scene() -> Scene:
    """ann holds 0-9, bob 10-19."""
    scene = Scene()
    scene.acquire("ann", new=[(0, 9)])
    scene.acquire("bob", new=[(10, 19)])
    return scene


# -- 3.1 request-level validation -----------------------------------------------------------------


def test_3_1_first_after_last_is_refused_and_changes_nothing(scene: Scene) -> None:
    token = scene.tokens()[0]
    found = scene.send(AcknowledgedRange(5, 4, ACCEPT, token))
    assert found == [RangeOutcome(5, 4, INVALID_REQUEST)]
    assert not scene.last.changes_anything


def test_3_1_ranges_that_do_not_ascend_are_refused_the_others_count(scene: Scene) -> None:
    token = scene.tokens()[0]
    found = scene.send(
        AcknowledgedRange(4, 5, ACCEPT, token),
        AcknowledgedRange(2, 3, ACCEPT, token),
        AcknowledgedRange(6, 6, ACCEPT, token),
    )
    assert found == [RangeOutcome(2, 3, INVALID_REQUEST)]
    assert [scene.state(at) for at in (2, 3, 4, 5, 6)] == [ACQUIRED, ACQUIRED, *[FINISHED] * 3]


def test_3_1_a_range_that_starts_on_the_last_offset_of_the_one_before_is_refused(
    scene: Scene,
) -> None:
    token = scene.tokens()[0]
    found = scene.send(
        AcknowledgedRange(0, 3, ACCEPT, token), AcknowledgedRange(3, 5, RELEASE, token)
    )
    assert found == [RangeOutcome(3, 5, INVALID_REQUEST)]


def test_3_1_a_negative_offset_is_refused(scene: Scene) -> None:
    assert scene.send(AcknowledgedRange(-1, 0, ACCEPT, 1)) == [RangeOutcome(-1, 0, INVALID_REQUEST)]


def test_3_1_nothing_to_acknowledge_is_fine(scene: Scene) -> None:
    assert scene.send() == []
    assert not scene.last.changes_anything


# -- 3.3 which answer for which misuse ------------------------------------------------------------


@ALL_TYPES
def test_3_3_locked_by_another_member(scene: Scene, kind: AcknowledgeType) -> None:
    token = scene.tokens("bob")[12]
    found = scene.send(AcknowledgedRange(12, 13, kind, token), member="ann")
    assert found == [RangeOutcome(12, 13, LOCK_LOST)]
    assert scene.state(12) is ACQUIRED


@ALL_TYPES
def test_3_3_under_a_token_of_before(scene: Scene, kind: AcknowledgeType) -> None:
    old = scene.tokens()[0]
    scene.acknowledge(RELEASE, 0, 9)
    scene.acquire("ann")
    found = scene.send(AcknowledgedRange(0, 9, kind, old))
    assert found == [RangeOutcome(0, 9, LOCK_LOST)], "a late answer never settles a newer delivery"
    assert scene.states()[0] == (0, 9, "ACQUIRED", 2)


@pytest.mark.parametrize("kind", [ACCEPT, REJECT, RENEW])
def test_3_3_after_the_lock_ended(scene: Scene, kind: AcknowledgeType) -> None:
    token = scene.tokens()[0]
    scene.pass_time(30_000)
    assert scene.send(AcknowledgedRange(0, 4, kind, token)) == [RangeOutcome(0, 4, LOCK_LOST)]


@pytest.mark.parametrize("kind", [RELEASE, RETURN])
def test_5_2_a_release_that_matches_the_last_token_is_ok(
    scene: Scene, kind: AcknowledgeType
) -> None:
    token = scene.tokens()[0]
    scene.pass_time(30_000)
    assert scene.send(AcknowledgedRange(0, 4, kind, token)) == []
    assert scene.states()[0] == (0, 9, "AVAILABLE", 1)
    assert scene.send(AcknowledgedRange(0, 4, kind, token + 1)) == [RangeOutcome(0, 4, LOCK_LOST)]


def test_5_2_token_0_never_matches_a_record_that_nobody_had() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 9)])
    scene.acknowledge(RETURN, 0, 9)
    scene.load((0, 9, scene.at(0)._replace(lock_token=0)))  # type: ignore[union-attr]
    found = scene.send(AcknowledgedRange(0, 9, RELEASE, 0))
    assert found == [RangeOutcome(0, 9, LOCK_LOST)]


@ALL_TYPES
@pytest.mark.parametrize(("before", "state"), [(ACCEPT, ACKNOWLEDGED), (REJECT, ARCHIVED)])
def test_3_3_already_finished(
    scene: Scene, kind: AcknowledgeType, before: AcknowledgeType, state: RecordState
) -> None:
    token = scene.tokens()[0]
    scene.acknowledge(before, 2, 3)
    found = scene.send(AcknowledgedRange(2, 3, kind, token))
    assert found == [RangeOutcome(2, 3, ALREADY_FINISHED, state)]


def test_3_3_waiting_for_its_dead_letter_counts_as_archived(scene: Scene) -> None:
    scene.set(dead_letter_topic="dead")
    token = scene.tokens()[0]
    scene.acknowledge(REJECT, 2)
    found = scene.send(AcknowledgedRange(2, 2, REJECT, token))
    assert found == [RangeOutcome(2, 2, ALREADY_FINISHED, ARCHIVED)]


@ALL_TYPES
def test_3_3_below_the_start_offset(scene: Scene, kind: AcknowledgeType) -> None:
    token = scene.tokens()[0]
    scene.acknowledge(ACCEPT, 0, 4)
    found = scene.send(AcknowledgedRange(0, 4, kind, token))
    assert found == [RangeOutcome(0, 4, UNKNOWN_OUTCOME)]


def test_3_3_beyond_the_window(scene: Scene) -> None:
    token = scene.tokens("bob")[19]
    found = scene.send(AcknowledgedRange(18, 2**62, ACCEPT, token), member="bob")
    assert found == [RangeOutcome(20, 2**62, INVALID_REQUEST)]
    assert scene.state(18) is FINISHED


def test_3_3_one_range_with_every_answer() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 9)])
    token = scene.tokens()[0]
    scene.acknowledge(ACCEPT, 0, 1)
    scene.acknowledge(ACCEPT, 4)
    scene.acknowledge(REJECT, 5)
    scene.acknowledge(RELEASE, 6)
    found = scene.send(AcknowledgedRange(0, 12, ACCEPT, token))
    assert found == [
        RangeOutcome(0, 1, UNKNOWN_OUTCOME),
        RangeOutcome(4, 4, ALREADY_FINISHED, ACKNOWLEDGED),
        RangeOutcome(5, 5, ALREADY_FINISHED, ARCHIVED),
        RangeOutcome(6, 6, LOCK_LOST),
        RangeOutcome(10, 12, INVALID_REQUEST),
    ]
    assert scene.states() == [(6, 6, "AVAILABLE", 1)]


def test_3_3_renew_when_disabled(scene: Scene) -> None:
    scene.set(renew_enabled=False)
    before = scene.states()
    scene.now += 5
    assert scene.acknowledge(RENEW, 0, 9) == [RangeOutcome(0, 9, RENEW_DISABLED)]
    assert scene.states() == before


def test_3_4_renewals_stand_beside_refusals(scene: Scene) -> None:
    token = scene.tokens()[0]
    scene.now += 1_000
    scene.send(AcknowledgedRange(0, 0, RENEW, token), AcknowledgedRange(15, 15, ACCEPT, token))
    assert scene.at(0).deadline_ms == 32_000  # type: ignore[union-attr]


def test_all_types_in_one_request(scene: Scene) -> None:
    token = scene.tokens()[0]
    kinds = (ACCEPT, RELEASE, REJECT, RENEW, RETURN)
    scene.now += 1
    assert scene.send(*[AcknowledgedRange(i, i, k, token) for i, k in enumerate(kinds)]) == []
    assert scene.states() == [
        (1, 1, "AVAILABLE", 1),
        (2, 2, "ARCHIVED", 1),
        (3, 3, "ACQUIRED", 1),
        (4, 4, "AVAILABLE", 0),
        (5, 9, "ACQUIRED", 1),
        (10, 19, "ACQUIRED", 1),
    ]


def test_what_lies_between_two_released_ranges_is_not_released_with_them(scene: Scene) -> None:
    scene.acknowledge(RELEASE, 0, 4)
    token = scene.tokens()[5]
    scene.send(AcknowledgedRange(5, 6, ACCEPT, token), AcknowledgedRange(7, 9, RELEASE, token))
    assert scene.states()[:2] == [(0, 4, "AVAILABLE", 1), (7, 9, "AVAILABLE", 1)]
    assert scene.window.due == 8


def test_ranges_that_nothing_tells_apart_become_one(scene: Scene) -> None:
    for at in range(10):
        scene.acknowledge(RELEASE, at)
    assert scene.states()[0] == (0, 9, "AVAILABLE", 1)


def test_a_long_reason_is_cut(scene: Scene) -> None:
    scene.acknowledge(RELEASE, 0, reason="\u00e9" * 2_000)
    scene.acknowledge(REJECT, 1, reason="x" * 2_000)
    released, rejected = scene.at(0), scene.at(1)
    assert released is not None
    assert rejected is not None
    assert released.reason == "\u00e9" * 512
    assert rejected.reason == "REJECTED: " + "x" * 1_024


# -- lock books -----------------------------------------------------------------------------------


def test_a_lock_book_that_is_right_changes_nothing(scene: Scene) -> None:
    token = scene.tokens()[0]
    assert scene.join(HeldRange(0, 3, token), HeldRange(4, 9, token)) == []
    assert not scene.last.changes_anything


def test_locks_that_the_member_never_received_go_back_unseen(scene: Scene) -> None:
    token = scene.tokens()[0]
    assert scene.join(HeldRange(3, 4, token), HeldRange(8, 8, token)) == []
    assert scene.states()[:5] == [
        (0, 2, "AVAILABLE", 0),
        (3, 4, "ACQUIRED", 1),
        (5, 7, "AVAILABLE", 0),
        (8, 8, "ACQUIRED", 1),
        (9, 9, "AVAILABLE", 0),
    ]


def test_entries_that_are_not_the_members_locks_are_reported(scene: Scene) -> None:
    mine, other = scene.tokens()[0], scene.tokens("bob")[10]
    scene.acknowledge(ACCEPT, 4, 5)
    lost = scene.join(
        HeldRange(0, 9, mine), HeldRange(10, 12, other), HeldRange(3, 1, mine), HeldRange(50, 51, 1)
    )
    assert sorted(lost) == [
        HeldRange(3, 1, mine),
        HeldRange(4, 5, mine),
        HeldRange(10, 12, other),
        HeldRange(50, 51, 1),
    ]
    assert scene.states()[:2] == [(0, 3, "ACQUIRED", 1), (6, 9, "ACQUIRED", 1)]


def test_a_lock_that_a_book_may_have_forgotten_counts_as_ended_by_time(scene: Scene) -> None:
    (_, _, lock), *_ = scene.window.held_by("ann")
    for since_end_ms, is_unseen in ((FORGETS_AFTER_MS - 1, True), (FORGETS_AFTER_MS, False)):
        now_ms = lock.deadline_ms + since_end_ms
        found = scene.partition.decide_lock_book(now_ms, "ann", (), FORGETS_AFTER_MS)
        assert bool(found.unseen) is bool(found.edits) is is_unseen
    scene.pass_time(lock.deadline_ms - scene.now)
    assert scene.states()[0] == (0, 9, "AVAILABLE", 1)


def test_what_a_member_without_a_book_held_is_released_and_counts(scene: Scene) -> None:
    before = scene.states()[0]
    found = scene.partition.decide_lock_book(scene.now, "ann", (), counts=True)
    scene.apply(found)
    assert (before, scene.states()[0]) == ((0, 9, "ACQUIRED", 1), (0, 9, "AVAILABLE", 1))
    assert not found.unseen
    assert scene.window.held == {"bob": 10}


def test_entries_inside_one_another_do_not_hand_back_what_was_shown(scene: Scene) -> None:
    token = scene.tokens()[0]
    scene.join(HeldRange(0, 9, token), HeldRange(2, 3, token))
    assert scene.state(5) is ACQUIRED


def test_an_empty_lock_book_hands_everything_back(scene: Scene) -> None:
    scene.join(member="bob")
    assert scene.state(10) is AVAILABLE
    assert scene.window.held == {"ann": 10}


# -- 3.4 atomicity --------------------------------------------------------------------------------


def test_3_4_one_range_that_is_refused_keeps_all_others_of_an_atomic_request(scene: Scene) -> None:
    mine, others = scene.tokens()[0], scene.tokens("bob")[10]
    items = AcknowledgedRange(0, 9, ACCEPT, mine), AcknowledgedRange(10, 11, ACCEPT, others)
    assert scene.send(*items, is_atomic=True) == [RangeOutcome(10, 11, LOCK_LOST)]
    assert not scene.last.changes_anything
    assert scene.send(items[0], is_atomic=True) == []
    assert scene.state(0) is FINISHED


def test_3_4_what_is_below_the_start_offset_keeps_nothing(scene: Scene) -> None:
    token = scene.tokens()[0]
    scene.send(AcknowledgedRange(0, 4, ACCEPT, token))
    found = scene.send(AcknowledgedRange(0, 9, ACCEPT, token), is_atomic=True)
    assert found == [RangeOutcome(0, 4, UNKNOWN_OUTCOME)]
    assert scene.state(9) is FINISHED
