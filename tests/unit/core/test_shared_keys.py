"""Keys that a topic and the lanes of its letters have in common (docs/decisions/0019)."""

from __future__ import annotations

from sharecoord.core.order.shared_keys import TURN_LOOKS, SharedKeys
from sharecoord.core.states import ForceAction, Ordering
from tests.unit.core.scene import ACCEPT, Scene

A = 11


class Pair:
    """A share-partition and a lane; whoever hears that a key came back looks once."""

    def __init__(self) -> None:
        self.woken = 0
        shared = SharedKeys(self._wake)
        self.topic, self.lane = (Scene(ordering=Ordering.KEY, chain_max=1) for _ in range(2))
        for scene in (self.topic, self.lane):
            scene.partition.share_keys(shared)

    def _wake(self) -> None:
        self.woken += 1


def test_who_was_turned_away_comes_next() -> None:
    pair = Pair()
    assert pair.lane.acquire(new=[(0, 1)], keys=[A, A]) == [(0, 0, 1)]
    assert pair.topic.acquire(new=[(0, 0)], keys=[A]) == []
    pair.lane.acknowledge(ACCEPT, 0)
    assert pair.woken == 1
    assert pair.lane.acquire() == [], "it is the other one's turn"
    assert pair.topic.acquire() == [(0, 0, 1)]
    pair.topic.acknowledge(ACCEPT, 0)
    assert pair.lane.acquire() == [(1, 1, 1)]


def test_a_turn_of_which_nothing_can_go_out_holds_up_nobody() -> None:
    pair = Pair()
    assert pair.lane.acquire(new=[(0, 1)], keys=[A, A]) == [(0, 0, 1)]
    assert pair.topic.acquire(new=[(0, 0)], keys=[A]) == []
    pair.topic.force(ForceAction.FINISH, 0, 0)
    pair.lane.acknowledge(ACCEPT, 0)
    # Nobody wakes it once more.
    assert pair.lane.acquire() == [(1, 1, 1)]


def test_a_turn_that_is_not_taken_lapses() -> None:
    pair = Pair()
    assert pair.lane.acquire(new=[(0, 1)], keys=[A, A]) == [(0, 0, 1)]
    assert pair.topic.acquire(new=[(0, 0)], keys=[A]) == []
    pair.lane.acknowledge(ACCEPT, 0)
    assert [pair.lane.acquire() for _ in range(TURN_LOOKS - 1)] == [[]] * (TURN_LOOKS - 1)
    assert pair.lane.acquire() == [(1, 1, 1)]
