"""Blocked keys: nothing of them is handed out, and they hold nothing else up."""

from __future__ import annotations

import pytest

from sharecoord.core import limits
from sharecoord.core.changes import GroupRow
from sharecoord.core.order.blocked_keys import hash_of, merged
from sharecoord.core.records import ColumnChunk
from sharecoord.core.states import Ordering
from sharecoord.errors import LimitExceededError
from tests.invariants import check_chains
from tests.unit.core.scene import ACCEPT, ACQUIRED, AVAILABLE, RELEASE, Scene

A, B, NONE = 11, 22, 0
ONLY_A = frozenset({A})


def blocked_a(**settings: int) -> Scene:
    """A group in key order of which key A is blocked."""
    return Scene(ordering=Ordering.KEY, blocked_keys=ONLY_A, **settings)


def test_new_records_of_it_wait_and_the_others_go_out() -> None:
    scene = blocked_a()
    got = scene.acquire("ann", new=[(0, 5)], keys=[A, B, NONE, A, B, A])
    assert got == [(1, 2, 1), (4, 4, 1)]
    assert [scene.state(at) for at in (0, 3, 5)] == [AVAILABLE] * 3
    order = scene.partition.order
    assert (order.blocked_records, order.waiting_of(A), order.first_blocked()) == (3, 3, 0)
    assert scene.partition.ready == 0
    assert scene.partition.due_ranges(10, "ann") == scene.partition.due_ranges(10) == []


def test_unblocked_they_go_out_in_order_to_one_member() -> None:
    scene = blocked_a()
    scene.acquire("ann", new=[(0, 3)], keys=[A, B, A, A])
    scene.set(blocked_keys=frozenset())
    assert scene.partition.ready == 3
    assert scene.acquire("bob", 2) == [(0, 0, 1), (2, 2, 1)]
    assert scene.acquire("cy") == []
    assert scene.acquire("bob") == [(3, 3, 1)]
    check_chains(scene.partition)


def test_what_is_under_a_lock_runs_on_and_comes_back_to_wait() -> None:
    scene = Scene(ordering=Ordering.KEY)
    scene.acquire("ann", new=[(0, 2)], keys=[A, A, B])
    scene.set(blocked_keys=ONLY_A)
    assert scene.state(1) is ACQUIRED
    assert scene.acquire("ann", new=[(3, 4)], keys=[A, B]) == [(4, 4, 1)]
    scene.acknowledge(ACCEPT, 0)
    scene.acknowledge(RELEASE, 1)
    assert scene.acquire("ann") == scene.acquire("bob") == []
    scene.set(blocked_keys=frozenset())
    assert scene.acquire("bob") == [(1, 1, 2), (3, 3, 1)]


def test_another_list_of_keys_takes_effect_at_once() -> None:
    scene = blocked_a()
    scene.acquire("ann", new=[(0, 3)], keys=[A, B, A, B])
    scene.acknowledge(RELEASE, 1)
    scene.acknowledge(RELEASE, 3)
    scene.set(blocked_keys=frozenset({B}))
    assert scene.acquire("bob") == [(0, 0, 1), (2, 2, 1)]
    assert scene.partition.order.blocked_records == 2


def test_a_key_with_half_of_the_traffic_does_not_fill_the_window() -> None:
    """Not at the record locks, nor at the bound for records that order holds back."""
    scene = blocked_a(record_locks_max=10)
    records = 0
    for first in range(0, 3_000, 100):
        keys = [A, B] * 50
        got = scene.acquire("ann", 1_000, new=[(first, first + 99)], keys=keys)
        while got:
            records += sum(last - begin + 1 for begin, last, _ in got)
            scene.acknowledge(ACCEPT, first, first + 99)
            end = scene.window.end_offset
            left = keys[end - first :]
            new = [(end, first + 99)] if left else []
            got = scene.acquire("ann", 1_000, new=new, keys=left)
    assert records == 1_500
    assert scene.partition.order.blocked_records == 1_500
    assert scene.partition.room == 10


def test_parked_records_do_not_count_against_the_records_that_order_holds_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "WINDOW_RECORDS_MAX", 20)
    scene = blocked_a()
    for first in range(0, 100, 10):
        scene.acquire("ann", new=[(first, first + 9)], keys=[A] * 10)
    assert scene.partition.order.blocked_records == 100
    assert scene.acquire("ann", new=[(100, 100)], keys=[B]) == [(100, 100, 1)]


def test_what_waited_does_not_overfill_the_window() -> None:
    scene = blocked_a(record_locks_max=3)
    scene.acquire("ann", new=[(0, 9)], keys=[A] * 10)
    scene.set(blocked_keys=frozenset())
    assert scene.acquire("ann") == [(0, 2, 1)]
    assert scene.acquire("ann") == []
    scene.acknowledge(ACCEPT, 0)
    assert scene.acquire("ann") == [(3, 3, 1)]


def test_at_the_bound_of_ranges_the_window_is_full_at_the_blocked_key() -> None:
    scene = blocked_a(window_ranges_max=3)
    scene.acquire("ann", new=[(0, 6)], keys=[B, A, NONE, A, NONE, A, B])
    assert scene.partition.room == 0
    assert scene.partition.full_at == 1
    scene.set(blocked_keys=frozenset())
    assert scene.partition.full_at == 0
    scene.set(window_ranges_max=100)
    assert scene.partition.full_at is None


def test_the_limit_of_blocked_keys_names_the_group() -> None:
    group = GroupRow("g", {}, 1)
    most = {b"%d" % number: "" for number in range(limits.BLOCKED_KEYS_MAX)}
    full = GroupRow("g", {}, 1, blocked_keys=merged(group, most, (), 5))
    with pytest.raises(LimitExceededError, match="'g' would have 1001 blocked keys"):
        merged(full, {b"x": ""}, (), 6)
    # A list that is too long already may become shorter.
    assert len(merged(full, {}, [b"0"], 6)) == limits.BLOCKED_KEYS_MAX - 1


def test_the_hash_is_that_of_records() -> None:
    chunk = ColumnChunk(0, 0, 1, None, [0, 0], 1, [b"a", b""], [b"", b""], {}, 0)
    assert chunk.key_hashes() == hash_of(b"a").to_bytes(8, "big") + hash_of(b"").to_bytes(8, "big")
