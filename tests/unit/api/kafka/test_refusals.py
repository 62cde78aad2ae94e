"""Requests that a broker refuses are refused with its codes, and the connection goes on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from sharecoord.security.principals import Caller
from tests.support import eventually_async
from tests.unit.api.kafka.client import (
    ACCEPT,
    ACKNOWLEDGE,
    FETCH,
    HEARTBEAT,
    RELEASE,
    RENEW,
    Fetched,
    fetched,
    module_of,
    port_of,
)
from tests.unit.runtime.worlds import world_with

OK, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 0, -1, 3, 42
UNKNOWN_TOPIC_ID, INVALID_RECORD_STATE = 100, 121
NO_FETCH = {
    "max_wait": timedelta(0),
    "min_bytes": 0,
    "max_bytes": 0,
    "max_records": 0,
    "batch_size": 0,
}

Acks = Sequence[tuple[int, int, int | tuple[int, ...]]]


def code_of(answer: Any) -> int:
    """The code of the one partition of an answer to a ShareAcknowledge."""
    assert answer.error_code.value == OK
    return int(answer.responses[0].partitions[0].error_code.value)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        pytest.param([(0, 0, ())], INVALID_REQUEST, id="no type"),
        pytest.param([(0, 1, (1, 1, 1))], INVALID_REQUEST, id="more types than offsets"),
        pytest.param([(0, 2, (1, 1))], INVALID_REQUEST, id="fewer types than offsets"),
        pytest.param([(2, 1, ACCEPT)], INVALID_REQUEST, id="last before first"),
        pytest.param([(0, 0, 5)], INVALID_REQUEST, id="unknown type"),
        pytest.param([(0, 0, -1)], INVALID_REQUEST, id="negative type"),
        pytest.param([(0, 0, RENEW)], INVALID_REQUEST, id="renewal that is not announced"),
        pytest.param([(2, 3, ACCEPT), (0, 1, ACCEPT)], INVALID_REQUEST, id="descending"),
        pytest.param([(-2, 0, ACCEPT)], INVALID_REQUEST, id="negative offset"),
        pytest.param([(0, 9, ACCEPT)], INVALID_REQUEST, id="partly never fetched"),
        pytest.param([(9, 9, ACCEPT)], INVALID_REQUEST, id="never fetched"),
        pytest.param([(0, 2, ACCEPT), (2, 3, ACCEPT)], INVALID_RECORD_STATE, id="overlapping"),
        pytest.param([(0, 0, ACCEPT), (0, 0, ACCEPT)], INVALID_RECORD_STATE, id="twice"),
    ],
)
async def test_acknowledgements_that_are_wrong_change_nothing(said: Acks, code: int) -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0)
        assert code_of(await member.acknowledge(1, {0: said})) == code
        answer = fetched(await member.fetch(2, said={0: said}, wait_ms=1))
        assert answer[0].acknowledge_error == code
        assert port.world.start_offset("g", "orders", 0) == 0
        # The member holds all of its records as before.
        assert code_of(await member.acknowledge(3, {0: [(0, 5, ACCEPT)]})) == OK


async def test_types_may_be_told_offset_by_offset() -> None:
    async with port_of(world_with(3)) as port:
        member = await port.joined()
        await member.fetch(0)
        said = {0: [(0, 2, (ACCEPT, RELEASE, ACCEPT))]}
        assert code_of(await member.acknowledge(1, said)) == OK
        assert fetched(await member.fetch(2, wait_ms=5_000))[0].acquired == [(1, 1, 2)]


async def test_offsets_below_the_start_are_finished_whoever_says_so() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0)
        for epoch in (1, 2):
            assert code_of(await member.acknowledge(epoch, {0: [(0, 2, ACCEPT)]})) == OK
        # Partly below it.
        assert code_of(await member.acknowledge(3, {0: [(1, 4, ACCEPT)]})) == OK
        assert port.world.start_offset("g", "orders", 0) == 5


async def test_locks_are_renewed_where_the_request_says_so() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0)
        said = {0: [(0, 5, RENEW)]}
        assert code_of(await member.acknowledge(1, said, is_renew_ack=True)) == OK
        # Nothing is fetched beside a renewal.
        refused = await member.fetch(2, said=said, is_renew_ack=True)
        assert refused.error_code.value == INVALID_REQUEST
        renewed = fetched(await member.fetch(2, said=said, is_renew_ack=True, **NO_FETCH))
        assert (renewed[0].acquired, renewed[0].acknowledge_error) == ([], OK)
        assert code_of(await member.acknowledge(3, {0: [(0, 5, ACCEPT)]})) == OK


async def test_a_renewal_that_the_group_forbids_leaves_the_lock() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0)
        settings = {"share.renew.acknowledge.enable": "false"}
        given = {"group_id": "g", "set_values": settings, "deleted": ()}
        await port.operators.call(Caller(), "alter_group_configs", given)
        said = {0: [(0, 5, RENEW)]}
        answer = await member.acknowledge(1, said, is_renew_ack=True)
        assert code_of(answer) == INVALID_RECORD_STATE
        assert code_of(await member.acknowledge(2, {0: [(0, 5, ACCEPT)]})) == OK


async def test_a_fetch_without_room_is_answered_at_once() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        for epoch, (records, size_bytes) in enumerate([(0, 1), (-1, 1), (1, 0), (1, -1)]):
            answer = await member.fetch(
                epoch, wait_ms=20_000, records=records, max_bytes=size_bytes
            )
            assert (answer.error_code.value, fetched(answer)) == (OK, {})


async def test_an_acquire_mode_that_is_none_is_refused_and_takes_no_turn() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        answer = await member.fetch(0, share_acquire_mode=7)
        assert answer.error_code.value == UNKNOWN_SERVER_ERROR
        assert fetched(await member.fetch(0))[0].acquired == [(0, 5, 1)]


async def test_a_session_without_partitions_gets_nothing() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        assert fetched(await member.fetch(0, partitions=(), wait_ms=50)) == {}
        assert fetched(await member.fetch(1))[0].acquired == [(0, 5, 1)]


def unknown_topic(api_key: int, topic_id: UUID | None) -> tuple[Any, ...]:
    module = module_of(api_key)
    batch = module.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=(1,))
    topic, part = (
        (module.FetchTopic, module.FetchPartition)
        if api_key == FETCH
        else (module.AcknowledgeTopic, module.AcknowledgePartition)
    )
    parts = (part(partition_index=0, acknowledgement_batches=(batch,)),)
    return (topic(topic_id=topic_id, partitions=parts),)


@pytest.mark.parametrize("topic_id", [UUID(int=77), None])
async def test_an_unknown_topic_is_told_by_partition(topic_id: UUID | None) -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()
        await member.fetch(0, wait_ms=1)
        topics = unknown_topic(ACKNOWLEDGE, topic_id)
        assert code_of(await member.acknowledge(1, {}, topics=topics)) == UNKNOWN_TOPIC_ID
        answer = await member.fetch(2, wait_ms=1, topics=unknown_topic(FETCH, topic_id))
        (part,) = answer.responses[0].partitions
        codes = part.error_code.value, part.acknowledge_error_code
        assert codes == (UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_ID)


async def test_an_unknown_partition_is_told() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        answer = await member.fetch(0, partitions=[0, 7])
        (topic,) = answer.responses
        codes = {part.partition_index: part.error_code.value for part in topic.partitions}
        assert codes == {0: OK, 7: UNKNOWN_TOPIC_OR_PARTITION}
        assert fetched(answer)[0].acquired == [(0, 5, 1)]
        answer = await member.acknowledge(1, {0: [(0, 5, ACCEPT)], 7: [(0, 0, ACCEPT)]})
        codes = {p.partition_index: p.error_code.value for p in answer.responses[0].partitions}
        assert codes == {0: OK, 7: UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize(
    "given",
    [{"group_id": None}, {"member_id": None}, {"member_id": ""}, {"member_id": "x" * 37}],
)
async def test_a_request_of_nobody_is_refused(given: dict[str, str | None]) -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()
        assert (await member.fetch(0, **given)).error_code.value == INVALID_REQUEST
        assert (await member.acknowledge(1, {}, **given)).error_code.value == INVALID_REQUEST


@pytest.mark.parametrize(
    "given",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"member_id": "x" * 37},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": ()},
    ],
)
async def test_a_heartbeat_that_says_nonsense_is_refused(given: dict[str, Any]) -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        usual = {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "subscribed_topic_names": ("orders",),
        }
        answer = await client.ask(HEARTBEAT, 1, **(usual | given))
        assert (answer.error_code.value, bool(answer.error_message)) == (INVALID_REQUEST, True)
        assert not port.world.database.members


async def test_a_topic_that_was_made_again_is_another_one() -> None:
    async with port_of(world_with(4)) as port:
        member, heart = await port.joined(), await port.connect()
        former = member.topic_id
        assert fetched(await member.fetch(0))[0].acquired == [(0, 3, 1)]
        assert code_of(await member.acknowledge(1, {0: [(0, 3, ACCEPT)]})) == OK
        port.world.log.delete("orders")
        port.world.log.create("orders", 1)
        epochs = itertools.count(2)

        async def told() -> bool:
            # By the id of the former topic nothing of the new one comes.
            answer = await member.fetch(next(epochs), wait_ms=10)
            assert fetched(answer).get(0, Fetched([], [], OK)).acquired == []
            return any(p.error_code.value == UNKNOWN_TOPIC_ID for p in _partitions(answer))

        async def assigned() -> bool:
            await heart.heartbeat(1, "orders")
            return heart.topic_id not in (None, former)

        await eventually_async(assigned, 10)
        port.world.log.append("orders", 3)
        await eventually_async(told, 10)
        member.topic_id = heart.topic_id
        got = fetched(await member.fetch(next(epochs), wait_ms=5_000))
        assert got[0].acquired == [(0, 2, 1)]


def _partitions(answer: Any) -> list[Any]:
    return [part for topic in answer.responses for part in topic.partitions]
