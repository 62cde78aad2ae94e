"""Kafka's Java share consumers at the Kafka port, unmodified: what their users rely on.

One coordinator serves all tests; each has topics and groups of its own. One Java process per
release hosts the consumers of all tests but of those that are killed.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewPartitions
from sharecoord_sdk import AdminClient
from sharecoord_sdk.admin import PartitionOffsets

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Record, Topics
from tests.conftest import TopicFactory
from tests.java_members import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    JavaConsumer,
    JavaError,
    JavaProgram,
    JavaRecord,
)
from tests.support import KafkaUnderTest, eventually, unique_name

WAIT_S = 60.0
LOCK_MS, SHORT_LOCK_MS = 60_000, 2_000
BIG = 10 << 20

pytestmark = pytest.mark.timeout(180)

basic = pytest.mark.parametrize(
    "program",
    ["4.3.1", "4.2.1", pytest.param("4.4.0", marks=pytest.mark.long)],
    indirect=True,
    scope="module",
)
"""A test that the first release with share groups for everybody passes in every run."""


class Desk:
    """A coordinator with a Kafka port, and Java consumers there."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.servers = servers
        self.port = f"{LOOPBACK}:{free_ports(1)[0]}"
        settings = {"kafka.port.listen": self.port, "security.audit.sink": "off"}
        self.coordinator = CoordinatorProcess(servers, folder, settings=settings)
        self.names = (f"c{number}" for number in itertools.count())

    def group(self, **settings: object) -> str:
        """A new group; `_` in names stands for `.`."""
        group = unique_name("g")
        given = {"share_record_lock_duration_ms": LOCK_MS, **settings}
        values = {name.replace("_", "."): str(value) for name, value in given.items()}
        with AdminClient({"bootstrap.servers": self.coordinator.address}) as admin:
            admin.alter_group_configs(group, values)
        return group

    def offsets(self, group: str, topic: str) -> dict[int, PartitionOffsets]:
        """By partition."""
        with AdminClient({"bootstrap.servers": self.coordinator.address}) as admin:
            (found,) = admin.describe_groups([group])
        return {each.partition: each for each in found.offsets if each.topic == topic}

    def finished(self, group: str, topic: str, *, at: int) -> None:
        """Waits until everything of partition 0 up to its end is finished."""

        def done() -> bool:
            place = self.offsets(group, topic)[0]
            return (place.start_offset, place.lag) == (at, 0)

        eventually(done, WAIT_S, what=f"{topic} finished at {at}")


class Members:
    """The consumers of a test, which are closed at its end."""

    def __init__(self, desk: Desk, program: JavaProgram, stack: ExitStack) -> None:
        self._desk, self._program, self._stack = desk, program, stack

    def join(self, group: str, *topics: str, **config: object) -> JavaConsumer:
        """A subscribed consumer; explicit unless it says otherwise, `_` stands for `.`."""
        made = self._program.consumer(next(self._desk.names), self.config(group, **config))
        self._stack.callback(_close_quietly, made)
        made.subscribe(*topics)
        return made

    def config(self, group: str, **more: object) -> dict[str, object]:
        return {
            "bootstrap.servers": self._desk.port,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            **{name.replace("_", "."): value for name, value in more.items()},
        }


def _close_quietly(consumer: JavaConsumer) -> None:
    try:
        consumer.close()
    except (JavaError, OSError):
        pass  # its test has closed or killed it


@pytest.fixture(scope="module")
def desk(kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    made = Desk(kafka_broker.bootstrap_servers, tmp_path_factory.mktemp("coordinator"))
    with made.coordinator:
        yield made


@pytest.fixture(
    scope="module",
    params=["4.3.1", *(pytest.param(each, marks=pytest.mark.long) for each in ("4.2.1", "4.4.0"))],
)
def program(request: pytest.FixtureRequest) -> Iterator[JavaProgram]:
    made = JavaProgram(request.param)
    yield made
    made.close()


@pytest.fixture
def members(desk: Desk, program: JavaProgram) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(desk, program, stack)


def polled(consumer: JavaConsumer, count: int = 1) -> list[JavaRecord]:
    """The records of the first poll that has any; together at least so many in implicit mode."""
    found: list[JavaRecord] = []

    def came() -> bool:
        found.extend(consumer.poll(0.5))
        return len(found) >= count

    eventually(came, WAIT_S, what=f"{count} records at {consumer.name}")
    return found


def handled(
    consumer: JavaConsumer, count: int, kind_of: Callable[[JavaRecord], int] = lambda _: ACCEPT
) -> list[JavaRecord]:
    """Polls until so many deliveries came, each of which is acknowledged, and commits."""
    found: list[JavaRecord] = []

    def came() -> bool:
        for record in consumer.poll(0.5):
            found.append(record)
            consumer.acknowledge(record, kind_of(record))
        return len(found) >= count

    eventually(came, WAIT_S, what=f"{count} deliveries at {consumer.name}")
    assert set(consumer.commit_sync().values()) <= {None}
    return found


@basic
def test_records_come_byte_for_byte(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group()
    headers = [("a", b"1"), ("a", b"\xff"), ("none", None)]
    written = [
        Record(b"key", b"value", headers, 1_600_000_000_000),
        Record(None, None, (), 1_600_000_000_001),
        Record(b"", b"", (), 1_600_000_000_002),
    ]
    topics.produce(name, written)
    found = handled(members.join(group, name), 3)
    assert [
        (each.key, each.value, each.headers, each.timestamp_ms, each.delivery) for each in found
    ] == [(each.key, each.value, list(each.headers), each.timestamp_ms, 1) for each in written]
    desk.finished(group, name, at=3)


@basic
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_of_every_codec_are_opened(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics, codec: str
) -> None:
    name = topic()
    values = [b"%05d" % number * 20 for number in range(200)]
    topics.produce(name, [Record(None, value) for value in values], compression=codec)
    found = handled(members.join(desk.group(), name), len(values))
    assert [each.value for each in found] == values


def test_records_of_10_mb_come(desk: Desk, members: Members, topic: TopicFactory) -> None:
    name, group = topic(config={"max.message.bytes": str(BIG + 1_000_000)}), desk.group()
    size = {"message.max.bytes": BIG + 500_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": desk.servers, **size})
    values = [bytes([number]) * BIG for number in (1, 2, 3)]
    for value in values:
        producer.produce(name, value, partition=0)
    assert producer.flush(WAIT_S) == 0
    found = handled(members.join(group, name), len(values))
    assert [each.value for each in found] == values


@basic
def test_implicit_members_accept_what_they_polled(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(partitions=2), desk.group()
    for partition in (0, 1):
        topics.produce(name, 600, partition=partition)
    consumer = members.join(group, name, share_acknowledgement_mode="implicit")
    found = polled(consumer, 1_200)
    assert Counter((each.partition, each.offset) for each in found) == Counter(
        itertools.product((0, 1), range(600))
    )
    with pytest.raises(JavaError, match="IllegalState"):
        consumer.acknowledge(found[-1])
    assert set(consumer.commit_sync().values()) == {None}
    assert {(each.start_offset, each.lag) for each in desk.offsets(group, name).values()} == {
        (600, 0)
    }


@basic
def test_released_records_come_again_and_rejected_ones_do_not(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group(share_delivery_count_limit=3)
    topics.produce(name, 9)

    def kind_of(record: JavaRecord) -> int:
        return (ACCEPT, REJECT, RELEASE)[record.offset % 3]

    found = handled(members.join(group, name), 6 + 3 * 3, kind_of)
    counts = {offset: [r.delivery for r in found if r.offset == offset] for offset in range(9)}
    assert counts == {offset: [1, 2, 3] if offset % 3 == 2 else [1] for offset in range(9)}
    desk.finished(group, name, at=9)


def test_the_callback_hears_of_each_record_once(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group()
    topics.produce(name, 300)
    consumer = members.join(group, name, max_poll_records=50)
    # What it throws is the client's business.
    consumer.call("listen", throws=True)
    ways = itertools.cycle([consumer.commit_sync, consumer.commit_async, lambda: None])
    came = 0

    def all_came() -> bool:
        nonlocal came
        for record in consumer.poll(0.5):
            consumer.acknowledge(record)
            came += 1
        next(ways)()
        return came >= 300

    eventually(all_came, WAIT_S, what="all records")
    consumer.commit_sync()
    consumer.close()
    heard = Counter((each.topic, each.offset, each.error) for each in consumer.heard)
    assert heard == Counter((name, offset, None) for offset in range(300))


def test_a_renewed_lock_outlives_its_duration(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name = topic()
    group = desk.group(share_record_lock_duration_ms=SHORT_LOCK_MS)
    topics.produce(name, 1)
    consumer = members.join(group, name)
    (record,) = polled(consumer)
    assert consumer.lock_duration_ms() == SHORT_LOCK_MS
    start_s = time.monotonic()

    def renewed_for_long() -> bool:
        nonlocal record
        consumer.acknowledge(record, RENEW)
        assert set(consumer.commit_sync().values()) == {None}
        (record,) = polled(consumer)
        assert record.delivery == 1
        return time.monotonic() - start_s > 2 * SHORT_LOCK_MS / 1000

    # Each turn is far within the lock; the lock would have ended twice by the end.
    eventually(renewed_for_long, WAIT_S, what="renewals over two durations")
    consumer.acknowledge(record, RENEW)
    (record,) = polled(consumer)
    consumer.acknowledge(record)
    assert consumer.commit_sync() == {(name, 0): None}
    assert {each.error for each in consumer.heard} == {None}
    desk.finished(group, name, at=1)


def test_a_lock_that_ends_is_another_delivery_and_a_late_word_is_refused(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name = topic()
    group = desk.group(share_record_lock_duration_ms=1_000)
    topics.produce(name, 3)
    late = members.join(group, name, share_acquire_mode="record_limit")
    held = polled(late)
    desk_group = members.join(group, name)
    again = handled(desk_group, 3)
    assert {each.offset: each.delivery for each in again} == {
        offset: 2 if offset < len(held) else 1 for offset in range(3)
    }
    late.acknowledge(held[0])
    # Finished by the other one, and below the start offset: nothing to complain of.
    desk.finished(group, name, at=3)
    assert late.commit_sync() == {(name, 0): None}
    topics.produce(name, 2)
    for record in held[1:]:
        late.acknowledge(record)
    late.commit_sync()
    first, *_ = polled(late)
    (other, *_) = handled(desk_group, 1, lambda _: RELEASE)
    assert (first.offset, other.delivery) == (3, 2)
    late.heard.clear()
    late.acknowledge(first)
    assert late.commit_sync() == {(name, 0): "INVALID_RECORD_STATE"}
    assert {each.error for each in late.heard} == {"INVALID_RECORD_STATE"}


def test_a_wakeup_ends_a_poll_and_loses_nothing(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name = topic()
    consumer = members.join(desk.group(), name)
    consumer.poll(0.1)
    polling = consumer.begin("poll", timeout_ms=50_000)
    consumer.wakeup()
    with pytest.raises(JavaError, match="Wakeup"):
        consumer.answer_to(polling)
    topics.produce(name, 5)
    assert [each.delivery for each in handled(consumer, 5)] == [1] * 5


def test_a_record_without_a_word_keeps_the_member_from_polling(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name = topic()
    topics.produce(name, 2)
    consumer = members.join(desk.group(), name)
    first, second = polled(consumer)
    consumer.acknowledge(first)
    with pytest.raises(JavaError, match="IllegalState"):
        consumer.poll(0.1)
    consumer.acknowledge(second)
    assert consumer.commit_sync() == {(name, 0): None}


@basic
@pytest.mark.parametrize("way", ["close", "unsubscribe", "kill"])
def test_what_a_member_leaves_behind_comes_again(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics, way: str
) -> None:
    # A member that has no subscription keeps its locks until they end, as at a broker.
    lock_ms = SHORT_LOCK_MS if way == "unsubscribe" else LOCK_MS
    name, group = topic(), desk.group(share_record_lock_duration_ms=lock_ms)
    topics.produce(name, 4)
    program = JavaProgram(members._program.version) if way == "kill" else None
    if program is None:
        gone = members.join(group, name)
    else:
        gone = program.consumer("killed", members.config(group))
        gone.subscribe(name)
    first, *_ = polled(gone)
    gone.acknowledge(first)
    assert gone.commit_sync() == {(name, 0): None}
    if program is not None:
        program.kill()
    else:
        gone.call(way, timeout_ms=20_000)
    again = handled(members.join(group, name), 3)
    assert [(each.offset, each.delivery) for each in again] == [(1, 2), (2, 2), (3, 2)]
    desk.finished(group, name, at=4)


def test_another_subscription_sends_what_was_said_of_the_former_one(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, other, group = topic(), topic(), desk.group()
    topics.produce(name, 4)
    topics.produce(other, 1)
    consumer = members.join(group, name)
    for record in polled(consumer):
        consumer.acknowledge(record)
    consumer.subscribe(other)
    assert [each.topic for each in handled(consumer, 1)] == [other]
    desk.finished(group, name, at=4)


@pytest.mark.parametrize(
    ("mode", "sizes"), [("record_limit", [7, 7, 6]), ("batch_optimized", [20])]
)
def test_max_poll_records_is_exact_or_rounded_up(
    desk: Desk,
    members: Members,
    topic: TopicFactory,
    topics: Topics,
    mode: str,
    sizes: list[int],
) -> None:
    name = topic()
    topics.produce(name, 20)
    consumer = members.join(desk.group(), name, max_poll_records=7, share_acquire_mode=mode)
    found: list[int] = []

    def all_came() -> bool:
        records = consumer.poll(0.5)
        for record in records:
            consumer.acknowledge(record)
        found.extend([len(records)] * bool(records))
        return sum(found) >= 20

    eventually(all_came, WAIT_S, what="all records")
    assert found == sizes


def test_read_committed_passes_over_aborted_records(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group(share_isolation_level="read_committed")
    topics.produce_transaction(name, 5, commit=True)
    topics.produce_transaction(name, 5, commit=False)
    topics.produce(name, 3)
    found = handled(members.join(group, name), 8)
    assert [each.offset for each in found] == [*range(5), *range(12, 15)]
    desk.finished(group, name, at=15)


def test_added_partitions_are_read(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group()
    topics.produce(name, 2)
    consumer = members.join(group, name)
    handled(consumer, 2)
    wanted = [NewPartitions(name, 3)]
    admin = KafkaAdmin({"bootstrap.servers": desk.servers})
    admin.create_partitions(wanted)[name].result(WAIT_S)
    # A producer of its own: an older one does not know of them yet.
    fresh = Topics(desk.servers)
    for partition in (1, 2):
        fresh.produce(name, 3, partition=partition)
    found = handled(consumer, 6)
    assert {(each.partition, each.offset) for each in found} == set(
        itertools.product((1, 2), range(3))
    )


def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group()
    topics.produce(name, 4)
    consumer = members.join(group, name)
    handled(consumer, 4)
    topics.delete(name)
    topics.create(name)
    topics.produce(name, [Record(b"new", b"%d" % number) for number in range(3)])
    found = handled(consumer, 3)
    assert [(each.key, each.offset, each.delivery) for each in found] == [
        (b"new", offset, 1) for offset in range(3)
    ]


def test_metrics_count_what_came_and_what_was_said(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name = topic()
    topics.produce(name, 40)
    consumer = members.join(desk.group(), name)
    handled(consumer, 40)
    metrics = consumer.metrics()
    assert float(metrics["records-consumed-total"]) == 40
    assert float(metrics["acknowledgements-send-total"]) == 40
    assert float(metrics["acknowledgements-error-total"]) == 0
    assert float(metrics["fetch-throttle-time-max"]) == 0


@basic
def test_members_go_on_after_a_crash_of_the_coordinator(
    desk: Desk, members: Members, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), desk.group()
    topics.produce(name, 20, one_record_batches=True)
    consumer = members.join(group, name, max_poll_records=5, share_acquire_mode="record_limit")
    before = polled(consumer)
    for record in before:
        consumer.acknowledge(record)
    assert consumer.commit_sync() == {(name, 0): None}
    desk.coordinator.kill()
    desk.coordinator.restart()
    after = handled(consumer, 20 - len(before))
    assert {each.offset for each in after} == set(range(len(before), 20))
    desk.finished(group, name, at=20)
