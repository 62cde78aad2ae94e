"""Hostile clients: the coordinator stays up and within its memory, and others notice nothing.

Every test runs beside a bystander: another group whose producer goes on all the time. Its records
must reach their worker within a bounded time during the attack, and the coordinator's log must
hold no mistake of ours.
"""

from __future__ import annotations

import itertools
import resource
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharecoord_sdk._proto import admin_service_pb2 as admin_pb
from sharecoord_sdk._proto import share_service_pb2 as pb
from sharecoord_sdk._proto import share_types_pb2 as share_types

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.wire import share_service_pb2_grpc as rpc
from tests.acceptance.bad_input import Member, acknowledged, join_message, refusal
from tests.acceptance.chaos.arena import Arena, a_join, bystanding, serving, watched
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fixtures import broker
from tests.acceptance.chaos.hostility import (
    CONSUME,
    DATA,
    END_STREAM,
    GREETING,
    PING,
    Crowd,
    Method,
    any_message,
    call,
    frame,
    methods,
    reset,
    said,
    send,
)
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import Scene, let_pass
from tests.support import unique_name

__all__ = ["broker"]

pytestmark = pytest.mark.timeout(300)

MEBIBYTE = 1 << 20
OPEN_FILES = 11_000
CALL_TIMEOUT_S = 2.0
ODD = st.binary(max_size=64) | st.binary(min_size=1_000, max_size=5_000)
BY_METHOD = pytest.mark.parametrize("method", methods(), ids=lambda method: method.path[1:])
FUZZED = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def served(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One for all tests; it gets its limit of open files from us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, OPEN_FILES)), hard))
    with serving(broker, tmp_path_factory.mktemp("hostile")) as scene:
        yield scene


@pytest.fixture(scope="module")
def bystander(served: Scene) -> Iterator[tuple[Crew, Load]]:
    """Is at work beside all tests."""
    with bystanding(served) as found:
        yield found


@pytest.fixture
def arena(served: Scene, bystander: tuple[Crew, Load]) -> Arena:
    """The bystander was served before the attack, too."""
    if served.coordinator.exit_code is not None:
        # The test before has brought it down, and failed; this one is to say something of itself.
        served.coordinator.kill()
        served.coordinator.restart()
    found = watched(served, bystander)
    found.goes_on(1)
    return found


@pytest.fixture
def channel(arena: Arena) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(arena.address) as made:
        yield made


@pytest.fixture
def victim(arena: Arena, channel: grpc.Channel) -> Iterator[Member]:
    """A real member with records in hand, whose names the fuzzer knows."""
    topic = unique_name("t")
    arena.scene.topics.create(topic)
    arena.scene.topics.produce(topic, 50)
    make: Any = rpc.ShareServiceStub
    member = Member(make(channel), unique_name("g"), topic)
    member.join()
    member.receive(10)
    yield member
    arena.scene.topics.delete(topic)


# -- fuzzed messages ------------------------------------------------------------------------------

TYPED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
}


def is_typed(error: grpc.RpcError | None) -> None:
    """The call was answered or timed out, or was refused with a reason."""
    if error is None:
        return
    found = refusal(error)
    assert found.code in TYPED, found
    assert found.reason, found


@BY_METHOD
def test_any_bytes(arena: Arena, channel: grpc.Channel, method: Method) -> None:
    @FUZZED
    @given(ODD)
    def fuzz(body: bytes) -> None:
        is_typed(send(channel, method, body, CALL_TIMEOUT_S))

    fuzz()
    arena.is_unharmed()


@BY_METHOD
def test_any_message(arena: Arena, channel: grpc.Channel, victim: Member, method: Method) -> None:
    known: dict[str, list[Any]] = {
        "group_id": [victim.group],
        "group_ids": [victim.group],
        "member_id": [victim.member_id],
        "member_epoch": [victim.member_epoch, 0],
        "topic": [victim.topic],
        "topics": [victim.topic],
        "partition": [0],
        "protocol_version": [1],
        "first_offset": [0, 5, -1],
        "last_offset": [9, 4, (1 << 63) - 1],
        "max_wait_ms": [0],
    }

    @FUZZED
    @given(any_message(method.request, known))
    def fuzz(message: Any) -> None:
        is_typed(send(channel, method, message.SerializeToString(), 0.3))

    fuzz()
    arena.is_unharmed()


LONG = "x/" * (MEBIBYTE // 2)
"""No group, no topic, no setting."""


def megabytes() -> list[tuple[str, str, Message]]:
    """(method, field that the refusal names, request) of requests with a megabyte of text."""
    found: list[tuple[str, str, Message]] = []
    for field in ("group_id", "member_id", "client_id", "topics"):
        value = [LONG] if field == "topics" else LONG
        join = join_message("g", **{"topics": ["t"], field: value})
        found.append(("Join", field, pb.JoinRequest(join=join)))
    found += [
        ("Fetch", "group_id", pb.FetchRequest(group_id=LONG, member_id="m", request_id=1)),
        ("DescribeGroups", "group_id", admin_pb.DescribeGroupsRequest(group_ids=[LONG])),
        ("DeleteGroups", "group_id", admin_pb.DeleteGroupsRequest(group_ids=[LONG])),
        ("DeleteOffsets", "topics", admin_pb.DeleteOffsetsRequest(group_id="g", topics=[LONG])),
        (
            "AlterGroupConfigs",
            "x/x/",
            admin_pb.AlterGroupConfigsRequest(group_id="g", set={LONG: "1"}),
        ),
        (
            "AlterGroupConfigs",
            "share.delivery.count.limit",
            admin_pb.AlterGroupConfigsRequest(
                group_id="g", set={"share.delivery.count.limit": LONG}
            ),
        ),
    ]
    return found


@pytest.mark.parametrize(
    ("name", "field", "request_"),
    megabytes(),
    ids=lambda value: value if len(str(value)) < 40 else "",
)
def test_a_megabyte_of_text_is_refused_and_not_sent_back(
    arena: Arena, channel: grpc.Channel, name: str, field: str, request_: Message
) -> None:
    method = next(each for each in methods() if each.path.endswith(f"/{name}"))
    error = send(channel, method, request_.SerializeToString(), 10.0)
    assert error is not None
    found = refusal(error)
    assert found.code is grpc.StatusCode.INVALID_ARGUMENT, found
    assert field in found.text
    assert len(found.text) < 2_000
    arena.is_unharmed()


# -- many who say nothing -------------------------------------------------------------------------

CROWDS = pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.long)])


def room_for(count: int) -> None:
    """Every connection is a file here and one there."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 1_000
    if limit < wanted:
        pytest.skip(f"the limit of open files is {limit}; {wanted} are needed")


@CROWDS
@pytest.mark.parametrize("greeting", [b"", GREETING], ids=["tcp", "http2"])
def test_connections_that_say_nothing(arena: Arena, count: int, greeting: bytes) -> None:
    room_for(count)
    with Crowd(arena.address) as crowd:
        crowd.grow(count, greeting)
        arena.is_unharmed()


@CROWDS
def test_streams_that_never_join(arena: Arena, count: int) -> None:
    per_connection = 100
    silent = b"".join(call(2 * number + 1) for number in range(per_connection))
    with Crowd(arena.address) as crowd:
        crowd.grow(count // per_connection, GREETING + silent)
        arena.is_unharmed()


def test_half_closed_streams(arena: Arena) -> None:
    half_closed = b"".join(
        call(2 * number + 1, a_join()) + frame(DATA, flags=END_STREAM, stream=2 * number + 1)
        for number in range(20)
    )
    with Crowd(arena.address) as crowd:
        crowd.grow(10, GREETING + half_closed)
        arena.is_unharmed()


def test_connections_that_come_and_go(arena: Arena) -> None:
    for _ in range(20):
        with Crowd(arena.address) as crowd:
            crowd.grow(100, GREETING)
    arena.is_unharmed()


def test_streams_that_are_reset_at_once(arena: Arena) -> None:
    join = a_join()
    for _ in range(10):
        resets = b"".join(
            call(2 * number + 1, join) + reset(2 * number + 1) for number in range(200)
        )
        with Crowd(arena.address) as crowd:
            crowd.grow(1, GREETING)
            crowd.push(resets, 1)
    arena.is_unharmed()


def test_a_flood_of_pings(arena: Arena) -> None:
    with Crowd(arena.address) as crowd:
        crowd.grow(5, GREETING)
        crowd.push(frame(PING, b"12345678") * 1_000, 200)
        arena.is_unharmed()


# -- answers that nobody reads --------------------------------------------------------------------


def test_members_that_hang_up_before_their_answer(arena: Arena) -> None:
    """An answer that waits for its commit finds a stream that has ended meanwhile."""
    topic = unique_name("t")
    last_words = pb.ConsumeRequest(
        acknowledge_id=1,
        acknowledgements=[
            share_types.PartitionAcknowledgements(
                partition=share_types.TopicPartition(topic=topic),
                ranges=[acknowledged(0, 0, 1)],
            )
        ],
        leave=True,
    ).SerializeToString()
    group = unique_name("g")
    for number in range(300):
        with Crowd(arena.address) as crowd:
            crowd.grow(1, GREETING + call(1, a_join(group_id=group, topics=[topic])))
            # Its answer, which is more than what HTTP/2 says at first.
            crowd.hear(200)
            crowd.push(said(1, last_words), 1)
            let_pass(0.0005 * (number % 6))
            crowd.push(reset(1), 1)
    arena.is_unharmed()


def test_a_member_that_never_reads_its_answers(arena: Arena, channel: grpc.Channel) -> None:
    """A thousand wrong acknowledgements in each of 4,000 messages, each of which is answered."""
    topic = unique_name("t")
    wrong = [
        share_types.PartitionAcknowledgements(
            partition=share_types.TopicPartition(topic=topic, partition=number),
            ranges=[acknowledged(0, 0, 1)],
        )
        for number in range(1_000)
    ]
    question = pb.ConsumeRequest(acknowledge_id=1, acknowledgements=wrong).SerializeToString()
    asked = Asked(a_join(topics=[topic]), question, 4_000)
    untyped: Any = channel
    stream = untyped.stream_stream(CONSUME)(asked)
    arena.goes_on(150)
    arena.is_unharmed()
    stream.cancel()
    asked.end()
    print(f"{asked.sent} messages were sent")
    assert asked.sent > 1, "it did send more than its join"


class Asked:
    """The requests of a stream that stays open when all of them are sent."""

    def __init__(self, first: bytes, then: bytes, times: int) -> None:
        self.sent = 0
        self._messages = itertools.chain([first], itertools.repeat(then, times))
        self._over = threading.Event()

    def __iter__(self) -> Asked:
        return self

    def __next__(self) -> bytes:
        for message in self._messages:
            self.sent += 1
            return message
        self._over.wait()
        raise StopIteration

    def end(self) -> None:
        self._over.set()
