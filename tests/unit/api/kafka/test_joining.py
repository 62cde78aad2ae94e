"""A question about share groups and Kafka's own groups at once; a test answers for the broker."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.api.kafka.test_configs import (
    ALTER,
    DESCRIBE,
    GROUP,
    LIST,
    LOCK,
    SET,
    TOPIC,
    altered,
    described,
    groups_with_settings,
    own_settings,
)
from tests.unit.api.kafka.test_passing import APIS, made, passing
from tests.unit.kafka.wire.fake_broker import NO_TIME, Request

DELETE_GROUPS = 42
OK, INVALID_CONFIG, NON_EMPTY_GROUP = 0, 40, 68
OFFERED = APIS | {DELETE_GROUPS: (0, 2), DESCRIBE: (1, 4), ALTER: (0, 1)}
WITH_RESOURCES = OFFERED | {LIST: (0, 1)}


def deleted(request: Request) -> Any:
    """Kafka's answer to DeleteGroups: each of them is gone."""
    results = tuple(
        made(DELETE_GROUPS, 2, "DeletableGroupResult", group_id=name, error_code=ErrorCode.none)
        for name in request.entity().groups_names
    )
    return made(DELETE_GROUPS, 2, throttle_time=NO_TIME, results=results)


def described_by_kafka(request: Request) -> Any:
    """Kafka's answer to DescribeConfigs; as below 4.0 it knows no settings of groups."""
    results = tuple(
        made(DESCRIBE, 4, "DescribeConfigsResult", resource_type=each.resource_type,
             resource_name=each.resource_name, configs=(), error_message="kafka's",
             error_code=ErrorCode.invalid_request if each.resource_type == GROUP
             else ErrorCode.none)
        for each in request.entity().resources
    )  # fmt: skip
    return made(DESCRIBE, 4, throttle_time=NO_TIME, results=results)


def altered_by_kafka(request: Request) -> Any:
    """Kafka's answer to IncrementalAlterConfigs: each of them is done."""
    responses = tuple(
        made(ALTER, 1, "AlterConfigsResourceResponse", resource_type=each.resource_type,
             resource_name=each.resource_name, error_message="kafka's", error_code=ErrorCode.none)
        for each in request.entity().resources
    )  # fmt: skip
    return made(ALTER, 1, throttle_time=NO_TIME, responses=responses)


async def test_each_group_is_deleted_where_it_is() -> None:
    async with passing(offered=OFFERED) as kafka:
        broker = kafka.brokers[0]
        broker.on(DELETE_GROUPS, deleted)
        client = await kafka.port.joined(client=await kafka.connect(1))

        async def delete(*names: str) -> dict[str, int]:
            answer = await client.ask(DELETE_GROUPS, 2, groups_names=names)
            return {each.group_id: each.error_code.value for each in answer.results}

        assert await delete("g", "kafkas") == {"g": NON_EMPTY_GROUP, "kafkas": OK}
        assert (await broker.seen(DELETE_GROUPS)).entity().groups_names == ("kafkas",)
        await client.heartbeat(-1)
        assert await delete("g") == {"g": OK}
        assert broker.count(DELETE_GROUPS) == 1


async def test_settings_are_described_where_they_are() -> None:
    async with passing(offered=OFFERED) as kafka:
        broker = kafka.brokers[0]
        broker.on(DESCRIBE, described_by_kafka)
        client = await kafka.port.joined(client=await kafka.connect(1))
        asked = (TOPIC, "orders", None), (GROUP, "g", None), (GROUP, "unknown", None)
        found = {each.resource_name: each for each in await described(client, *asked)}
        assert found.keys() == {"orders", "g", "unknown"}
        assert found["orders"].error_message == "kafka's"
        # A Kafka without settings of groups has nothing to say; ours has the defaults of all.
        for name in ("g", "unknown"):
            assert found[name].error_code.value == OK
            assert LOCK in {each.name for each in found[name].configs}
        names = [each.resource_name for each in (await broker.seen(DESCRIBE)).entity().resources]
        assert names == ["orders", "unknown"]


@pytest.mark.parametrize(
    ("setting", "is_kafkas"),
    [("consumer.session.timeout.ms", True), ("streams.num.standby.replicas", True), (LOCK, False)],
)
async def test_settings_are_altered_where_they_are(setting: str, *, is_kafkas: bool) -> None:
    async with passing(offered=OFFERED) as kafka:
        kafka.brokers[0].on(ALTER, altered_by_kafka)
        kafka.brokers[0].on(DESCRIBE, described_by_kafka)
        client = await kafka.connect(1)
        ((code, message),) = await altered(client, (GROUP, "g", [(setting, SET, "20000")]))
        assert (code, message) == (OK, "kafka's" if is_kafkas else "")
        assert kafka.brokers[0].count(ALTER) == is_kafkas
        assert await own_settings(client) == ({} if is_kafkas else {setting: "20000"})


async def test_settings_of_both_in_one_are_refused_by_name() -> None:
    async with passing(offered=OFFERED) as kafka:
        client = await kafka.connect(1)
        mixed = [(LOCK, SET, "20000"), ("consumer.session.timeout.ms", SET, "45000")]
        ((code, message),) = await altered(client, (GROUP, "g", mixed))
        assert code == INVALID_CONFIG
        assert "consumer.session.timeout.ms" in message
        assert kafka.brokers[0].count(ALTER) == 0


async def test_resources_of_both_are_listed_once() -> None:
    async with passing(offered=WITH_RESOURCES) as kafka:
        listed = tuple(
            made(LIST, 1, "ConfigResource", resource_name=name, resource_type=GROUP)
            for name in ("g", "kafkas")
        )
        answer = made(LIST, 1, throttle_time=NO_TIME, error_code=ErrorCode.none,
                      config_resources=listed)  # fmt: skip
        kafka.brokers[0].on(LIST, lambda _: answer)
        client = await kafka.connect(1)
        assert await altered(client, (GROUP, "g", [(LOCK, SET, "20s")])) == [(OK, "")]
        assert sorted(await groups_with_settings(client, GROUP)) == ["g", "kafkas"]


async def test_a_kafka_that_lists_no_resources_is_not_asked() -> None:
    async with passing(offered=OFFERED) as kafka:
        client = await kafka.connect(1)
        assert await altered(client, (GROUP, "g", [(LOCK, SET, "20s")])) == [(OK, "")]
        assert await groups_with_settings(client, GROUP) == ["g"]
        assert kafka.brokers[0].count(LIST) == 0
