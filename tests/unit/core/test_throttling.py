"""Throttled delivery of records that keep failing: specification 2.8, all verified vectors."""

from __future__ import annotations

import pytest

from sharecoord.core.partition.acquire import throttle_threshold
from sharecoord.core.states import AcquireMode
from sharecoord.core.window.window import RangeState
from tests.unit.core.scene import ACCEPT, ARCHIVED, AVAILABLE, RELEASE, RENEW, Scene

MODES = pytest.mark.parametrize("mode", list(AcquireMode), ids=lambda mode: mode.name.lower())


def fetch_and_release(scene: Scene, mode: AcquireMode, times: int) -> list[tuple[int, int]]:
    """(first offset, records) of each fetch, everything being released each time."""
    found = []
    for _ in range(times):
        ranges = scene.acquire(mode=mode)
        found.append((ranges[0][0], sum(b - a + 1 for a, b, _ in ranges)) if ranges else (-1, 0))
        scene.release_all()
    return found


@pytest.mark.parametrize(
    ("limit", "threshold"),
    [(1, 2), (2, 2), (3, 2), (4, 2), (5, 3), (6, 3), (7, 4), (8, 4), (10, 5), (1_000, 500)],
)
def test_2_8_the_table_of_thresholds(limit: int, threshold: int) -> None:
    assert throttle_threshold(limit) == threshold


@MODES
def test_2_8_vector_1_limit_5_batch_of_100(mode: AcquireMode) -> None:
    scene = Scene(delivery_limit=5)
    scene.acquire(new=[(0, 99)])
    scene.release_all()
    assert fetch_and_release(scene, mode, 3) == [(0, 100), (0, 100), (0, 50)]
    assert fetch_and_release(scene, mode, 50) == [(at, 1) for at in range(50)]
    assert fetch_and_release(scene, mode, 1) == [(50, 50)]
    assert fetch_and_release(scene, mode, 50) == [(at, 1) for at in range(50, 100)]
    assert fetch_and_release(scene, mode, 1) == [(-1, 0)]
    assert scene.span() == (100, 100)


@pytest.mark.parametrize(
    ("size", "counts"),
    [(500, [500] * 5 + [250, 125, 62, 31, 1, 1]), (512, [512] * 5 + [256, 128, 64, 32, 1, 1])],
)
def test_2_8_vectors_2_and_3_limit_10(size: int, counts: list[int]) -> None:
    scene = Scene(delivery_limit=10, record_locks_max=2_000)
    scene.acquire(records=1_000, new=[(0, size - 1)])
    found = [size]
    scene.release_all()
    for _ in range(10):
        found.append(sum(b - a + 1 for a, b, _ in scene.acquire(records=1_000)))
        scene.release_all()
    assert found == counts


def test_2_8_vectors_2_and_3_no_offset_is_delivered_more_often_than_the_limit() -> None:
    scene = Scene(delivery_limit=10)
    deliveries = dict.fromkeys(range(60), 0)
    ranges = scene.acquire(new=[(0, 59)])
    while ranges:
        for first, last, _ in ranges:
            for at in range(first, last + 1):
                deliveries[at] += 1
        scene.release_all()
        ranges = scene.acquire()
    assert set(deliveries.values()) == {10}


def test_2_8_vector_4_limit_7_restored_batch_15_to_34_with_count_4() -> None:
    scene = Scene(delivery_limit=7, lock_duration_ms=1_000)
    restored = RangeState(AVAILABLE, 4, 4, batch_base=15, batch_size=20)
    scene.load((15, 34, restored))

    def fetch() -> list[tuple[int, int, int]]:
        found = scene.acquire()
        scene.pass_time(1_000)
        return found

    assert fetch() == [(15, 24, 5)]
    assert fetch() == [(15, 19, 6)]
    assert [fetch() for _ in range(5)] == [[(at, at, 7)] for at in range(15, 20)]
    assert fetch() == [(20, 24, 6)]
    assert [fetch() for _ in range(5)] == [[(at, at, 7)] for at in range(20, 25)]
    assert fetch() == [(25, 34, 5)]


def test_2_8_vector_5_limit_5_mixed_counts() -> None:
    scene = Scene(delivery_limit=5)
    scene.load(
        (7, 14, RangeState(AVAILABLE, 0, 0, batch_base=7, batch_size=8)),
        (15, 19, RangeState(AVAILABLE, 2, 2, batch_base=15, batch_size=5)),
        (20, 22, RangeState(ARCHIVED, 1, 1, reason="REJECTED")),
        (23, 25, RangeState(AVAILABLE, 0, 0, batch_base=23, batch_size=3)),
        (26, 30, RangeState(AVAILABLE, 3, 3, batch_base=26, batch_size=5)),
    )
    assert scene.acquire(due=readable(scene, 27)) == [(7, 14, 1), (15, 19, 3), (23, 25, 1)]
    assert scene.acquire(due=readable(scene, 27)) == [(26, 27, 4)]


def readable(scene: Scene, last: int) -> list[tuple[int, int, RangeState]]:
    """Due ranges, cut at the last offset that the fetch returned."""
    found = scene.partition.due_ranges(1_000)
    return [(first, min(end, last), value) for first, end, value in found if first <= last]


def test_2_8_a_throttled_batch_ends_the_call() -> None:
    scene = Scene(delivery_limit=10)
    scene.load((0, 9, RangeState(AVAILABLE, 5, 5, batch_base=0, batch_size=10)))
    assert scene.acquire(new=[(10, 12)]) == [(0, 4, 6)]
    assert scene.last.end_offset is None


def test_2_8_a_throttled_batch_waits_when_something_was_taken_before() -> None:
    scene = Scene(delivery_limit=5)
    scene.load(
        (0, 4, RangeState(AVAILABLE, 1, 1, batch_base=0, batch_size=5)),
        (5, 24, RangeState(AVAILABLE, 3, 3, batch_base=5, batch_size=20)),
    )
    assert scene.acquire(new=[(25, 30)]) == [(0, 4, 2)]
    assert scene.acquire(new=[(25, 30)]) == [(5, 14, 4)]


def test_2_8_limit_2_is_never_throttled() -> None:
    scene = Scene(delivery_limit=2)
    scene.acquire(new=[(0, 99)])
    scene.release_all()
    assert scene.acquire() == [(0, 99, 2)]


def last_attempt(scene: Scene) -> None:
    """Offset 0 has one delivery left; the members hold 1 and 2."""
    scene.load((0, 0, RangeState(AVAILABLE, 4, 4, batch_base=0, batch_size=1)))
    scene.acquire("ann", due=(), new=[(1, 1)])
    scene.acquire("bob", due=(), new=[(2, 2)])


def test_a_last_attempt_goes_only_to_a_member_that_holds_nothing_else() -> None:
    scene = Scene(delivery_limit=5)
    last_attempt(scene)
    assert scene.acquire("ann", new=[(3, 9)]) == []
    assert scene.last.isolate
    scene.acknowledge(ACCEPT, 1)
    assert scene.acquire("ann", new=[(3, 9)]) == [(0, 0, 5)]


def test_one_member_at_a_time_waits_for_a_last_attempt() -> None:
    scene = Scene(delivery_limit=5)
    last_attempt(scene)
    scene.acquire("ann", new=[(3, 9)])
    assert scene.acquire("bob", new=[(3, 4)]) == [(3, 4, 1)]
    assert not scene.last.isolate


def test_a_last_attempt_does_not_starve_when_its_member_leaves() -> None:
    scene = Scene(delivery_limit=5)
    last_attempt(scene)
    scene.acquire("ann")
    scene.leave("ann")
    assert scene.partition.isolation.member_id is None
    scene.acquire("bob")
    assert scene.last.isolate


def test_a_last_attempt_does_not_starve_when_its_member_asks_no_more() -> None:
    scene = Scene(delivery_limit=5)
    last_attempt(scene)
    scene.acquire("ann")
    scene.acknowledge(ACCEPT, 1)
    scene.acquire("bob")
    assert scene.last.isolate, "ann holds nothing and does not come"


def test_a_last_attempt_does_not_starve_behind_a_lock_that_is_always_renewed() -> None:
    scene = Scene(delivery_limit=5, lock_duration_ms=1_000)
    last_attempt(scene)
    scene.acquire("ann")
    for _ in range(2):
        scene.now += 500
        scene.acknowledge(RENEW, 1, member="ann")
        scene.acknowledge(RENEW, 2, member="bob")
    scene.acquire("bob")
    assert scene.last.isolate


def test_pieces_of_a_batch_keep_its_size() -> None:
    scene = Scene(delivery_limit=10)
    scene.acquire(new=[(0, 99)])
    scene.acknowledge(ACCEPT, 10, 89)
    for _ in range(4):
        scene.release_all()
        assert scene.acquire() != []
    scene.acknowledge(RELEASE, 0, 9)
    scene.acknowledge(RELEASE, 90, 99)
    assert scene.acquire() == [(0, 9, 6), (90, 99, 6)], "100 >> 1 = 50 covers both pieces"
