"""Where a coordinator differs from Kafka's own share groups on purpose: each difference is shown.

docs/differences.md lists them with these tests. The scripts of `test_scripts.py` stay clear of
them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import sharecoord_sdk
from sharecoord_sdk import AdminClient
from sharecoord_sdk.admin import GroupNotEmptyError, ResetTo

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.broker_config import FAST_SHARE_GROUPS
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.conftest import TopicFactory
from tests.differential.kafka_offsets import OffsetsError, alter_share_group_offsets
from tests.differential.kafka_offsets import Place as Standing
from tests.differential.members import ACCEPT, RELEASE, Member, Seen
from tests.differential.player import log_end
from tests.differential.sides import KafkaSide, OurSide, Side, join
from tests.support import KafkaUnderTest, eventually, unique_name

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
LOCK_MS = 60_000
"""As long as Kafka lets it be: no lock ends for the mere reason that the machine is slow."""
NON_EMPTY_GROUP = 68
HEARTBEAT_S = int(FAST_SHARE_GROUPS["group.share.heartbeat.interval.ms"]) / 1000


class Stage:
    """Groups and members on both sides; members that are still there are closed at the end."""

    def __init__(self, kafka: KafkaSide, ours: OurSide, topics: Topics, stack: ExitStack) -> None:
        self.kafka, self.ours, self.topics = kafka, ours, topics
        self._stack = stack
        self._names = (f"m{number}" for number in itertools.count())

    @property
    def sides(self) -> tuple[Side, Side]:
        """Kafka first."""
        return self.kafka, self.ours

    def group(self, side: Side, **settings: object) -> str:
        """A new group that starts at the beginning; `_` in names stands for `.`."""
        group = unique_name("g")
        given = {name.replace("_", "."): str(value) for name, value in settings.items()}
        usual = {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": str(LOCK_MS),
        }
        side.configure(group, {**usual, **given})
        return group

    def join(self, side: Side, group: str, topic: str, take: int = 500, **more: Any) -> Member:
        """A member; see `sides.join`."""
        config = {"max.poll.records": take}
        name = f"{side.name}-{next(self._names)}"
        member = join(side, group, name, topic, config=config, **more)
        self._stack.callback(_close_quietly, member)
        return member


def _close_quietly(member: Member) -> None:
    try:
        member.close()
    except (OSError, ValueError):
        pass  # it was closed or killed by its test


def take(member: Member, count: int, kind: int | None = ACCEPT) -> list[Seen]:
    """Polls until so many records came, each of which is acknowledged; not at all with None."""
    found: list[Seen] = []

    def enough() -> bool:
        seen = member.poll(0.1)
        found.extend(seen)
        if seen and kind is not None:
            for one in seen:
                member.acknowledge(one.place, kind)
            assert set(member.commit().values()) == {None}
        return len(found) >= count

    eventually(enough, WAIT_S, what=f"{count} records at {member.name}")
    return found


def _first_of(consumer: Any) -> Any:
    """The first message that a consumer of either client polls."""
    return eventually(lambda: list(consumer.poll(0.1)), WAIT_S)[0]


@pytest.fixture
def stage(
    kafka_broker: KafkaUnderTest, coordinator: CoordinatorProcess, topics: Topics
) -> Iterator[Stage]:
    with ExitStack() as stack:
        kafka, ours = KafkaSide(kafka_broker.bootstrap_servers), OurSide(coordinator.address)
        yield Stage(kafka, ours, topics, stack)


def test_a_poll_returns_at_most_max_poll_records(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 30)
    first = [
        take(stage.join(side, stage.group(side), name, take=5), 1, None) for side in stage.sides
    ]
    # Kafka rounds up to the end of the log's batch; here the limit is strict.
    assert [len(seen) for seen in first] == [30, 5]


def test_locks_and_counts_survive_a_crash(tmp_path: Path) -> None:
    """kill -9 of what keeps the locks: Kafka's broker forgets them, the coordinator does not."""
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker(settings=FAST_SHARE_GROUPS))
        process = stack.enter_context(CoordinatorProcess(broker.bootstrap_servers, tmp_path))
        topics, name = Topics(broker.bootstrap_servers), unique_name("t")
        kafka, ours = KafkaSide(broker.bootstrap_servers), OurSide(process.address)
        stage = Stage(kafka, ours, topics, stack)
        topics.create(name)
        topics.produce(name, 10, one_record_batches=True)
        groups = {
            kafka: stage.group(kafka),
            ours: stage.group(ours, share_record_lock_duration_ms=60 * LOCK_MS),
        }
        holders = {side: stage.join(side, groups[side], name, take=5) for side in stage.sides}
        held = {side: take(holders[side], 1, None) for side in stage.sides}
        process.kill()
        broker.kill()
        broker.start()
        process.restart()
        again = take(stage.join(kafka, groups[kafka], name), 10)
        assert {one.place for one in held[kafka]} <= {one.place for one in again}
        assert {one.delivery for one in again} == {1}
        rest = take(stage.join(ours, groups[ours], name), 10 - len(held[ours]))
        assert not {one.place for one in held[ours]} & {one.place for one in rest}
        for one in held[ours]:
            holders[ours].acknowledge(one.place, ACCEPT)
        assert holders[ours].commit() == {0: None}


def test_what_nobody_saw_is_handed_back_uncounted(stage: Stage, topic: TopicFactory) -> None:
    def count_after_close(side: Side, *, arrived: bool) -> int:
        name, group = topic(), stage.group(side)
        first = stage.join(side, group, name)
        stage.topics.produce(name, 1)
        take(first, 1)
        first.poll(0.05)  # leaves a fetch under way
        stage.topics.produce(name, 1)
        if arrived:
            eventually(lambda: side.holds_only(group, first.name, 1), WAIT_S)
        first.close()
        (seen,) = take(stage.join(side, group, name), 1)
        return seen.delivery

    # On Kafka it is chance whether the fetch was under way when the record was written.
    eventually(lambda: count_after_close(stage.kafka, arrived=False) == 2, 60.0)
    assert count_after_close(stage.ours, arrived=True) == 1


def test_offsets_without_a_record_are_nobodys_business(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce_transaction(name, 3, commit=True)
    # The control record is written after the commit was confirmed.
    eventually(lambda: log_end(stage.kafka.address, name, 0) == 4, WAIT_S)
    heard: list[set[int]] = []
    for side in stage.sides:
        member = stage.join(side, stage.group(side), name)
        take(member, 3)
        heard.append({confirmed.place[1] for confirmed in member.confirmations()})
    # Kafka's client acknowledges the control record, and its program hears of it.
    assert heard[0] == {0, 1, 2, 3}
    assert heard[1] == {0, 1, 2}


def test_finished_records_do_not_use_up_the_window(stage: Stage, topic: TopicFactory) -> None:
    locks, total = 100, 300
    name = topic()
    stage.topics.produce(name, total, one_record_batches=True)
    groups = [stage.group(side, share_partition_max_record_locks=locks) for side in stage.sides]
    for side, group in zip(stage.sides, groups, strict=True):
        holder = stage.join(side, group, name, take=1)
        (first,) = take(holder, 1, None)
        assert first.offset == 0
        holder.hold()
        worker = stage.join(side, group, name, take=50)
        reach = locks if side is stage.kafka else total
        seen = take(worker, reach - 1)
        assert {one.offset for one in seen} == set(range(1, reach))
        if side is stage.kafka:
            # Everything from the first unfinished record on counts: one slow record stops all.
            assert worker.poll(1.0) == []
            holder.acknowledge(first.place, ACCEPT)
            assert holder.commit() == {0: None}
            assert len(take(worker, total - locks)) == total - locks


def test_the_first_record_of_a_new_group_does_not_wait_for_a_heartbeat(
    stage: Stage, topic: TopicFactory
) -> None:
    name = topic()
    stage.topics.produce(name, 1)

    def took_s(side: Side) -> float:
        group = stage.group(side)
        start_s = time.monotonic()
        take(stage.join(side, group, name), 1)
        return time.monotonic() - start_s

    # Kafka tells a member its partitions with its second heartbeat; however slow the machine is,
    # that one is not earlier. Here nothing is waited for: with some luck it is faster than that.
    assert took_s(stage.kafka) > HEARTBEAT_S
    eventually(lambda: took_s(stage.ours) < HEARTBEAT_S, WAIT_S)


def test_any_member_receives_from_any_partition(stage: Stage, topic: TopicFactory) -> None:
    name = topic(partitions=2)

    def partitions_of_one_round(members: list[Member]) -> list[set[int]]:
        for partition in (0, 1):
            stage.topics.produce(name, 20, partition=partition, one_record_batches=True)
        found: list[set[int]] = [set(), set()]
        came = 0

        def all_came() -> bool:
            nonlocal came
            for member, partitions in zip(members, found, strict=True):
                seen = member.poll(0.1)
                for one in seen:
                    partitions.add(one.partition)
                    member.acknowledge(one.place, ACCEPT)
                came += len(seen)
            return came >= 40

        eventually(all_came, WAIT_S, what="a round of records")
        return sorted(found, key=sorted)

    for side, wanted in zip(stage.sides, ([{0}, {1}], [{0, 1}, {0, 1}]), strict=True):
        stage.topics.delete(name)
        stage.topics.create(name, partitions=2)
        group = stage.group(side)
        members = [stage.join(side, group, name, take=5, partitions=2) for _ in range(2)]
        # Two members, two partitions: Kafka's assignor gives one to each.
        eventually(lambda m=members, w=wanted: partitions_of_one_round(m) == w, 60.0)  # type: ignore[misc]
        for member in members:
            member.close()


def test_a_lock_can_be_renewed(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 1)

    def explicit(module: Any, side: Side, group: str) -> tuple[Any, Any]:
        config = {"bootstrap.servers": side.address, "group.id": group}
        consumer = module.ShareConsumer({**config, "share.acknowledgement.mode": "explicit"})
        consumer.subscribe([name])
        return consumer, _first_of(consumer)

    group = stage.group(stage.kafka)
    consumer, message = explicit(confluent_kafka, stage.kafka, group)
    with pytest.raises(ValueError, match="ack"):
        consumer.acknowledge(message, 4)
    consumer.close()
    group = stage.group(stage.ours)
    consumer, message = explicit(sharecoord_sdk, stage.ours, group)
    with AdminClient({"bootstrap.servers": stage.ours.address}) as admin:

        def remaining_ms() -> int:
            (found,) = admin.list_in_flight(group, name, 0)
            assert found.lock_remaining_ms is not None
            return found.lock_remaining_ms

        before_ms = eventually(lambda: (left := remaining_ms()) < LOCK_MS - 500 and left, WAIT_S)

        def renewed() -> bool:
            consumer.acknowledge(message, sharecoord_sdk.AcknowledgeType.RENEW)
            assert set(consumer.commit_sync(20.0).values()) == {None}
            return remaining_ms() > before_ms

        # More than once where the machine takes longer to look than the lock was old.
        eventually(renewed, WAIT_S)
    consumer.close()


def test_a_release_may_carry_a_delay(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 1)
    config: dict[str, Any] = {"share.acknowledgement.mode": "explicit", "log_level": 3}
    places = ((confluent_kafka, stage.kafka), (sharecoord_sdk, stage.ours))
    for module, side in places:
        own = {"bootstrap.servers": side.address, "group.id": stage.group(side)}
        with module.ShareConsumer({**config, **own}) as consumer:
            consumer.subscribe([name])
            message = _first_of(consumer)
            release = module.AcknowledgeType.RELEASE
            if module is confluent_kafka:
                with pytest.raises(TypeError):
                    consumer.acknowledge(message, release, delay_ms=700)
                consumer.acknowledge(message, release)
                continue
            start_s = time.monotonic()
            consumer.acknowledge(message, release, delay_ms=700)
            consumer.commit_sync(20.0)
            _first_of(consumer)
            assert time.monotonic() - start_s > 0.65, "50 ms are the decision's exactness"


def _finished_at(side: Side, group: str, name: str, end: int) -> bool:
    return eventually(lambda: side.offsets(group, name) == {0: Standing(end, 0)}, WAIT_S)


def test_a_lowered_limit_holds_for_what_is_due_already(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 1)
    for side in stage.sides:
        group = stage.group(side, share_delivery_count_limit=5)
        member = stage.join(side, group, name)
        assert [one.delivery for one in take(member, 3, RELEASE)] == [1, 2, 3]
        member.close()
        side.configure(group, {"share.delivery.count.limit": "2"})
        second = stage.join(side, group, name)
        if side is stage.kafka:
            # Looked at when the record becomes available, so it goes out once more.
            assert [one.delivery for one in take(second, 1)] == [4]
        else:
            assert _finished_at(side, group, name, 1)
            assert second.poll(0.0) == []


def test_a_reset_works_under_traffic(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 5)
    groups = [stage.group(side) for side in stage.sides]
    members = [stage.join(side, g, name) for side, g in zip(stage.sides, groups, strict=True)]
    for member in members:
        take(member, 5)
    with pytest.raises(OffsetsError) as refused:
        alter_share_group_offsets(stage.kafka.address, groups[0], {(name, 0): 2})
    assert refused.value.code == NON_EMPTY_GROUP
    to = ResetTo.offsets({(name, 0): 2})
    with AdminClient({"bootstrap.servers": stage.ours.address}) as admin:
        with pytest.raises(GroupNotEmptyError):
            admin.reset_offsets(groups[1], to, topics={name: [0]})
        admin.reset_offsets(groups[1], to, topics={name: [0]}, force=True)
    again = take(members[1], 3)
    assert [(one.offset, one.delivery) for one in again] == [(2, 1), (3, 1), (4, 1)]


def test_start_offsets_are_written_at_once(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 3, one_record_batches=True)
    found: list[list[dict[int, Standing]]] = []
    for side in stage.sides:
        group = stage.group(side)
        member = stage.join(side, group, name, take=1)
        steps: list[dict[int, Standing]] = []
        for _ in range(3):
            (one,) = take(member, 1, None)
            steps.append(side.offsets(group, name))
            member.acknowledge(one.place, ACCEPT)
            assert member.commit() == {0: None}
        steps.append(side.offsets(group, name))
        found.append(steps)
    # Kafka: nothing before the first acknowledgement, and then the start before the last one.
    assert found[0] == [{}, {0: Standing(0, 2)}, {0: Standing(1, 1)}, {0: Standing(2, 0)}]
    assert found[1] == [{0: Standing(n, 3 - n)} for n in range(4)]


def test_a_broken_connection_is_no_departure(stage: Stage, topic: TopicFactory) -> None:
    name = topic()
    stage.topics.produce(name, 1)
    lock_s = 3.0
    took_s: list[float] = []
    for side, lock_ms in zip(stage.sides, (LOCK_MS, int(lock_s * 1000)), strict=True):
        group = stage.group(side, share_record_lock_duration_ms=lock_ms)
        victim = stage.join(side, group, name, child=True)
        start_s = time.monotonic()
        take(victim, 1, None)
        victim.kill()
        (seen,) = take(stage.join(side, group, name), 1)
        took_s.append(time.monotonic() - start_s)
        # With its last session Kafka may forget the count as well; here it is on disk.
        assert seen.delivery in ({1, 2} if side is stage.kafka else {2})
    assert took_s[0] < LOCK_MS / 1000
    assert took_s[1] > lock_s
