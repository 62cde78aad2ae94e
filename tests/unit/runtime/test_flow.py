"""The main flow through the runtime, on virtual time."""

from __future__ import annotations

from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import counts, offsets, world_with


@virtual
async def test_every_record_reaches_a_member_once() -> None:
    async with world_with(1_000).one_member() as (_, member):
        seen: list[int] = []
        while len(seen) < 1_000:
            delivery = await member.next_delivery()
            seen += offsets(delivery)
            assert counts(delivery) == {1}
            result = await member.acknowledge(delivery)
            assert not result.exceptions
            assert result.error is None
        assert seen == list(range(1_000))


@virtual
async def test_a_released_record_comes_again_with_a_higher_count() -> None:
    async with world_with(1).one_member() as (_, member):
        deliveries = []
        for count in range(1, 6):
            delivery = await member.next_delivery()
            deliveries.append(delivery)
            assert counts(delivery) == {count}
            await member.acknowledge(delivery, AcknowledgeType.RELEASE)
        late = await member.acknowledge(deliveries[-1])
        assert [e.outcome for e in late.exceptions] == [AcknowledgeOutcome.UNKNOWN_OUTCOME]
