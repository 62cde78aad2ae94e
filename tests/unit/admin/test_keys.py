"""Blocked keys, by operators, under traffic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sharecoord.core.limits import BLOCKED_KEY_BYTES_MAX, BLOCKED_KEYS_MAX
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    LimitExceededError,
    StoreUnavailableError,
)
from sharecoord.eventlog.schema import EventKind, GroupEvent
from sharecoord.runtime.admin.keys import key_text
from sharecoord.testing.virtual_time import run_virtual
from tests.unit.admin.support import Bench, bench, virtual
from tests.unit.runtime.worlds import offsets, until

KEYED = {"share.ordering": "key", "share.auto.offset.reset": "earliest"}


async def keyed(bench: Bench, *keys: bytes | None, group: str = "g") -> None:
    """A group in key order, and records with these keys behind the first 100 of `orders`."""
    await bench.admin.alter_group_configs(group, KEYED, [])
    for key in keys:
        bench.log.append("orders", key=key, partition=1)


async def took(bench: Bench, count: int, name: str = "m1") -> list[int]:
    """Offsets of partition 1 that a member takes and accepts, until it has so many."""
    member = await bench.member(name)
    found: list[int] = []
    while len(found) < count:
        delivery = await member.next_delivery(timeout_s=60)
        await member.settle(delivery)
        if delivery.key.partition == 1:
            found += offsets(delivery)
    await bench.leave(member)
    return found


@virtual
async def test_events_name_who_blocks_and_who_unblocks(bench: Bench) -> None:
    await keyed(bench)
    await bench.admin.block_keys("g", [b"a"], "ticket 7", by="User:alice")
    await bench.admin.block_keys("g", [b"b"])
    await bench.admin.unblock_keys("g", [b"a", b"b"], by="User:bob")
    told = [
        row["reason"]
        for row in bench.world.events.rows(EventKind.GROUP)
        if row["event"] in (GroupEvent.KEYS_BLOCKED, GroupEvent.KEYS_UNBLOCKED)
    ]
    assert told == [
        "'a' by User:alice: ticket 7",
        "'b' by operator",
        "'a', 'b' by User:bob",
    ]


@virtual
async def test_a_blocked_key_waits_and_all_others_go_on(bench: Bench) -> None:
    await keyed(bench, b"a", b"b", None, b"a", b"", b"b")
    await bench.admin.block_keys("g", [b"a"], "ticket 7")
    assert await took(bench, 4) == [1, 2, 4, 5]
    (view,) = await bench.admin.list_blocked_keys("g")
    assert (view.key, view.reason, view.waiting_records) == (b"a", "ticket 7", 2)
    assert view.since_ms == bench.world.database.groups["g"].blocked_keys[0].since_ms
    assert (await bench.partition(1)).lag == 2
    assert await bench.admin.unblock_keys("g", [b"a", b"never"]) == [b"never"]
    assert await took(bench, 2) == [0, 3]
    assert await bench.admin.list_blocked_keys("g") == []


@virtual
async def test_unblocking_wakes_a_member_that_waits(bench: Bench) -> None:
    await keyed(bench, b"a", b"a")
    await bench.admin.block_keys("g", [b"a"])
    member = await bench.member()
    await member.take(100)
    await bench.admin.unblock_keys("g", [b"a"])
    delivery = await member.next_delivery(timeout_s=1)
    assert (delivery.key.partition, offsets(delivery)) == (1, [0, 1])


@virtual
async def test_a_long_run_of_a_blocked_key_does_not_hide_what_comes_behind(bench: Bench) -> None:
    """Whoever asks for little must not wait for what is parked."""
    await keyed(bench, *[b"a"] * 1_500, b"b")
    await bench.admin.block_keys("g", [b"a"])
    member = bench.world.member("m1")
    await member.join(bench.coordinator, "g", ("orders",), max_poll_records=1)
    found: list[int] = []
    while found != [1_500]:
        delivery = await member.next_delivery(timeout_s=60)
        await member.settle(delivery)
        found += offsets(delivery) if delivery.key.partition == 1 else []
    (view,) = await bench.admin.list_blocked_keys("g")
    assert view.waiting_records == 1_500


@virtual
async def test_it_survives_a_crash_and_nothing_of_it_goes_out(bench: Bench) -> None:
    await keyed(bench, b"a", b"b", b"a")
    await bench.admin.block_keys("g", [b"a"])
    assert await took(bench, 1) == [1]
    await bench.world.kill(bench.coordinator)
    bench.coordinator = await bench.world.start()
    member = await bench.member("m2")
    bench.log.append("orders", key=b"b", partition=1)
    delivery = await member.next_delivery(timeout_s=60)
    assert offsets(delivery) == [3]
    order = next(
        actor.partition.order
        for actor in bench.coordinator.groups["g"].partitions.values()
        if actor.key.partition == 1 and actor.partition
    )
    assert order is not None
    assert order.blocked_records == 2


@virtual
async def test_what_waits_is_counted_without_a_live_share_partition(bench: Bench) -> None:
    await keyed(bench, b"a", b"b", b"a")
    await bench.admin.block_keys("g", [b"a"])
    await took(bench, 1)
    bench.coordinator.groups["g"].partitions.clear()
    (view,) = await bench.admin.list_blocked_keys("g")
    assert view.waiting_records == 2


@virtual
async def test_a_store_that_fails_leaves_what_is_stored_in_force(bench: Bench) -> None:
    await keyed(bench)
    await bench.member()
    error = StoreUnavailableError("away")
    bench.world.store.fail_next(error, method="save_blocked_keys")
    with pytest.raises(StoreUnavailableError):
        await bench.admin.block_keys("g", [b"a"])
    assert bench.coordinator.groups["g"].settings.blocked_keys == frozenset()
    bench.world.store.fail_next(error, method="save_blocked_keys", after_commit=True)
    with pytest.raises(StoreUnavailableError):
        await bench.admin.block_keys("g", [b"a"])
    assert len(bench.coordinator.groups["g"].settings.blocked_keys) == 1


@virtual
async def test_order_by_key_can_not_go_before_its_blocked_keys(bench: Bench) -> None:
    await keyed(bench)
    await bench.admin.block_keys("g", [b"a"])
    for deleted, change in (([], {"share.ordering": "unordered"}), (["share.ordering"], {})):
        with pytest.raises(InvalidConfigError, match=r"blocked keys \(1\) would.*unblock --all"):
            await bench.admin.alter_group_configs("g", change, deleted)
    await bench.admin.unblock_keys("g", [b"a"])
    await bench.admin.alter_group_configs("g", {"share.ordering": "unordered"}, [])


def test_a_group_may_be_new_where_all_keep_order() -> None:
    async def test() -> None:
        async with bench(**KEYED) as made:
            await made.admin.block_keys("new", [b"a"])
            assert [g.group_id for g in await made.admin.list_groups()] == ["new"]

    run_virtual(test())


@pytest.mark.parametrize(
    ("keys", "reason", "error", "text"),
    [
        ([], "", InvalidRequestError, "name one key at least"),
        ([b"x" * (BLOCKED_KEY_BYTES_MAX + 1)], "", InvalidRequestError, "4097 bytes; at most 4096"),
        ([b"%d" % n for n in range(BLOCKED_KEYS_MAX + 1)], "", InvalidRequestError, "1001 entries"),
        ([b"a"], "x" * 1_025, InvalidRequestError, "reason has 1025 bytes; at most 1024"),
        ([b"%d" % n for n in range(BLOCKED_KEYS_MAX)], "", LimitExceededError, "1001 blocked keys"),
    ],
)
def test_bad_input_is_refused(keys: list[bytes], reason: str, error: type[Any], text: str) -> None:
    @virtual
    async def test(bench: Bench) -> None:
        await keyed(bench)
        await bench.admin.block_keys("g", [b"one"])
        with pytest.raises(error, match=text):
            await bench.admin.block_keys("g", keys, reason)
        assert [view.key for view in await bench.admin.list_blocked_keys("g")] == [b"one"]

    test()


@virtual
async def test_groups_without_order_by_key_are_refused_with_the_fix(bench: Bench) -> None:
    for ordering in ("unordered", "partition"):
        await bench.admin.alter_group_configs("g", {"share.ordering": ordering}, [])
        with pytest.raises(InvalidRequestError, match=rf"={ordering}: .* share.ordering=key first"):
            await bench.admin.block_keys("g", [b"a"])
    with pytest.raises(InvalidRequestError, match="=unordered"):
        await bench.admin.block_keys("unknown", [b"a"])
    for call in (bench.admin.unblock_keys("no", [b"a"]), bench.admin.list_blocked_keys("no")):
        with pytest.raises(GroupNotFoundError, match="'no' does not exist"):
            await call


@virtual
async def test_deleting_the_group_takes_its_blocked_keys_along(bench: Bench) -> None:
    await keyed(bench)
    await bench.admin.block_keys("g", [b"a"])
    assert await bench.admin.delete_groups(["g"]) == {"g": None}
    await keyed(bench)
    assert await bench.admin.list_blocked_keys("g") == []


@virtual
async def test_a_record_under_a_lock_runs_on_and_comes_back_to_wait(bench: Bench) -> None:
    await keyed(bench, b"a")
    member = await bench.member()
    deliveries = [await member.next_delivery(timeout_s=60) for _ in range(2)]
    mine = next(d for d in deliveries if d.key.partition == 1)
    await bench.admin.block_keys("g", [b"a"])
    result = await member.acknowledge(mine, AcknowledgeType.RELEASE)
    assert not result.exceptions
    await asyncio.sleep(5)
    group = bench.coordinator.groups["g"]
    (actor,) = (a for a in group.partitions.values() if a.key.partition == 1)
    assert actor.partition is not None
    await until(lambda: actor.partition and actor.partition.order.blocked_records == 1, step_s=0.1)
    assert actor.partition.window.acquired == 0


@pytest.mark.parametrize(
    ("key", "text"),
    [(b"k", "'k'"), (b"", "''"), (b"\xff\x00", "0xff00"), (b"a\nb", "0x610a62")],
)
def test_keys_in_words(key: bytes, text: str) -> None:
    assert key_text(key) == text
