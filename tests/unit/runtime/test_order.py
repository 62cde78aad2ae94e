"""Order by key and by partition, through the runtime (design 5.6)."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from sharecoord.core.limits import CHAIN_RECORDS_MAX
from sharecoord.core.records import ColumnChunk
from sharecoord.core.states import AcknowledgeType, AcquireMode
from sharecoord.runtime.admin.admin import Admin
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.ledger import Ledger
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.test_dead_letters import INFO
from tests.unit.runtime.worlds import offsets, until, world_with
from tests.world import TOPICS, running


async def work(member: FakeMember, seen: dict[bytes | None, list[int]], fails: set[int]) -> None:
    """Takes one delivery after the other, record by record; some fail at first."""
    while True:
        delivery = await member.next_delivery(timeout_s=10_000)
        for chunk, start, stop in delivery.slices:
            for i in range(start, stop):
                offset = chunk.first + i if chunk.offsets is None else chunk.offsets[i]
                key = chunk.keys[i] if chunk.keys else None
                await asyncio.sleep(0.01)
                kind = AcknowledgeType.ACCEPT
                if offset in fails:
                    fails.discard(offset)
                    kind = AcknowledgeType.RELEASE
                result = await member.acknowledge(delivery, kind, first=offset, last=offset)
                if not result.exceptions and kind is AcknowledgeType.ACCEPT:
                    seen[key].append(offset)


@pytest.mark.parametrize("ordering", ["key", "partition"])
@virtual
async def test_order_holds_over_members_and_retries(ordering: str) -> None:
    world = world_with(0, ordering=ordering)
    for i in range(200):
        key = None if i % 10 == 9 else b"k%d" % (i % 7)
        world.log.append("orders", 1, key=key)
    seen: dict[bytes | None, list[int]] = defaultdict(list)
    fails = {3, 10, 50, 51, 120}
    async with running(world) as coordinator:
        # Not the world's ledger: what is taken back with a broken chain looks to its holder as
        # if its lock was broken; its acknowledgement gets LOCK_LOST.
        members = [FakeMember(f"m{i}", Ledger()) for i in range(4)]
        for member in members:
            await member.join(coordinator, "g", TOPICS)
        tasks = [asyncio.create_task(work(m, seen, fails)) for m in members]
        await until(lambda: sum(map(len, seen.values())) >= 200, step_s=0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(o for found in seen.values() for o in found) == list(range(200))
    for key, found in seen.items():
        if key is not None:
            assert found == sorted(found), key
    assert not fails


def test_key_hashes_are_stable_and_an_empty_key_is_a_key() -> None:
    chunk = ColumnChunk(0, 0, 2, None, [0, 0, 0], 1, [b"a", None, b""], [b"", b"", b""], {}, 0)
    hashes = chunk.key_hashes()
    assert len(hashes) == 24
    assert hashes[8:16] == bytes(8)
    assert hashes[16:24] != bytes(8)
    assert hashes[:8].hex() == "d9b5385bca1a9336"


@virtual
@pytest.mark.parametrize("ordering", ["unordered", "key"])
async def test_what_a_lowered_limit_has_worn_out_hides_nothing(ordering: str) -> None:
    world = world_with(0, ordering=ordering, delivery_count_limit="5")
    for number in range(20):
        world.log.append("orders", 1, key=b"%d" % number)
    async with running(world) as coordinator:
        first = await world.joined(coordinator, "first", max_poll_records=20)
        for delivery in await first.take(20):
            await first.settle(delivery, AcknowledgeType.RELEASE)
        first.leave()
        limit = {"share.delivery.count.limit": "1"}
        await Admin(coordinator, INFO).alter_group_configs("g", limit, [])
        world.log.append("orders", 1, key=b"new")
        mode = AcquireMode.RECORD_LIMIT
        second = await world.joined(coordinator, "second", mode=mode, max_poll_records=1, credit=1)
        (delivery,) = await second.take(1, timeout_s=1)
        assert offsets(delivery) == [20]


@virtual
async def test_a_frequent_key_leaves_its_member_the_records_of_all_others() -> None:
    world = world_with(0, ordering="key")
    for number in range(2_000):
        world.log.append("orders", 1, key=b"hot" if number % 2 else b"%d" % number)
    async with running(world) as coordinator:
        member, settled = world.member("m"), set[int]()
        await member.join(coordinator, "g", TOPICS, max_poll_records=100)
        while len(settled) < 1_000:
            # Nothing of the frequent key is finished; all others are, at once.
            delivery = await member.next_delivery(timeout_s=5)
            for offset in offsets(delivery):
                if offset % 2 == 0:
                    settled.add(offset)
                    await member.acknowledge(delivery, first=offset, last=offset)
        assert settled == set(range(0, 2_000, 2))
        out = coordinator.groups["g"].chained["m"]
        assert out == CHAIN_RECORDS_MAX - 1
