"""Settings of groups in Kafka's protocol."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from kio.index import load_request_schema

from sharecoord.api.kafka.configs import RESOURCES_MAX
from tests.unit.api.kafka.client import Client, port_of
from tests.unit.runtime.worlds import world_with

DESCRIBE, ALTER, LIST = 32, 44, 74
TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_ALL_GROUPS, DEFAULT, OWN = 4, 5, 8
OK, UNSUPPORTED, INVALID_CONFIG, INVALID_REQUEST = 0, 35, 40, 42
LOCK, LIMIT = "share.record.lock.duration.ms", "share.delivery.count.limit"

Changes = Sequence[tuple[str, int, str | None]]


def module_of(api_key: int, version: int) -> Any:
    return sys.modules[load_request_schema(api_key, version).__module__]


async def altered(
    client: Client,
    *resources: tuple[int, str, Changes],
    validate_only: bool = False,
    version: int = 1,
) -> list[tuple[int, str]]:
    """Codes and messages."""
    module = module_of(ALTER, version)
    answer = await client.ask(
        ALTER,
        version,
        validate_only=validate_only,
        resources=tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    module.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ),
            )
            for kind, name, changes in resources
        ),
    )
    told = [(each.resource_type, each.resource_name) for each in answer.responses]
    assert told == [resource[:2] for resource in resources]
    return [(each.error_code.value, each.error_message or "") for each in answer.responses]


async def described(
    client: Client,
    *resources: tuple[int, str, tuple[str, ...] | None],
    version: int = 4,
    **wishes: bool,
) -> list[Any]:
    module = module_of(DESCRIBE, version)
    more = {"include_synonyms": False, "include_documentation": False, **wishes}
    if version < 3:
        del more["include_documentation"]
    answer = await client.ask(
        DESCRIBE,
        version,
        resources=tuple(
            module.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            for kind, name, keys in resources
        ),
        **more,
    )
    return list(answer.results)


async def own_settings(client: Client, group: str = "g") -> dict[str, str]:
    (found,) = await described(client, (GROUP, group, None))
    return {each.name: each.value for each in found.configs if each.config_source == OWN}


async def groups_with_settings(client: Client, *types: int) -> list[str]:
    answer = await client.ask(LIST, 1, resource_types=types)
    assert answer.error_code.value == OK
    return [each.resource_name for each in answer.config_resources]


async def test_settings_are_altered_and_described() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        assert await altered(client, (GROUP, "g", [(LOCK, SET, "20s"), (LIMIT, SET, "7")])) == [
            (OK, "")
        ]
        assert await own_settings(client) == {LOCK: "20000", LIMIT: "7"}
        (found,) = await described(
            client, (GROUP, "g", (LIMIT, LOCK)), include_synonyms=True, include_documentation=True
        )
        assert (found.error_code.value, found.error_message) == (OK, "")
        lock, limit = found.configs
        assert (lock.name, lock.read_only, lock.is_sensitive) == (LOCK, False, False)
        assert [(each.name, each.value, each.source) for each in lock.synonyms] == [
            (LOCK, "20000", OWN),
            (f"group.{LOCK}", "30000", DEFAULT),
        ]
        assert lock.documentation.startswith("How long a delivered record is locked")
        assert limit.name == LIMIT
        assert await altered(client, (GROUP, "g", [(LOCK, DELETE, None)])) == [(OK, "")]
        assert await own_settings(client) == {LIMIT: "7"}
        assert port.coordinator.groups["g"].settings.delivery_limit == 7


async def test_all_settings_have_kafkas_types() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        (found,) = await described(client, (GROUP, "never", None))
        types = {each.name: each.config_type for each in found.configs}
        sources = {each.name: each.config_source for each in found.configs}
        assert sources.pop("share.auto.offset.reset") == OF_ALL_GROUPS
        assert set(sources.values()) == {DEFAULT}
        assert all(each.documentation is None and not each.synonyms for each in found.configs)
        name = "share.auto.offset.reset"
        (own,) = await described(client, (GROUP, "never", (name,)), include_synonyms=True)
        assert [(each.name, each.source) for each in own.configs[0].synonyms] == [
            (f"group.{name}", OF_ALL_GROUPS),
            (name, DEFAULT),
        ]
        boolean, string, integer, long, double = 1, 2, 3, 5, 6
        assert types[LOCK] == types[LIMIT] == integer
        assert types["share.auto.offset.reset"] == types["share.isolation.level"] == string
        assert types["share.renew.acknowledge.enable"] == boolean
        assert types["share.retry.backoff.max.ms"] == long
        assert types["share.retry.backoff.jitter"] == double
        (old,) = await described(client, (GROUP, "never", (LOCK,)), version=1)
        assert [(each.name, each.value) for each in old.configs] == [(LOCK, "30000")]
        # Nobody makes a group by asking.
        assert await groups_with_settings(client) == []
        assert "never" not in port.coordinator.groups


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("share.lock", SET, "1")], INVALID_CONFIG, 'unknown setting "share.lock"'),
        ([(LOCK, SET, "1")], INVALID_CONFIG, "must be between 1s and 12h"),
        ([(LOCK, SET, "20s"), (LIMIT, SET, "no")], INVALID_CONFIG, LIMIT),
        ([("share.session.timeout.ms", SET, "9s"), ("share.heartbeat.interval.ms", SET, "9s")],
         INVALID_CONFIG, "must be longer than share.heartbeat.interval.ms"),
        ([(LOCK, APPEND, "1")], INVALID_CONFIG, f"{LOCK} is no list: nothing can be appended"),
        ([(LOCK, SUBTRACT, "1")], INVALID_CONFIG, "subtracted from it; set it instead"),
        ([(LOCK, 9, "1")], INVALID_REQUEST, "operation 9 is none of 0 to 3"),
        ([(LOCK, SET, None)], INVALID_REQUEST, f"{LOCK} has no value"),
        ([(LOCK, SET, "20s"), (LOCK, DELETE, None)], INVALID_REQUEST, "twice"),
    ],
)  # fmt: skip
async def test_what_is_wrong_changes_nothing(changes: Changes, code: int, message: str) -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        ((found, said),) = await altered(client, (GROUP, "g", changes))
        assert found == code
        assert message in said
        assert await own_settings(client) == {}
        assert await groups_with_settings(client, GROUP) == []


async def test_each_resource_is_answered_by_itself() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        good, bad = [(LOCK, SET, "20s")], [(LOCK, SET, "1")]
        answers = await altered(
            client,
            (GROUP, "g", good),
            (GROUP, "h", bad),
            (GROUP, "", good),
            (GROUP, "x" * 250, good),
            (TOPIC, "orders", [("cleanup.policy", SET, "compact")]),
            (99, "?", good),
            version=0,
        )
        assert [code for code, _ in answers] == [
            OK, INVALID_CONFIG, *[INVALID_REQUEST] * 4]  # fmt: skip
        assert "none of topics; connect to Kafka itself" in answers[4][1]
        assert await groups_with_settings(client) == ["g"]
        twice = await altered(client, (GROUP, "t", good), (GROUP, "t", good))
        assert [code for code, _ in twice] == [INVALID_REQUEST] * 2
        results = await described(
            client,
            (GROUP, "g", None),
            (GROUP, "", None),
            (TOPIC, "orders", None),
            (BROKER, "1", ()),
        )
        assert [each.error_code.value for each in results] == [OK, *[INVALID_REQUEST] * 3]
        assert "none of brokers" in results[3].error_message


async def test_a_trial_and_nothing_change_nothing() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        changes = [(LOCK, SET, "20s")]
        assert await altered(client, (GROUP, "g", changes), validate_only=True) == [(OK, "")]
        ((code, _),) = await altered(client, (GROUP, "g", [(LOCK, SET, "1")]), validate_only=True)
        assert code == INVALID_CONFIG
        assert await altered(client, (GROUP, "g", [])) == [(OK, "")]
        # As at a broker: what is not there may be deleted.
        assert await altered(client, (GROUP, "g", [("no.such", DELETE, None)])) == [(OK, "")]
        assert await own_settings(client) == {}
        assert "g" not in port.coordinator.groups


async def test_groups_with_settings_are_listed_as_resources() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()
        assert await groups_with_settings(member) == []
        await altered(member, (GROUP, "h", [(LOCK, SET, "20s")]))
        assert await groups_with_settings(member) == ["h"]
        assert await groups_with_settings(member, GROUP, TOPIC) == ["h"]
        assert await groups_with_settings(member, TOPIC, BROKER, METRICS) == []
        assert (await member.ask(LIST, 0)).config_resources == ()
        strange = await member.ask(LIST, 1, resource_types=(99,))
        assert (strange.error_code.value, strange.config_resources) == (UNSUPPORTED, ())


async def test_of_too_many_resources_none_is_looked_at() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        changes = [(LOCK, SET, "20s")]
        many = [(GROUP, f"g{number}", changes) for number in range(RESOURCES_MAX + 1)]
        answers = await altered(client, *many)
        why = f"the request has {RESOURCES_MAX + 1} resources; {RESOURCES_MAX} are the most"
        assert set(answers) == {(INVALID_REQUEST, why)}
        results = await described(client, *((kind, name, None) for kind, name, _ in many))
        assert {each.error_code.value for each in results} == {INVALID_REQUEST}
        assert await groups_with_settings(client) == []
