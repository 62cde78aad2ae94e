"""Output to Kafka with the effect: worker and relay are killed at each point of the way.

Whatever happens to them, those who read committed records see each output once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from sharecoord_sdk import AdminClient
from sharecoord_sdk.contrib.sqlalchemy import AckOutbox, ProduceOutbox, ProduceRelay
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Topics, numbered_records
from tests.acceptance.chaos.crew import worker_environment
from tests.acceptance.chaos.outputs import RELAY_POINTS
from tests.support import KafkaUnderTest, eventually, unique_name

RECORDS = 12
WAIT_S = 60.0
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


class Office:
    """The database of an application, its outbox, and who works on it."""

    def __init__(self, kafka: str, url: str, folder: Path) -> None:
        self.kafka, self.url, self.folder = kafka, url, folder
        self.id = unique_name("office")
        self.engine: Engine = create_engine(url)
        self.outputs = ProduceOutbox()
        outbox = AckOutbox()
        for table in (self.outputs.table, self.outputs.relay_table, outbox.table):
            table.drop(self.engine, checkfirst=True)
        self.outputs.create(self.engine)
        outbox.create(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS effect"))
            connection.execute(text("CREATE TABLE effect (record_offset BIGINT NOT NULL)"))
        self.processes: list[GuardedProcess] = []

    def start(self, role: str, point: str = "nowhere", **given: object) -> GuardedProcess:
        """A process that is hit at a point; see `chaos.outputs`."""
        name = f"{role}-{len(self.processes)}"
        argv = [sys.executable, "-u", "-m", "tests.acceptance.chaos.outputs", role]
        argv += ["--database", self.url, "--point", point]
        argv += ["--kafka", self.kafka, "--id", self.id]
        for key, value in given.items():
            argv += [f"--{key}", str(value)]
        log = self.folder / f"{name}.log"
        process = GuardedProcess(name, argv, log_path=log, env=worker_environment())
        process.start()
        self.processes.append(process)
        return process

    def relay(self, engine: Engine | None = None) -> ProduceRelay:
        """One in this process."""
        given: dict[str, Any] = {"every_s": 0.05, "takeover_s": 0.5, "transactional_id": self.id}
        conf = {"bootstrap.servers": self.kafka}
        return ProduceRelay(self.outputs, engine or self.engine, conf, **given)

    def put(self, topic: str, *values: str) -> None:
        with self.engine.begin() as connection:
            for value in values:
                self.outputs.produce(connection, topic, value)

    def left(self) -> int:
        with self.engine.connect() as connection:
            query = select(func.count()).select_from(self.outputs.table)
            return int(connection.execute(query).scalar_one())

    def is_empty(self) -> bool:
        return self.left() == 0

    def read(self, topic: str) -> list[str]:
        """What those see who read committed records of partition 0."""
        conf = {"bootstrap.servers": self.kafka, "group.id": self.id + "-look"}
        conf |= {"isolation.level": "read_committed", "enable.partition.eof": "true"}
        consumer, found = Consumer(conf), []
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            while (message := consumer.poll(WAIT_S)) is not None:
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF
                    return found
                found.append(message.value().decode())
        finally:
            consumer.close()
        raise AssertionError("the end of the topic does not come")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def office(
    request: pytest.FixtureRequest, kafka_broker: KafkaUnderTest, tmp_path: Path
) -> Iterator[Office]:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql").url
    made = Office(kafka_broker.bootstrap_servers, url, tmp_path)
    yield made
    made.close()


on_postgresql = pytest.mark.parametrize("office", ["postgresql"], indirect=True)


def test_relays_are_killed_at_each_point(office: Office, topic: Callable[..., str]) -> None:
    """Each of them takes over from another one, and is killed in its second transaction."""
    first, second = topic(), topic()
    numbers = [str(number) for number in range(40)]
    for at in range(0, 40, 4):
        office.put(first, *numbers[at : at + 4])
        office.put(second, *numbers[at : at + 2])
    doomed = [office.start("relay", point, at=2) for point in RELAY_POINTS]
    for process in doomed:
        eventually(lambda each=process: each.exit_code == -KILL, WAIT_S, f"{process.name} is hit")
    with office.relay():
        eventually(office.is_empty, WAIT_S, "the last one sends what is left")
    assert office.read(first) == numbers
    assert office.read(second) == [n for n in numbers if int(n) % 4 < 2]


@pytest.mark.parametrize("point", ["claimed", "offsets"])
@on_postgresql
def test_a_relay_stands_still_and_is_fenced(
    office: Office, topic: Callable[..., str], point: str
) -> None:
    name = topic()
    office.put(name, *(str(number) for number in range(6)))
    first = office.start("relay", point, at=2, signal=int(STOP))
    eventually(lambda: office.left() == 3, WAIT_S, "its first transaction is done")
    with office.relay():
        eventually(office.is_empty, WAIT_S, "the second one has taken over")
        os.kill(first.pid, signal.SIGCONT)
        office.put(name, "6", "7")
        eventually(office.is_empty, WAIT_S, "and goes on")
        # By Kafka's fence, or by the head when Kafka answers late.
        told = ("can not be sent", "stands back")
        eventually(lambda: any(t in first.log_tail() for t in told), WAIT_S, "the first is told")
        office.put(name, "8")
        eventually(office.is_empty, WAIT_S, "there is no fight")
    assert first.exit_code is None
    assert office.read(name) == [str(number) for number in range(9)]


@pytest.mark.parametrize("number", [1, 2, 3])
@on_postgresql
def test_a_relay_that_freezes_in_an_sql_transaction_locks_nobody_out(
    office: Office, topic: Callable[..., str], number: int
) -> None:
    """Behind the statements that make it the owner, end a takeover, or put rows on their way."""
    name = topic()
    office.put(name, "0", "1")
    engine = create_engine(office.url)
    commits, goes_on = itertools.count(1), threading.Event()
    is_frozen = threading.Event()

    @event.listens_for(engine, "commit")
    def freeze(_: Connection) -> None:
        if next(commits) == number:
            is_frozen.set()
            assert goes_on.wait(WAIT_S)

    with office.relay(engine), contextlib.ExitStack() as stack:
        stack.callback(goes_on.set)
        assert is_frozen.wait(WAIT_S)
        with office.relay():
            eventually(office.is_empty, WAIT_S, "the second one has taken over")
            goes_on.set()
            office.put(name, "2")
            eventually(office.is_empty, WAIT_S, "there is no fight")
    engine.dispose()
    assert office.read(name) == ["0", "1", "2"]


def test_worker_and_relay_are_killed_on_the_way_of_a_record(
    office: Office,
    coordinator: CoordinatorProcess,
    topic: Callable[..., str],
    topics: Topics,
) -> None:
    source, target, group = topic(), topic(), unique_name("office")
    topics.produce(source, numbered_records(RECORDS))
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        settings = {
            "share.record.lock.duration.ms": "1000",
            "share.session.timeout.ms": "1000",
            "share.heartbeat.interval.ms": "500",
        }
        admin.alter_group_configs(group, settings)

        def is_finished() -> bool:
            (found,) = admin.describe_groups([group], members=False)
            return [each.start_offset for each in found.offsets] == [RECORDS]

        given = {"address": coordinator.address, "group": group, "topic": source, "output": target}
        relay = office.start("relay", "committed", at=2)
        for point, offset in (("effect", 1), ("output", 4), ("committed", 7)):
            doomed = office.start("worker", point, at=offset, **given)
            eventually(lambda: doomed.exit_code == -KILL, WAIT_S, f"hit behind {point}")  # noqa: B023
        office.start("worker", **given)
        eventually(is_finished, WAIT_S, "every record is acknowledged")
    eventually(lambda: relay.exit_code == -KILL, WAIT_S, "the relay is hit")
    office.start("relay")
    eventually(office.is_empty, WAIT_S, "every output is sent")
    with office.engine.connect() as connection:
        effects = Counter(connection.execute(text("SELECT record_offset FROM effect")).scalars())
    assert effects == Counter(range(RECORDS))
    seen = office.read(target)
    assert Counter(seen) == Counter(f"{n} {w}" for n in range(RECORDS) for w in ("first", "second"))
    for offset in range(RECORDS):
        assert seen.index(f"{offset} first") < seen.index(f"{offset} second")


@on_postgresql
def test_transactions_that_are_open_side_by_side(office: Office, topic: Callable[..., str]) -> None:
    """The one that began first commits last; and asyncio."""
    name = topic()
    other = create_async_engine(office.url)

    async def produce() -> None:
        await office.outputs.create_async(other)
        async with other.begin() as late:
            await office.outputs.produce_async(late, name, "late", headers={"n": b"\x00\xff"})
            await asyncio.to_thread(office.put, name, "early")
            await asyncio.to_thread(eventually, lambda: office.read(name) == ["early"], WAIT_S)
        await other.dispose()

    with office.relay():
        asyncio.run(produce())
        eventually(office.is_empty, WAIT_S, "both are sent")
    assert office.read(name) == ["early", "late"]


@on_postgresql
def test_what_kafka_does_not_take(
    office: Office, topic: Callable[..., str], topics: Topics
) -> None:
    fine, small, missing = topic(), topic(config={"max.message.bytes": "1000"}), unique_name("gone")
    relay = office.relay()
    try:
        eventually(lambda: relay.run_once() == (0, 0, (), False), WAIT_S, "it is at work")
        office.put(missing, "0", "1")
        office.put(small, *("x" * 100,) * 20, "y" * 2_000, "z")
        office.put(fine, "a")
        report = relay.run_once()
        assert report == (22, 1, (missing,), False)
        assert office.read(small) == [*("x" * 100,) * 20, "z"]
        assert office.read(fine) == ["a"]
        topics.create(missing)
        eventually(lambda: relay.run_once().sent == 2, WAIT_S, "the topic is there")
        assert office.read(missing) == ["0", "1"]
        # It goes again, while the relay knows it.
        topics.delete(missing)
        office.put(missing, "2")
        office.put(fine, "b")
        eventually(lambda: "b" in (relay.run_once() and office.read(fine)), WAIT_S, "others go on")
    finally:
        relay.stop()
    assert office.left() == 2
