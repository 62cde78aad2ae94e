"""The main flow through the runtime, on virtual time."""

from __future__ import annotations

from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.virtual_time import run_virtual
from tests.world import World, running


def test_every_record_reaches_a_member_once() -> None:
    async def main() -> None:
        log = FakeLog()
        log.create("orders")
        log.append("orders", 1_000)
        world = World(log)
        async with running(world) as coordinator:
            member = world.member("m1")
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


def test_a_released_record_comes_again_with_a_higher_count() -> None:
    async def main() -> None:
        log = FakeLog()
        log.create("orders")
        log.append("orders", 1)
        world = World(log)
        async with running(world) as coordinator:
            member = world.member("m1")
            await member.join(coordinator, "g", ("orders",))
            deliveries = []
            for count in range(1, 6):
                delivery = await member.next_delivery()
                deliveries.append(delivery)
                assert delivery.ranges[0].delivery_count == count
                await member.acknowledge(delivery, AcknowledgeType.RELEASE)
            late = await member.acknowledge(deliveries[-1])
            assert [e.outcome for e in late.exceptions] == [AcknowledgeOutcome.UNKNOWN_OUTCOME]

    run_virtual(main())
