"""What the rules and quotas let callers of the Kafka port do, with Kafka's codes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequestGroup as OffsetsGroup,
)
from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequestTopic as OffsetsTopic,
)
from kio.schema.metadata.v12.request import MetadataRequestTopic

from tests.support import eventually_async
from tests.unit.api.kafka.client import Client, fetched
from tests.unit.api.kafka.secured import BASE, Secured

OK, UNKNOWN_TOPIC, LOADING, UNKNOWN_MEMBER = 0, 3, 14, 25
TOPIC_DENIED, GROUP_DENIED, UNKNOWN_TOPIC_ID, SESSION_LIMIT = 29, 30, 100, 133
QUOTAS = """
quotas:
  - principals: ["User:worker"]
    members: 2
    streams: 1
    groups: 0
"""


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    return Secured(tmp_path)


async def seen(client: Client, *topics: str | UUID) -> list[tuple[str | None, int]]:
    """Names and codes of topics that Metadata tells."""
    asked = [(None, each) if isinstance(each, UUID) else (each, None) for each in topics]
    answer = await client.ask(
        3,
        12,
        topics=tuple(
            MetadataRequestTopic(topic_id=topic_id, name=name) for name, topic_id in asked
        ),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    return [(each.name, each.error_code.value) for each in answer.topics]


async def test_a_group_has_to_be_allowed(secured: Secured) -> None:
    async with secured.running():
        worker, stranger = await secured.joined("worker"), await secured.connect("stranger")
        for epoch in (0, 1, -1):
            answer = await stranger.heartbeat(epoch, "orders")
            assert answer.error_code.value == GROUP_DENIED
            assert "User:stranger may not consume group:g" in answer.error_message
        stranger.topic_id = worker.topic_id
        for epoch in (0, 1, -1):
            assert (await stranger.fetch(epoch)).error_code.value == GROUP_DENIED
            said = {0: [(0, 0, 1)]}
            assert (await stranger.acknowledge(epoch, said)).error_code.value == GROUP_DENIED
        # The worker's member and its share session are as they were.
        assert fetched(await worker.fetch(0))[0].acquired == [(0, 5, 1)]
        lines = await secured.told()
        assert {line["call"] for line in lines} == {
            "ShareGroupHeartbeat", "ShareFetch", "ShareAcknowledge", "Join"
        }  # fmt: skip
        assert {line["principal"] for line in lines} == {"User:stranger"}


async def test_who_may_not_consume_makes_no_group(secured: Secured) -> None:
    async with secured.running():
        operator = await secured.connect("operator")
        assert (await operator.heartbeat(0, "orders")).error_code.value == GROUP_DENIED
        assert not list(secured.port.coordinator.groups)


async def test_a_topic_has_to_be_allowed_as_well(secured: Secured) -> None:
    async with secured.running():
        worker = await secured.connect("worker")
        answer = await worker.heartbeat(0, "orders", "secrets")
        assert answer.error_code.value == TOPIC_DENIED
        assert not list(secured.port.coordinator.groups)
        await secured.port.joined(client=worker)
        answer = await worker.heartbeat(1, "orders", "secrets")
        assert answer.error_code.value == TOPIC_DENIED
        assert (await worker.heartbeat(1)).error_code.value == OK


async def test_a_member_is_its_principals(secured: Secured) -> None:
    async with secured.running():
        worker, anna = await secured.joined("worker"), await secured.connect("anna")
        assert fetched(await worker.fetch(0))[0].acquired == [(0, 5, 1)]
        anna.topic_id = worker.topic_id
        for epoch in (0, 1, -1):
            assert (await anna.heartbeat(epoch, "orders")).error_code.value == GROUP_DENIED
        said = {0: [(0, 5, 1)]}
        for epoch in (0, 1, -1):
            assert (await anna.fetch(epoch)).error_code.value == GROUP_DENIED
            assert (await anna.acknowledge(epoch, said)).error_code.value == GROUP_DENIED
        answer = await worker.acknowledge(1, said)
        assert answer.responses[0].partitions[0].error_code.value == OK


async def test_topics_that_may_not_be_seen_are_not_told(secured: Secured) -> None:
    async with secured.running():
        secured.port.world.log.create("secrets")
        worker = await secured.connect("worker")
        assert await seen(worker, "orders", "secrets", "nothing") == [
            ("orders", OK), ("secrets", TOPIC_DENIED), ("nothing", TOPIC_DENIED)
        ]  # fmt: skip
        secured.change_rules(
            BASE + '  - {allow: [describe], principals: ["User:stranger"], resources: ["topic:*"]}'
        )
        stranger = await secured.connect("stranger")
        assert await seen(stranger, "secrets", "nothing") == [
            ("secrets", OK), ("nothing", UNKNOWN_TOPIC)
        ]  # fmt: skip


async def test_an_id_does_not_tell_a_name(secured: Secured) -> None:
    async with secured.running():
        topic_id = (await secured.joined("worker")).topic_id
        assert topic_id is not None
        operator, worker = await secured.connect("operator"), await secured.connect("worker")
        assert await seen(worker, topic_id) == [("orders", OK)]
        assert await seen(operator, topic_id) == [(None, TOPIC_DENIED)]
        assert await seen(operator, uuid4()) == [(None, UNKNOWN_TOPIC_ID)]


async def test_the_offsets_of_a_group_that_may_not_be_seen_tell_no_topic(secured: Secured) -> None:
    async with secured.running():
        worker = await secured.joined("worker")
        asked = OffsetsGroup(
            group_id="g", topics=(OffsetsTopic(topic_name="orders", partitions=(0,)),)
        )
        (group,) = (await worker.ask(90, 1, groups=(asked,))).groups
        assert (group.error_code.value, group.topics) == (GROUP_DENIED, ())
        operator = await secured.connect("operator")
        (group,) = (await operator.ask(90, 1, groups=(asked,))).groups
        assert [topic.topic_id for topic in group.topics] == [worker.topic_id]


async def test_a_coordinator_is_found_for_groups_with_which_something_is_allowed(
    secured: Secured,
) -> None:
    async with secured.running():
        for name, codes in {
            "worker": [OK, GROUP_DENIED],
            "operator": [OK, OK],
            "stranger": [GROUP_DENIED, GROUP_DENIED],
        }.items():
            client = await secured.connect(name)
            answer = await client.ask(10, 6, key_type=0, coordinator_keys=("g", "g2"))
            assert [each.error_code.value for each in answer.coordinators] == codes
            answer = await client.ask(10, 2, key_type=0, key="g")
            assert answer.error_code.value == codes[0]


async def test_operators_do_what_they_may(secured: Secured) -> None:
    async with secured.running():
        worker, operator = await secured.joined("worker"), await secured.connect("operator")
        for client, groups in ((worker, []), (operator, ["g"])):
            answer = await client.ask(16, 5, states_filter=(), types_filter=())
            assert [each.group_id for each in answer.groups] == groups
        for client, code in ((worker, GROUP_DENIED), (operator, OK)):
            answer = await client.ask(77, 1, group_ids=("g",), include_authorized_operations=False)
            assert [each.error_code.value for each in answer.groups] == [code]
        assert (await worker.heartbeat(-1)).error_code.value == OK
        for client, code in ((worker, GROUP_DENIED), (operator, OK)):
            answer = await client.ask(42, 2, groups_names=("g",))
            assert [each.error_code.value for each in answer.results] == [code]
        lines = [line for line in await secured.told() if line["call"] == "delete_groups"]
        refused = [line["principal"] for line in lines if line["outcome"] == "refused"]
        assert refused == ["User:worker"]
        assert "User:operator" in {line["principal"] for line in lines}


async def test_rules_that_change_against_a_member_end_it(secured: Secured) -> None:
    async with secured.running():
        worker, anna = await secured.joined("worker"), await secured.joined("anna", "other")
        assert fetched(await worker.fetch(0))[0].acquired == [(0, 5, 1)]
        secured.change_rules(BASE.replace('"User:worker", ', ""))
        assert fetched(await anna.fetch(0, wait_ms=5_000))[0].acquired == [(0, 5, 2)]
        assert (await worker.fetch(1)).error_code.value == GROUP_DENIED
        assert (await worker.heartbeat(1)).error_code.value == GROUP_DENIED


async def test_quotas_hold_for_each_principal(secured: Secured) -> None:
    async with secured.running():
        anna = await secured.joined("anna")
        secured.change_rules(BASE + QUOTAS)
        first, second, third = [await secured.connect("worker") for _ in range(3)]
        await secured.port.joined("1", first)
        await secured.port.joined("2", second)
        answer = await third.heartbeat(0, "orders", member="3")
        assert answer.error_code.value == LOADING
        assert "its quota (members" in answer.error_message
        # A share session counts as a stream, until it is closed or its connection is lost.
        assert (await first.fetch(0, wait_ms=1)).error_code.value == OK
        assert (await first.fetch(0, wait_ms=1)).error_code.value == OK
        assert (await second.fetch(0, wait_ms=1)).error_code.value == SESSION_LIMIT
        assert (await first.fetch(-1, wait_ms=1)).error_code.value == OK
        assert (await second.fetch(0, wait_ms=1)).error_code.value == OK
        assert (await first.fetch(0, wait_ms=1)).error_code.value == SESSION_LIMIT
        uses = secured.port.coordinator.context.guard.quotas.uses()
        assert uses["User:worker"][:2] == (2, 1)
        assert (await anna.heartbeat(1)).error_code.value == OK


async def test_a_quota_of_groups_is_kept_before_a_group_is_made(secured: Secured) -> None:
    async with secured.running():
        secured.change_rules(BASE + QUOTAS)
        worker = await secured.connect("worker")
        assert (await worker.heartbeat(0, "orders")).error_code.value == LOADING
        assert not list(secured.port.coordinator.groups)


async def test_a_member_that_was_ended_leaves_no_stream_behind(secured: Secured) -> None:
    async with secured.running():
        worker = await secured.joined("worker")
        await worker.fetch(0)
        secured.change_rules(BASE.replace('"User:worker", ', "") + QUOTAS)
        assert (await worker.fetch(1)).error_code.value == GROUP_DENIED
        secured.change_rules(BASE + QUOTAS)
        assert (await worker.fetch(1)).error_code.value in (GROUP_DENIED, UNKNOWN_MEMBER)
        assert "User:worker" not in secured.port.coordinator.context.guard.quotas.uses()


async def test_a_fetch_that_waits_while_the_rules_change_gets_nothing(secured: Secured) -> None:
    async with secured.running(records=0):
        worker, anna = await secured.joined("worker"), await secured.joined("anna", "other")
        waiting = asyncio.create_task(worker.fetch(0, wait_ms=30_000))
        connections = secured.port.kafka.listener.connections

        async def is_waiting() -> bool:
            return any(each.is_working for each in connections)

        await eventually_async(is_waiting, 10)
        secured.change_rules(BASE.replace('"User:worker", ', ""))
        secured.port.world.log.append("orders", 3)
        assert not fetched(await waiting)
        assert fetched(await anna.fetch(0, wait_ms=5_000))[0].acquired == [(0, 2, 1)]


async def test_records_that_wait_for_a_fetch_go_to_others_when_the_rules_change(
    secured: Secured,
) -> None:
    async with secured.running():
        worker, anna = await secured.joined("worker"), await secured.connect("anna")
        assert fetched(await worker.fetch(0, records=2, is_exact=True))[0].acquired == [(0, 1, 1)]
        await secured.port.joined("other", anna)
        secured.change_rules(BASE.replace('"User:worker", ', ""))
        offsets: set[int] = set()
        for epoch in range(2):
            for each in fetched(await anna.fetch(epoch, wait_ms=2_000)).values():
                offsets.update(
                    n for first, last, _ in each.acquired for n in range(first, last + 1)
                )
            if len(offsets) == 6:
                break
        assert offsets == set(range(6))
