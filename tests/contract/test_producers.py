"""The process that produces: what it sends, and what becomes of calls when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sharecoord.core.letters.dead_letters import OutboxMark
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    LimitExceededError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import LetterTransactions, OutgoingMessage
from sharecoord.producing import producers as module
from sharecoord.producing.frames import ProducerSettings
from sharecoord.producing.producers import Producers
from tests.conftest import TopicFactory
from tests.support import KafkaUnderTest, eventually, eventually_async, unique_name

pytestmark = pytest.mark.timeout(120)

NOBODY = "127.0.0.1:9"
WAIT_S = 30.0
BARE = OutgoingMessage(None, b"v", [])


def settings(servers: str, **kafka: str) -> ProducerSettings:
    named = {key.replace("_", "."): value for key, value in kafka.items()}
    return ProducerSettings(
        kafka={"bootstrap.servers": servers, **named}, transactional_producers_max=4
    )


@asynccontextmanager
async def producing(servers: str, **kafka: str) -> AsyncIterator[Producers]:
    made = Producers(settings(servers, **kafka))
    try:
        yield made
    finally:
        await made.close()


def sent(
    producers: Producers, topic: str, message: OutgoingMessage = BARE
) -> asyncio.Future[SharecoordError | None]:
    """What the sink says of a message."""
    answer: asyncio.Future[SharecoordError | None] = asyncio.get_running_loop().create_future()
    producers.dead_letters.send(topic, message, answer.set_result)
    return answer


def messages_of(servers: str, topic: str) -> list[tuple[object, object]]:
    """The messages of a topic, which all have one key."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "enable.partition.eof": True}
    )
    found: list[tuple[object, object]] = []
    for number in consumer.list_topics(topic).topics[topic].partitions:
        consumer.assign([TopicPartition(topic, number, 0)])
        for message in iter(lambda: consumer.poll(WAIT_S), None):
            if message.error():
                break
            found.append((message.key(), message.value()))
    consumer.close()
    return found


def made(cluster: MockCluster) -> tuple[str, str]:
    """The cluster's address, and a topic of it, which begins to be when it is asked for."""
    name = unique_name("t")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    eventually(lambda: not admin.list_topics(name, timeout=WAIT_S).topics[name].error, WAIT_S)
    return cluster.bootstrap_servers, name


async def until_gone(producers: Producers) -> None:
    await eventually_async(lambda: producers.pid is None, WAIT_S)


async def test_a_message_is_told_when_kafka_has_it(mock_cluster: MockCluster) -> None:
    servers, topic = made(mock_cluster)
    async with producing(servers) as producers:
        assert producers.pid is None
        await producers.dead_letters.ensure(topic, create=False)
        first = producers.pid
        assert first is not None
        headers = [("a", b"\xff"), ("a", None), ("\udcff", b"")]
        message = OutgoingMessage(b"k", b"\x00v", headers)
        assert await sent(producers, topic, message) is None
        assert await sent(producers, topic, OutgoingMessage(b"k", None, [])) is None
        assert producers.pid == first
    found = await asyncio.to_thread(messages_of, servers, topic)
    assert found == [(b"k", b"\x00v"), (b"k", None)]
    assert producers.pid is None
    (refused,) = await asyncio.gather(sent(producers, topic))
    assert isinstance(refused, KafkaUnavailableError)


async def test_errors_come_as_what_they_are(mock_cluster: MockCluster) -> None:
    async with producing(mock_cluster.bootstrap_servers, queue_buffering_max_kbytes="1") as made:
        with pytest.raises(UnknownTopicOrPartitionError, match="create it"):
            await made.dead_letters.ensure(unique_name("t"), create=False)
        large = await sent(made, unique_name("t"), OutgoingMessage(None, bytes(5000), []))
        assert isinstance(large, LimitExceededError)
        assert "queue.buffering.max.kbytes" in large.message


async def test_a_process_that_dies_fails_what_waits_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.5)
    async with producing(NOBODY) as producers:
        waiting = [sent(producers, "t") for _ in range(3)]
        first = producers.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        for answer in waiting:
            assert isinstance(await answer, KafkaUnavailableError)
        # It is not started again at once.
        soon = await sent(producers, "t")
        assert isinstance(soon, KafkaUnavailableError)
        assert producers.pid is None

        async def comes_back() -> bool:
            answer = sent(producers, "t")
            await asyncio.sleep(0.05)
            return not answer.done()

        await eventually_async(comes_back, WAIT_S)
        assert producers.pid not in (None, first)


async def sent_in_the_end(producers: Producers, topic: str) -> None:
    """Sends until it arrives: a process that has died is started again after a pause."""

    async def arrives() -> bool:
        return await sent(producers, topic) is None

    await eventually_async(arrives, WAIT_S)


async def test_figures_tell_whether_it_runs_and_how_often_it_ended(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.01)
    servers, topic = made(mock_cluster)
    async with producing(servers) as producers:
        assert producers.figures == (False, False, 0, 0)
        assert await sent(producers, topic) is None
        assert producers.figures == (True, False, 0, 0)
        assert producers.pid is not None
        # With nobody waiting it is missed by nobody.
        os.kill(producers.pid, signal.SIGKILL)
        await eventually_async(lambda: producers.figures.restarts == 1, WAIT_S)
        assert producers.figures == (False, False, 1, 0)
        await sent_in_the_end(producers, topic)
        waits = sent(producers, topic)
        assert producers.figures.waiting_bytes > 0
        os.kill(producers.pid or 0, signal.SIGKILL)
        assert isinstance(await waits, KafkaUnavailableError)
        assert producers.figures[:3] == (False, True, 2)
        await sent_in_the_end(producers, topic)
        assert producers.figures[:3] == (True, False, 2)


async def test_figures_tell_that_it_can_not_be_started(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.01)
    servers, topic = made(mock_cluster)
    async with producing(servers) as producers:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            refused = await sent(producers, topic)
            assert isinstance(refused, KafkaUnavailableError)
            assert "can not be started" in refused.message
        assert producers.figures == (False, True, 1, 0)
        await sent_in_the_end(producers, topic)
        assert producers.figures[:3] == (True, False, 1)


@pytest.mark.kafka
async def test_transactions_end_with_their_process(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.01)
    letters = topic()
    async with producing(kafka_broker.bootstrap_servers) as producers:
        sink = producers.dead_letters
        one, two = unique_name("sharecoord.dlq."), unique_name("sharecoord.dlq.")

        async def opened() -> LetterTransactions | None:
            # A broker without offsets makes their topic first.
            try:
                return await sink.open(one, letters)
            except KafkaUnavailableError:
                return None

        first = await eventually_async(opened, WAIT_S)
        assert first is not None
        await first.send(letters, [BARE, BARE], OutboxMark(7, "token"))
        assert first.is_open
        assert producers.pid is not None
        os.kill(producers.pid, signal.SIGKILL)
        await until_gone(producers)
        await asyncio.sleep(0.05)
        # The new process has an outbox, too, but not this one.
        second = await sink.open(two, letters)
        assert not first.is_open
        with pytest.raises(KafkaUnavailableError, match="not open"):
            await first.send(letters, [BARE], OutboxMark(8, "token"))
        await second.send(letters, [BARE], OutboxMark(1, "other"))
        again = await sink.open(one, letters)
        assert again.mark == OutboxMark(7, "token")
        # Whoever opens an outbox takes it from its former user.
        taken = await sink.open(two, letters)
        assert not second.is_open
        assert taken.mark == OutboxMark(1, "other")
        assert again.is_open


async def test_a_transaction_under_way_when_the_process_dies_is_not_open_any_more(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0.0)
    servers, topic = made(mock_cluster)
    async with producing(servers) as producers:
        found = await producers.dead_letters.open(unique_name("sharecoord.dlq."), topic)
        assert producers.pid is not None
        os.kill(producers.pid, signal.SIGSTOP)
        sending = asyncio.create_task(found.send(topic, [BARE], OutboxMark(1, "t")))
        await asyncio.sleep(0.05)
        os.kill(producers.pid, signal.SIGKILL)
        with pytest.raises(KafkaUnavailableError):
            await sending
        assert not found.is_open


async def test_what_librdkafka_refuses_is_said_at_the_start(mock_cluster: MockCluster) -> None:
    async with producing(mock_cluster.bootstrap_servers, compression_type="zstd") as producers:
        await producers.check()
        assert producers.pid is None
    async with producing(mock_cluster.bootstrap_servers, lingr_ms="5") as producers:
        with pytest.raises(InvalidConfigError, match=r'Did you mean "linger\.ms"'):
            await producers.check()
    async with producing(mock_cluster.bootstrap_servers, compression_type="zip") as producers:
        with pytest.raises(InvalidConfigError, match="compression"):
            await producers.check()


async def test_a_renewed_process_loses_no_letter(mock_cluster: MockCluster) -> None:
    servers, topic = made(mock_cluster)
    async with producing(servers) as producers:
        answers: list[asyncio.Future[SharecoordError | None]] = []
        pids = set()
        for number in range(30):
            answers.append(sent(producers, topic, OutgoingMessage(b"k", b"%d" % number, [])))
            pids.add(producers.pid)
            if number % 10 == 9:
                producers.renew({})
        assert len(pids) == 3
        refused = [str(n) for n, answer in enumerate(answers) if await answer is not None]
        assert refused == []
        assert producers.figures.restarts == 0
    found = await asyncio.to_thread(messages_of, servers, topic)
    assert sorted(found) == sorted((b"k", b"%d" % number) for number in range(30))


async def test_an_idle_process_is_ended(
    mock_cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.3)
    servers, topic = made(mock_cluster)
    async with producing(servers) as producers:
        assert await sent(producers, topic) is None
        first = producers.pid
        await until_gone(producers)
        assert await sent(producers, topic) is None
        assert producers.pid != first


async def test_bytes_that_the_process_does_not_take_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 0.1)
    async with producing(NOBODY) as producers:
        waits = sent(producers, "t")
        assert producers.pid is not None
        os.kill(producers.pid, signal.SIGSTOP)
        large = OutgoingMessage(None, bytes(1 << 18), [])
        answers = [sent(producers, "t", large) for _ in range(20)]
        await asyncio.sleep(0.05)
        refused = [answer for answer in answers if answer.done()]
        assert 10 < len(refused) < 20
        assert producers.unsent_bytes <= (1 << 20) + 2 * len(large.value or b"")
        assert not waits.done()
    assert isinstance(await waits, KafkaUnavailableError)


PARENT = """
import asyncio, sys
from sharecoord.ports import OutgoingMessage
from sharecoord.producing.frames import ProducerSettings
from sharecoord.producing.producers import Producers

async def main():
    kafka = {"bootstrap.servers": sys.argv[1]}
    producers = Producers(ProducerSettings(kafka=kafka, transactional_producers_max=4))
    producers.dead_letters.send("t", OutgoingMessage(None, b"v", []), print)
    print(producers.pid, "confluent_kafka" in sys.modules, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_coordinator(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, NOBODY], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid, loaded = parent.stdout.readline().split()
        assert loaded == "False"
        assert _lives(int(pid))
        parent.send_signal(how)
        parent.wait()
    eventually(lambda: not _lives(int(pid)), WAIT_S)


def test_signals_to_all_are_for_the_coordinator(mock_cluster: MockCluster) -> None:
    async def main() -> None:
        servers, topic = made(mock_cluster)
        async with producing(servers) as producers:
            assert await sent(producers, topic) is None
            pid = producers.pid
            assert pid is not None
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
            assert await sent(producers, topic) is None
            assert producers.pid == pid

    asyncio.run(main())


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"
