"""The main flow through the runtime, on virtual time."""

from __future__ import annotations

import asyncio

from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.store.memory_store import MemoryStore
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import FakeMember, World, running
from sharecoord.testing.virtual_time import run_virtual


def test_every_record_reaches_a_member_once() -> None:
    async def main() -> None:
        log = FakeLog()
        log.create("orders")
        log.append("orders", 1_000)
        world = World(MemoryStore(), log)
        async with running(world) as coordinator:
            member = FakeMember("m1")
            await member.join(coordinator, "g", ("orders",))
            seen: list[int] = []
            while len(seen) < 1_000:
                delivery = await member.next_delivery()
                for found in delivery.ranges:
                    seen += range(found.first, found.last + 1)
                    assert found.delivery_count == 1
                result = await member.acknowledge(delivery)
                assert not result.exceptions
                assert result.error is None
            assert seen == list(range(1_000))

    run_virtual(main())


def test_locks_and_counts_survive_a_crash() -> None:
    async def main() -> None:
        log = FakeLog()
        log.create("orders")
        log.append("orders", 10)
        world = World(MemoryStore(), log)
        first = await world.start()
        a = FakeMember("a")
        await a.join(first, "g", ("orders",), max_poll_records=10)
        delivery = await a.next_delivery()
        await world.kill(first)

        second = await world.start()
        b = FakeMember("b")
        await b.join(second, "g", ("orders",), max_poll_records=10)
        held = delivery.ranges[0]
        assert not await a.join(
            second,
            "g",
            ("orders",),
            max_poll_records=10,
            lock_book=[
                (delivery.key.topic, delivery.key.topic_id, 0, _held(r)) for r in delivery.ranges
            ],
        )
        result = await a.acknowledge(delivery, last=held.last)
        assert result.error is None
        assert not result.exceptions
        rest = 10 - (held.last - held.first + 1)
        await asyncio.sleep(120)
        counts = {r.delivery_count for d in b.deliveries + a.deliveries for r in d.ranges}
        offsets = {
            o
            for d in b.deliveries + a.deliveries
            for r in d.ranges
            for o in range(r.first, r.last + 1)
        }
        assert not offsets & set(range(held.first, held.last + 1))
        assert len(offsets) == rest
        assert counts
        await second.drain()
        await second.close()

    run_virtual(main())


def _held(found: object) -> object:
    from sharecoord.core.share_partition import AcquiredRange, HeldRange

    assert isinstance(found, AcquiredRange)
    return HeldRange(found.first, found.last, found.lock_token)


def test_a_released_record_comes_again_with_a_higher_count() -> None:
    async def main() -> None:
        log = FakeLog()
        log.create("orders")
        log.append("orders", 1)
        world = World(MemoryStore(), log)
        async with running(world) as coordinator:
            member = FakeMember("m1")
            await member.join(coordinator, "g", ("orders",))
            for count in range(1, 6):
                delivery = await member.next_delivery()
                assert delivery.ranges[0].delivery_count == count
                await member.acknowledge(delivery, AcknowledgeType.RELEASE)
            late = await member.acknowledge(delivery)
            assert [e.outcome for e in late.exceptions] == [AcknowledgeOutcome.UNKNOWN_OUTCOME]

    run_virtual(main())
