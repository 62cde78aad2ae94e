"""Questions of operators in Kafka's protocol; each group is answered by itself."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from kio.index import load_request_schema

from tests.unit.api.kafka.client import ACCEPT, Client, port_of
from tests.unit.runtime.worlds import world_with

DESCRIBE_CLASSIC, LIST_GROUPS, DELETE_GROUPS, DESCRIBE_CLUSTER = 15, 16, 42, 60
DESCRIBE, OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 77, 90, 91, 92
OK, UNKNOWN_TOPIC, INVALID_GROUP_ID, INVALID_REQUEST = 0, 3, 24, 42
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69
NOT_ASKED = -(2**31)


def module_of(api_key: int, version: int) -> Any:
    return sys.modules[load_request_schema(api_key, version).__module__]


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
    module = module_of(OFFSETS, 1)
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


Told = tuple[int, dict[tuple[str, int], int]]
"""The error code of a whole request, and that of each place."""


async def altered(client: Client, group: str, *places: tuple[str, int, int]) -> Told:
    """Sets start offsets."""
    module = module_of(ALTER_OFFSETS, 0)
    topics = tuple(
        module.AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=(
                module.AlterShareGroupOffsetsRequestPartition(
                    partition_index=number, start_offset=offset
                ),
            ),
        )
        for topic, number, offset in places
    )
    answer = await client.ask(ALTER_OFFSETS, 0, group_id=group, topics=topics)
    return answer.error_code.value, {
        (topic.topic_name, part.partition_index): part.error_code.value
        for topic in answer.responses
        for part in topic.partitions
    }


async def forgotten(client: Client, group: str, *topics: str) -> tuple[int, dict[str, int]]:
    """Deletes offsets."""
    module = module_of(DELETE_OFFSETS, 0)
    asked = tuple(module.DeleteShareGroupOffsetsRequestTopic(topic_name=each) for each in topics)
    answer = await client.ask(DELETE_OFFSETS, 0, group_id=group, topics=asked)
    return answer.error_code.value, {
        each.topic_name: each.error_code.value for each in answer.responses
    }


async def starts(client: Client, group: str = "g") -> dict[tuple[str, int], int]:
    of = module_of(OFFSETS, 1).DescribeShareGroupOffsetsRequestGroup
    answer = await client.ask(OFFSETS, 1, groups=(of(group_id=group, topics=None),))
    (found,) = answer.groups
    assert found.error_code.value == OK
    return {
        (topic.topic_name, part.partition_index): part.start_offset
        for topic in found.topics
        for part in topic.partitions
    }


async def test_start_offsets_are_altered_and_make_groups() -> None:
    async with port_of(world_with(6, partitions=2)) as port:
        client = await port.connect()
        found = await altered(client, "g", ("orders", 0, 4), ("orders", 9, 1), ("none", 0, 1))
        assert found == (
            OK,
            {("orders", 0): OK, ("orders", 9): UNKNOWN_TOPIC, ("none", 0): UNKNOWN_TOPIC},
        )
        assert (await starts(client))["orders", 0] == 4
        # A start is never beyond the log's ends.
        assert await altered(client, "g", ("orders", 0, 99)) == (OK, {("orders", 0): OK})
        assert (await starts(client))["orders", 0] == 6
        found = await altered(client, "g", ("orders", 0, -1), ("orders", 1, 2))
        assert found == (OK, {("orders", 0): INVALID_REQUEST, ("orders", 1): OK})
        assert await starts(client) == {("orders", 0): 6, ("orders", 1): 2}
        assert await altered(client, "g") == (OK, {})


async def test_groups_with_members_keep_their_offsets() -> None:
    async with port_of(world_with(6)) as port:
        member, place = await port.joined(), ("orders", 0, 2)
        assert await altered(member, "g", place) == (NON_EMPTY_GROUP, {})
        assert await forgotten(member, "g", "orders") == (NON_EMPTY_GROUP, {})
        # As at a broker, also where nobody subscribes to the topic.
        assert await forgotten(member, "g", "other") == (NON_EMPTY_GROUP, {})
        await member.heartbeat(-1)
        assert await altered(member, "g", place) == (OK, {("orders", 0): OK})
        assert await starts(member) == {("orders", 0): 2}


async def test_offsets_of_topics_are_forgotten() -> None:
    async with port_of(world_with(6)) as port:
        client = await port.connect()
        await altered(client, "g", ("orders", 0, 2))
        assert await forgotten(client, "g", "orders", "other", "orders") == (
            OK,
            {"orders": OK, "other": UNKNOWN_TOPIC},
        )
        assert await starts(client) == {}
        assert await forgotten(client, "g") == (OK, {})
        for topics in ((), ("orders",)):
            assert await forgotten(client, "none", *topics) == (GROUP_ID_NOT_FOUND, {})


@pytest.mark.parametrize(
    ("name", "code"),
    [("", INVALID_GROUP_ID), ("x" * 250, INVALID_REQUEST), ("a\nb", INVALID_REQUEST)],
)
async def test_names_that_no_group_may_have_make_none(name: str, code: int) -> None:
    async with port_of(world_with(6)) as port:
        client = await port.connect()
        assert await altered(client, name, ("orders", 0, 2)) == (code, {})
        assert (await forgotten(client, name, "orders"))[0] == code
        assert await listed(client) == []


async def test_of_a_group_that_does_not_exist_no_offsets_are_known() -> None:
    """A broker calls that no error, either."""
    async with port_of(world_with(6)) as port:
        client = await port.connect()
        assert await starts(client, "none") == {}
        found = await client.ask(OFFSETS, 1, groups=asked_offsets((("orders", (0,)),)))
        (part,) = found.groups[0].topics[0].partitions
        assert (part.start_offset, part.lag, part.error_code.value) == (-1, -1, OK)


async def test_what_a_caller_may_do_is_told_if_asked() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()

        async def told(*, is_asked: bool) -> list[tuple[int, int]]:
            answer = await member.ask(
                DESCRIBE, 1, group_ids=("g", ""), include_authorized_operations=is_asked
            )
            return [(each.error_code.value, each.authorized_operations) for each in answer.groups]

        # Read, delete, describe, describe and alter settings.
        everything = sum(1 << bit for bit in (3, 6, 8, 10, 11))
        nothing = (INVALID_GROUP_ID, NOT_ASKED)
        assert await told(is_asked=True) == [(OK, everything), nothing]
        assert await told(is_asked=False) == [(OK, NOT_ASKED), nothing]


async def test_no_group_is_of_the_first_protocol() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()
        for version in range(7):
            more = {"include_authorized_operations": True} if version >= 3 else {}
            answer = await member.ask(DESCRIBE_CLASSIC, version, groups=("g",), **more)
            (found,) = answer.groups
            assert (found.group_id, found.group_state) == ("g", "Dead")
            assert found.error_code.value == (GROUP_ID_NOT_FOUND if version == 6 else OK)
