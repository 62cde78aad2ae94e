"""What a coordinator process shows to the outside: gRPC, health, metrics, signals, both SDKs."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from sharecoord_sdk import AdminClient, AsyncShareConsumer, Message, ShareConsumer
from sharecoord_sdk._proto import share_service_pb2 as service
from sharecoord_sdk._proto import share_types_pb2 as types
from sharecoord_sdk.admin import InFlightRange, RecordState

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from sharecoord.wire import share_service_pb2_grpc as service_grpc
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

TopicFactory = Callable[..., str]

CALL_S = 20.0


@pytest.fixture
def channel(coordinator: CoordinatorProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(coordinator.address) as opened:
        yield opened


# -- health and reflection ------------------------------------------------------------------------


SERVICES = ("sharecoord.v1.ShareService", "sharecoord.v1.AdminService")


def test_grpc_health_says_serving(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("name", SERVICES)
def test_grpc_health_knows_each_service(channel: grpc.Channel, name: str) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=CALL_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_and_describes_both_services(channel: grpc.Channel) -> None:
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in SERVICES),
    ]
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    listed, *described = stub.ServerReflectionInfo(iter(asked), timeout=CALL_S)
    names = {each.name for each in listed.list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names
    assert all(answer.file_descriptor_response.file_descriptor_proto for answer in described)


# -- the unary calls ------------------------------------------------------------------------------


class RawMember:
    """A member that has nothing but the stubs."""

    def __init__(self, channel: grpc.Channel, group: str, topic: str) -> None:
        stub: Any = service_grpc.ShareServiceStub(channel)  # type: ignore[no-untyped-call]
        self._stub = stub
        join = service.Join(
            group_id=group,
            member_id=str(uuid.uuid4()),
            client_id="raw",
            topics=[topic],
            protocol_version=1,
        )
        self.joined = self._stub.Join(service.JoinRequest(join=join), timeout=CALL_S).joined
        self._who = {
            "group_id": group,
            "member_id": join.member_id,
            "member_epoch": self.joined.member_epoch,
        }
        self._request_id = 0

    def fetch(self, request_id: int, max_records: int) -> service.FetchResponse:
        request = service.FetchRequest(
            **self._who, request_id=request_id, max_records=max_records, max_wait_ms=1_000
        )
        answer: service.FetchResponse = self._stub.Fetch(request, timeout=CALL_S)
        return answer

    def first_batch(self, max_records: int) -> tuple[int, types.RecordBatch]:
        """Fetches until records come; the request id and the batch."""

        def some() -> tuple[int, types.RecordBatch] | None:
            self._request_id += 1
            answer = self.fetch(self._request_id, max_records)
            return (self._request_id, answer.batches[0]) if answer.batches else None

        return eventually(some, 20, what="records")

    def accept(self, batch: types.RecordBatch, first: int, last: int) -> types.PartitionOutcome:
        """Accepts offsets of a batch, each with the token of its lock."""
        accepted = [
            types.AcknowledgedRange(
                first_offset=max(first, lock.first_offset),
                last_offset=min(last, lock.last_offset),
                type=types.ACKNOWLEDGE_TYPE_ACCEPT,
                lock_token=lock.lock_token,
            )
            for lock in batch.ranges
            if lock.first_offset <= last and lock.last_offset >= first
        ]
        items = [types.PartitionAcknowledgements(partition=batch.partition, ranges=accepted)]
        request = service.AcknowledgeRequest(**self._who, acknowledgements=items)
        outcome: types.PartitionOutcome
        (outcome,) = self._stub.Acknowledge(request, timeout=CALL_S).outcomes
        return outcome

    def heartbeat(self) -> service.HeartbeatResponse:
        answer: service.HeartbeatResponse = self._stub.Heartbeat(
            service.HeartbeatRequest(**self._who), timeout=CALL_S
        )
        return answer

    def leave(self) -> None:
        self._stub.Leave(service.LeaveRequest(**self._who), timeout=CALL_S)


def test_a_round_trip_of_unary_calls(
    channel: grpc.Channel, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 10)
    member = RawMember(channel, group, name)
    assert member.joined.lock_duration_ms == 30_000
    assert member.joined.ordering == "unordered"
    assert member.joined.protocol_version == 1
    _, batch = member.first_batch(10)
    assert (batch.partition.topic, batch.base_offset, batch.record_count) == (name, 0, 10)
    assert [bytes(value)[:10] for value in batch.values] == [b"%010d" % i for i in range(10)]
    assert len(batch.partition.topic_id) == 16
    assert not member.accept(batch, 5, 9).exceptions
    (again,) = member.accept(batch, 5, 9).exceptions
    assert again.outcome == types.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED
    assert again.final_state == types.RECORD_STATE_ACKNOWLEDGED
    (assigned,) = member.heartbeat().assignment.topics
    assert (assigned.topic, list(assigned.partitions)) == (name, [0])
    member.leave()
    with pytest.raises(grpc.RpcError) as refused:
        member.heartbeat()
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    trailer: dict[str, object] = {
        each.key: each.value for each in refused.value.trailing_metadata()
    }
    assert trailer["sharecoord-reason"] == "UNKNOWN_MEMBER"
    # What it held and did not finish goes to the next one, and was counted.
    other = RawMember(channel, group, name)
    _, rest = other.first_batch(10)
    assert (rest.base_offset, rest.record_count) == (0, 5)
    assert {r.delivery_count for r in rest.ranges} == {2}
    assert not other.accept(rest, 0, 4).exceptions
    other.leave()


def with_ten(
    channel: grpc.Channel, topic: TopicFactory, topics: Topics
) -> tuple[RawMember, int, types.RecordBatch]:
    """A member that has fetched the first ten of 100 records, the fetch's number, and its batch."""
    name = topic()
    topics.produce(name, 100)
    member = RawMember(channel, unique_name("g"), name)
    number, batch = member.first_batch(10)
    assert (batch.base_offset, batch.record_count) == (0, 10)
    return member, number, batch


def test_a_fetch_that_is_asked_again_gets_the_same_answer(
    channel: grpc.Channel, topic: TopicFactory, topics: Topics
) -> None:
    member, number, batch = with_ten(channel, topic, topics)
    again = member.fetch(number, 10)
    assert list(again.batches) == [batch]
    assert not member.accept(batch, 0, 9).exceptions
    later, following = member.first_batch(10)
    assert (following.base_offset, following.record_count) == (10, 10)
    assert later > number
    with pytest.raises(grpc.RpcError) as refused:
        member.fetch(number, 10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    member.leave()


def test_a_fetch_gets_the_next_records_before_the_last_ones_are_acknowledged(
    channel: grpc.Channel, topic: TopicFactory, topics: Topics
) -> None:
    member, number, _ = with_ten(channel, topic, topics)
    following = member.fetch(number + 1, 10).batches
    member.leave()
    assert [(each.base_offset, each.record_count) for each in following] == [(10, 10)]


# -- the management server ------------------------------------------------------------------------


def test_probes_and_metrics(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 30)
    (port,) = free_ports(1)

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=5) as answer:
            assert answer.status == 200
            return str(answer.read().decode())

    with CoordinatorProcess(
        kafka_broker.bootstrap_servers, tmp_path, settings={"management.port": port}
    ) as process:
        eventually(lambda: get("/healthz/live") == "ok\n", 10)
        eventually(lambda: get("/healthz/ready") == "ok\n", 10)
        config = {"bootstrap.servers": process.address, "group.id": group}
        with ShareConsumer(
            {**config, "share.acknowledgement.mode": "explicit", "max.poll.records": 10}
        ) as consumer:
            consumer.subscribe([name])
            held = eventually(lambda: consumer.poll(0.2), 20, what="records")
            for message in held:
                consumer.acknowledge(message)
            consumer.commit_sync(timeout=20.0)
            lag = f'sharecoord_lag_records{{group="{group}",partition="0",topic="{name}"}}'
            wanted = f"{lag} {float(30 - len(held))}"
            eventually(lambda: wanted in get("/metrics").splitlines(), 10, what=wanted)
            members = f'sharecoord_members{{group="{group}"}} 1.0'
            assert {members, "sharecoord_producers_running 0.0"} <= set(
                get("/metrics").splitlines()
            )


# -- signals --------------------------------------------------------------------------------------


def test_sigterm_ends_in_order_and_locks_survive(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 50)
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as process:
        settings = explicit(process.address, group, 10)
        with ShareConsumer(settings) as holder, ShareConsumer(settings) as other:
            holder.subscribe([name])
            held = eventually(lambda: holder.poll(0.2), 20, what="records")
            before = _acquired(process, group, name, held)
            os.kill(process.pid, signal.SIGTERM)
            start_s = time.monotonic()
            eventually(lambda: process.exit_code is not None, 10, what="the process ended")
            assert process.exit_code == 0, process.log_tail()
            assert time.monotonic() - start_s < 10
            process.restart()
            assert _acquired(process, group, name, held) == before
            other.subscribe([name])
            rest: set[int | None] = set()

            def others_came() -> bool:
                for message in other.poll(0.2):
                    rest.add(message.offset())
                    other.acknowledge(message)
                other.commit_async()
                return len(rest) >= 50 - len(held)

            eventually(others_came, 25, what="what nobody holds goes to the other member")
            mine = {message.offset() for message in held}
            assert rest == set(range(50)) - mine
            for message in held:
                holder.acknowledge(message)
            assert list(holder.commit_sync(timeout=20.0).values()) == [None]


def _acquired(
    process: CoordinatorProcess, group: str, topic: str, held: Iterable[Message]
) -> dict[int, tuple[str, int, int]]:
    """Member, lock token and delivery count of each held offset."""
    with AdminClient({"bootstrap.servers": process.address}) as admin:
        ranges: list[InFlightRange] = list(admin.list_in_flight(group, topic, 0))
    found = {
        offset: (each.member_id, each.lock_token, each.delivery_count)
        for each in ranges
        if each.state is RecordState.ACQUIRED
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    return {offset: found[offset] for m in held if (offset := m.offset()) is not None}


# -- the asynchronous SDK -------------------------------------------------------------------------


async def test_the_async_consumer_end_to_end(
    topic: TopicFactory, topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 100)
    config = {"bootstrap.servers": coordinator.address, "group.id": group}
    seen: list[int | None] = []
    async with AsyncShareConsumer(config) as consumer:
        await consumer.subscribe([name])
        async for message in consumer:
            seen.append(message.offset())
            assert message.value()[:10] == b"%010d" % len(seen[:-1])
            if len(seen) == 100:
                break
        outcome = await consumer.commit_sync(timeout=20.0)
        assert list(outcome.values()) == [None]
    assert seen == list(range(100))
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        (found,) = admin.describe_groups([group])
    (place,) = found.offsets
    assert (place.start_offset, place.lag) == (100, 0)
