"""Order by key and by partition: design 5.6."""

from __future__ import annotations

from typing import Any

import pytest

from sharecoord.config.group import Ordering as ConfiguredOrdering
from sharecoord.core import limits
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.share_partition import (
    AcknowledgedRange,
    HeldRange,
    RangeOutcome,
    TakenBack,
)
from sharecoord.core.states import AcknowledgeOutcome, AcquireMode, ForceAction, Ordering
from sharecoord.core.window.window import Keys, RangeState
from tests.invariants import check_chains
from tests.unit.core.scene import (
    ACCEPT,
    ACQUIRED,
    AVAILABLE,
    REJECT,
    RELEASE,
    RENEW,
    RETURN,
    Scene,
)

A, B, C, NONE = 11, 22, 33, 0
LOCK_LOST = AcknowledgeOutcome.LOCK_LOST


def key_order(**settings: Any) -> Scene:
    """A group in key order."""
    return Scene(ordering=Ordering.KEY, **settings)


def one_chain() -> Scene:
    """Four records of one key, all of them at ann."""
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, A, A, A])
    return scene


def partition_order(**settings: Any) -> Scene:
    """A group in partition order."""
    return Scene(ordering=Ordering.PARTITION, **settings)


def test_records_of_one_key_go_out_as_a_chain_to_one_member() -> None:
    scene = key_order()
    assert scene.acquire("ann", new=[(0, 5)], keys=[A, B, A, A, B, C]) == [(0, 5, 1)]
    check_chains(scene.partition)


def test_a_chain_is_bounded_and_leaves_room_for_other_keys() -> None:
    scene = key_order(chain_max=3)
    keys = [A, A, A, A, B, A]
    assert scene.acquire("ann", new=[(0, 5)], keys=keys) == [(0, 2, 1), (4, 4, 1)]
    assert scene.acquire("ann") == []
    assert scene.acquire("bob") == [], "the chain is another's"
    scene.acknowledge(ACCEPT, 0)
    assert scene.acquire("ann") == [(3, 3, 1)]
    scene.acknowledge(ACCEPT, 1)
    assert scene.acquire("ann") == [(5, 5, 1)]
    check_chains(scene.partition)


def test_a_bounded_chain_that_is_over_goes_on_with_whoever_asks() -> None:
    scene = key_order(chain_max=2)
    scene.acquire("ann", new=[(0, 4)], keys=[A] * 5)
    scene.acknowledge(ACCEPT, 0, 1)
    assert scene.acquire("bob") == [(2, 3, 1)]
    assert scene.acquire("ann") == []


def test_partition_order_has_no_bound_on_its_chain() -> None:
    scene = partition_order(chain_max=2)
    assert scene.acquire("ann", new=[(0, 4)]) == [(0, 4, 1)]


def test_what_waits_behind_its_key_is_counted_by_member() -> None:
    scene = key_order()
    counted: dict[str, int] = {}
    scene.partition.count_into({}, counted)
    scene.acquire("ann", new=[(0, 4)], keys=[A, A, B, A, NONE])
    assert counted == {"ann": 2}
    scene.acknowledge(ACCEPT, 0)
    assert counted == {"ann": 1}
    scene.acknowledge(RELEASE, 2)
    assert counted == {"ann": 1}
    scene.partition.count_into(None)
    assert counted == {}
    scene.partition.count_into({}, counted)
    assert counted == {"ann": 1}
    scene.set(ordering=Ordering.PARTITION)
    assert counted == {}, "nothing else could run"
    scene.set(ordering=Ordering.KEY)
    assert counted == {"ann": 1}
    scene.set(ordering=Ordering.UNORDERED)
    assert counted == {}


def test_a_key_that_another_member_holds_waits_and_the_others_go_on() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 1)], keys=[A, B])
    assert scene.acquire("bob", new=[(2, 5)], keys=[A, C, B, C]) == [(3, 3, 1), (5, 5, 1)]
    assert [scene.state(at) for at in (2, 4)] == [AVAILABLE, AVAILABLE]
    assert scene.acquire("cy") == []
    check_chains(scene.partition)


def test_the_holder_of_a_key_may_have_more_of_it() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 0)], keys=[A])
    assert scene.acquire("ann", new=[(1, 2)], keys=[A, A]) == [(1, 2, 1)]


def test_what_waits_goes_to_the_holder_of_its_key_first_to_last() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 0)], keys=[A])
    scene.acquire("bob", new=[(1, 4)], keys=[A, A, B, A])
    assert scene.partition.due_ranges(10) == []
    assert scene.partition.due_ranges(10, "bob") == []
    assert [found[:2] for found in scene.partition.due_ranges(10, "ann")] == [(1, 2), (4, 4)]
    assert scene.acquire("ann", 2) == [(1, 2, 1)]


@pytest.mark.parametrize("kind", [ACCEPT, REJECT])
def test_a_finished_record_lets_the_key_go_on(kind: object) -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 1)], keys=[A, B])
    scene.acquire("bob", new=[(2, 2)], keys=[A])
    scene.acknowledge(kind, 0)  # type: ignore[arg-type]
    assert scene.acquire("bob") == [(2, 2, 1)]


def test_archiving_does_not_block_a_key() -> None:
    scene = key_order(dead_letter_topic="dead")
    scene.acquire("ann", new=[(0, 0)], keys=[A])
    scene.acquire("bob", new=[(1, 1)], keys=[A])
    scene.acknowledge(REJECT, 0)
    assert scene.acquire("bob") == [(1, 1, 1)]


def test_a_failed_record_takes_the_rest_of_its_chain_back_unseen() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 5)], keys=[A, B, A, B, A, NONE])
    token = scene.tokens()[0]
    scene.acknowledge(RELEASE, 2)
    assert scene.states() == [
        (0, 1, "ACQUIRED", 1),
        (2, 2, "AVAILABLE", 1),
        (3, 3, "ACQUIRED", 1),
        (4, 4, "AVAILABLE", 0),
        (5, 5, "ACQUIRED", 1),
    ]
    assert scene.last.taken_back == [TakenBack("ann", 4, 4, token)]
    assert scene.acquire("bob") == []
    scene.acknowledge(ACCEPT, 0)
    assert scene.acquire("bob") == [(2, 2, 2), (4, 4, 1)]


def test_what_was_settled_before_is_not_taken_back() -> None:
    scene = one_chain()
    scene.acknowledge(ACCEPT, 1)
    scene.acknowledge(RELEASE, 0)
    assert scene.states() == [(0, 0, "AVAILABLE", 1), (2, 3, "AVAILABLE", 0)]


def test_what_is_settled_in_the_same_request_is_not_taken_back() -> None:
    scene = one_chain()
    token = scene.tokens()[0]
    scene.send(AcknowledgedRange(0, 0, RELEASE, token), AcknowledgedRange(1, 1, ACCEPT, token))
    assert scene.states() == [(0, 0, "AVAILABLE", 1), (2, 3, "AVAILABLE", 0)]


def test_a_renewal_behind_a_failed_record_is_lost() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, B, A, B])
    token = scene.tokens()[0]
    scene.now += 7
    found = scene.send(
        AcknowledgedRange(0, 0, RELEASE, token), AcknowledgedRange(1, 3, RENEW, token)
    )
    assert found == [RangeOutcome(2, 2, LOCK_LOST)]
    assert [scene.state(at) for at in range(4)] == [AVAILABLE, ACQUIRED, AVAILABLE, ACQUIRED]
    assert scene.at(3).deadline_ms == 31_007  # type: ignore[union-attr]


def test_a_lock_that_ends_takes_the_rest_of_its_chain_back() -> None:
    scene = key_order(lock_duration_ms=1_000)
    scene.acquire("ann", new=[(0, 1)], keys=[A, B])
    scene.now += 500
    scene.acquire("ann", new=[(2, 3)], keys=[A, C])
    scene.pass_time(500)
    assert scene.states() == [
        (0, 1, "AVAILABLE", 1),
        (2, 2, "AVAILABLE", 0),
        (3, 3, "ACQUIRED", 1),
    ]


def test_a_worn_out_record_breaks_the_chain_too() -> None:
    scene = key_order(delivery_limit=1)
    scene.acquire("ann", new=[(0, 2)], keys=[A, A, B])
    scene.acknowledge(RELEASE, 0)
    assert scene.states() == [(1, 1, "AVAILABLE", 0), (2, 2, "ACQUIRED", 1)]


def test_the_tail_of_a_chain_may_be_handed_back() -> None:
    scene = one_chain()
    scene.acknowledge(RETURN, 2, 3)
    assert scene.acquire("bob") == []
    assert scene.acquire("ann", 1) == [(2, 2, 1)]
    check_chains(scene.partition)


def test_handing_back_the_middle_of_a_chain_takes_its_end_back() -> None:
    scene = one_chain()
    scene.acknowledge(RETURN, 1)
    assert scene.states() == [(0, 0, "ACQUIRED", 1), (1, 3, "AVAILABLE", 0)]


def test_a_lock_missing_from_the_book_takes_the_rest_of_its_chain_back() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, A, A, B])
    token = scene.tokens()[0]
    lost = scene.join(HeldRange(0, 0, token), HeldRange(2, 3, token))
    assert lost == [HeldRange(2, 2, token)]
    assert [scene.state(at) for at in range(4)] == [ACQUIRED, AVAILABLE, AVAILABLE, ACQUIRED]


def test_an_operators_release_takes_the_rest_of_the_chain_back() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, A, B, A])
    scene.force(ForceAction.SKIP, 1, 1)
    assert scene.states() == [
        (0, 0, "ACQUIRED", 1),
        (1, 1, "ARCHIVED", 1),
        (2, 2, "ACQUIRED", 1),
        (3, 3, "AVAILABLE", 0),
    ]


def test_a_delayed_head_blocks_its_key_only() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, B, A, B])
    scene.acknowledge(RELEASE, 0, delay_ms=500)
    scene.acknowledge(RELEASE, 1)
    assert scene.acquire("bob") == [(1, 1, 2), (3, 3, 1)]
    assert scene.partition.ready == 0
    scene.pass_time(500)
    assert scene.partition.ready == 2
    assert scene.acquire("cy") == [(0, 0, 2), (2, 2, 1)]


def test_gaps_and_forced_archives_unblock_a_key() -> None:
    scene = one_chain()
    scene.acknowledge(RELEASE, 0, delay_ms=60_000)
    scene.apply(scene.partition.decide_gap(0, 0))
    scene.force(ForceAction.SKIP, 1, 1)
    scene.log_start(3)
    assert scene.acquire("bob") == [(3, 3, 1)]


def test_a_payload_that_is_not_at_hand_holds_its_key_back() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, B, A, B])
    scene.release_all()
    found = scene.partition.due_ranges(100, "bob")
    at_hand = [(max(first, 1), last, value) for first, last, value in found]
    assert scene.acquire("bob", due=at_hand) == [(1, 1, 2), (3, 3, 2)]


def test_no_key_means_no_order() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 1)], keys=[NONE, NONE])
    assert scene.acquire("bob", new=[(2, 3)], keys=[NONE, NONE]) == [(2, 3, 1)]
    scene.acknowledge(RELEASE, 0, delay_ms=1_000)
    scene.acknowledge(RELEASE, 1)
    assert scene.acquire("bob") == [(1, 1, 2)]


def test_records_that_wait_do_not_use_up_the_window_of_the_others() -> None:
    scene = key_order(record_locks_max=10)
    scene.acquire("ann", 1, new=[(0, 0)], keys=[A])
    scene.acquire("bob", new=[(1, 50)], keys=[A] * 50)
    assert (scene.window.due, scene.partition.ready, scene.partition.room) == (50, 0, 9)
    assert scene.acquire("bob", new=[(51, 53)], keys=[B, B, A]) == [(51, 52, 1)]


def test_records_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WINDOW_RECORDS_MAX", 20)
    scene = key_order()
    scene.acquire("ann", 1, new=[(0, 0)], keys=[A])
    scene.acquire("bob", new=[(1, 50)], keys=[A] * 50)
    assert scene.span() == (0, 20)
    assert scene.partition.room == 0
    scene.acknowledge(ACCEPT, 0)
    assert scene.acquire("bob") == [(1, 19, 1)]


def test_nothing_is_skipped_when_the_budget_ends_before_a_record_that_waits() -> None:
    scene = key_order()
    scene.acquire("ann", 1, new=[(0, 0)], keys=[A])
    assert scene.acquire("bob", 2, new=[(1, 6)], keys=[B, B, B, A, B, A]) == [(1, 2, 1)]
    assert scene.window.end_offset == 3


def test_partition_order_goes_to_one_member_at_a_time() -> None:
    scene = partition_order()
    assert scene.acquire("ann", new=[(0, 4)]) == [(0, 4, 1)]
    assert scene.acquire("bob", new=[(5, 9)]) == []
    assert scene.acquire("ann") == [(5, 9, 1)]
    scene.acknowledge(RELEASE, 3)
    assert scene.states() == [
        (0, 2, "ACQUIRED", 1),
        (3, 3, "AVAILABLE", 1),
        (4, 4, "AVAILABLE", 0),
        (5, 9, "AVAILABLE", 0),
    ]
    scene.acknowledge(ACCEPT, 0, 2)
    assert scene.acquire("bob") == [(3, 3, 2), (4, 9, 1)]


@pytest.mark.parametrize("scene", [key_order(), partition_order()], ids=["key", "partition"])
def test_order_survives_a_new_owner(scene: Scene) -> None:
    scene.acquire("ann", new=[(0, 3)], keys=[A, A, A, A])
    scene.acknowledge(RELEASE, 2)
    scene.recover()
    assert scene.acquire("bob") == []
    assert scene.acquire("ann") == [(2, 2, 2), (3, 3, 1)]


def switched() -> Scene:
    """Offsets 0-5 entered without order; 0-1 with ann, 2-3 due, 4-5 with bob. 6 is due, key A."""
    scene = Scene()
    scene.acquire("ann", new=[(0, 3)])
    scene.acquire("bob", new=[(4, 5)])
    scene.acknowledge(RELEASE, 2, 3)
    scene.set(ordering=Ordering.KEY)
    scene.acquire("cy", due=(), new=[(6, 7)], keys=[A, NONE])
    return scene


def test_a_record_with_an_unknown_key_waits_for_everything_before_it() -> None:
    scene = switched()
    assert scene.acquire("cy") == []
    scene.acknowledge(ACCEPT, 0, 1)
    assert scene.acquire("cy") == [(2, 2, 2)], "alone"
    assert scene.acquire("cy") == []
    scene.acknowledge(ACCEPT, 2, member="cy")
    assert scene.acquire("cy") == [(3, 3, 2)]


def test_a_record_with_a_key_waits_for_every_unknown_key_before_it() -> None:
    scene = switched()
    for at, member in ((0, "ann"), (1, "ann"), (4, "bob"), (5, "bob")):
        scene.acknowledge(ACCEPT, at, member=member)
    for at in (2, 3):
        assert scene.acquire("cy") == [(at, at, 2)]
        scene.acknowledge(ACCEPT, at, member="cy")
    assert scene.acquire("cy") == [(6, 6, 1)]


def test_a_record_without_a_key_waits_for_nothing() -> None:
    scene = switched()
    assert scene.tokens("cy").keys() == {7}


def test_switching_to_partition_order_waits_for_all_holders() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 1)])
    scene.acquire("bob", new=[(2, 3)])
    scene.acknowledge(RELEASE, 3, member="bob")
    scene.set(ordering=Ordering.PARTITION)
    assert scene.acquire("bob") == []
    scene.acknowledge(ACCEPT, 0, 1)
    assert scene.acquire("bob") == [(3, 3, 2)]


def test_a_chain_is_one_members_the_locks_of_others_stay() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 0)])
    scene.acquire("bob", new=[(1, 1)])
    scene.acquire("ann", new=[(2, 2)])
    scene.set(ordering=Ordering.PARTITION)
    scene.acknowledge(RELEASE, 0)
    assert [scene.state(at) for at in range(3)] == [AVAILABLE, ACQUIRED, AVAILABLE]


def test_a_delayed_record_stays_behind_its_key() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 2)], keys=[A, A, A])
    scene.acknowledge(RELEASE, 1, delay_ms=500)
    scene.acknowledge(RELEASE, 0)
    assert scene.acquire("bob") == [(0, 0, 2)]
    assert scene.acquire("bob") == []
    scene.pass_time(500)
    assert scene.acquire("bob") == [(1, 1, 2), (2, 2, 1)]


def test_an_unknown_key_waits_for_the_known_keys_before_it() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 0)], keys=[A])
    scene.set(ordering=Ordering.UNORDERED)
    scene.acquire("bob", new=[(1, 1)])
    scene.acknowledge(RELEASE, 1, member="bob")
    scene.set(ordering=Ordering.KEY)
    assert scene.partition.due_ranges(10, "ann") == []
    assert scene.acquire("ann", new=[(2, 2)], keys=[B]) == []
    scene.acknowledge(ACCEPT, 0)
    assert scene.acquire("ann") == [(1, 1, 2)]
    scene.acknowledge(ACCEPT, 1)
    assert scene.acquire("ann") == [(2, 2, 1)]


def test_switching_order_off_lets_everything_out() -> None:
    scene = key_order()
    scene.acquire("ann", 1, new=[(0, 0)], keys=[A])
    scene.acquire("bob", new=[(1, 2)], keys=[A, A])
    scene.set(ordering=Ordering.UNORDERED)
    assert scene.acquire("bob") == [(1, 2, 1)]


def test_no_more_than_may_be_locked_are_let_out_at_once() -> None:
    scene = key_order(record_locks_max=3)
    scene.acquire("ann", 1, new=[(0, 0)], keys=[A])
    scene.acquire("bob", new=[(1, 9)], keys=[A] * 9)
    scene.set(ordering=Ordering.UNORDERED)
    assert scene.acquire("bob") == [(1, 2, 1)]
    assert scene.acquire("cy") == []
    scene.acknowledge(ACCEPT, 1, member="bob")
    assert scene.acquire("cy") == [(3, 3, 1)]


def test_the_configured_orderings_are_the_cores() -> None:
    assert [*map(str, ConfiguredOrdering)] == [*map(str, Ordering)]
    assert Scene(ordering=ConfiguredOrdering.UNORDERED).partition.order is None
    assert Scene(ordering=ConfiguredOrdering.KEY).partition.order is not None


def test_a_truncated_key_starts_afresh() -> None:
    scene = key_order()
    scene.acquire("ann", new=[(0, 3)], keys=[A, A, NONE, A])
    scene.acknowledge(RELEASE, 2)
    scene.apply(scene.partition.decide_truncate(1))
    assert scene.acquire("bob", due=(), new=[(1, 3)], keys=[B, A, A]) == [(1, 1, 1)]
    assert scene.partition.due_ranges(10, "bob") == []
    assert [found[:2] for found in scene.partition.due_ranges(10, "ann")] == [(2, 3)]


def test_a_skipped_last_attempt_holds_its_key_back() -> None:
    scene = key_order(delivery_limit=3)
    scene.acquire("ann", new=[(0, 0)], keys=[A])
    scene.release_all()
    scene.acquire("ann")
    scene.release_all()
    scene.acquire("bob", due=(), new=[(1, 2)], keys=[A, B])
    scene.acquire("cy", due=(), new=[(3, 3)], keys=[C])
    scene.acquire("cy", due=scene.partition.due_ranges(10, "cy"))
    assert scene.last.isolate
    assert scene.acquire("bob", new=[(4, 4)], keys=[A]) == []
    scene.acknowledge(ACCEPT, 3, member="cy")
    assert scene.acquire("cy") == [(0, 0, 3)]


def test_a_key_that_is_held_back_by_a_last_attempt_does_not_stop_new_data() -> None:
    scene = key_order(delivery_limit=5)
    keys = Keys(0, b"".join(k.to_bytes(8, "big") for k in [A, A]))
    scene.load(
        (0, 0, RangeState(AVAILABLE, 4, 4, batch_base=0, batch_size=1, keys=keys)),
        (1, 1, RangeState(AVAILABLE, 3, 3, batch_base=1, batch_size=1, keys=keys)),
    )
    scene.acquire("cy", due=(), new=[(2, 2)], keys=[C])
    scene.acquire("bob", due=(), new=[(3, 3)], keys=[B])
    assert scene.acquire("cy") == []
    assert scene.last.isolate
    assert scene.acquire("bob", new=[(4, 4)], keys=[B]) == [(4, 4, 1)]


@pytest.mark.parametrize("mode", list(AcquireMode), ids=lambda mode: mode.name.lower())
def test_a_hot_key_does_not_stop_the_others_in_any_mode(mode: AcquireMode) -> None:
    scene = key_order()
    scene.acquire("ann", 1, new=[(0, 0)], keys=[A])
    keys = Keys(1, b"".join(k.to_bytes(8, "big") for k in [A, B, A, C]))
    decision = scene.partition.decide_acquire(
        scene.now, "bob", max_records=500, mode=mode, due=(), fresh=[Run(1, 4, keys)]
    )
    scene.apply(decision)
    assert [(r.first, r.last) for r in decision.acquired] == [(2, 2), (4, 4)]
