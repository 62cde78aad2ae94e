"""What the Kafka port passes on to brokers, with brokers that a test answers for."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from sharecoord.api.kafka.codec import Head, make
from sharecoord.api.kafka.passthrough.passing import CUT, versions_of
from sharecoord.config.process_settings import KafkaPortConfig
from sharecoord.devenv.processes import free_run
from sharecoord.kafka.wire.cluster import Cluster, Node
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.passages import WireBrokers
from sharecoord.kafka.wire.security import PLAINTEXT
from tests.unit.api.kafka.client import Client, Port, fetched, port_of
from tests.unit.api.kafka.messages import any_request, frame_of
from tests.unit.api.kafka.secured import BASE, Secured, log_in
from tests.unit.kafka.wire.fake_broker import CLOSE, NO_TIME, OFFERED, SILENCE, FakeBroker, Request
from tests.unit.runtime.worlds import world_with

PRODUCE, FETCH, METADATA, FIND, API_VERSIONS, CREATE, LIST_GROUPS = 0, 1, 3, 10, 18, 19, 16
JOIN_GROUP, DESCRIBE_CLUSTER = 11, 60
APIS = OFFERED | {
    FIND: (0, 6),
    JOIN_GROUP: (0, 9),
    CREATE: (2, 7),
    LIST_GROUPS: (0, 5),
    DESCRIBE_CLUSTER: (0, 2),
    4: (0, 7),
    38: (1, 3),
    78: (1, 1),
}
"""What the brokers of the tests say that they have."""


def made(api_key: int, version: int, name: str = "", /, **values: Any) -> Any:
    """A part of an answer of kio's, or all of it; without what the version does not have."""
    whole: str = load_response_schema(api_key, version).__name__
    return make(Head(api_key, version, 0), name or whole, **values)


class Kafka(NamedTuple):
    """Two brokers, and the port before them."""

    brokers: Sequence[FakeBroker]
    port: Port
    first: int
    cluster: Cluster

    async def connect(self, node: int) -> Client:
        """A connection to the port of a broker."""
        return await self.port.connect(port=self.first + node)


def metadata(brokers: Sequence[FakeBroker], topics: Sequence[str]) -> Any:
    """The answer of a broker to Metadata."""

    def answer(request: Request) -> Any:
        version = request.version
        nodes = tuple(
            made(METADATA, version, "MetadataResponseBroker", node_id=number, rack=None,
                 host=each.endpoint.host, port=each.endpoint.port)
            for number, each in enumerate(brokers, 1)
        )  # fmt: skip
        told = tuple(
            made(METADATA, version, "MetadataResponseTopic", error_code=ErrorCode.none, name=name,
                 topic_id=None, is_internal=False, partitions=())
            for name in topics
        )  # fmt: skip
        said = {"throttle_time": NO_TIME, "error_code": ErrorCode.none, "cluster_id": "k"}
        return made(METADATA, version, **said, brokers=nodes, controller_id=1, topics=told)

    return answer


@asynccontextmanager
async def passing(
    *,
    topics: Sequence[str] = ("orders",),
    records: int = 0,
    offered: dict[int, tuple[int, int]] = APIS,
    **options: Any,
) -> AsyncIterator[Kafka]:
    """A port before two brokers with the ids 1 and 2."""
    first = free_run(3)
    config = KafkaPortConfig(passthrough=True, passthrough_ports=first)
    async with FakeBroker(offered=offered) as one, FakeBroker(offered=offered) as two:
        brokers = (one, two)
        for each in brokers:
            each.on(METADATA, metadata(brokers, topics))
        cluster = Cluster({"bootstrap.servers": str(one.endpoint)}, PLAINTEXT)
        try:
            world = options.pop("world", None) or world_with(records, partitions=2)
            options["brokers"] = WireBrokers(cluster)
            async with port_of(world, config=config, **options) as port:
                yield Kafka(brokers, port, first, cluster)
        finally:
            await cluster.close()


def produce(version: int = 12, acks: int = -1, transactional_id: str | None = None) -> bytes:
    """A request of a producer without records."""
    of: Any = load_request_schema(PRODUCE, version)
    values = {"transactional_id": transactional_id, "acks": acks, "timeout": NO_TIME}
    return frame_of(of(**values, topic_data=()))


def produced(version: int = 12, **values: Any) -> Any:
    """The answer to it."""
    return made(PRODUCE, version, responses=(), throttle_time=NO_TIME, **values)


# -- what clients are told ------------------------------------------------------------------------


async def test_versions_are_the_brokers_as_far_as_they_are_passed_on() -> None:
    async with passing() as kafka:
        for client in (await kafka.port.connect(), await kafka.connect(2)):
            answer = await client.ask(
                API_VERSIONS, 3, client_software_name="c", client_software_version="1"
            )
            found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
            assert found[PRODUCE] == (3, 13)
            assert found[FETCH] == (4, 15)
            assert found[JOIN_GROUP] == (0, 9)
            assert found[CREATE] == (2, 7)
            # Ours, whatever the broker has.
            assert found[78] == (1, 2)
            assert found[76] == (1, 1)
            assert not CUT & found.keys()


def test_an_api_without_a_common_version_is_not_named() -> None:
    found = versions_of({PRODUCE: (14, 20), FETCH: (4, 4), 4: (0, 1), 99: (0, 3)})
    assert not {PRODUCE, 4} & found.keys()
    assert (found[FETCH], found[99]) == ((4, 4), (0, 3))


@pytest.mark.parametrize("version", [0, 1, 8, 12, 13])
async def test_brokers_have_their_own_ids_and_ports_of_the_coordinator(version: int) -> None:
    async with passing() as kafka:
        for client in (await kafka.port.connect(), await kafka.connect(1)):
            of: Any = load_request_schema(METADATA, version)
            frame = frame_of(of(**_all_topics(version)))
            found = await _asked(client, METADATA, version, frame)
            assert [(each.node_id, each.host, each.port) for each in found.brokers] == [
                (1, "127.0.0.1", kafka.first + 1),
                (2, "127.0.0.1", kafka.first + 2),
            ]
            assert [each.name for each in found.topics] == ["orders"]


def _all_topics(version: int) -> dict[str, Any]:
    values: dict[str, Any] = {"topics": () if version == 0 else None}
    if version >= 4:
        values["allow_auto_topic_creation"] = True
    if version >= 8:
        values["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    return values


async def _asked(client: Client, key: int, version: int, frame: bytes) -> Any:
    found = await client.raw(frame)
    of: Any = load_response_schema(key, version)
    _, at = entity_reader(of.__header_schema__)(found, 0)
    body, _ = entity_reader(of)(found, at)
    return body


async def test_a_broker_that_comes_gets_a_port() -> None:
    async with passing() as kafka, FakeBroker(offered=APIS) as three:
        kafka.brokers[0].on(METADATA, metadata((*kafka.brokers, three), ()))
        client = await kafka.connect(1)
        answer = await client.ask(METADATA, 12, **_all_topics(12))
        assert [each.port for each in answer.brokers] == [kafka.first + n for n in (1, 2, 3)]
        third = await kafka.connect(3)
        three.on(PRODUCE, lambda _: produced())
        await _asked(third, PRODUCE, 12, produce())
        assert three.count(PRODUCE) == 1


async def test_coordinators_are_told_by_their_port() -> None:
    async with passing() as kafka:
        coordinator = made(FIND, 4, "Coordinator", key="g", node_id=2, host="kafka", port=9,
                           error_code=ErrorCode.none, error_message=None)  # fmt: skip
        answer = made(FIND, 4, throttle_time=NO_TIME, coordinators=(coordinator,))
        kafka.brokers[0].on(FIND, lambda _: answer)
        client = await kafka.connect(1)
        found = await client.ask(FIND, 4, key_type=0, coordinator_keys=("g",))
        (told,) = found.coordinators
        assert (told.node_id, told.host, told.port) == (2, "127.0.0.1", kafka.first + 2)


# -- passing on ------------------------------------------------------------------------------------


async def test_bytes_go_through_as_they_are() -> None:
    async with passing() as kafka:
        client, broker = await kafka.connect(2), kafka.brokers[1]
        broker.on(JOIN_GROUP, lambda _: b"whatever the broker says")
        request = any_request(JOIN_GROUP, 9, seed=3)
        frame = frame_of(request, correlation_id=77)
        assert await client.raw(frame) == struct.pack(">i", 77) + b"whatever the broker says"
        seen = await broker.seen(JOIN_GROUP)
        assert seen.entity() == request
        assert (seen.correlation_id, seen.client_id) == (77, "c")
        assert kafka.brokers[0].count(JOIN_GROUP) == 0


async def test_producers_need_not_wait_and_answers_keep_order() -> None:
    async with passing() as kafka:
        client, broker, go_on = await kafka.connect(1), kafka.brokers[0], asyncio.Event()

        async def slowly(_: Request) -> Any:
            await go_on.wait()
            return produced()

        broker.on(PRODUCE, slowly)
        broker.on(CREATE, lambda _: b"\0")
        frames = [produce(), produce(), frame_of(any_request(CREATE, 7, seed=1), correlation_id=8)]
        answers = [asyncio.create_task(client.raw(frame)) for frame in frames]
        await broker.seen(PRODUCE)
        last = asyncio.create_task(client.raw(frames[0]))
        await asyncio.sleep(0)
        assert not any(each.done() for each in answers)
        go_on.set()
        found = [await each for each in (*answers, last)]
        assert [int.from_bytes(each[:4], "big") for each in found] == [7, 7, 8, 7]


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@pytest.mark.parametrize("transactional_id", [None, "tx"])
async def test_what_wants_no_answer_gets_none(version: int, transactional_id: str | None) -> None:
    async with passing() as kafka:
        client, broker = await kafka.connect(1), kafka.brokers[0]
        answers = iter([None, produced(version)])
        broker.on(PRODUCE, lambda request: next(answers) or SILENCE)
        silent = produce(version, 0, transactional_id)
        client.writer.write(struct.pack(">i", len(silent)) + silent)
        answer = await _asked(client, PRODUCE, version, produce(version, 1, transactional_id))
        assert answer.responses == ()
        assert broker.count(PRODUCE) == 2


async def test_what_wants_no_answer_arrives_also_when_its_producer_is_gone() -> None:
    async with passing() as kafka:
        client, broker = await kafka.connect(1), kafka.brokers[0]
        broker.on(PRODUCE, lambda _: SILENCE)
        silent = produce(acks=0)
        client.writer.write(b"".join([struct.pack(">i", len(silent)) + silent] * 5))
        await client.close()
        for _ in range(5):
            await broker.seen(PRODUCE)


async def test_a_producer_without_answers_hears_of_an_error_by_the_end() -> None:
    async with passing() as kafka:
        client = await kafka.connect(1)
        kafka.brokers[0].on(PRODUCE, lambda _: CLOSE)
        silent = produce(acks=0)
        client.writer.write(struct.pack(">i", len(silent)) + silent)
        assert await client.ended()


async def test_addresses_in_answers_to_producers_are_replaced() -> None:
    async with passing() as kafka:
        client = await kafka.connect(1)
        end = {"host": "kafka", "port": 9, "rack": None}
        ends = tuple(made(PRODUCE, 12, "NodeEndpoint", node_id=node, **end) for node in (2, 5))
        kafka.brokers[0].on(PRODUCE, lambda _: produced(node_endpoints=ends))
        answer = await _asked(client, PRODUCE, 12, produce())
        # Nobody knows the other one.
        (told,) = answer.node_endpoints
        assert (told.node_id, told.host, told.port) == (2, "127.0.0.1", kafka.first + 2)


async def test_a_client_that_reads_slowly_lets_its_broker_wait() -> None:
    async with passing() as kafka:
        client, broker = await kafka.connect(1), kafka.brokers[0]
        size, whole = 64 << 20, asyncio.Event()

        async def much(request: Request) -> Any:
            request.link.write(struct.pack(">ii", size + 4, request.correlation_id))
            for _ in range(size >> 20):
                request.link.write(bytes(1 << 20))
                await request.link._writer.drain()
            whole.set()
            return SILENCE

        broker.on(FETCH, much)
        frame = frame_of(any_request(FETCH, 15, seed=2))
        client.writer.write(struct.pack(">i", len(frame)) + frame)
        await broker.seen(FETCH)
        # In so many turns of the loop all of it would have gone through twice.
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not whole.is_set()
        answer = await client._reader.readexactly(size + 8)
        assert answer[:8] == struct.pack(">ii", size + 4, 7)
        assert not any(memoryview(answer)[-(1 << 20) :])
        assert whole.is_set()


# -- brokers that go -------------------------------------------------------------------------------


async def test_a_broker_that_is_away_ends_the_connection() -> None:
    async with passing() as kafka:
        client = await kafka.connect(2)
        await kafka.brokers[1].stop()
        frame = produce()
        client.writer.write(struct.pack(">i", len(frame)) + frame)
        assert await client.ended()
        await kafka.brokers[1].start()
        kafka.brokers[1].on(PRODUCE, lambda _: produced())
        await _asked(await kafka.connect(2), PRODUCE, 12, produce())


async def test_a_broker_that_ends_while_it_works_ends_the_connection() -> None:
    async with passing() as kafka:
        for key, frame in ((PRODUCE, produce()), (CREATE, frame_of(any_request(CREATE, 7, 1)))):
            client = await kafka.connect(1)
            kafka.brokers[0].on(key, lambda _: CLOSE)
            client.writer.write(struct.pack(">i", len(frame)) + frame)
            assert await client.ended()


async def test_a_broker_that_has_moved_is_found() -> None:
    async with passing() as kafka:
        nodes = kafka.cluster.nodes
        kafka.cluster.nodes = {**nodes, 2: Node(Endpoint("127.0.0.1", free_run(1)), None)}
        kafka.brokers[1].on(PRODUCE, lambda _: produced())
        await _asked(await kafka.connect(2), PRODUCE, 12, produce())
        assert kafka.brokers[1].count(PRODUCE) == 1


async def test_an_idle_connection_of_a_broker_that_ends_is_made_anew() -> None:
    async with passing() as kafka:
        client, broker = await kafka.connect(1), kafka.brokers[0]
        broker.on(PRODUCE, lambda _: produced())
        await _asked(client, PRODUCE, 12, produce())
        broker.drop()
        await asyncio.sleep(0)
        await _asked(client, PRODUCE, 12, produce())
        assert broker.count(PRODUCE) == 2


async def test_what_is_cut_is_refused() -> None:
    async with passing() as kafka:
        for key, version in ((38, 3), (FETCH, 16)):
            client = await kafka.connect(1)
            frame = struct.pack(">hhih", key, version, 1, -1)
            client.writer.write(struct.pack(">i", len(frame)) + frame)
            assert await client.ended()
            assert kafka.brokers[0].count(key) == 0


# -- groups ----------------------------------------------------------------------------------------


async def test_groups_are_listed_together_and_ours_at_one_broker() -> None:
    async with passing() as kafka:
        await kafka.port.joined(client=await kafka.connect(1))
        listed = tuple(
            made(LIST_GROUPS, 5, "ListedGroup", group_id=name, protocol_type=kind,
                 group_state="Stable", group_type=kind)
            for name, kind in (("c", "consumer"), ("kafkas", "share"))
        )  # fmt: skip
        answer = made(LIST_GROUPS, 5, throttle_time=NO_TIME, error_code=ErrorCode.none,
                      groups=listed)  # fmt: skip
        for each in kafka.brokers:
            each.on(LIST_GROUPS, lambda _: answer)
        for node, names in ((1, ["g", "c"]), (2, ["c"])):
            client = await kafka.connect(node)
            found = await client.ask(LIST_GROUPS, 5, states_filter=(), types_filter=())
            assert [each.group_id for each in found.groups] == names


async def test_a_member_has_a_share_session_with_each_broker() -> None:
    async with passing(records=4) as kafka:
        one = await kafka.port.joined(client=await kafka.connect(1))
        two = await kafka.connect(2)
        two.topic_id, two._member = one.topic_id, one._member
        found = await asyncio.gather(one.fetch(0, partitions=(0,)), two.fetch(0, partitions=(1,)))
        assert [each.error_code.value for each in found] == [0, 0]
        parts = [fetched(each) for each in found]
        if not parts[0].get(0):
            parts[0] = fetched(await one.fetch(1, partitions=(0,)))
            first = 2
        else:
            first = 1
        assert parts[0].keys() == {0}
        assert parts[0][0].acquired == [(0, 3, 1)]
        if not parts[1].get(1):
            parts[1] = fetched(await two.fetch(1, partitions=(1,)))
        assert parts[1].keys() == {1}
        assert parts[1][1].acquired == [(0, 3, 1)]
        said = await one.acknowledge(first, {0: [(0, 3, 1)]})
        assert said.error_code.value == 0
        # The session with broker 2 ends, and its records come again; the other one goes on.
        await two.close()
        again = fetched(await one.fetch(first + 1, partitions=(0, 1), wait_ms=5_000))
        assert again.keys() == {1}
        assert again[1].acquired == [(0, 3, 2)]


# -- rules -----------------------------------------------------------------------------------------

RECORDS_SEED = next(
    seed
    for seed in range(100)
    if any(topic.partition_data for topic in any_request(PRODUCE, 12, seed).topic_data)
)
"""A request of a producer with records in it."""

ALLOWED = (
    BASE
    + """
  - allow: [pass-through]
    principals: ["User:anna"]
    resources: ["cluster:sharecoord"]
"""
)


@asynccontextmanager
async def ruled(folder: Path, rules: str = ALLOWED) -> AsyncIterator[tuple[Kafka, Secured]]:
    """A port with rules: anna may pass through, and the worker be a member alone."""
    secured = Secured(folder, rules)
    world = world_with(4, partitions=2)
    world.make_guard = secured._guard
    async with passing(
        world=world, topics=("orders", "secret"), authenticator=secured.authenticator
    ) as kafka:
        yield kafka, secured
    await secured.audit.close()


async def test_rules_say_who_passes_through(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (kafka, secured):
        anna, worker = await kafka.connect(1), await kafka.connect(1)
        for client, name in ((anna, "anna"), (worker, "worker")):
            answer = await log_in(client, name, "SCRAM-SHA-256")
            assert answer.error_code.value == 0
        kafka.brokers[0].on(PRODUCE, lambda _: produced())
        await _asked(anna, PRODUCE, 12, produce())
        assert kafka.brokers[0].count(PRODUCE) == 1
        request = any_request(PRODUCE, 12, seed=RECORDS_SEED)
        given = {f: getattr(request, f) for f in ("transactional_id", "topic_data", "timeout")}
        frame = frame_of(type(request)(**given, acks=1))
        answer = await _asked(worker, PRODUCE, 12, frame)
        codes = {p.error_code.value for t in answer.responses for p in t.partition_responses}
        assert codes == {29}
        assert kafka.brokers[0].count(PRODUCE) == 1
        # A member needs no such right, and sees its topics alone.
        found = await worker.ask(METADATA, 12, **_all_topics(12))
        assert [each.name for each in found.topics] == ["orders"]
        asked = await kafka.brokers[0].seen(METADATA)
        assert asked.entity().allow_auto_topic_creation is False
        told = await worker.ask(FIND, 4, key_type=0, coordinator_keys=("g",))
        assert (told.coordinators[0].node_id, told.coordinators[0].port) == (1, kafka.first + 1)
        await kafka.port.joined(client=worker)
        frame = frame_of(any_request(CREATE, 7, seed=1))
        worker.writer.write(struct.pack(">i", len(frame)) + frame)
        assert await worker.ended()
        assert kafka.brokers[0].count(CREATE) == 0
        assert any("pass-through" in line["why"] for line in await secured.told())


async def test_who_has_not_proven_itself_passes_nothing(tmp_path: Path) -> None:
    async with ruled(tmp_path, rules="") as (kafka, _):
        for frame in (produce(), frame_of(any_request(CREATE, 7, seed=1))):
            client = await kafka.connect(1)
            client.writer.write(struct.pack(">i", len(frame)) + frame)
            assert await client.ended()
        assert kafka.brokers[0].count(PRODUCE) == kafka.brokers[0].count(CREATE) == 0
