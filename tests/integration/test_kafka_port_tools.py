"""Kafka's own tools at the Kafka port, unchanged: they print what they print at a real broker.

The broker is its own example: the same commands go to its port, and to the Kafka port of a
coordinator before it. Topics are the same, groups are of each side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Topics
from tests.integration.kafka_tools import KafkaTools, Shown
from tests.support import eventually, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

WAIT_S = 60
TIMES_MS = 1_700_000_000_000
"""Time of the first record; each next one is a second younger."""

LOCK = "share.record.lock.duration.ms"


class Sides(NamedTuple):
    """Where a broker with share groups of its own, and a coordinator before it, answer."""

    broker: str
    port: str


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    settings = {
        "kafka.port.listen": address,
        "security.audit.sink": "off",
        "group.share.auto.offset.reset": "latest",
    }
    folder = tmp_path_factory.mktemp("desk")
    with (
        KafkaBroker("4.3.1") as broker,
        CoordinatorProcess(broker.bootstrap_servers, folder, settings=settings),
    ):
        yield Sides(broker.bootstrap_servers, address)


@pytest.fixture(scope="module", params=["4.3.1", "4.4.0"])
def tools(request: pytest.FixtureRequest) -> Iterator[KafkaTools]:
    """The tools of each release."""
    with KafkaTools(request.param) as made:
        yield made


@pytest.fixture
def topics(sides: Sides) -> Topics:
    return Topics(sides.broker)


def filled(topics: Topics) -> str:
    """A topic with two partitions, five records in each."""
    name = unique_name("t")
    topics.create(name, partitions=2)
    producer = Producer({"bootstrap.servers": topics.bootstrap_servers})
    for number in range(10):
        producer.produce(
            name, b"v", partition=number % 2, timestamp=TIMES_MS + 1_000 * (number // 2)
        )
    producer.flush(WAIT_S)
    return name


def member_of(address: str, group: str, topic: str) -> ShareConsumer:
    """A member that has acknowledged ten records."""
    member = ShareConsumer({"bootstrap.servers": address, "group.id": group})
    member.subscribe([topic])
    offsets = set[tuple[Any, Any]]()

    def all_came() -> bool:
        offsets.update((m.partition(), m.offset()) for m in member.poll(0.2))
        return len(offsets) == 10

    eventually(all_came, WAIT_S, what=f"all records from {address}")
    assert set(member.commit_sync(WAIT_S).values()) <= {None}
    return member


# -- the same commands on both sides --------------------------------------------------------------

_SPACES = re.compile(r" {2,}")
_MESSAGES = (
    # What the server says of an error is each one's own, what the tool says is not.
    re.compile(r"(?<=Exception: ).+"),
    re.compile(r"(?<=Error: )(?!Executing|Deletion).+"),
    re.compile(r"(?<=failed due to )(?!org\.|Share ).+"),
)
_FOR_ALL_GROUPS = "STATIC_BROKER_CONFIG:group.share.auto.offset.reset=latest, "
"""The coordinator's own default for all groups, which coordinators of tests are started with."""
_MEMBER_ID = re.compile(r"[\w+/-]{22}(?= /127)")


def plain(shown: Shown, address: str) -> tuple[int, list[str]]:
    """What was printed, without what differs from run to run."""
    found = []
    for line in shown.lines:
        text = _MEMBER_ID.sub("MEMBER", line.replace(address, "ADDRESS"))
        text = text.replace(_FOR_ALL_GROUPS, "")
        for message in _MESSAGES:
            text = message.sub("...", text)
        found.append(_SPACES.sub("  ", text))
    return shown.code, found


class Both:
    """Gives each command to both sides, and holds what they print against each other."""

    def __init__(self, tools: KafkaTools, sides: Sides) -> None:
        self._tools, self._sides = tools, sides

    def __call__(self, program: str, *arguments: str) -> Shown:
        """Returns what the port has printed."""
        native, own = (self._tools.run(program, each, *arguments) for each in self._sides)
        assert plain(own, self._sides.port) == plain(native, self._sides.broker), arguments
        return own


def test_the_tools_print_what_they_print_at_a_broker(
    tools: KafkaTools, sides: Sides, topics: Topics, tmp_path: Path
) -> None:
    """The life of a group: settings, records, resets, deletions."""
    group, topic, other = unique_name("g"), filled(topics), unique_name("t")
    topics.create(other)
    both = Both(tools, sides)
    of_config = ("--entity-type", "groups", "--entity-name", group)
    earliest = "share.auto.offset.reset=earliest"
    assert both("configs", *of_config, "--alter", "--add-config", earliest).code == 0
    shown = both("configs", *of_config, "--describe")
    assert f"DYNAMIC_GROUP_CONFIG:{earliest}" in shown.text
    both("configs", "--entity-type", "groups", "--entity-name", "no-such", "--describe")
    assert both("configs", *of_config, "--alter", "--add-config", f"{LOCK}=1").code == 1
    assert both("configs", *of_config, "--alter", "--add-config", "share.nonsense=1").code == 1
    assert both("configs", *of_config, "--alter", "--delete-config", "share.nonsense").code == 0
    for address in sides:
        member_of(address, group, topic).close()
    of_group = ("--group", group)
    both("groups", "--list")
    both("groups", "--list", "--state", "empty")
    both("groups", "--list", "--state", "stable")
    both("groups", "--describe", *of_group, "--state")
    both("groups", "--describe", *of_group, "--members")
    for view in ("--offsets", "--members", "--state"):
        both("groups", "--describe", "--group", "no-such", view)
    reset = ("--reset-offsets", *of_group)
    of_topic = ("--topic", topic)
    both("groups", *reset, *of_topic, "--to-earliest", "--dry-run")
    both("groups", *reset, *of_topic, "--to-earliest", "--execute")
    shown = both("groups", "--describe", *of_group)
    assert [line.split()[-2:] for line in shown.lines if topic in line] == [["0", "5"]] * 2
    both("groups", *reset, "--topic", f"{topic}:1", "--to-latest", "--execute")
    both("groups", "--describe", *of_group, "--verbose")
    both("groups", *reset, "--all-topics", "--to-datetime", "2023-11-14T22:13:22.000", "--execute")
    both("groups", "--describe", "--all-groups")
    shown = both("groups", *reset, "--all-topics", "--to-datetime", "2033-01-01T00:00:00.000",
                 "--execute")  # fmt: skip
    assert "Falling back to latest known offset" in shown.text
    both("groups", *reset, "--topic", f"{topic}:7", "--to-latest", "--execute")
    both("groups", *reset, "--topic", "no-such", "--to-latest", "--execute")
    both("groups", *reset, "--topic", other, "--to-earliest", "--execute")
    both("groups", "--describe", *of_group)
    both(
        "groups", "--reset-offsets", "--group", f"{group}-2", *of_topic, "--to-latest", "--execute"
    )
    both("groups", "--reset-offsets", "--group", f"{group}-3", "--all-topics", "--to-latest",
         "--execute")  # fmt: skip
    if tools.version >= "4.4":
        later_flags(both, f"{group}-2", topic, tmp_path)
    both("groups", "--delete-offsets", *of_group, "--topic", other, "--topic", "no-such")
    both("groups", "--delete-offsets", *of_group, "--topic", other)
    both("groups", "--delete-offsets", "--group", "no-such", *of_topic)
    both("groups", "--describe", *of_group)
    both("groups", "--delete", *of_group, "--group", "no-such")
    both("groups", "--delete", "--all-groups")
    both("groups", "--list")
    both("groups", "--describe", "--all-groups")


def later_flags(both: Both, group: str, topic: str, folder: Path) -> None:
    """Flags that the tool has since 4.4."""
    file = folder / "offsets.csv"
    file.write_text(f"{topic},0,2\n{topic},1,4\n")
    reset = ("--reset-offsets", "--group", group)
    both("groups", *reset, "--topic", topic, "--to-offset", "3", "--execute")
    both("groups", *reset, "--topic", topic, "--to-offset", "300", "--execute")
    both("groups", *reset, "--all-topics", "--to-current", "--dry-run")
    both("groups", *reset, "--all-topics", "--to-earliest", "--dry-run", "--export")
    both("groups", *reset, "--from-file", str(file), "--execute")
    shown = both("groups", "--describe", "--group", group)
    assert [line.split()[-2] for line in shown.lines if topic in line] == ["2", "4"]


def test_groups_with_members_are_shown_and_refused_as_at_a_broker(
    tools: KafkaTools, sides: Sides, topics: Topics
) -> None:
    group, topic = unique_name("g"), filled(topics)
    both = Both(tools, sides)
    both("configs", "--entity-type", "groups", "--entity-name", group, "--alter",
         "--add-config", "share.auto.offset.reset=earliest")  # fmt: skip
    members = [member_of(address, group, topic) for address in sides]
    of_group, of_topic = ("--group", group), ("--topic", topic)
    shown = both("groups", "--describe", *of_group, "--members")
    assert re.search(rf"/127\.0\.0\.1 +rdkafka +2 +{topic}:0,1", shown.text)
    both("groups", "--describe", *of_group, "--state")
    both("groups", "--list", "--state", "stable")
    shown = both("groups", "--reset-offsets", *of_group, *of_topic, "--to-earliest", "--execute")
    assert "is not empty" in shown.text
    both("groups", "--delete-offsets", *of_group, *of_topic)
    assert "GroupNotEmptyException" in both("groups", "--delete", *of_group).text
    for member in members:
        member.close()
    both("groups", "--delete", *of_group)


def test_tools_about_topics_and_all_groups(tools: KafkaTools, sides: Sides, topics: Topics) -> None:
    group, topic = unique_name("g"), filled(topics)
    both = Both(tools, sides)
    of_group = ("--group", group)
    assert f"{topic}:0:5" in both("offsets", "--topic", topic).text
    assert topic in both("topics", "--list").lines
    both("groups", "--reset-offsets", *of_group, "--topic", topic, "--to-latest", "--execute")
    assert re.search(rf"{group} +Share +share", both("all-groups", "--list").text)
    both("groups", "--delete", *of_group)
    made = tools.run("topics", sides.port, "--create", "--topic", "never")
    assert made.code == 1
    assert "does not support CREATE_TOPICS" in made.text


def test_settings_of_all_groups_are_described(
    tools: KafkaTools, sides: Sides, topics: Topics
) -> None:
    """Kafka's settings of share groups stand there as at a broker, ours beside them."""
    group = unique_name("g")
    arguments = ("--entity-type", "groups", "--entity-name", group, "--describe", "--all")
    native, own = (
        {line for line in tools.run("configs", address, *arguments).lines if "share." in line}
        for address in sides
    )
    native_names = {line.split("=")[0] for line in native}
    # The default for all groups is the operator's here.
    name = "  share.auto.offset.reset"
    assert {line for line in native if not line.startswith(name)} < own
    assert "share.ordering" in {line.split("=")[0].strip() for line in own} - native_names
    refused = tools.run("configs", sides.port, "--entity-type", "topics", "--entity-name", "t",
                        "--describe", "--all")  # fmt: skip
    assert refused.code == 1
    assert "this port has settings of groups alone, none of topics" in refused.text


# -- librdkafka's admin client --------------------------------------------------------------------


def test_librdkafkas_admin_client(sides: Sides, topics: Topics) -> None:
    group, topic = unique_name("g"), filled(topics)
    admin = AdminClient({"bootstrap.servers": sides.port})

    def altered(value: str) -> None:
        entry = ConfigEntry(LOCK, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    altered("20s")
    with pytest.raises(KafkaException, match="must be between 1s and 12h"):
        altered("1")
    resource = ConfigResource(ResourceType.GROUP, group)
    found = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert (found[LOCK].value, found[LOCK].is_default, found[LOCK].is_read_only) == (
        "20000", False, False)  # fmt: skip
    assert found["share.ordering"].is_default
    others = {ConsumerGroupType.CLASSIC, ConsumerGroupType.CONSUMER}
    assert admin.list_consumer_groups(types=others).result(WAIT_S).valid == []
    at = {0: OffsetSpec.latest(), 1: OffsetSpec.for_timestamp(TIMES_MS + 1_500)}
    asked = {TopicPartition(topic, number): spec for number, spec in at.items()}
    spots = {
        place.partition: (future.result(WAIT_S).offset, future.result(0).timestamp)
        for place, future in admin.list_offsets(asked).items()
    }
    assert spots == {0: (5, -1), 1: (2, TIMES_MS + 2_000)}
    described = admin.describe_topics(TopicCollection([topic, "__consumer_offsets", "no-such"]))
    assert len(described[topic].result(WAIT_S).partitions) == 2
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        described["no-such"].result(WAIT_S)
    cluster = admin.describe_cluster().result(WAIT_S)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [sides.port]
    # It asks with three bytes too many.
    assert topic in admin.list_topics(timeout=WAIT_S).topics
    assert group in {each.id for each in listed(admin)}
    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    assert group not in {each.id for each in listed(admin)}


def listed(admin: AdminClient) -> list[Any]:
    with pytest.warns(DeprecationWarning, match="list_groups"):
        return list(admin.list_groups(timeout=WAIT_S))


# -- who is wrong here ----------------------------------------------------------------------------


def test_plain_clients_hear_at_once_that_they_are_wrong_here(sides: Sides, topics: Topics) -> None:
    topic = filled(topics)
    place = {"bootstrap.servers": sides.port}
    errors: list[KafkaError | None] = []
    producer = Producer(place)
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert [error.code() for error in errors if error] == [KafkaError.UNSUPPORTED_VERSION]
    transactional = Producer({**place, "transactional.id": "x", "log_level": 0})
    with pytest.raises(KafkaException, match="Transactions not supported"):
        transactional.init_transactions(WAIT_S)

    def heard(subscribe: Callable[[Consumer], object]) -> int:
        consumer = Consumer({**place, "group.id": unique_name("c"), "log_level": 0})
        subscribe(consumer)
        codes: list[int] = []

        def something() -> bool:
            message = consumer.poll(0.2)
            error = None if message is None else message.error()
            codes.extend([] if error is None else [error.code()])
            return bool(codes)

        eventually(something, WAIT_S, what="an error")
        consumer.close()
        return codes[0]

    assert heard(lambda each: each.subscribe([topic])) == KafkaError._UNSUPPORTED_FEATURE
    fetched = heard(lambda each: each.assign([TopicPartition(topic, 0, 0)]))
    assert fetched == KafkaError.UNSUPPORTED_VERSION
    ends = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(2)}
    admin = AdminClient({"bootstrap.servers": sides.broker})
    found = admin.list_offsets(ends)
    assert [future.result(WAIT_S).offset for future in found.values()] == [5, 5]
