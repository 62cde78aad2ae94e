"""Questions of operators in Kafka's protocol; each group is answered by itself."""

from __future__ import annotations

from typing import Any

import pytest
from kio.index import load_request_schema

from tests.unit.api.kafka.client import ACCEPT, Client, port_of
from tests.unit.runtime.worlds import world_with

LIST_GROUPS, DELETE_GROUPS, DESCRIBE_CLUSTER, DESCRIBE, OFFSETS = 16, 42, 60, 77, 90
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69


async def listed(client: Client, **filters: tuple[str, ...]) -> list[tuple[str, str, str]]:
    answer = await client.ask(
        LIST_GROUPS, 5, **{"states_filter": (), "types_filter": (), **filters}
    )
    assert answer.error_code.value == 0
    return [(each.group_id, each.group_state, each.group_type) for each in answer.groups]


async def test_groups_are_listed_by_type_and_state() -> None:
    async with port_of(world_with(3)) as port:
        member = await port.joined()
        found = [("g", "Stable", "share")]
        assert await listed(member) == found
        assert await listed(member, types_filter=("Share", "Classic")) == found
        assert await listed(member, types_filter=("Consumer",)) == []
        assert await listed(member, states_filter=("stable",)) == found
        assert await listed(member, states_filter=("Empty",)) == []


async def test_members_are_described_and_each_group_is_answered_by_itself() -> None:
    async with port_of(world_with(3, partitions=2)) as port:
        member = await port.joined()
        answer = await member.ask(
            DESCRIBE, 1, group_ids=("none", "g"), include_authorized_operations=False
        )
        none, found = answer.groups
        assert (none.group_id, none.error_code.value) == ("none", GROUP_ID_NOT_FOUND)
        assert "does not exist" in none.error_message
        assert (found.error_code.value, found.group_state) == (0, "Stable")
        (shown,) = found.members
        assert (shown.member_id, shown.client_id) == ("m", "c")
        assert shown.client_host == "/127.0.0.1"
        (topic,) = shown.assignment.topic_partitions
        assert (topic.topic_name, topic.topic_id) == ("orders", member.topic_id)
        assert topic.partitions == (0, 1)


def asked_offsets(topics: tuple[tuple[str, tuple[int, ...]], ...] | None) -> Any:
    import sys

    module = sys.modules[load_request_schema(OFFSETS, 1).__module__]
    wanted = (
        None
        if topics is None
        else tuple(
            module.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in topics
        )
    )
    return (module.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=wanted),)


@pytest.mark.parametrize("topics", [None, (("orders", (0,)),)])
async def test_offsets_and_lags_are_told(
    topics: tuple[tuple[str, tuple[int, ...]], ...] | None,
) -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0)
        await member.acknowledge(1, {0: [(0, 3, ACCEPT)]})
        answer = await member.ask(OFFSETS, 1, groups=asked_offsets(topics))
        (group,) = answer.groups
        (topic,) = group.topics
        (part,) = topic.partitions
        assert (topic.topic_name, topic.topic_id) == ("orders", member.topic_id)
        assert (part.partition_index, part.start_offset, part.lag) == (0, 4, 2)


async def test_of_partitions_that_the_group_does_not_have_nothing_is_known() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()
        answer = await member.ask(OFFSETS, 1, groups=asked_offsets((("other", (3,)),)))
        (part,) = answer.groups[0].topics[0].partitions
        assert (part.partition_index, part.start_offset, part.lag) == (3, -1, -1)


async def test_groups_with_members_are_not_deleted() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()

        async def deleted() -> dict[str, int]:
            answer = await member.ask(DELETE_GROUPS, 2, groups_names=("g", "none"))
            return {each.group_id: each.error_code.value for each in answer.results}

        assert await deleted() == {"g": NON_EMPTY_GROUP, "none": GROUP_ID_NOT_FOUND}
        await member.heartbeat(-1)
        assert await deleted() == {"g": 0, "none": GROUP_ID_NOT_FOUND}
        assert await listed(member) == []


async def test_the_cluster_has_one_broker_here() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        answer = await client.ask(
            DESCRIBE_CLUSTER,
            2,
            include_cluster_authorized_operations=False,
            endpoint_type=1,
            include_fenced_brokers=False,
        )
        (broker,) = answer.brokers
        assert (broker.host, broker.port) == (port.address.host, port.address.port)
        assert (answer.cluster_id, answer.controller_id) == (port.world.log.cluster, 1)
