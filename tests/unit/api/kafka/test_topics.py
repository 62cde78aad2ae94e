"""Questions about topics in Kafka's protocol: metadata, partitions, offsets of logs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema

from sharecoord.errors import UnauthorizedError
from tests.unit.api.kafka.client import Client, port_of
from tests.unit.runtime.worlds import world_with
from tests.world import World

LIST_OFFSETS, METADATA, PARTITIONS = 2, 3, 75
OK, UNKNOWN, LEADER_NOT_AVAILABLE, INVALID_NAME, REFUSED = 0, 3, 5, 17, 29
UNSUPPORTED, INVALID_REQUEST, UNKNOWN_EPOCH, UNKNOWN_ID = 35, 42, 75, 100
STRANGE = UUID(int=7)


def module_of(api_key: int, version: int) -> Any:
    return sys.modules[load_request_schema(api_key, version).__module__]


def world_of_three() -> World:
    """Topics `orders` with two partitions, `bills`, and an internal one."""
    world = world_with(3, partitions=2)
    world.log.create("bills", 1)
    world.log.create("__consumer_offsets", 1)
    return world


async def metadata(
    client: Client, *names: str | UUID, version: int = 13, everything: bool = False, **more: bool
) -> Any:
    topic = module_of(METADATA, version).MetadataRequestTopic

    def asked(name: str | UUID) -> Any:
        if version < 10:
            return topic(name=name)
        is_id = isinstance(name, UUID)
        return topic(topic_id=name if is_id else None, name=None if is_id else name)

    wishes: dict[str, bool] = {}
    if version >= 4:
        wishes["allow_auto_topic_creation"] = True
    if version >= 8:
        wishes["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        wishes["include_cluster_authorized_operations"] = False
    topics = None if everything else tuple(map(asked, names))
    return await client.ask(METADATA, version, topics=topics, **{**wishes, **more})


def named(answer: Any) -> dict[str, tuple[int, int]]:
    """Error code and number of partitions by name."""
    return {each.name: (each.error_code.value, len(each.partitions)) for each in answer.topics}


@pytest.mark.parametrize("version", range(14))
async def test_topics_are_told_by_name(version: int) -> None:
    async with port_of(world_of_three()) as port:
        client = await port.connect()
        long, bad = "x" * 250, "a b"
        found = await metadata(
            client, "orders", "none", bad, "", "..", long, "orders", version=version
        )
        assert named(found) == {
            "orders": (OK, 2),
            "none": (UNKNOWN, 0),
            **dict.fromkeys((bad, "", "..", long), (INVALID_NAME, 0)),
        }
        assert len(found.topics) == 6
        # Whatever the client allows, no topic is made.
        assert named(await metadata(client, "none", version=version)) == {"none": (UNKNOWN, 0)}
        (broker,) = found.brokers
        assert (broker.node_id, broker.port) == (1, port.address.port)


@pytest.mark.parametrize("version", range(14))
async def test_null_is_all_topics_and_empty_is_none(version: int) -> None:
    async with port_of(world_of_three()) as port:
        client = await port.connect()
        every = {"__consumer_offsets": (OK, 1), "bills": (OK, 1), "orders": (OK, 2)}
        empty = await metadata(client, version=version)
        assert named(empty) == (every if version == 0 else {})
        if version == 0:
            return
        found = await metadata(client, everything=True, version=version)
        assert named(found) == every
        internal = [each.name for each in found.topics if each.is_internal]
        assert internal == ["__consumer_offsets"]


async def test_what_kafka_refuses_is_told_as_refused_and_left_out_of_all() -> None:
    world = world_of_three()
    world.log.refusals["bills"] = UnauthorizedError("allow Describe")
    async with port_of(world) as port:
        client = await port.connect()
        assert named(await metadata(client, "bills")) == {"bills": (REFUSED, 0)}
        assert "bills" not in named(await metadata(client, everything=True))


async def test_topics_are_told_by_id_also_after_a_restart() -> None:
    world = world_of_three()
    async with port_of(world) as port:
        (told,) = (await metadata(await port.connect(), "bills")).topics
    async with port_of(world) as port:
        client = await port.connect()
        found = await metadata(client, told.topic_id, STRANGE)
        assert [(each.name, each.topic_id, each.error_code.value) for each in found.topics] == [
            ("bills", told.topic_id, OK),
            (None, STRANGE, UNKNOWN_ID),
        ]
        # Who asks for what is gone again and again does not look at all topics each time.
        before = len(world.log.describes)
        for _ in range(5):
            (gone,) = (await metadata(client, STRANGE)).topics
            assert gone.error_code.value == UNKNOWN_ID
        looks = [names for names in world.log.describes[before:] if "bills" in names]
        assert len(looks) < 5
        # A topic that was made again has another id.
        world.log.delete("bills")
        world.log.create("bills", 3)
        (gone,) = (await metadata(client, told.topic_id)).topics
        assert (gone.error_code.value, gone.topic_id) == (UNKNOWN_ID, told.topic_id)
        (again,) = (await metadata(client, "bills")).topics
        assert again.topic_id != told.topic_id
        assert len(again.partitions) == 3


async def test_while_kafka_is_down_topics_have_no_leader_yet() -> None:
    world = world_of_three()
    async with port_of(world) as port:
        client = await port.connect()
        (told,) = (await metadata(client, "bills")).topics
        world.log.down = True
        assert named(await metadata(client, "orders")) == {"orders": (LEADER_NOT_AVAILABLE, 0)}
        (by_id,) = (await metadata(client, told.topic_id)).topics
        assert by_id.error_code.value == LEADER_NOT_AVAILABLE
        found = await offsets(client, ("orders", 0, -1))
        assert found == {("orders", 0): (LEADER_NOT_AVAILABLE, -1, -1)}
        world.log.down = False
        assert named(await metadata(client, "orders")) == {"orders": (OK, 2)}


async def test_operations_are_told_to_who_asks() -> None:
    async with port_of(world_of_three()) as port:
        client = await port.connect()
        read_and_describe, not_asked = 1 << 3 | 1 << 8, -(2**31)
        (found,) = (await metadata(client, "orders")).topics
        assert found.topic_authorized_operations == not_asked
        wish = {"include_topic_authorized_operations": True}
        (found,) = (await metadata(client, "orders", **wish)).topics
        assert found.topic_authorized_operations == read_and_describe
        old = await metadata(client, version=9, include_cluster_authorized_operations=True)
        assert old.cluster_authorized_operations == 1 << 8


# -- DescribeTopicPartitions ----------------------------------------------------------------------


async def pages(
    client: Client, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> tuple[list[tuple[str, int, tuple[int, ...]]], tuple[str, int] | None]:
    """Name, error code and partitions of each topic, and where the next page begins."""
    module = module_of(PARTITIONS, 0)
    answer = await client.ask(
        PARTITIONS,
        0,
        topics=tuple(module.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else module.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    found = [
        (each.name, each.error_code.value, tuple(part.partition_index for part in each.partitions))
        for each in answer.topics
    ]
    after = answer.next_cursor
    return found, None if after is None else (after.topic_name, after.partition_index)


async def test_partitions_come_in_pages() -> None:
    async with port_of(world_of_three()) as port:
        client = await port.connect()
        names = ("orders", "none", "bills", "a b", "bills")
        everything = [
            ("a b", INVALID_NAME, ()),
            ("bills", OK, (0,)),
            ("none", UNKNOWN, ()),
            ("orders", OK, (0, 1)),
        ]
        assert await pages(client, *names) == (everything, None)
        first, after = await pages(client, "orders", "bills", limit=2)
        assert (first, after) == ([("bills", OK, (0,)), ("orders", OK, (0,))], ("orders", 1))
        rest = await pages(client, "orders", "bills", limit=2, cursor=after)
        assert rest == ([("orders", OK, (1,))], None)
        # No limit is less than one.
        assert await pages(client, "orders", limit=0) == ([("orders", OK, (0,))], ("orders", 1))
        assert await pages(client, "bills", "orders", limit=1) == (
            [("bills", OK, (0,))], ("orders", 0))  # fmt: skip
        wrong, _ = await pages(client, "orders", cursor=("orders", -1))
        assert wrong == [("orders", INVALID_REQUEST, ())]
        every, _ = await pages(client)
        assert [name for name, *_ in every] == ["__consumer_offsets", "bills", "orders"]


# -- ListOffsets ----------------------------------------------------------------------------------


async def offsets(
    client: Client,
    *queries: tuple[str, int, int],
    version: int = 11,
    isolation: int = 0,
    epoch: int = -1,
) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Error code, offset and timestamp of each place."""
    module = module_of(LIST_OFFSETS, version)
    wishes: dict[str, Any] = {"replica_id": -1}
    if version >= 2:
        wishes["isolation_level"] = isolation
    if version >= 10:
        wishes["timeout"] = timedelta(seconds=3)
    of_leader = {"current_leader_epoch": epoch} if version >= 4 else {}
    topics = tuple(
        module.ListOffsetsTopic(
            name=name,
            partitions=(
                module.ListOffsetsPartition(partition_index=number, timestamp=time, **of_leader),
            ),
        )
        for name, number, time in queries
    )
    answer = await client.ask(LIST_OFFSETS, version, topics=topics, **wishes)
    return {
        (topic.name, part.partition_index): (part.error_code.value, part.offset, part.timestamp)
        for topic in answer.topics
        for part in topic.partitions
    }


def times_of(world: World) -> Sequence[int]:
    return [each.timestamp_ms for each in world.log.log("orders").records]


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_of_logs_are_told(version: int) -> None:
    world = world_of_three()
    async with port_of(world) as port:
        client = await port.connect()
        found = await offsets(
            client, ("orders", 0, -1), ("orders", 1, -2), ("orders", 7, -1), ("none", 0, -1),
            ("a b", 0, -1), version=version)  # fmt: skip
        assert found == {
            ("orders", 0): (OK, 3, -1),
            ("orders", 1): (OK, 0, -1),
            ("orders", 7): (UNKNOWN, -1, -1),
            ("none", 0): (UNKNOWN, -1, -1),
            ("a b", 0): (INVALID_NAME, -1, -1),
        }
        last_ms = times_of(world)[-1]
        found = await offsets(
            client, ("orders", 0, last_ms), ("orders", 1, last_ms + 10**9), version=version
        )
        first = next(n for n, each in enumerate(times_of(world)) if each >= last_ms)
        assert found == {("orders", 0): (OK, first, last_ms), ("orders", 1): (OK, -1, -1)}


async def test_what_offsets_can_not_be_told_of_has_an_error() -> None:
    async with port_of(world_of_three()) as port:
        client, place = await port.connect(), ("orders", 0)

        async def code(*queries: tuple[str, int, int], **wishes: int) -> int:
            return (await offsets(client, *queries, **wishes))[place][0]

        assert await code((*place, -3)) == UNSUPPORTED
        assert await code((*place, -9)) == UNSUPPORTED
        assert await code((*place, -1), (*place, -2)) == INVALID_REQUEST
        assert await code((*place, -1), isolation=2) == INVALID_REQUEST
        assert await code((*place, -1), epoch=3) == UNKNOWN_EPOCH
        assert await code((*place, -1), epoch=0) == OK


async def test_what_is_committed_ends_where_transactions_are_open() -> None:
    world = world_of_three()
    world.log.log("orders").stable_end = 2
    async with port_of(world) as port:
        client = await port.connect()
        place = ("orders", 0, -1)
        assert (await offsets(client, place))[place[:2]][1] == 3
        assert (await offsets(client, place, isolation=1))[place[:2]][1] == 2
