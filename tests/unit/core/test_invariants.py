"""The checks see what they are for: each is broken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sharecoord.core.partition.share_partition import Decision
from sharecoord.core.states import Ordering
from sharecoord.core.window.window import Edit, RangeState, Window
from sharecoord.errors import InternalError
from sharecoord.testing._invariants import check_partition
from tests.invariants import check_chains, check_decision
from tests.unit.core.scene import (
    ACCEPT,
    ACQUIRED,
    ARCHIVED,
    AVAILABLE,
    REJECT,
    RELEASE,
    Scene,
)


def busy(ordering: Ordering = Ordering.UNORDERED) -> Scene:
    """0-9: two acquired, two accepted, two due, two delayed, one rejected, one acquired."""
    scene = Scene(ordering=ordering)
    keys = [5, 6] * 5 if ordering is Ordering.KEY else None
    scene.acquire(new=[(0, 9)], keys=keys)
    scene.acknowledge(ACCEPT, 2, 3)
    scene.acknowledge(REJECT, 8)
    if ordering is Ordering.UNORDERED:
        scene.acknowledge(RELEASE, 4, 5)
        scene.acknowledge(RELEASE, 6, 7, delay_ms=9_000)
    return scene


def add(name: str) -> Callable[[Window], None]:
    """Makes a counter wrong by one."""

    def damage(window: Window) -> None:
        setattr(window, name, getattr(window, name) + 1)

    return damage


def change(first: int, value: RangeState) -> Callable[[Window], None]:
    """Replaces a range behind the window's back."""

    def damage(window: Window) -> None:
        found = window.ranges.get(first)
        assert found is not None
        window.ranges.replace(first, ((first, found[1], value),))

    return damage


def forget(name: str) -> Callable[[Window], None]:
    """Empties an index."""
    return lambda window: getattr(window, name).clear()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *[(add(name), f"{name} is") for name in ("acquired", "due", "delayed", "archived")],
        (add("archiving"), "archiving is 1, a recount gives 0"),
        (lambda window: window.held.update(ann=99), "held is"),
        (lambda window: window.held.update(bob=0), "held is"),
        (lambda window: window.grants.clear(), "grant of the range"),
        (lambda window: window.grants_of.clear(), "grants_of and grants differ"),
        (lambda window: setattr(window, "start_offset", -1), "the start is -1"),
        (lambda window: setattr(window, "end_offset", 5), "a range ends beyond 5"),
        (change(0, RangeState(ARCHIVED)), "start offset is finished"),
        (change(8, RangeState(ARCHIVED, -1)), "negative delivery count"),
        (change(8, RangeState(ARCHIVED, deadline_ms=3)), "has a lock"),
        (change(9, RangeState(ACQUIRED)), "no lock on range at 9"),
        (forget("_due_heap"), "no index knows the AVAILABLE range at 4"),
        (forget("_delayed_heap"), "no index knows the AVAILABLE range at 6"),
        (forget("_deadline_heap"), "no index knows the ACQUIRED range at 0"),
    ],
)
def test_a_damaged_window_is_seen(damage: Callable[[Window], None], message: str) -> None:
    scene = busy()
    check_partition(scene.partition)
    damage(scene.window)
    with pytest.raises(InternalError, match=message):
        check_partition(scene.partition)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda order: order.queues.clear(), "keys are not"),
        (lambda order: order.unknown.append(1), "unknown keys"),
        (lambda order: order.queues[5].held.popleft(), "queue of key 5"),
        (lambda order: order.queues[6].holders.clear(), "queue of key 6"),
        (lambda order: setattr(order, "_ready", 4), "ready is 4"),
    ],
)
def test_a_damaged_order_is_seen(damage: Callable[[object], None], message: str) -> None:
    scene = busy(Ordering.KEY)
    check_partition(scene.partition)
    damage(scene.partition.order)
    with pytest.raises(InternalError, match=message):
        check_partition(scene.partition)


def test_a_key_with_two_holders_is_seen() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 0)])
    scene.acquire("bob", new=[(1, 2)])
    check_chains(scene.partition)
    scene.set(ordering=Ordering.PARTITION)
    with pytest.raises(InternalError, match="held by"):
        check_chains(scene.partition)


def test_a_record_that_overtakes_its_key_is_seen() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 1)])
    scene.acknowledge(RELEASE, 0)
    scene.set(ordering=Ordering.PARTITION)
    with pytest.raises(InternalError, match="1 is held while 0 of its key waits"):
        check_chains(scene.partition)


def held(**fields: int) -> RangeState:
    """An ACQUIRED state with a token of this owner."""
    base: dict[str, Any] = {
        "delivery_count": 1,
        "hand_outs": 1,
        "lock_token": (1 << 32) | 99,
    } | fields
    return RangeState(ACQUIRED, member_id="ann", deadline_ms=5, granted_ms=5, **base)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([Edit(5, 4, None)], "out of order"),
        ([Edit(9, 9, None), Edit(0, 0, None)], "out of order"),
        ([Edit(0, 4, None)], "crosses a range"),
        ([Edit(2, 2, RangeState(AVAILABLE))], "edit at finished offset 2"),
        ([Edit(8, 8, None)], "illegal move ARCHIVED -> ACKNOWLEDGED"),
        ([Edit(8, 8, RangeState(AVAILABLE))], "illegal move ARCHIVED -> AVAILABLE"),
        ([Edit(0, 0, RangeState(AVAILABLE, 1, 0))], "hand-outs went down"),
        ([Edit(4, 5, RangeState(AVAILABLE, 0, 1))], "delivery count went down"),
        ([Edit(10, 10, held(lock_token=7))], "used before"),
        ([Edit(10, 10, held(lock_token=(1 << 32) | 1))], "used before"),
        ([Edit(10, 10, held()), Edit(11, 11, held())], "used before"),
    ],
)
def test_a_wrong_decision_is_seen(edits: list[Edit], message: str) -> None:
    with pytest.raises(InternalError, match=message):
        check_decision(busy().partition, Decision(edits=edits))


def test_a_hand_out_at_the_limit_is_seen() -> None:
    scene = busy()
    scene.set(delivery_limit=1)
    with pytest.raises(InternalError, match="handed out at its limit of 1"):
        check_decision(
            scene.partition, Decision(edits=[Edit(4, 5, held(delivery_count=2, hand_outs=2))])
        )
