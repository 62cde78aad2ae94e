"""Every admin call over a real connection: SDK, gRPC server, runtime, memory store, fake log."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from sharecoord_sdk import AsyncShareConsumer
from sharecoord_sdk.admin import (
    AdminClient,
    AdminError,
    AsyncAdminClient,
    ConfigSource,
    CoordinatorUnavailableError,
    ForceAction,
    GroupListing,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupState,
    InvalidConfigError,
    InvalidRequestError,
    NotACoordinatorError,
    RecordState,
    ResetTo,
    UnknownTopicOrPartitionError,
)

from sharecoord.api.grpc.admin_service import SERVICE, AdminService
from sharecoord.api.grpc.server import share_service
from sharecoord.core.changes import PartitionKey
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.admin.operators import Operators
from sharecoord.testing.fake_log import FakeLog
from tests.access import access_of
from tests.support import eventually_async
from tests.world import World

INFO = CoordinatorInfo("1.2.3", "fake-cluster", "kafka:9092", "memory:")
LOCK = "share.record.lock.duration.ms"


class Awaited:
    """The synchronous client with the methods of the other one; a thread does the waiting."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return functools.partial(asyncio.to_thread, getattr(self._client, name))


class Served:
    """A coordinator behind a port of its own."""

    def __init__(self, log: FakeLog, world: World) -> None:
        self.log, self.world = log, world
        self.address = ""

    async def start(self) -> None:
        self.coordinator = await self.world.start()
        self.server = grpc.aio.server()
        access = access_of(self.coordinator)
        operators = Operators(Admin(self.coordinator, INFO), self.coordinator)
        admin = AdminService(operators, access)
        share = share_service(self.coordinator, access)
        self.server.add_generic_rpc_handlers((share, admin.handlers()))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self.coordinator.drain()
        await self.server.stop(0)
        await self.coordinator.close()

    def consumer(self, group: str = "g", **settings: Any) -> AsyncShareConsumer:
        base = {"bootstrap.servers": self.address, "group.id": group, "client.id": "worker"}
        return AsyncShareConsumer({**base, **settings})

    async def consume(self, count: int, group: str = "g") -> None:
        """Accepts records in order, then leaves."""
        async with self.consumer(group) as consumer:
            await consumer.subscribe(["orders"])
            seen = 0
            while seen < count:
                seen += len(await consumer.poll(5.0))
            await consumer.commit_sync()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    log = FakeLog()
    log.create("orders", 2)
    log.append("orders", 100)
    made = Served(log, World(log))
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(params=["sync", "async"])
async def admin(request: pytest.FixtureRequest, served: Served) -> AsyncIterator[Any]:
    settings = {"bootstrap.servers": served.address, "default.api.timeout.ms": 10_000}
    if request.param == "async":
        async with AsyncAdminClient(settings) as client:
            yield client
        return
    with AdminClient(settings) as client:
        yield Awaited(client)


def test_every_method_of_the_proto_is_there() -> None:
    methods = {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in m.name)[1:]: m.name
        for m in SERVICE.methods
    }
    served = AdminService(
        cast("Any", None), cast("Any", SimpleNamespace(caller_of=None))
    ).handlers()
    for name, method in methods.items():
        called = SimpleNamespace(method=f"/{SERVICE.full_name}/{method}", invocation_metadata=())
        assert served.service(cast("Any", called)) is not None, method
        assert callable(getattr(AdminClient, name))
        assert callable(getattr(AsyncAdminClient, name))


async def test_list_groups(served: Served, admin: Any) -> None:
    assert await admin.list_groups() == []
    await served.consume(100)
    await admin.alter_group_configs("a", {LOCK: 20_000})
    empty = [GroupListing("a", GroupState.EMPTY), GroupListing("g", GroupState.EMPTY)]
    assert await admin.list_groups() == empty
    async with served.consumer("g") as consumer:
        await consumer.subscribe(["orders"])
        await eventually_async(lambda: admin.list_groups([GroupState.STABLE]))
        assert await admin.list_groups([GroupState.STABLE]) == [
            GroupListing("g", GroupState.STABLE)
        ]


async def test_describe_groups(served: Served, admin: Any) -> None:
    async with served.consumer(**{"share.acknowledgement.mode": "explicit"}) as consumer:
        await consumer.subscribe(["orders"])
        messages = await consumer.poll(5.0)
        known, unknown = await admin.describe_groups(["g", "nobody"])
        assert (known.state, known.member_count, known.error) == (GroupState.STABLE, 1, None)
        assert known.coordinator_id == "c1"
        first, second = known.offsets
        assert (first.topic, first.partition, first.start_offset) == ("orders", 0, 0)
        assert (first.log_end_offset, first.lag) == (100, 100)
        assert first.acquired_records >= len(messages)
        assert (second.partition, second.lag) == (1, 0)
        (member,) = known.members
        assert (member.client_id, member.assignment) == ("worker", {"orders": (0, 1)})
        assert member.acquired_records == first.acquired_records
        assert member.host.startswith("127.0.0.1")
        assert unknown.state is GroupState.DEAD
        assert isinstance(unknown.error, GroupNotFoundError)
        assert unknown.error.reason == "GROUP_ID_NOT_FOUND"


async def test_offsets_that_are_not_known_are_none(served: Served, admin: Any) -> None:
    topic_id = (await served.log.describe(["orders"]))["orders"].topic_id
    store = served.world.store
    store.ensure_group("g")
    store.open_partitions([PartitionKey("g", "orders", topic_id, 0)])
    (group,) = await admin.describe_groups(["g"])
    (found,) = group.offsets
    assert (found.start_offset, found.lag, found.leader_epoch) == (None, None, None)
    assert (found.log_end_offset, found.topic_id) == (100, topic_id)


async def test_group_configs(served: Served, admin: Any) -> None:
    await admin.alter_group_configs("g", {LOCK: "20s", "share.renew.acknowledge.enable": False})
    entries = {entry.name: entry for entry in await admin.describe_group_configs("g")}
    assert (entries[LOCK].value, entries[LOCK].source) == ("20000", ConfigSource.GROUP)
    assert entries["share.renew.acknowledge.enable"].value == "false"
    reset = entries["share.auto.offset.reset"]
    assert (reset.value, reset.source) == ("earliest", ConfigSource.COORDINATOR)
    assert entries["share.delivery.count.limit"].source is ConfigSource.DEFAULT
    await admin.alter_group_configs("g", delete=[LOCK])
    entries = {entry.name: entry for entry in await admin.describe_group_configs("g")}
    assert entries[LOCK].source is ConfigSource.DEFAULT
    with pytest.raises(InvalidConfigError, match=r"share\.record\.lock\.duration\.ms") as raised:
        await admin.alter_group_configs("g", {LOCK: "1"}, validate_only=True)
    assert (raised.value.reason, raised.value.retriable) == ("INVALID_CONFIG", False)


async def test_reset_offsets(served: Served, admin: Any) -> None:
    await served.consume(100)
    planned = await admin.reset_offsets("g", ResetTo.earliest(), dry_run=True)
    assert [(r.topic, r.partition, r.new_offset, r.old_offset) for r in planned] == [
        ("orders", 0, 0, 100),
        ("orders", 1, 0, 0),
    ]
    assert (await admin.describe_groups(["g"]))[0].offsets[0].start_offset == 100
    (beyond,) = await admin.reset_offsets("g", ResetTo.offset(500), {"orders": [0]})
    assert (beyond.new_offset, beyond.requested_offset) == (100, 500)
    (back,) = await admin.reset_offsets("g", ResetTo.offsets({("orders", 0): 60}))
    assert (back.new_offset, back.requested_offset) == (60, None)
    (later,) = await admin.reset_offsets("g", ResetTo.timestamp(1_070), {"orders": [0]})
    assert later.new_offset == 70
    (all_of_it,) = await admin.reset_offsets("g", ResetTo.duration(1 << 50), {"orders": [0]})
    assert all_of_it.new_offset == 0
    (back,) = await admin.reset_offsets("g", ResetTo.timestamp(1_070), {"orders": [0]})
    (unknown,) = await admin.reset_offsets("g", ResetTo.latest(), ["nowhere"])
    assert (unknown.partition, unknown.new_offset) == (-1, None)
    assert isinstance(unknown.error, UnknownTopicOrPartitionError)
    await served.consume(30)


async def test_a_reset_under_traffic_needs_force(served: Served, admin: Any) -> None:
    async with served.consumer() as consumer:
        await consumer.subscribe(["orders"])
        await consumer.poll(5.0)
        with pytest.raises(GroupNotEmptyError) as raised:
            await admin.reset_offsets("g", ResetTo.current())
        assert raised.value.reason == "GROUP_NOT_EMPTY"
        await admin.reset_offsets("g", ResetTo.offset(99), {"orders": [0]}, force=True)

        async def last_one() -> bool:
            return any(
                m.offset() == 99 and m.delivery_count() == 1 for m in await consumer.poll(0.2)
            )

        await eventually_async(last_one)


async def test_pause_and_resume(served: Served, admin: Any) -> None:
    await served.consume(100)
    answer = await admin.pause_group("g", {"orders": [0]}, reason="größer")
    (result,) = answer.results
    assert (result.changed, result.note, answer.pauses) == (True, "", (result.pause,))
    pause = result.pause
    assert (pause.topic, pause.partition, pause.member_id) == ("orders", 0, "")
    assert (pause.paused_by, pause.reason) == ("User:anonymous", "größer")
    assert pause.since_ms > 0
    (group,) = await admin.describe_groups(["g"])
    assert group.pauses == (pause,)
    assert {p.partition: p.pause for p in group.offsets} == {0: pause, 1: None}
    served.log.append("orders", 10)
    async with served.consumer() as consumer:
        await consumer.subscribe(["orders"])
        assert len(await consumer.poll(0.3)) == 0
        (group,) = await admin.describe_groups(["g"])
        (member,) = group.members
        await admin.pause_group("g", (), [member.member_id])
        again = await admin.resume_group("g", ["orders"])
        assert again.results[0].note == "orders was not paused"
        assert len((await admin.resume_group("g", {"orders": [0]})).pauses) == 1
        assert len(await consumer.poll(0.3)) == 0
        (group,) = await admin.describe_groups(["g"])
        assert group.members[0].pause.member_id == member.member_id
        await admin.resume_group("g", members=[member.member_id])
        got: list[Any] = []

        async def all_ten() -> bool:
            got.extend(await consumer.poll(0.2))
            return len(got) == 10

        await eventually_async(all_ten)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (("nobody",), GroupNotFoundError, "share group 'nobody' does not exist"),
        (("g", ["nowhere"]), UnknownTopicOrPartitionError, "no topic 'nowhere'"),
        (("g", {"orders": [2]}), UnknownTopicOrPartitionError, r"no partition 2; it has 2 \("),
        (("g", {"orders": [-1]}), InvalidRequestError, "partition is -1; it must be 0 or more"),
        (("g", {"orders": [0, 0]}), InvalidRequestError, r"orders\[0\] stands there twice"),
        (("g", (), ["nobody"]), AdminError, "no member 'nobody'"),
        (("g", (), [""]), InvalidRequestError, "member_id has 0 characters"),
        (("g", (), (), "x" * 1001), InvalidRequestError, "reason has 1001 characters; 1000"),
        (("g", (), (), "a\nb"), InvalidRequestError, "control character"),
    ],
)
async def test_what_can_not_be_paused(
    served: Served, admin: Any, arguments: tuple[Any, ...], kind: type[AdminError], text: str
) -> None:
    await served.consume(100)
    more = {"reason": arguments[3]} if len(arguments) > 3 else {}
    with pytest.raises(kind, match=text):
        await admin.pause_group(*arguments[:3], **more)
    (group,) = await admin.describe_groups(["g"])
    assert group.pauses == ()


async def test_force_records(served: Served, admin: Any) -> None:
    async with served.consumer(**{"share.acknowledgement.mode": "explicit"}) as consumer:
        await consumer.subscribe(["orders"])
        got = [*await consumer.poll(5.0)]
        planned = await admin.force_records(
            "g", "orders", 0, 0, 0, ForceAction.FINISH, dry_run=True
        )
        (found,) = planned
        assert (found.first_offset, found.last_offset, found.delivery_count) == (0, 0, 1)
        assert (found.before, found.after) == ("acquired", "finished")
        assert found.member_id
        assert await admin.force_records("g", "orders", 0, 0, 0, ForceAction.FINISH) == planned
        (found,) = await admin.force_records("g", "orders", 0, 1, 1, "skip")
        assert found.after == "archived"
        (found,) = await admin.force_records("g", "orders", 0, 2, 2, ForceAction.RELEASE)
        assert found.after == "available"
        for message in got:
            consumer.acknowledge(message)
        await consumer.commit_sync(10)
        (group,) = await admin.describe_groups(["g"])
        assert {p.partition: p.start_offset for p in group.offsets}[0] == 2
    with pytest.raises(InvalidRequestError, match=r"offset 100 .* does not exist yet"):
        await admin.force_records("g", "orders", 0, 99, 100, ForceAction.SKIP)
    with pytest.raises(UnknownTopicOrPartitionError):
        await admin.force_records("g", "orders", 7, 0, 0, ForceAction.SKIP)
    with pytest.raises(InvalidRequestError, match="partition is -1"):
        await admin.force_records("g", "orders", -1, 0, 0, ForceAction.SKIP)
    with pytest.raises(InvalidRequestError, match="'' is not a topic name"):
        await admin.force_records("g", "", 0, 0, 0, ForceAction.SKIP)


async def test_delete_offsets(served: Served, admin: Any) -> None:
    await served.consume(100)
    results = await admin.delete_offsets("g", ["orders", "nowhere"])
    assert results["orders"] is None
    assert isinstance(results["nowhere"], UnknownTopicOrPartitionError)
    await served.consume(100)
    with pytest.raises(GroupNotFoundError):
        await admin.delete_offsets("nobody", ["orders"])


async def test_delete_groups(served: Served, admin: Any) -> None:
    await served.consume(100)
    results = await admin.delete_groups(["g", "nobody"])
    assert results["g"] is None
    assert isinstance(results["nobody"], GroupNotFoundError)
    assert await admin.list_groups() == []
    await served.consume(100)


async def test_list_in_flight(served: Served, admin: Any) -> None:
    async with served.consumer(**{"share.acknowledgement.mode": "explicit"}) as consumer:
        await consumer.subscribe(["orders"])
        messages = await consumer.poll(5.0)
        ranges = await admin.list_in_flight("g", "orders", 0)
        assert ranges[0].first_offset == 0
        assert (ranges[0].state, ranges[0].delivery_count) == (RecordState.ACQUIRED, 1)
        assert 0 < ranges[0].lock_remaining_ms <= 30_000
        assert ranges[0].lock_token > 0
        assert ranges[0].checkpoints == 0
        (message, *_) = messages
        await consumer.checkpoint(message, b"half")
        (first, *_) = await admin.list_in_flight("g", "orders", 0)
        assert (first.first_offset, first.checkpoints, first.checkpoint_bytes) == (0, 1, 4)
        assert await admin.list_in_flight("g", "orders", 0, from_offset=100) == []
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.list_in_flight("g", "orders", 5)


async def test_describe_coordinator(served: Served, admin: Any) -> None:
    found = await admin.describe_coordinator()
    assert (found.coordinator_id, found.version) == ("c1", "1.2.3")
    assert (found.kafka_bootstrap_servers, found.store) == ("kafka:9092", "memory:")
    assert found.uptime_ms >= 0


async def test_unusable_arguments_name_the_field(admin: Any) -> None:
    with pytest.raises(InvalidRequestError, match="group_id is empty"):
        await admin.describe_group_configs("")
    with pytest.raises(InvalidRequestError, match="not a topic name"):
        await admin.delete_offsets("g", ["a b"])
    with pytest.raises(InvalidRequestError, match="to_offsets is empty"):
        await admin.reset_offsets("g", ResetTo.offsets({}))


async def test_errors_that_pass_say_how_long_to_wait(served: Served, admin: Any) -> None:
    served.log.set_down(down=True)
    with pytest.raises(CoordinatorUnavailableError, match="fake cluster is down") as raised:
        await admin.reset_offsets("g", ResetTo.earliest(), ["orders"])
    assert (raised.value.reason, raised.value.retriable) == ("KAFKA_UNAVAILABLE", True)
    assert raised.value.retry_after_ms == 100


async def test_the_next_address_is_asked_when_nobody_answers(served: Served) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{bound.getsockname()[1]}"
    both = {"bootstrap.servers": f"{silent},{served.address}"}
    async with AsyncAdminClient(both) as client:
        await client.alter_group_configs("g", {LOCK: 20_000})
        assert len(await client.list_groups()) == 1
    async with AsyncAdminClient({"bootstrap.servers": silent}) as client:
        with pytest.raises(CoordinatorUnavailableError, match="no coordinator answers at 127"):
            await client.list_groups()


async def test_a_mistake_of_ours_is_an_error_with_a_name(served: Served, admin: Any) -> None:
    key = PartitionKey("g", "orders", "00" * 16, 0)
    served.world.store.reset_partitions({key: 5})
    broken = next(iter(served.world.store.database.partitions.values()))
    broken.row = None  # type: ignore[assignment]
    with pytest.raises(Exception, match="failed inside of the coordinator") as raised:
        await admin.describe_groups(["g"])
    assert getattr(raised.value, "reason", None) == "INTERNAL"


@pytest.fixture
async def kafka_address() -> AsyncIterator[str]:
    """A socket that answers ApiVersions as a broker does, and hangs up on everything else."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size_bytes = int.from_bytes(await reader.read(4), "big")
        if 0 < size_bytes < 1_000:
            request = await reader.readexactly(size_bytes)
            writer.write(b"\x00\x00\x00\x0a" + request[4:8] + bytes(6))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_kafka_broker_is_named_as_such(kafka_address: str) -> None:
    settings = {"bootstrap.servers": kafka_address, "default.api.timeout.ms": 10_000}
    async with AsyncAdminClient(settings) as client:
        with pytest.raises(NotACoordinatorError, match="is a Kafka broker") as raised:
            await client.list_groups()
    assert (raised.value.reason, raised.value.retriable) == ("KAFKA_BROKER", False)


async def test_another_grpc_server_is_named_as_such() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncAdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}) as client:
        with pytest.raises(NotACoordinatorError, match="is it a sharecoord coordinator"):
            await client.list_groups()
    await server.stop(None)
