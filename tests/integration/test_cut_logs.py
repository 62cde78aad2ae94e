"""A real log that loses its end to an unclean election, and grows again before anybody looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sharecoord_sdk import AdminClient as GroupAdmin
from sharecoord_sdk import ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.kafka_cluster import KafkaCluster
from sharecoord.devenv.topics import Topics
from tests.support import eventually, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(300)]

PATIENCE_S = 90.0
BOTH, LOST, NEW = 100, 50, 80
"""Records that both replicas have; that only the one has that dies; that come in their place."""


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    """A cluster of three; broker 1 is the controller."""
    with KafkaCluster(3) as cluster:
        yield cluster


@pytest.fixture
def paired(three: KafkaCluster) -> tuple[str, Topics]:
    """A topic on brokers 2 and 3, whichever of them is left may lead."""
    name = unique_name("cut")
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers, "log_level": 0})
    config = {"unclean.leader.election.enable": "true"}
    topic = NewTopic(name, 1, replica_assignment=[[2, 3]], config=config)
    admin.create_topics([topic])[name].result(30)
    return name, Topics(three.bootstrap_servers)


def texts(kind: str, count: int) -> list[tuple[None, bytes, None]]:
    return [(None, f"{kind} {n}".encode(), None) for n in range(count)]


def work_off(coordinator: CoordinatorProcess, group: str, topic: str, until: set[str]) -> list[str]:
    """What a consumer gets and accepts, until it has all of these."""
    got: list[str] = []
    config = {"bootstrap.servers": coordinator.address, "group.id": group}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])

        def has_all() -> bool:
            got.extend((message.value() or b"").decode() for message in consumer.poll(0.5))
            consumer.commit_sync(10)
            return until <= set(got)

        eventually(has_all, PATIENCE_S, what=f"{len(until)} records")
    return got


def state_of(coordinator: CoordinatorProcess, group: str) -> tuple[int, int | None]:
    """Start offset, and leader epoch before the window's end."""
    with GroupAdmin({"bootstrap.servers": coordinator.address}) as admin:
        (found,) = admin.describe_groups([group])
    (part,) = found.offsets
    assert part.start_offset is not None
    return part.start_offset, part.leader_epoch


@pytest.mark.parametrize("is_away", [False, True])
def test_what_came_in_the_place_of_finished_records_is_delivered(
    three: KafkaCluster,
    paired: tuple[str, Topics],
    tmp_path: Path,
    is_away: bool,
) -> None:
    """While the coordinator reads, and while it is away."""
    (topic, topics), group = paired, unique_name("g")
    settings = {"kafka.reader": "raw"}
    coordinator = CoordinatorProcess(three.bootstrap_servers, tmp_path, settings=settings)
    coordinator.start()
    try:
        topics.produce(topic, texts("both", BOTH))
        three.broker(3).kill()
        topics.produce(topic, texts("lost", LOST))
        before = {f"both {n}" for n in range(BOTH)} | {f"lost {n}" for n in range(LOST)}
        assert len(work_off(coordinator, group, topic, before)) == BOTH + LOST
        end, epoch = state_of(coordinator, group)
        assert end == BOTH + LOST
        if is_away:
            coordinator.kill()
        three.broker(2).kill()
        three.broker(3).start()
        # Another producer: the first one's sequence is behind what the log has.
        Topics(three.bootstrap_servers).produce(topic, texts("new", NEW))
        # librdkafka, which tells log ends, waits for the broker that it took for the controller.
        three.broker(2).start()
        if is_away:
            coordinator.restart()
        after = {f"new {n}" for n in range(NEW)}
        assert sorted(work_off(coordinator, group, topic, after)) == sorted(after)
        end, epoch_since = state_of(coordinator, group)
        assert end == BOTH + NEW
        assert epoch is not None
        assert epoch_since is not None
        assert epoch_since > epoch
    finally:
        coordinator.stop()
        for node_id in (2, 3):
            if not three.broker(node_id).running:
                three.broker(node_id).start()
