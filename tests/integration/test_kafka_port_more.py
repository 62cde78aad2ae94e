"""What goes beyond Kafka's share groups, for unmodified share consumers (librdkafka's)."""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import sharecoord_sdk
from confluent_kafka import AcknowledgeType, IllegalStateException, Message
from sharecoord_sdk import AdminClient
from sharecoord_sdk.admin import DeadLetterState, GroupDescription, ResetTo

from sharecoord.core.dispatch.schedule import DELAY_HEADER
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Record, Topics
from tests.conftest import TopicFactory
from tests.integration.test_events import events_of
from tests.integration.test_letter_tools import all_letters
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

WAIT_S = 60.0
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
EARLIEST = {"share.auto.offset.reset": "earliest"}

pytestmark = pytest.mark.timeout(180)


class Desk:
    """A coordinator with a Kafka port, and an event log."""

    def __init__(self, servers: str, folder: Path) -> None:
        port, metrics_port = free_ports(2)
        self.address = f"{LOOPBACK}:{port}"
        self._metrics_url = f"http://{LOOPBACK}:{metrics_port}/metrics"
        self.events = folder / "events"
        settings = {
            "management.port": metrics_port,
            "kafka.port.listen": self.address,
            "security.audit.sink": "off",
            "events.sink": f"parquet:{self.events}",
        }
        self.coordinator = CoordinatorProcess(servers, folder, settings=settings)
        self._names = itertools.count()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.coordinator.address})

    def group(self, configs: Mapping[str, str]) -> str:
        """A new group with these settings."""
        group = unique_name("g")
        with self.admin() as admin:
            admin.alter_group_configs(group, {**EARLIEST, **configs})
        return group

    def metric(self, name: str) -> float:
        """A metric without labels."""
        with urllib.request.urlopen(self._metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
        return float(value)

    def described(self, group: str) -> GroupDescription:
        with self.admin() as admin:
            return admin.describe_groups([group])[0]


@pytest.fixture(scope="module")
def desk(kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(kafka_broker.bootstrap_servers, tmp_path_factory.mktemp("more"))
    with made.coordinator:
        yield made


class Member:
    """A share consumer of librdkafka in explicit mode; notes what came, and when."""

    def __init__(self, desk: Desk, group: str, topic: str, client_id: str = "rdkafka") -> None:
        self._consumer = confluent_kafka.ShareConsumer(
            {
                "bootstrap.servers": desk.address,
                "group.id": group,
                "client.id": client_id,
                "share.acknowledgement.mode": "explicit",
            }
        )
        self._consumer.subscribe([topic])
        self.came: list[tuple[float, Message]] = []

    def turn(self, kind: Callable[[Message], AcknowledgeType] = lambda _: ACCEPT) -> list[Message]:
        """One poll, of which each record is acknowledged, and that waits for the outcome."""
        found = [message for message in self._consumer.poll(0.2) if message.error() is None]
        self.came += ((time.time(), message) for message in found)
        for message in found:
            self._consumer.acknowledge(message, kind(message))
        if found:
            assert set(self._consumer.commit_sync(20).values()) <= {None}
        return found

    def counts(self) -> Counter[int]:
        """How often each offset came."""
        return Counter(message.offset() for _, message in self.came)

    def until(
        self, count: int, kind: Callable[[Message], AcknowledgeType] = lambda _: ACCEPT
    ) -> None:
        """Turns until so many deliveries have come."""

        def have_come() -> bool:
            self.turn(kind)
            return len(self.came) >= count

        eventually(have_come, WAIT_S, what=f"{count} deliveries")

    def close(self) -> None:
        with suppress(IllegalStateException):
            self._consumer.close()


Join = Callable[..., Member]


@pytest.fixture
def join(desk: Desk) -> Iterator[Join]:
    """Makes members, which are closed at the end."""
    made: list[Member] = []

    def joined(group: str, topic: str, client_id: str = "rdkafka") -> Member:
        made.append(Member(desk, group, topic, client_id))
        return made[-1]

    yield joined
    for each in made:
        each.close()


def first_fails(message: Message) -> AcknowledgeType:
    """Releases a record at its first delivery."""
    return RELEASE if message.delivery_count() == 1 else ACCEPT


# -- later ----------------------------------------------------------------------------------------


def test_what_is_released_waits_for_the_back_off(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics
) -> None:
    back_off = {"share.retry.backoff.ms": "1500", "share.retry.backoff.jitter": "0"}
    name, group = topic(), desk.group(back_off)
    topics.produce(name, 5)
    member = join(group, name)
    member.until(10, first_fails)
    times: defaultdict[int, list[float]] = defaultdict(list)
    for at_s, message in member.came:
        times[message.offset() or 0].append(at_s)
    assert {message.delivery_count() for _, message in member.came} == {1, 2}
    assert all(again - first >= 1.5 for first, again in times.values())


def test_a_header_says_when_a_record_is_due(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group({})
    member = join(group, name)
    topics.produce(name, [(None, b"later", [(DELAY_HEADER, b"2000")]), (None, b"now", None)])
    member.until(2)
    (_, now), (later_s, later) = member.came
    assert [now.value(), later.value()] == [b"now", b"later"]
    assert later_s * 1000 >= later.timestamp()[1] + 2_000
    assert later.delivery_count() == 1


# -- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_order_is_kept_over_members_that_release(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics, ordering: str
) -> None:
    """Two members: nothing goes out while an earlier record is unfinished elsewhere."""
    name, group = topic(partitions=2), desk.group({"share.ordering": ordering})
    records = [Record(b"k%d" % (n % 4), b"%d" % n) for n in range(60)]
    topics.produce(name, records, partition=None)
    members = [join(group, name, client_id) for client_id in ("one", "two")]
    unfinished: dict[tuple[int, bytes], set[int]] = {}
    finished: dict[tuple[int, bytes], list[int]] = defaultdict(list)

    def lane_of(message: Message) -> tuple[int, bytes]:
        return message.partition() or 0, (message.key() if ordering == "key" else b"") or b""

    def kind(message: Message) -> AcknowledgeType:
        """The first record of a poll and lane that is new fails, and all behind it with it."""
        lane, offset = lane_of(message), message.offset() or 0
        failed = unfinished.setdefault(lane, set())
        if failed or (message.delivery_count() == 1 and offset % 5 == 0):
            failed.add(offset)
            return RELEASE
        finished[lane].append(offset)
        return ACCEPT

    def all_are_finished() -> bool:
        for member in members:
            unfinished.clear()
            member.turn(kind)
        return sum(map(len, finished.values())) == len(records)

    eventually(all_are_finished, WAIT_S, what="everything")
    assert all(offsets == sorted(offsets) for offsets in finished.values())
    assert max(Counter(m.offset() for each in members for _, m in each.came).values()) > 1
    eventually(
        lambda: all(part.lag == 0 for part in desk.described(group).offsets), WAIT_S, "no lag"
    )


# -- operators ------------------------------------------------------------------------------------


def test_a_paused_group_gets_nothing_until_it_goes_on(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group({})
    topics.produce(name, 10)
    member = join(group, name)
    member.until(10)
    with desk.admin() as admin:
        admin.pause_group(group, reason="night")
        topics.produce(name, 10)
        eventually(lambda: desk.described(group).offsets[0].lag == 10, WAIT_S, "a lag")
        assert not member.turn()
        admin.resume_group(group)
    member.until(20)
    assert set(member.counts().values()) == {1}


def test_a_reset_under_traffic_brings_everything_again(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics
) -> None:
    """What the member holds at that moment it can not settle any more."""
    name, group = topic(), desk.group({})
    topics.produce(name, 20)
    member = join(group, name)
    member.until(20)
    with desk.admin() as admin:
        (done,) = admin.reset_offsets(group, ResetTo.offset(5), {name: [0]}, force=True)
        assert done.error is None, done
    topics.produce(name, 5)
    member.until(40)
    assert member.counts() == Counter([*range(25), *range(5, 20)])
    eventually(lambda: desk.described(group).offsets[0].lag == 0, WAIT_S, "no lag")


# -- dead letters ---------------------------------------------------------------------------------


def test_dead_letters_after_a_reject_and_after_the_limit(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics
) -> None:
    """They reach their topic; redriven they go to members of the SDK, and to no other."""
    name, dead = topic(), topic()
    group = desk.group(
        {"errors.deadletterqueue.topic.name": dead, "share.delivery.count.limit": "2"}
    )
    topics.produce(name, [(b"k", b"%d" % n, [("n", b"1")]) for n in range(6)])
    member = join(group, name)
    # 0 and 3 are rejected, 1 and 4 fail twice.
    kinds = REJECT, RELEASE, ACCEPT
    member.until(8, lambda message: kinds[(message.offset() or 0) % 3])
    with desk.admin() as admin:

        def all_there() -> bool:
            found = all_letters(admin, group)
            return len(found) == 4 and all(e.state is DeadLetterState.IN_TOPIC for e in found)

        eventually(all_there, WAIT_S, what="the letters")
        reasons = {
            each.offset: str(each.reason).partition(":")[0] for each in all_letters(admin, group)
        }
        assert (reasons[0], reasons[3]) == ("REJECTED", "REJECTED")
        assert reasons[1] == reasons[4] != "REJECTED"
        assert admin.redrive_dead_letters(group, all_letters=True).letters == 4
        # Had it got letters, they would have come before what is written now.
        topics.produce(name, 4)
        member.until(12)
        assert {m.offset() for _, m in member.came[8:]} == {6, 7, 8, 9}
        config = explicit(desk.coordinator.address, group, 20)
        with sharecoord_sdk.ShareConsumer(config) as consumer:
            consumer.subscribe([name])
            letters: list[Any] = []

            def letters_come() -> bool:
                for message in consumer.poll(0.2):
                    consumer.acknowledge(message)
                    letters.append(message)
                return len(letters) >= 4

            eventually(letters_come, WAIT_S, what="the letters again")
            assert set(consumer.commit_sync(10).values()) <= {None}
        assert sorted(m.offset() for m in letters) == [0, 1, 3, 4]
        assert {m.delivery_count() for m in letters} == {1}


# -- figures --------------------------------------------------------------------------------------


def test_connections_are_counted(desk: Desk, join: Join, topic: TopicFactory) -> None:
    name = "sharecoord_kafka_port_connections"

    def connections(at_least: int, at_most: int) -> None:
        eventually(lambda: at_least <= desk.metric(name) <= at_most, WAIT_S, what=name)

    connections(0, 0)
    member = join(desk.group({}), topic(), "only")
    member.turn()
    connections(1, 4)
    assert desk.metric(f"{name}_refused_total") == 0
    member.close()
    connections(0, 0)


def test_fairness_and_events_know_the_members(
    desk: Desk, join: Join, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(partitions=2), desk.group({})
    members = [join(group, name, client_id) for client_id in ("left", "right")]

    def is_measured() -> bool:
        topics.produce(name, 50)
        for member in members:
            member.turn()
        found = desk.described(group)
        at_work = {each.client_id for each in found.members if each.delivered_total}
        return found.fairness_jain_ratio is not None and at_work == {"left", "right"}

    eventually(is_measured, WAIT_S, what="a measure of fairness")
    for member in members:
        member.close()
    delivered = sum(len(member.came) for member in members)
    desk.coordinator.stop()
    told = [row for row in events_of(desk.events) if row["group_id"] == group]
    ranges = [row for row in told if row["kind"] == "range"]
    accepted = [row for row in ranges if row["event"] == "accepted"]
    assert sum(row["records"] for row in accepted) == delivered
    assert {row["client_id"] for row in accepted} == {"left", "right"}
    joined = [row["event"] for row in told if row["kind"] == "group"]
    assert joined.count("joined") == joined.count("left") == 2
    desk.coordinator.restart()
