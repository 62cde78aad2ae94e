"""Bad input from workers: each call gets one status that names the field, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Producer
from sharecoord_sdk import (
    AcknowledgeType,
    IllegalStateException,
    KafkaError,
    KafkaException,
    Message,
    ShareConsumer,
    TopicPartition,
)
from sharecoord_sdk._proto import share_service_pb2 as pb
from sharecoord_sdk._proto import share_types_pb2 as types
from sharecoord_sdk.admin import AdminClient

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from sharecoord.wire import share_service_pb2_grpc as rpc
from tests.acceptance.bad_input import (
    CALL_TIMEOUT_S,
    Member,
    Refusal,
    Stream,
    acknowledged,
    exceptions,
    join_message,
    refusal,
    run_cli,
)
from tests.support import KafkaUnderTest, eventually, poll_until, unique_name

TopicFactory = Callable[..., str]
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
FENCED = grpc.StatusCode.FAILED_PRECONDITION
ACCEPT, REJECT = types.ACKNOWLEDGE_TYPE_ACCEPT, types.ACKNOWLEDGE_TYPE_REJECT
RELEASE = types.ACKNOWLEDGE_TYPE_RELEASE
MEBIBYTE = 1 << 20
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@pytest.fixture(scope="module")
def stub(coordinator: CoordinatorProcess) -> Iterator[rpc.ShareServiceStub]:
    with grpc.insecure_channel(coordinator.address, options=UNLIMITED) as channel:
        make: Any = rpc.ShareServiceStub
        yield make(channel)


@pytest.fixture
def member(stub: rpc.ShareServiceStub, topic: TopicFactory, topics: Topics) -> Iterator[Member]:
    """A joined member of a new group; its topic holds ten records."""
    name = topic()
    topics.produce(name, 10)
    made = Member(stub, unique_name("g"), name)
    made.join()
    yield made
    made.leave()


def fails(call: Callable[[], object]) -> Refusal:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return refusal(caught.value)


def is_refused(call: Callable[[], object], *named: str) -> None:
    """The call must end as INVALID_ARGUMENT, and its text hold all of `named`."""
    found = fails(call)
    assert (found.code, found.reason) == (INVALID, "INVALID_REQUEST"), found
    assert [part for part in named if part not in found.text] == [], found.text


# -- joins ----------------------------------------------------------------------------------------

BAD_JOINS: list[tuple[dict[str, Any], list[str]]] = [
    ({"group_id": ""}, ["group_id is empty", "name of the share group"]),
    ({"group_id": "a\x00b"}, ["group_id", "control character U+0000", "remove it"]),
    ({"group_id": "a\nb"}, ["group_id", "control character U+000A"]),
    ({"group_id": "a\u2028b"}, ["group_id", "control character U+2028"]),
    ({"group_id": "g" * 300}, ["group_id has 300 characters", "249"]),
    ({"group_id": " g"}, ["group_id ' g'", "begins or ends with a space"]),
    ({"group_id": "g\u00a0"}, ["group_id", "begins or ends with a space"]),
    ({"member_id": ""}, ["member_id has 0 characters", "UUID"]),
    ({"member_id": "m" * 65}, ["member_id has 65 characters", "1 to 64"]),
    ({"member_id": "m\x07"}, ["member_id", "control character U+0007"]),
    ({"client_id": "c" * 1000}, ["client_id has 1000 characters", "249"]),
    ({"client_id": "c\x1b[31m"}, ["client_id", "control character U+001B"]),
    ({"topics": []}, ["topics is empty", "one topic at least"]),
    ({"topics": ["a/b"]}, ["topics: 'a/b' is not a topic name", "a-z"]),
    ({"topics": [".."]}, ["topics: '..' is not a topic name"]),
    ({"topics": ["t" * 250]}, ["is not a topic name", "1 to 249"]),
    ({"topics": [f"t{i}" for i in range(1001)]}, ["topics has 1001 names", "1000"]),
    ({"max_poll_records": 10_001}, ["max_poll_records 10001", "10000"]),
    ({"join_number": 2**63}, ["join_number 9223372036854775808", "count from 1"]),
    ({"acquire_mode": 9}, ["acquire_mode 9", "FAIR (1)"]),
]


@pytest.mark.parametrize("way", ["stream", "unary"])
@pytest.mark.parametrize(("fields", "named"), BAD_JOINS, ids=lambda value: repr(value)[:40])
def test_a_malformed_join_names_its_field(
    stub: rpc.ShareServiceStub, way: str, fields: dict[str, Any], named: list[str]
) -> None:
    join = join_message("g", **{"topics": ["t"], **fields})
    if way == "unary":
        untyped: Any = stub
        request = pb.JoinRequest(join=join)
        found = fails(lambda: untyped.Join(request, timeout=CALL_TIMEOUT_S))
    else:
        with Stream(stub, pb.ConsumeRequest(join=join)) as stream:
            found = fails(stream.next)
    assert (found.code, found.reason) == (INVALID, "INVALID_REQUEST"), found
    assert [part for part in named if part not in found.text] == [], found.text


def test_another_protocol_version_names_both(stub: rpc.ShareServiceStub) -> None:
    join = join_message("g", "t", protocol_version=7, sdk_version="9.9.9")
    with Stream(stub, pb.ConsumeRequest(join=join)) as stream:
        found = fails(stream.next)
    assert (found.code, found.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "UNSUPPORTED_VERSION",
    )
    assert "protocol_version 7 (SDK 9.9.9)" in found.text
    assert "install a sharecoord-sdk" in found.text


def test_a_stream_begins_with_one_join(stub: rpc.ShareServiceStub) -> None:
    with Stream(stub, pb.ConsumeRequest(polled=True)) as stream:
        is_refused(stream.next, "the first message of a stream must hold join")
    with Stream(stub) as stream:
        stream.half_close()
        is_refused(stream.next, "the stream ended before", "join")
    join = pb.ConsumeRequest(join=join_message(unique_name("g"), unique_name("t")))
    with Stream(stub, join, join) as stream:
        assert stream.next().HasField("joined")
        is_refused(stream.next, "join stands in a later message", "once, in the first")


ODD_GROUPS = [
    "grüße/訂單",
    'it\'s "quoted"',
    "a b\\c",
    "%s{}$HOME;--",
    "🎉",
    "-",
    "../..",
    "g" * 249,
]


@pytest.mark.parametrize("odd", ODD_GROUPS, ids=lambda name: name[:12])
def test_an_odd_group_name_works_from_end_to_end(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics, odd: str
) -> None:
    name = topic()
    topics.produce(name, 5)
    config = {"bootstrap.servers": coordinator.address, "group.id": odd}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])
        poll_until(consumer, 5)
        assert set(consumer.commit_sync(20).values()) == {None}
        with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
            assert odd in {group.group_id for group in admin.list_groups()}
            (view,) = admin.describe_groups([odd])
            assert (view.group_id, view.error, view.member_count) == (odd, None, 1)
            admin.alter_group_configs(odd, {"share.delivery.count.limit": "3"})
            entries = {e.name: e.value for e in admin.describe_group_configs(odd)}
            assert entries["share.delivery.count.limit"] == "3"
    where = ("--bootstrap-server", coordinator.address)
    done = run_cli("groups", *where, f"--group={odd}", "--describe", "-o", "json")
    assert done.exit_code == 0, done
    assert name in done.out


# -- acknowledgements -----------------------------------------------------------------------------


def test_a_record_that_was_never_delivered_can_not_be_acknowledged(member: Member) -> None:
    held = member.receive(4)
    token = held.token(3)
    beyond = member.acknowledge(held.partition, acknowledged(1000, 1009, token))
    assert exceptions(beyond) == [(1000, 1009, "INVALID_REQUEST")]
    not_handed_out = member.acknowledge(held.partition, acknowledged(3, 6, token))
    assert exceptions(not_handed_out) == [(4, 6, "INVALID_REQUEST")]
    # The others of the same message are settled, and what follows comes as if nothing had been.
    assert exceptions(member.acknowledge(held.partition, *held.of(0, 2))) == []
    assert member.receive(6).ranges[0].first_offset == 4


def test_a_second_acknowledgement_is_told_how_it_ended(member: Member) -> None:
    held = member.receive(4)
    first = member.acknowledge(held.partition, *held.of(1, 1), *held.of(2, 2, REJECT))
    assert exceptions(first) == []
    again = member.acknowledge(held.partition, *held.of(1, 1, REJECT), *held.of(2, 2))
    assert [(e.first_offset, e.outcome, e.final_state) for e in again.exceptions] == [
        (1, types.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, types.RECORD_STATE_ACKNOWLEDGED),
        (2, types.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED, types.RECORD_STATE_ARCHIVED),
    ]
    rest = member.acknowledge(held.partition, *held.of(0, 0), *held.of(3, 3))
    assert exceptions(rest) == []
    # Everything is finished and below the start offset now.
    late = member.acknowledge(held.partition, *held.of(0, 3))
    assert exceptions(late) == [(0, 3, "UNKNOWN_OUTCOME")]
    assert member.receive(6).ranges[0].first_offset == 4


def test_the_wrong_member_settles_nothing(member: Member, stub: rpc.ShareServiceStub) -> None:
    held = member.receive(10)
    thief = Member(stub, member.group, member.topic)
    thief.join()
    for kind in (ACCEPT, RELEASE, REJECT):
        stolen = thief.acknowledge(held.partition, *held.of(0, 9, kind))
        assert exceptions(stolen) == [(0, 9, "LOCK_LOST")]
    assert exceptions(member.acknowledge(held.partition, *held.of(0, 9))) == []
    thief.leave()


def test_a_wrong_token_settles_nothing(member: Member) -> None:
    held = member.receive(10)
    for token in (0, 1, held.token(9) + 1, 2**64 - 1):
        outcome = member.acknowledge(held.partition, *held.of(0, 9, other_token=token))
        assert exceptions(outcome) == [(0, 9, "LOCK_LOST")]
    assert exceptions(member.acknowledge(held.partition, *held.of(0, 9))) == []


def set_lock_duration(coordinator: CoordinatorProcess, group: str, duration_ms: int) -> None:
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {"share.record.lock.duration.ms": str(duration_ms)})


def test_after_the_lock_ended_an_acknowledgement_settles_nothing(
    coordinator: CoordinatorProcess,
    stub: rpc.ShareServiceStub,
    topic: TopicFactory,
    topics: Topics,
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 3)
    set_lock_duration(coordinator, group, 1000)
    late, other = Member(stub, group, name), Member(stub, group, name)
    late.join()
    held = late.receive(3)
    set_lock_duration(coordinator, group, 30_000)
    other.join()
    taken = other.receive(3)
    assert {item.delivery_count for item in taken.ranges} == {2}
    assert exceptions(late.acknowledge(held.partition, *held.of(0, 2))) == [(0, 2, "LOCK_LOST")]
    assert exceptions(other.acknowledge(taken.partition, *taken.of(0, 2))) == []
    late.leave()
    other.leave()


def test_a_partition_that_is_not_there_is_named(member: Member) -> None:
    held = member.receive(10)
    topic_id = held.partition.topic_id
    for place in (
        types.TopicPartition(topic=member.topic, partition=7, topic_id=topic_id),
        types.TopicPartition(topic=member.topic, partition=-1, topic_id=topic_id),
        types.TopicPartition(topic="nope", partition=0, topic_id=topic_id),
        types.TopicPartition(topic=member.topic, partition=0, topic_id=b"\1" * 16),
        types.TopicPartition(topic=member.topic, partition=0, topic_id=b"short"),
    ):
        outcome = member.acknowledge(place, *held.of(0, 9))
        assert outcome.error_reason == "UNKNOWN_TOPIC_OR_PARTITION"
        assert f"{place.topic}[{place.partition}]" in outcome.error_message
        assert not outcome.error_retriable
    assert exceptions(member.acknowledge(held.partition, *held.of(0, 9))) == []


def test_malformed_ranges_change_nothing(member: Member) -> None:
    held = member.receive(10)
    token = held.token(9)

    def say(*ranges: types.AcknowledgedRange) -> types.PartitionOutcome:
        return member.acknowledge(held.partition, *ranges)

    assert exceptions(say(acknowledged(5, 4, token))) == [(5, 4, "INVALID_REQUEST")]
    assert exceptions(say(acknowledged(-5, -1, token))) == [(-5, -1, "INVALID_REQUEST")]
    is_refused(lambda: say(acknowledged(0, 9, token, 0)), "ranges.type 0", "ACCEPT", "RENEW")
    is_refused(lambda: say(acknowledged(0, 9, token, 99)), "ranges.type 99", "offsets 0 to 9")
    is_refused(lambda: say(acknowledged(0, 9, token, REJECT, reason="x" * 2000)), "reason", "1024")
    is_refused(
        lambda: say(acknowledged(0, 9, token, RELEASE, delay_ms=2**64 - 1)),
        "delay_ms 18446744073709551615",
    )
    overlapping = say(*held.of(0, 9), acknowledged(3, 9, token, REJECT))
    assert exceptions(overlapping) == [(3, 9, "INVALID_REQUEST")]


def test_acknowledgements_on_a_stream_need_a_number(
    stub: rpc.ShareServiceStub, topic: TopicFactory
) -> None:
    join = pb.ConsumeRequest(join=join_message(unique_name("g"), topic()))
    with Stream(stub, join) as stream:
        assert stream.next().HasField("joined")
        place = types.TopicPartition(topic="t", partition=0)
        item = types.PartitionAcknowledgements(partition=place, ranges=[acknowledged(0, 0, 1)])
        stream.send(pb.ConsumeRequest(acknowledgements=[item]))
        # What the topic gives may come first.
        is_refused(lambda: [stream.next() for _ in range(10)], "acknowledge_id is 0", "from 1 on")


def test_the_sdk_tells_of_a_record_that_is_not_in_flight(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 1)
    set_lock_duration(coordinator, group, 1000)
    config: dict[str, Any] = {
        "bootstrap.servers": coordinator.address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    with ShareConsumer(config) as late, ShareConsumer(config) as other:
        late.subscribe([name])
        (held,) = poll_until(late, 1)
        # Or it would be the one that gets the record again.
        late.pause([TopicPartition(name, 0)])
        set_lock_duration(coordinator, group, 30_000)
        for offset in (3, 10**12):
            with pytest.raises(IllegalStateException, match="not in flight"):
                late.acknowledge_offset(name, 0, offset)
        with pytest.raises(ValueError, match="9 is no AcknowledgeType"):
            late.acknowledge(held, 9)
        with pytest.raises(ValueError, match="delay_ms must be 0 to"):
            late.acknowledge(held, AcknowledgeType.RELEASE, delay_ms=-1)
        other.subscribe([name])
        (theirs,) = poll_until(other, 1)
        assert theirs.delivery_count() == 2
        late.acknowledge(held)
        (error,) = late.commit_sync(20).values()
        assert isinstance(error, KafkaException)
        assert error.args[0].code() == KafkaError.INVALID_RECORD_STATE
        other.acknowledge(theirs)
        assert list(other.commit_sync(20).values()) == [None]


# -- unary calls ----------------------------------------------------------------------------------


def test_a_fetch_out_of_bounds_names_its_field(member: Member) -> None:
    is_refused(lambda: member.fetch(request_id=0), "request_id is 0", "from 1 on")
    is_refused(lambda: member.fetch(request_id=1, max_records=10_001), "max_records 10001", "10000")
    is_refused(lambda: member.fetch(request_id=1, max_wait_ms=30_001), "max_wait_ms 30001", "30000")
    first = member.fetch(request_id=5, max_records=3, max_wait_ms=5000)
    is_refused(lambda: member.fetch(request_id=4), "request_id 4 is older than 5", "must grow")
    # The same number again: the same records under the same locks, not more of them.
    assert member.fetch(request_id=5, max_records=3) == first
    assert member.fetch(request_id=6, max_records=3, max_wait_ms=5000) != first


def test_an_unknown_group_or_member_is_told_to_join(
    member: Member, stub: rpc.ShareServiceStub
) -> None:
    untyped: Any = stub
    for call, message in (
        (untyped.Fetch, pb.FetchRequest),
        (untyped.Acknowledge, pb.AcknowledgeRequest),
        (untyped.Heartbeat, pb.HeartbeatRequest),
        (untyped.Leave, pb.LeaveRequest),
    ):
        for field, value, code, reason, text in (
            ("member_id", "x", NOT_FOUND, "UNKNOWN_MEMBER", "is not known; join first"),
            ("group_id", "nope", NOT_FOUND, "GROUP_ID_NOT_FOUND", "no share group 'nope'"),
            ("member_epoch", 99, FENCED, "MEMBER_FENCED", "epoch 99 is not current"),
            ("group_id", "", INVALID, "INVALID_REQUEST", "group_id is empty"),
            ("member_id", "", INVALID, "INVALID_REQUEST", "member_id has 0 characters"),
        ):
            request = message(**{**member.who(), field: value})
            found = fails(partial(call, request, timeout=CALL_TIMEOUT_S))
            assert (found.code, found.reason) == (code, reason)
            assert text in found.text
    assert member.receive(10).ranges[0].first_offset == 0, "and it goes on as if nothing had been"


def test_a_member_with_a_stream_can_not_fetch(
    stub: rpc.ShareServiceStub, topic: TopicFactory
) -> None:
    member = Member(stub, unique_name("g"), topic())
    join = join_message(member.group, member.topic, member_id=member.member_id)
    with Stream(stub, pb.ConsumeRequest(join=join)) as stream:
        member.member_epoch = stream.next().joined.member_epoch
        found = fails(member.fetch)
        assert (found.code, found.reason) == (INVALID, "INVALID_REQUEST"), found
        assert "has a Consume stream" in found.text
        assert "another member_id" in found.text


# -- large messages -------------------------------------------------------------------------------


def test_a_record_of_ten_megabytes_reaches_the_worker(
    coordinator: CoordinatorProcess,
    stub: rpc.ShareServiceStub,
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
) -> None:
    name = topic(config={"max.message.bytes": str(32 * MEBIBYTE)})
    value = bytes(range(256)) * (10 * 4096)
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "message.max.bytes": 32 * MEBIBYTE}
    )
    for number in range(3):
        producer.produce(name, value, key=b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    config = {"bootstrap.servers": coordinator.address, "group.id": unique_name("g")}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])
        got = poll_until(consumer, 3)
        assert [m.key() for m in got] == [b"0", b"1", b"2"]
        assert all(m.value() == value for m in got)
        assert list(consumer.commit_sync(20).values()) == [None]
    member = Member(stub, unique_name("g"), name)
    member.join()
    assert member.receive(1).batches[0].values[0] == value
    member.leave()


def test_a_request_over_the_limit_is_refused_and_the_rest_goes_on(member: Member) -> None:
    held = member.receive(10)
    many = [acknowledged(i, i, held.token(0), REJECT, reason="x" * 1000) for i in range(5000)]
    found = fails(lambda: member.acknowledge(held.partition, *many))
    assert found.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in found.text
    assert str(4 * MEBIBYTE) in found.text
    outcome = member.acknowledge(held.partition, *held.of(0, 9))
    assert exceptions(outcome) == [], "nothing of the large request was applied"


def test_the_sdk_gets_more_acknowledgements_through_than_one_request_may_hold(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, count = topic(), 200
    topics.produce(name, count)
    settings = {"limits.request.max.bytes": "128KiB"}
    with CoordinatorProcess(
        kafka_broker.bootstrap_servers, tmp_path, settings=settings
    ) as coordinator:
        config: dict[str, Any] = {
            "bootstrap.servers": coordinator.address,
            "group.id": unique_name("g"),
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": count,
        }
        with ShareConsumer(config) as consumer:
            consumer.subscribe([name])
            got: list[Message] = []

            def all_came() -> bool:
                for message in consumer.poll(0.2):
                    got.append(message)
                    reason = f"{message.offset()} " + "x" * 1000
                    consumer.acknowledge(message, AcknowledgeType.REJECT, reason=reason)
                return len(got) == count

            eventually(all_came, 20, "all records")
            result = consumer.commit_sync(10)
            assert list(result.values()) == [None]
