"""The catalog over connections of our own: each topic and partition is answered by itself."""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sharecoord.errors import KafkaUnavailableError, UnauthorizedError
from sharecoord.kafka.wire import catalog as module
from sharecoord.kafka.wire import requests
from sharecoord.kafka.wire.catalog import WireCatalog
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, TopicInfo, end_queries
from sharecoord.testing.virtual_time import virtual
from tests.unit.kafka.wire.fake_kafka import FakeKafka, Log

OPEN, CLOSED, BARE = (OffsetQuery(name, 0, LATEST) for name in ("open", "closed", "bare"))


def kafka_of(nodes: int = 1, **logs: Log) -> FakeKafka:
    kafka = FakeKafka(nodes)
    for name, log in logs.items():
        kafka.add(name, log)
    return kafka


def id_of(kafka: FakeKafka, topic: str) -> str:
    found = kafka.topics[topic].topic_id
    assert found is not None
    return found.hex


def test_topics_and_both_ends_of_their_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(2, a=Log(start=2, end=9))
        kafka.add("b", Log(leader=2, end=4), Log(), has_id=False)
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        assert await catalog.cluster_id() == "fake"
        assert catalog.brokers == 2
        described = await catalog.describe(["a", "b", "nowhere"])
        assert described == {"a": TopicInfo(id_of(kafka, "a"), (0,)), "b": TopicInfo("", (0, 1))}
        assert await catalog.look("a") == described["a"]
        assert await catalog.look("nowhere") is None
        asked = [
            OffsetQuery("a", 0, EARLIEST),
            OffsetQuery("a", 0, LATEST),
            # Later than the last record.
            OffsetQuery("b", 0, 10**12),
            OffsetQuery("nowhere", 0, LATEST),
            OffsetQuery("a", 7, LATEST),
        ]
        assert await catalog.offsets(asked) == dict(zip(asked[:3], [2, 9, 4], strict=True))
        assert await catalog.offsets([]) == await catalog.describe([]) == {}
        assert await catalog.offsets(asked[3:]) == {}
        await catalog.close()

    main()


def test_a_refused_topic_is_left_out_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(open=Log(end=7), closed=Log(end=7))
        closed = kafka.topics["closed"]
        closed.error = ErrorCode.topic_authorization_failed
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        with capture_logs() as logs:
            for _ in range(3):
                assert set(await catalog.describe(["open", "closed"])) == {"open"}
                assert await catalog.offsets([OPEN, CLOSED]) == {OPEN: 7}
        assert [(line["event"], line["topic"]) for line in logs] == [("topic refused", "closed")]
        for answer in (catalog.look("closed"), catalog.offsets([CLOSED])):
            with pytest.raises(UnauthorizedError, match="'closed'"):
                await answer
        closed.error = ErrorCode.none
        assert set(await catalog.describe(["open", "closed"])) == {"open", "closed"}
        # What was refused of it by another question may be refused still.
        assert set(catalog.refusals) == {"closed"}
        assert await catalog.offsets([CLOSED]) == {CLOSED: 7}
        assert dict(catalog.refusals) == {}
        await catalog.close()

    main()


def test_a_partition_without_a_leader_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(open=Log(end=7), bare=Log(leader=-1))
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        with capture_logs() as logs:
            for _ in range(3):
                assert await catalog.offsets([OPEN, BARE]) == {OPEN: 7}
        (line,) = logs
        assert line["topic"] == "bare"
        assert "leader_not_available" in line["why"]
        with pytest.raises(KafkaUnavailableError, match="kafka:9092"):
            await catalog.offsets([BARE])
        await catalog.close()

    main()


def test_nobody_takes_a_topic_for_deleted_that_kafka_can_not_describe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(open=Log(), bare=Log())
        kafka.topics["bare"].error = ErrorCode.unknown_server_error
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        with pytest.raises(KafkaUnavailableError, match="'bare'"):
            await catalog.describe(["open", "bare"])
        # A look at the other one is not disturbed.
        looks = await asyncio.gather(
            catalog.look("open"), catalog.look("bare"), return_exceptions=True
        )
        assert isinstance(looks[0], TopicInfo)
        assert isinstance(looks[1], KafkaUnavailableError)
        await catalog.close()

    main()


def test_a_topic_is_gone_only_when_the_controller_says_so_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(2, a=Log())
        kafka.first = {kafka.nodes[2]: 2}
        # The broker that is asked first has just started.
        kafka.unaware = {2}
        cluster = kafka.cluster(monkeypatch, **{"bootstrap.servers": "node:9002"})
        catalog = WireCatalog(cluster)
        assert await catalog.look("a") == TopicInfo(id_of(kafka, "a"), (0,))
        assert set(await catalog.describe(["a", "nowhere"])) == {"a"}
        # Only the other half of the cluster is reached.
        kafka.down = {kafka.nodes[1]}
        with pytest.raises(KafkaUnavailableError, match="'a' is not described"):
            await catalog.describe(["a"])
        kafka.unaware = set()
        assert set(await catalog.describe(["a"])) == {"a"}
        await catalog.close()
        await cluster.close()

    main()


def test_a_broker_that_knows_nothing_yet_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(1, a=Log())
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        assert await catalog.look("a") is not None
        kafka.unaware = kafka.blank = {1}
        with pytest.raises(KafkaUnavailableError, match="'a' is not described"):
            await catalog.look("a")
        kafka.unaware = kafka.blank = set()
        assert await catalog.look("a") is not None
        # librdkafka's mock cluster, for one, names no controller.
        kafka.controller = -1
        assert await catalog.look("nowhere") is None
        await catalog.close()

    main()


def test_offsets_of_a_topic_that_was_made_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(2, open=Log(end=7, epoch=5))
        cluster = kafka.cluster(monkeypatch)
        catalog = WireCatalog(cluster)
        assert await catalog.offsets([OPEN]) == {OPEN: 7}
        old = await catalog.look("open")
        kafka.add("open", Log(leader=2, end=3, error=0))
        assert await catalog.offsets([OPEN]) == {OPEN: 3}
        assert await catalog.look("open") != old
        del kafka.topics["open"]
        assert await catalog.offsets([OPEN]) == {}
        assert await catalog.look("open") is None
        await catalog.close()

    main()


def test_a_broker_that_is_silent_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(3, open=Log(end=7), bare=Log(leader=2, end=4))
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        assert await catalog.offsets([OPEN, BARE]) == {OPEN: 7, BARE: 4}
        kafka.silent = {kafka.nodes[2]}
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await catalog.offsets([OPEN, BARE]) == {OPEN: 7}
        assert loop.time() - began_s < module.OFFSETS_TIMEOUT_S + 0.1
        # The partition has found another leader meanwhile.
        log = kafka.topics["bare"].logs[0]
        log.leader, log.epoch = 3, 1
        began_s = loop.time()
        assert await catalog.offsets([OPEN, BARE]) == {OPEN: 7, BARE: 4}
        assert loop.time() - began_s < module.OFFSETS_TIMEOUT_S + 0.1
        await catalog.close()

    main()


def test_many_questions_are_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        monkeypatch.setattr(requests, "QUERIES_MAX", 4)
        kafka = kafka_of()
        kafka.add("wide", *(Log(start=n, end=10 + n) for n in range(11)))
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        asked = end_queries([("wide", n) for n in range(11)])
        found = await catalog.offsets(asked)
        assert [found[query] for query in asked] == [at for n in range(11) for at in (n, 10 + n)]
        await catalog.close()

    main()


def test_when_no_broker_answers_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(open=Log(end=7))
        kafka.silent = {*kafka.nodes.values(), *kafka.first}
        catalog = WireCatalog(kafka.cluster(monkeypatch))
        for question in (catalog.cluster_id(), catalog.describe(["open"]), catalog.offsets([OPEN])):
            with pytest.raises(KafkaUnavailableError, match=r"kafka:9092.*--kafka"):
                await question
        kafka.down, kafka.silent = kafka.silent, set()
        await asyncio.sleep(60)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(KafkaUnavailableError, match=r"can not connect.*--kafka"):
            await catalog.cluster_id()
        # It may be starting.
        assert asyncio.get_running_loop().time() - began_s >= module.METADATA_TIMEOUT_S
        with pytest.raises(KafkaUnavailableError, match=r"--kafka"):
            await catalog.offsets([OPEN])
        kafka.down = set()
        assert await catalog.offsets([OPEN]) == {OPEN: 7}
        await catalog.close()

    main()
