"""Requests that the port does not serve: the best error that clients understand, and a word."""

from __future__ import annotations

import asyncio
import struct
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from structlog.testing import capture_logs

from tests.unit.api.kafka.client import Client, Port, port_of
from tests.unit.runtime.fleets import admin_of
from tests.unit.runtime.worlds import world_with

PRODUCE, FETCH, FIND_COORDINATOR, API_VERSIONS, CLUSTER = 0, 1, 10, 18, 60
OK, UNSUPPORTED, INVALID_REQUEST = 0, 35, 42
MISMATCHED_ENDPOINT, UNSUPPORTED_ENDPOINT = 114, 115
ID = UUID(int=7)


async def produced(client: Client, version: int, acks: int = 1) -> Any:
    module: Any = sys.modules[load_request_schema(PRODUCE, version).__module__]
    part = module.PartitionProduceData(index=3, records=b"records")
    name = {"topic_id": ID} if version >= 13 else {"name": "orders"}
    topic = module.TopicProduceData(**name, partition_data=(part,))
    return await client.ask(
        PRODUCE, version, acks=acks, timeout=timedelta(seconds=1), topic_data=(topic,)
    )


async def fetched(client: Client, version: int) -> Any:
    module: Any = sys.modules[load_request_schema(FETCH, version).__module__]
    part = module.FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)
    name = {"topic_id": ID} if version >= 13 else {"topic": "orders"}
    more = {"forgotten_topics_data": ()} if version >= 7 else {}
    topic = module.FetchTopic(**name, partitions=(part,))
    return await client.ask(
        FETCH, version, max_wait=timedelta(0), min_bytes=1, topics=(topic,), **more
    )


@pytest.mark.parametrize("version", range(3, 14))
async def test_producers_hear_that_no_record_was_taken(version: int) -> None:
    async with port_of(world_with(0)) as port:
        (topic,) = (await produced(await port.connect(), version)).responses
        (part,) = topic.partition_responses
        assert (part.index, part.error_code.value) == (3, UNSUPPORTED)
        assert (topic.topic_id if version >= 13 else topic.name) == (
            ID if version >= 13 else "orders"
        )
        if version >= 8:
            assert "Produce to Kafka itself" in part.error_message
        assert port.world.log.log("orders").log_end == 0


@pytest.mark.parametrize("version", range(4, 19))
async def test_plain_consumers_hear_of_it_too(version: int) -> None:
    async with port_of(world_with(3)) as port:
        answer = await fetched(await port.connect(), version)
        (topic,) = answer.responses
        (part,) = topic.partitions
        assert (part.partition_index, part.error_code.value) == (3, UNSUPPORTED)
        assert bytes(part.records) == b""


async def test_the_log_says_who_produces() -> None:
    async with port_of(world_with(0)) as port:
        with capture_logs() as logs:
            await produced(await port.connect(), 9)
        (told,) = [each for each in logs if each["event"] == "Kafka port: a request is refused"]
        assert told["why"].startswith(
            "API 0 (produce) version 9 is not served at the Kafka port "
            "(with kafka.port.passthrough=true"
        )
        assert told["address"].startswith("127.0.0.1:")


async def is_ended(client: Client, frame: bytes) -> bool:
    client.writer.write(struct.pack(">i", len(frame)) + frame)
    try:
        await client.raw(b"")
    except (asyncio.IncompleteReadError, ConnectionError):
        return True
    return False


async def test_who_wants_no_answer_loses_the_connection() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await produced(client, 9, acks=0)


async def test_the_log_names_once_what_is_not_served() -> None:
    async with port_of(world_with(0)) as port:
        with capture_logs() as logs:
            client = await port.connect()
            address = client.writer.get_extra_info("sockname")
            assert await is_ended(client, struct.pack(">hhih", 19, 7, 1, -1))
            for _ in range(5):
                assert await is_ended(await port.connect(), struct.pack(">hhih", 999, 0, 1, -1))
        told = [each for each in logs if each["event"] == "Kafka port: a connection is ended"]
        assert told[0]["why"] == (
            "API 19 (create_topics) version 7 is not served at the Kafka port "
            "(with kafka.port.passthrough=true it would be passed on)"
        )
        assert told[0]["address"] == f"{address[0]}:{address[1]}"
        assert len(told) == 6
        assert not [each for each in logs if each["event"] == "Kafka port: a request is refused"]


async def software_told(port: Port, name: str, version: str) -> int:
    client = await port.connect()
    answer = await client.ask(
        API_VERSIONS, 3, client_software_name=name, client_software_version=version
    )
    return int(answer.error_code.value)


async def test_a_client_that_names_itself_badly_is_refused() -> None:
    async with port_of(world_with(0)) as port:
        assert await software_told(port, "apache-kafka-java", "4.3.1") == OK
        for name, version in (("", "1"), ("a b", "1"), ("-a", "1"), ("a", ""), ("a" * 200, "1")):
            assert await software_told(port, name, version) == INVALID_REQUEST


async def test_members_are_shown_with_their_software() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.connect()
        await member.ask(
            API_VERSIONS, 3, client_software_name="librdkafka", client_software_version="2.16.0"
        )
        await member.heartbeat(0, "orders")
        await (await port.connect()).heartbeat(0, "orders", member="silent")
        (view,) = await admin_of(port.coordinator).describe_groups(["g"])
        software = {each.member_id: each.software for each in view.members}
        assert software == {"m": "librdkafka 2.16.0", "silent": ""}


async def test_only_groups_have_a_coordinator() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        for version in (4, 6):
            found = await client.ask(
                FIND_COORDINATOR, version, key_type=0, coordinator_keys=("g", "")
            )
            assert [
                (each.key, each.error_code.value, each.port) for each in found.coordinators
            ] == [(key, OK, port.address.port) for key in ("g", "")]
            for kind in (1, 2, 7):
                found = await client.ask(
                    FIND_COORDINATOR, version, key_type=kind, coordinator_keys=("g",)
                )
                (each,) = found.coordinators
                assert (each.error_code.value, each.node_id) == (INVALID_REQUEST, -1)
        old = await client.ask(FIND_COORDINATOR, 0, key="g")
        assert (old.error_code.value, old.port) == (OK, port.address.port)
        old = await client.ask(FIND_COORDINATOR, 1, key="g", key_type=1)
        assert old.error_code.value == INVALID_REQUEST


async def test_the_port_is_a_broker_and_no_controller() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        for kind, code in ((1, OK), (2, MISMATCHED_ENDPOINT), (9, UNSUPPORTED_ENDPOINT)):
            answer = await client.ask(
                CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=kind
            )
            assert answer.error_code.value == code
            assert len(answer.brokers) == (1 if code == OK else 0)
