"""What Kafka does under a share group: transactions, retention, compaction, topics that change.

The coordinator looks at known topics every 2 s and at their log starts every 30 s, here every 3 s
(the long form, in tests/differential, waits for its own). The changes that have to wait for a look
are all made by one fixture (`changes`), so that the tests wait for the same look.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewPartitions
from sharecoord_sdk import AdminClient, Message, ShareConsumer, TopicPartition
from sharecoord_sdk.admin import PartitionOffsets

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Record, Topics
from tests.support import KafkaUnderTest, eventually, unique_name

WATCH_S = 45.0
"""The 30 s between two looks at log starts, and the work after one."""

LOOKS_OFTEN = (
    "import sys; from sharecoord.runtime import coordinator; "
    "coordinator.LOG_START_INTERVAL_S = 3.0; "
    "from sharecoord.cli.main import main; sys.exit(main())"
)
"""`sharecoord`, with a tenth of the time between two looks at log starts."""

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
EXPLICIT = {"share.acknowledgement.mode": "explicit"}

TopicFactory = Callable[..., str]


class Groups:
    """Consumers and admin calls on one coordinator; everything is closed at the end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stack = ExitStack()
        self._admin = self._stack.enter_context(AdminClient({"bootstrap.servers": address}))

    def close(self) -> None:
        self._stack.close()

    def new(self, **settings: object) -> str:
        """A group that does not exist yet, with settings (`_` stands for `.`)."""
        group = unique_name("g")
        if settings:
            self.alter(group, **settings)
        return group

    def alter(self, group: str, **settings: object) -> None:
        """Sets settings of a group."""
        values = {name.replace("_", "."): value for name, value in settings.items()}
        self._admin.alter_group_configs(group, values)

    def consumer(self, group: str, topic: str, **config: object) -> ShareConsumer:
        """A member that is subscribed."""
        own = {"bootstrap.servers": self._address, "group.id": group, **config}
        consumer = ShareConsumer(own)
        self._stack.callback(consumer.close)
        consumer.subscribe([topic])
        return consumer

    def offsets(self, group: str, topic: str) -> dict[int, PartitionOffsets]:
        """By partition; raises while the group is not there."""
        (found,) = self._admin.describe_groups([group])
        if found.error is not None:
            raise found.error
        return {p.partition: p for p in found.offsets if p.topic == topic}

    def started(self, group: str, topic: str, count: int = 1) -> bool:
        """Whether so many partitions of the topic have a start offset."""
        known = self.offsets(group, topic).values()
        return sum(1 for p in known if p.start_offset is not None) == count

    def finished(self, group: str, topic: str, *, at: int) -> None:
        """Waits until everything below `at`, the log end, is finished: no lag."""

        def done() -> bool:
            place = self.offsets(group, topic)[0]
            return (place.start_offset, place.log_end_offset, place.lag) == (at, at, 0)

        eventually(done, 15, what=f"{topic} finished at {at}")


@pytest.fixture(scope="module")
def coordinator(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(
        kafka_broker.bootstrap_servers,
        tmp_path_factory.mktemp("coordinator"),
        program=[sys.executable, "-c", LOOKS_OFTEN, "serve"],
    ) as process:
        yield process


@pytest.fixture
def groups(coordinator: CoordinatorProcess) -> Iterator[Groups]:
    with closing(Groups(coordinator.address)) as made:
        yield made


def take(consumer: ShareConsumer, at_most: int) -> list[Message]:
    """What there is: polls (in implicit mode) until nothing comes, or enough did."""
    found: list[Message] = []
    while len(found) < at_most and (batch := list(consumer.poll(0.2))):
        for message in batch:
            assert message.error() is None, message.error()
        found += batch
    return found


def drain(consumer: ShareConsumer, count: int, deadline_s: float = 20.0) -> list[Message]:
    """Polls until `count` messages came, and confirms them (in implicit mode)."""
    found: list[Message] = []

    def enough() -> bool:
        found.extend(take(consumer, count - len(found)))
        return len(found) >= count

    eventually(enough, deadline_s, what=f"{count} messages")
    outcome = consumer.commit_sync(timeout=20.0)
    assert all(error is None for error in outcome.values()), outcome
    return found


def offsets_of(messages: list[Message]) -> list[int | None]:
    return [message.offset() for message in messages]


# -- transactions ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactional(topics: Topics) -> Iterator[str]:
    """10 plain, 10 committed, 10 aborted, 5 committed, 5 aborted; a control record behind each."""
    name = unique_name("txn")
    topics.create(name)
    topics.produce(name, 10)
    for count, commit in ((10, True), (10, False), (5, True), (5, False)):
        topics.produce_transaction(name, count, commit=commit)
    yield name
    topics.delete(name)


PLAIN_AND_COMMITTED = [*range(20), *range(32, 37)]
ABORTED = [*range(21, 31), *range(38, 43)]
TRANSACTIONS_END = 44


def test_read_committed_passes_over_aborted_data_and_control_records(
    groups: Groups, transactional: str
) -> None:
    group = groups.new(share_isolation_level="read_committed")
    got = drain(groups.consumer(group, transactional), len(PLAIN_AND_COMMITTED))
    assert offsets_of(got) == PLAIN_AND_COMMITTED
    groups.finished(group, transactional, at=TRANSACTIONS_END)


def test_read_uncommitted_delivers_aborted_data_but_no_control_record(
    groups: Groups, transactional: str
) -> None:
    group = groups.new(share_isolation_level="read_uncommitted")
    expected = sorted(PLAIN_AND_COMMITTED + ABORTED)
    got = drain(groups.consumer(group, transactional), len(expected))
    assert offsets_of(got) == expected
    groups.finished(group, transactional, at=TRANSACTIONS_END)


def test_read_committed_goes_on_behind_a_transaction_that_ends_later(
    kafka_broker: KafkaUnderTest, groups: Groups, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), groups.new(share_isolation_level="read_committed")
    topics.produce(name, 3)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": name}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    assert producer.flush(20) == 0
    topics.produce(name, 3)
    consumer = groups.consumer(group, name)
    assert offsets_of(drain(consumer, 3)) == [0, 1, 2]
    # The end for lag is the last stable offset: what stands behind it can not be read yet.
    groups.finished(group, name, at=3)
    producer.commit_transaction(20)
    assert offsets_of(drain(consumer, 4)) == [3, 4, 5, 6]
    groups.finished(group, name, at=8)


# -- changes that wait for the coordinator's next look --------------------------------------------


@dataclass(frozen=True)
class Trimmed:
    """Records 0 to 59 of 100 were deleted while the group had no member and nothing finished."""

    topic: str
    group: str


@dataclass(frozen=True)
class Widened:
    """A second partition was added, and filled at once."""

    topic: str
    group: str
    consumer: ShareConsumer


@dataclass(frozen=True)
class Recreated:
    """The topic was deleted and made again; `held` of the old one were not acknowledged."""

    topic: str
    group: str
    former_topic_id: str
    holder: ShareConsumer
    held: list[Message]
    reader: ShareConsumer


@dataclass(frozen=True)
class Changes:
    trimmed: Trimmed
    widened: Widened
    recreated: Recreated


@pytest.fixture(scope="module")
def changes(
    coordinator: CoordinatorProcess, kafka_broker: KafkaUnderTest, topics: Topics
) -> Iterator[Changes]:
    groups = Groups(coordinator.address)
    trimmed, widened = _filled(groups, topics, "trim"), _latest(groups, topics)
    recreated = _held(groups, topics)
    topics.delete_records(trimmed.topic, {0: 60})
    admin = KafkaAdmin({"bootstrap.servers": kafka_broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(widened.topic, 2)])[widened.topic].result(20)
    eventually(lambda: _has_leader(admin, widened.topic, 1), 10, what="partition 1 has a leader")
    topics.produce(widened.topic, 50, partition=1)
    topics.delete(recreated.topic)
    topics.create(recreated.topic)
    topics.produce(recreated.topic, [(None, b"new-%d" % i, ()) for i in range(30)])
    yield Changes(trimmed, widened, recreated)
    groups.close()
    topics.delete(trimmed.topic, widened.topic, recreated.topic)


def _has_leader(admin: KafkaAdmin, topic: str, partition: int) -> bool:
    known = admin.list_topics(topic, timeout=5).topics[topic].partitions
    return partition in known and known[partition].leader >= 0


def _filled(groups: Groups, topics: Topics, prefix: str) -> Trimmed:
    name, group = unique_name(prefix), groups.new()
    topics.create(name)
    topics.produce(name, 100)
    consumer = groups.consumer(group, name, **EXPLICIT, **{"max.poll.records": 10})
    eventually(lambda: consumer.poll(0.2), 10, what="first records")
    consumer.close()
    return Trimmed(name, group)


def _latest(groups: Groups, topics: Topics) -> Widened:
    name, group = unique_name("wide"), groups.new(share_auto_offset_reset="latest")
    topics.create(name)
    consumer = groups.consumer(group, name)
    eventually(lambda: groups.started(group, name), 10, what="start offsets")
    return Widened(name, group, consumer)


def _held(groups: Groups, topics: Topics) -> Recreated:
    name, group = unique_name("again"), groups.new()
    topics.create(name)
    topics.produce(name, [(None, b"old-%d" % i, ()) for i in range(50)])
    holder = groups.consumer(group, name, **EXPLICIT)
    held = eventually(lambda: list(holder.poll(0.2)), 10, what="old records")
    holder.pause([TopicPartition(name, 0)])
    reader = groups.consumer(group, name)
    former = groups.offsets(group, name)[0].topic_id
    return Recreated(name, group, former, holder, held, reader)


def test_what_retention_takes_away_is_noticed_without_members(
    changes: Changes, groups: Groups
) -> None:
    trimmed = changes.trimmed

    def moved() -> bool:
        place = groups.offsets(trimmed.group, trimmed.topic)[0]
        return (place.start_offset, place.lag) == (60, 40)

    eventually(moved, WATCH_S, what="the start follows the log start")
    consumer = groups.consumer(trimmed.group, trimmed.topic)
    assert offsets_of(drain(consumer, 40)) == list(range(60, 100))
    groups.finished(trimmed.group, trimmed.topic, at=100)


def test_an_added_partition_is_read_from_0_by_a_group_that_starts_at_latest(
    changes: Changes, groups: Groups
) -> None:
    widened = changes.widened
    got = drain(widened.consumer, 50, WATCH_S)
    assert [(m.partition(), m.offset()) for m in got] == [(1, i) for i in range(50)]
    lags = {p: each.lag for p, each in groups.offsets(widened.group, widened.topic).items()}
    assert lags == {0: 0, 1: 0}


def test_a_topic_made_again_is_read_from_0_and_its_former_life_is_over(
    changes: Changes, groups: Groups
) -> None:
    recreated = changes.recreated
    got: list[Message] = []

    def all_new() -> bool:
        got.extend(recreated.reader.poll(0.2))
        return sum(1 for m in got if m.value().startswith(b"new-")) >= 30

    eventually(all_new, 75, what="the records of the new topic")
    recreated.reader.commit_sync(timeout=20.0)
    # It had what nobody held of the old topic before that was deleted.
    old = [m for m in [*recreated.held, *got] if m.value().startswith(b"old-")]
    assert max(Counter(offsets_of(old)).values()) == 1
    new = got[-30:]
    assert [m.value() for m in new] == [b"new-%d" % i for i in range(30)]
    assert offsets_of(new) == list(range(30))
    for message in recreated.held:
        recreated.holder.acknowledge(message)
    (error,) = recreated.holder.commit_sync(timeout=20.0).values()
    assert error is not None
    groups.finished(recreated.group, recreated.topic, at=30)
    now = groups.offsets(recreated.group, recreated.topic)[0].topic_id
    assert now not in {"", recreated.former_topic_id}


def test_nothing_of_a_topic_made_again_passes_for_a_record_of_its_former_life(
    kafka_broker: KafkaUnderTest, topics: Topics, tmp_path: Path
) -> None:
    name = unique_name("again")
    topics.create(name)
    topics.produce(name, 20)
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as process:
        groups = Groups(process.address)
        consumer = groups.consumer(groups.new(), name)
        assert offsets_of(drain(consumer, 20)) == list(range(20))
        # Stopped, the coordinator sees no moment without the topic, as when it is busy.
        os.kill(process.pid, signal.SIGSTOP)
        try:
            topics.delete(name)
            topics.create(name)
            topics.produce(name, [(None, b"new-%d" % i, ()) for i in range(30)])
        finally:
            os.kill(process.pid, signal.SIGCONT)
        try:
            got = drain(consumer, 1, WATCH_S)
            assert got[0].offset() == 0
            got += drain(consumer, 30 - len(got))
            assert [m.value() for m in got] == [b"new-%d" % i for i in range(30)]
        finally:
            groups.close()
            topics.delete(name)


# -- log start, out of range ----------------------------------------------------------------------


def test_a_start_of_the_coordinator_goes_on_at_the_log_start(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name = topic()
    topics.produce(name, 100)
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as process:
        groups = Groups(process.address)
        group = groups.new()
        first = groups.consumer(group, name, **{"max.poll.records": 10})
        assert offsets_of(drain(first, 10)) == list(range(10))
        first.close()
        process.kill()
        topics.delete_records(name, {0: 60})
        process.restart()
        second = groups.consumer(group, name)
        assert offsets_of(drain(second, 40)) == list(range(60, 100))
        groups.finished(group, name, at=100)
        groups.close()


def test_a_read_below_the_log_start_goes_on_at_the_log_start_at_once(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, total, kept = topic(), 4_000, 10
    topics.produce(name, total, value_bytes=10_000)
    # Little is read ahead, so that most of the log is not in memory when it is deleted.
    settings = {"kafka.queued.min.messages": 1, "kafka.fetch.message.max.bytes": 50_000}
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path, settings=settings) as process:
        groups = Groups(process.address)
        group = groups.new(share_partition_max_record_locks=100)
        consumer = groups.consumer(group, name, **{"max.poll.records": 10})
        seen = Counter(offsets_of(drain(consumer, 10)))
        topics.delete_records(name, {0: total - kept})

        def last_came() -> bool:
            seen.update(offsets_of(take(consumer, total)))
            return set(range(total - kept, total)) <= seen.keys()

        eventually(last_came, 20, what="the records behind the log start")
        consumer.commit_sync(timeout=20.0)
        assert set(seen.values()) == {1}
        assert len(seen) < total - kept
        groups.finished(group, name, at=total)
        groups.close()


# -- where a group starts -------------------------------------------------------------------------


def test_a_topic_made_after_the_subscription_is_delivered_at_once(
    groups: Groups, topics: Topics
) -> None:
    name, group = unique_name("later"), groups.new()
    consumer = groups.consumer(group, name)
    assert list(consumer.poll(0)) == []
    topics.create(name)
    try:
        topics.produce(name, 20)
        start_s = time.monotonic()
        assert offsets_of(drain(consumer, 20, 5.0)) == list(range(20))
        assert time.monotonic() - start_s < 3.0
    finally:
        topics.delete(name)


@pytest.mark.parametrize(
    ("reset", "first"),
    [("earliest", 0), ("by_duration:PT1H", 10), ("by_duration:P3D", 0), ("by_duration:PT1S", 20)],
)
def test_start_offsets(
    groups: Groups, topic: TopicFactory, topics: Topics, reset: str, first: int
) -> None:
    name, group = topic(), groups.new(share_auto_offset_reset=reset)
    now_ms = int(time.time() * 1000)
    ages_ms = [DAY_MS] * 10 + [HOUR_MS // 2] * 10
    topics.produce(name, [Record(None, b"v", (), now_ms - age) for age in ages_ms])
    consumer = groups.consumer(group, name)
    eventually(lambda: groups.started(group, name), 10, what="start offset")
    topics.produce(name, 5)
    assert offsets_of(drain(consumer, 25 - first)) == list(range(first, 25))
    groups.finished(group, name, at=25)


def test_latest_starts_behind_what_is_there_and_only_the_first_time(
    groups: Groups, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), groups.new(share_auto_offset_reset="latest")
    topics.produce(name, 20)
    consumer = groups.consumer(group, name)
    eventually(lambda: groups.started(group, name), 10, what="start offset")
    topics.produce(name, 5)
    assert offsets_of(drain(consumer, 5)) == list(range(20, 25))
    consumer.close()
    topics.produce(name, 5)
    assert offsets_of(drain(groups.consumer(group, name), 5)) == list(range(25, 30))


# -- compaction -----------------------------------------------------------------------------------

COMPACTED: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}


def test_holes_of_compaction_are_passed_over(
    kafka_broker: KafkaUnderTest, groups: Groups, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(config=COMPACTED), groups.new()
    left: list[int] = []

    def has_holes() -> bool:
        # Only closed segments are compacted, and a segment is closed by a later append.
        topics.produce(name, [(b"k%d" % (i % 5), b"v", ()) for i in range(100)])
        left[:] = _offsets_in_log(kafka_broker.bootstrap_servers, name)
        return len(left) <= left[-1]

    eventually(has_holes, 30, what="compaction removed something")
    end = left[-1] + 1
    got: list[int] = []
    consumer = groups.consumer(group, name)

    def everything() -> bool:
        got.extend(o for o in offsets_of(take(consumer, end)) if o is not None)
        return end - 1 in got

    eventually(everything, 20, what=f"the last of {len(left)} records below {end}")
    consumer.commit_sync(timeout=20.0)
    assert got == sorted(set(got))
    # Compaction may have gone on since the log was read; it never brings a record back.
    assert set(got) <= set(left)
    assert set(_offsets_in_log(kafka_broker.bootstrap_servers, name)) <= set(got)
    groups.finished(group, name, at=end)


def _offsets_in_log(bootstrap_servers: str, topic: str) -> list[int]:
    """The offsets that a plain consumer finds."""
    config = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(config)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[int] = []
    try:
        while True:
            for message in consumer.consume(1_000, 0.1):
                error, offset = message.error(), message.offset()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                    return found
                assert offset is not None
                found.append(offset)
    finally:
        consumer.close()


# -- the broker dies ------------------------------------------------------------------------------


@pytest.mark.kafka
def test_kill_9_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "coordinator"
    directory.mkdir()
    with (
        KafkaBroker() as broker,
        CoordinatorProcess(broker.bootstrap_servers, directory) as process,
    ):
        topics, groups = Topics(broker.bootstrap_servers), Groups(process.address)
        name, group = unique_name("t"), groups.new()
        topics.create(name)
        topics.produce(name, 3_000)
        consumer = groups.consumer(group, name, **{"max.poll.records": 50})
        seen = Counter(offsets_of(drain(consumer, 1_000)))
        broker.kill()
        broker.start()
        topics.produce(name, 2_000)

        def all_came() -> bool:
            seen.update(offsets_of(take(consumer, 5_000)))
            return len(seen) >= 5_000

        eventually(all_came, 40, what="5,000 records")
        consumer.commit_sync(timeout=20.0)
        assert set(seen) == set(range(5_000))
        assert set(seen.values()) == {1}
        groups.finished(group, name, at=5_000)
        groups.close()
