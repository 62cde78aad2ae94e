"""Redrive on a real Kafka: exactly the letters that are meant come again, over kill -9 too."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sharecoord_sdk import AcknowledgeType, AdminClient, Message, ShareConsumer
from sharecoord_sdk.admin import AdminError, DeadLetter, DeadLetterFilter, DeadLetterState

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.integration.test_dead_letters import reject_all, set_topic
from tests.integration.test_letter_tools import all_letters
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

WAIT_S = 60
TOTAL = 60


def consumer_of(coordinator: CoordinatorProcess, group: str, topic: str) -> ShareConsumer:
    config = explicit(coordinator.address, group, 20)
    consumer = ShareConsumer(config)
    consumer.subscribe([topic])
    return consumer


def take(consumer: ShareConsumer, count: int) -> list[Message]:
    """So many records, which are accepted."""
    found: list[Message] = []

    def have_come() -> bool:
        for message in consumer.poll(0.2):
            found.append(message)
            consumer.acknowledge(message)
        return len(found) >= count

    eventually(have_come, WAIT_S, what=f"{count} records")
    assert set(consumer.commit_sync(10).values()) <= {None}
    return found


def in_topic(admin: AdminClient, group: str, count: int) -> list[DeadLetter]:
    """The letters of a group, once so many are in their topic."""

    def all_there() -> list[DeadLetter]:
        found = all_letters(admin, group)
        waiting = [each for each in found if each.state is DeadLetterState.WAITING]
        return found if len(found) == count and not waiting else []

    return eventually(all_there, WAIT_S, what=f"{count} letters")


def make_letters(consumer: ShareConsumer) -> None:
    """Odd offsets are rejected, even ones fail as often as they may."""
    over: Counter[int] = Counter()

    def all_are_dead() -> bool:
        for message in consumer.poll(0.2):
            offset = message.offset() or 0
            kind = AcknowledgeType.REJECT if offset % 2 else AcknowledgeType.RELEASE
            over[offset] += 2 if offset % 2 else 1
            consumer.acknowledge(message, kind, reason="broken")
        return len(over) == TOTAL and set(over.values()) == {2}

    eventually(all_are_dead, WAIT_S, what="the last failures")
    assert set(consumer.commit_sync(10).values()) <= {None}


def test_letters_of_one_reason_come_again_and_nothing_else(
    topic: Callable[..., str], topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, dead, group, other = topic(), topic(partitions=2), unique_name("g"), unique_name("g")
    topics.produce(name, [(f"k{n % 7}".encode(), b"%d" % n, [("n", b"1")]) for n in range(TOTAL)])
    set_topic(coordinator, group, dead, **{"share.delivery.count.limit": "2"})
    rejected = DeadLetterFilter(reasons=["REJECTED"])
    with (
        AdminClient({"bootstrap.servers": coordinator.address}) as admin,
        consumer_of(coordinator, other, name) as others,
        consumer_of(coordinator, group, name) as consumer,
    ):
        take(others, TOTAL)
        make_letters(consumer)
        letters = in_topic(admin, group, TOTAL)
        dry = admin.redrive_dead_letters(group, rejected, dry_run=True)
        assert (dry.letters, dry.parts, dry.run_id) == (30, {(name, 0): 30}, "")
        done = admin.redrive_dead_letters(group, rejected)
        assert (done.letters, bool(done.run_id)) == (30, True)
        again = admin.redrive_dead_letters(group, rejected)
        assert (again.letters, again.redriven) == (0, 30)
        came = take(consumer, 30)
        # Had anything else been redriven, it would have come before this one.
        last = next(each for each in letters if each.offset == 10)
        assert admin.redrive_dead_letters(group, DeadLetterFilter(ids=[last.id])).letters == 1
        came += take(consumer, 1)
        assert sorted(m.offset() or 0 for m in came) == sorted([*range(1, TOTAL, 2), 10])
        assert {(m.topic(), m.partition(), m.delivery_count()) for m in came} == {(name, 0, 1)}
        assert {m.value() for m in came} == {b"%d" % (m.offset() or 0) for m in came}
        assert all(m.headers() == [("n", b"1")] for m in came)
        states = Counter(each.state for each in all_letters(admin, group))
        assert states == {DeadLetterState.REDRIVEN: 31, DeadLetterState.IN_TOPIC: 29}
        details = admin.show_dead_letter(group, last.id)
        assert details.steps[-1] == (0, "finished")
        # Nobody else saw anything: the topic holds what it held, and the other group has all of it.
        (described,) = admin.describe_groups([other])
        (offsets,) = described.offsets
        assert (offsets.log_end_offset, offsets.start_offset, offsets.lag) == (TOTAL, TOTAL, 0)


def test_a_redrive_over_kill_9_loses_and_doubles_nothing(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    name, dead, group, total = topic(), topic(partitions=3), unique_name("g"), 400
    topics.produce(name, [(f"k{n}".encode(), b"%d" % n, None) for n in range(total)])
    seen: Counter[int] = Counter()
    confirmed: set[int] = set()
    faults: list[str] = []
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator:
        set_topic(coordinator, group, dead)
        reject_all(coordinator, group, name, total)
        with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
            in_topic(admin, group, total)

            def redrive() -> None:
                try:
                    admin.redrive_dead_letters(group, all_letters=True, rate_per_s=100)
                except AdminError as error:
                    faults.append(error.reason)

            call = threading.Thread(target=redrive)
            call.start()
            coordinator.kill()
            call.join(WAIT_S)
            coordinator.restart()

            def the_rest() -> bool:
                result = admin.redrive_dead_letters(group, all_letters=True, rate_per_s=100)
                return result.letters + result.redriven == total

            eventually(the_rest, WAIT_S, what="all are redriven")
            with consumer_of(coordinator, group, name) as consumer:
                kills = 0

                def all_have_come() -> bool:
                    nonlocal kills
                    taken: set[int] = set()
                    for message in consumer.poll(0.2):
                        offset = message.offset() or 0
                        if offset in confirmed:
                            faults.append(f"{offset} came again after it was confirmed")
                        seen[offset] += 1
                        consumer.acknowledge(message)
                        taken.add(offset)
                    if kills < 3 and len(seen) > (kills + 1) * total // 4:
                        kills += 1
                        coordinator.kill()
                        coordinator.restart()
                    if set(consumer.commit_sync(20).values()) <= {None}:
                        confirmed.update(taken)
                    return len(confirmed) == total

                eventually(all_have_come, 2 * WAIT_S, what="all letters")
                assert kills == 3

            def all_are_done() -> bool:
                result = admin.redrive_dead_letters(
                    group, all_letters=True, again=True, dry_run=True
                )
                return result.letters == total and not result.under_way

            eventually(all_are_done, WAIT_S, what="the end")
            letters = all_letters(admin, group)
            assert {each.state for each in letters} == {DeadLetterState.REDRIVEN}
    assert set(seen) == set(range(total))
    assert [fault for fault in faults if "came again" in fault] == []
