"""The rules of the SDK on their own: no grpc, no threads, a clock that the test moves."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_sdk import IllegalStateException, KafkaError, KafkaException
from sharecoord_sdk._core.columns import Columns, PartitionKey, Span
from sharecoord_sdk._core.config import read_config
from sharecoord_sdk._core.credit import StreamCredit
from sharecoord_sdk._core.frames import frame_of
from sharecoord_sdk._core.link import Link, Phase
from sharecoord_sdk._core.records import AcknowledgeType
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.fake_coordinator import TOPIC_ID, Ack, acks_of, make_batch
from tests.sdk.world import GONE, World, equal_ranges, take_notices

# -- what it says -------------------------------------------------------------------------------


def test_a_group_that_starts_at_the_end_is_told_once() -> None:
    world = World()
    world.join()
    take_notices(world.core)
    for _ in range(2):
        world.receive(assignment=service_pb.Assignment(starts_at_end=["t"]))
    (notice,) = take_notices(world.core)
    assert notice.level == logging.WARNING
    assert notice.text.startswith("group 'g' is new on topic 't' and starts at its end: it gets")
    server = f"--bootstrap-server {world.core.link.address}"
    reset = "--group g --topic t --reset-offsets --to-earliest --execute --force"
    assert f"sharecoord groups {server} {reset}" in notice.text
    change = "--entity-type groups --entity-name g --alter --add-config"
    wanted = f"sharecoord configs {server} {change} share.auto.offset.reset=earliest"
    assert wanted in notice.text


# -- signs of life and time -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval_ms", "every_s"), [(10_000, 1.0), (300_000, 30.0), (86_400_000, 30.0)]
)
def test_polls_say_now_and_then_that_they_live(interval_ms: int, every_s: float) -> None:
    world = World(max_poll_interval_ms=interval_ms)
    world.join()
    world.sent.clear()
    for step in range(25):
        world.now = 100.0 + every_s * step / 10
        world.poll()
    assert [request.polled for request in world.sent] == [True, True]


def test_a_slow_consumer_that_acknowledges_says_so_too() -> None:
    world = World(max_poll_interval_ms=60_000)
    world.join()
    world.sent.clear()
    for offset in range(3):
        world.now += 10
        world.receive(make_batch([b"x"], base=offset, token=offset + 1))
        world.poll()
    assert all(request.polled for request in world.sent)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize(("taken", "words"), [(0, ["RETURN"]), (1, ["ACCEPT", "RETURN"])])
def test_the_first_poll_after_a_lock_ended_speaks_of_its_records(
    mode: str, taken: int, words: list[str]
) -> None:
    """The coordinator keeps records from a member whose lock ended, until it hears from it."""
    world = World(share_acknowledgement_mode=mode, max_poll_records=1)
    world.join()
    world.receive(make_batch([b"a", b"b"], remaining_ms=1000))
    for span in world.poll() if taken else ():
        if mode == "explicit":
            span.mark(AcknowledgeType.ACCEPT)
    world.sent.clear()
    world.now += 8
    assert world.poll() == []
    assert [ack.kind for ack in world.acks()] == words
    assert world.sent[0].acknowledge_id, "not only later, with the next sign of life"


def test_locks_end_by_the_time_of_receipt() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"a"], remaining_ms=500))
    world.now += 0.499
    assert len(world.poll()) == 1
    world.receive(make_batch([b"b"], base=1, remaining_ms=500))
    world.now += 0.5
    assert world.poll() == []
    world.core.flush(world.now)
    world.drive()
    assert [ack.kind for ack in world.acks()] == ["ACCEPT", "RETURN"]


def test_a_join_without_an_answer_is_given_up_and_told_once() -> None:
    world = World(socket_connection_setup_timeout_ms=2000)
    world.core.subscribe(["t"], world.now)
    world.drive()
    assert world.core.wake_at(world.now) == 102.0
    for _ in range(100):
        world.now += 0.5
        world.drive()
    errors = [n.error for n in take_notices(world.core) if n.error is not None]
    assert len(errors) == 1
    assert errors[0].code() == KafkaError._TRANSPORT
    assert "a:1" in errors[0].str()
    assert world.opened[:3] == ["a:1", "b:2", "a:1"]


def test_an_absence_is_told_again_after_a_return() -> None:
    world = World(socket_connection_setup_timeout_ms=1000)
    told = 0
    for _ in range(2):
        world.core.subscribe(["t"], world.now)
        world.drive()
        world.receive(joined=service_pb.Joined())
        world.fail()
        for _ in range(3):
            world.now += 1
            world.fail()
            world.drive()
        told += sum(n.error is not None for n in take_notices(world.core))
    assert told == 2


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.5), (0.999999, 1.0)])
def test_backoff_doubles_between_its_bounds(chance: float, factor: float) -> None:
    link = Link(
        ("a:1",), backoff_s=0.05, backoff_max_s=5.0, connect_timeout_s=10, chance=lambda: chance
    )
    waits = []
    for _ in range(10):
        link.open(0.0)
        link.failed(GONE, 0.0)
        waits.append(link.retry_at)
    wanted = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert waits == pytest.approx([wait * factor for wait in wanted], rel=1e-5)


@pytest.mark.parametrize(("chance", "first"), [(0.0, 0), (0.34, 1), (0.999, 2)])
def test_consumers_begin_at_different_addresses_and_try_all(chance: float, first: int) -> None:
    where = ["a:1", "b:2", "c:3"]
    link = Link(
        tuple(where), backoff_s=1, backoff_max_s=1, connect_timeout_s=10, chance=lambda: chance
    )
    wanted = where[first:] + where[:first]
    assert [link.open(0.0) for _ in range(4)] == [*wanted, wanted[0]]
    link.redirect(["d:4", "e:5", "f:6"], 0.0)
    assert link.open(0.0) == ["d:4", "e:5", "f:6"][first]


@pytest.mark.parametrize(
    ("details", "next_address"),
    [
        ("Stream removed (ping timeout)", "b:2"),
        ("Stream removed (keepalive timeout)", "b:2"),
        ("Socket closed", "a:1"),
    ],
)
def test_one_that_stands_still_is_not_asked_again_first(details: str, next_address: str) -> None:
    link = Link(
        ("a:1", "b:2"), backoff_s=1, backoff_max_s=1, connect_timeout_s=10, chance=lambda: 0.0
    )
    link.open(0.0)
    link.joined(0.0)
    link.failed(StreamFailure("UNAVAILABLE", details), 15.0)
    assert link.open(16.0) == next_address


def test_a_long_stream_makes_the_backoff_small_again_and_a_short_one_does_not() -> None:
    def last_wait(lived_s: float) -> float:
        link = Link(
            ("a:1",), backoff_s=1.0, backoff_max_s=60.0, connect_timeout_s=10, chance=lambda: 1.0
        )
        for _ in range(4):
            link.open(0.0)
            link.joined(0.0)
            link.failed(GONE, lived_s)
        return link.retry_at - lived_s

    assert (last_wait(0.1), last_wait(60.0)) == (8.0, 1.0)


def test_a_retry_delay_of_the_coordinator_is_kept() -> None:
    world = World()
    world.join()
    world.fail(StreamFailure("UNAVAILABLE", "", "STORE_UNAVAILABLE", 3000))
    assert world.core.wake_at(world.now) == world.now + 3
    world.drive()
    assert world.opened == ["a:1"]
    world.now += 3
    world.drive()
    assert world.opened == ["a:1", "a:1"]


def test_what_an_older_stream_brings_is_ignored() -> None:
    world = World()
    world.join()
    old = world.core.link.generation
    world.fail()
    world.now += 10
    world.drive()
    response = service_pb.ConsumeResponse(batches=[make_batch([b"a"])])
    world.core.received(old, frame_of(response), world.now)
    world.core.stream_ended(old, GONE, world.now)
    assert world.core.link.phase is Phase.OPENING
    assert world.poll() == []


# -- acknowledgements -----------------------------------------------------------------------------


def test_a_release_that_was_sent_twice_may_find_its_record_archived() -> None:
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.receive(make_batch([b"a"]))
    (span,) = world.poll()
    span.mark(AcknowledgeType.RELEASE)
    ticket = world.core.begin_commit(world.now)
    world.fail()
    world.now += 10
    world.drive()
    assert [ack.kind for ack in world.acks()] == ["RELEASE"]
    finished = types_pb.RangeOutcome(
        outcome=types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED,
        final_state=types_pb.RECORD_STATE_ARCHIVED,
    )
    place = types_pb.TopicPartition(topic="t", topic_id=TOPIC_ID)
    world.answer(types_pb.PartitionOutcome(partition=place, exceptions=[finished]))
    assert ticket.is_done
    assert ticket.results == {("t", 0): None}


def test_passing_errors_are_tried_for_as_long_as_the_api_timeout() -> None:
    world = World(default_api_timeout_ms=1500)
    world.join()
    world.receive(make_batch([b"a"]))
    world.poll()
    ticket = world.core.begin_commit(world.now)
    world.drive()
    away = types_pb.PartitionOutcome(
        partition=types_pb.TopicPartition(topic="t", topic_id=TOPIC_ID),
        error_reason="STORE_UNAVAILABLE",
        error_message="the database is away",
        error_retriable=True,
    )
    sendings = []
    while not ticket.is_done:
        sendings.append(round(world.now - 100, 3))
        world.answer(away)
        wake_at = world.core.wake_at(world.now)
        if wake_at is not None:
            world.now = wake_at
            world.core.flush(world.now)
            world.drive()
    assert sendings == [0.0, 0.1, 0.3, 0.7, 1.5]
    error = ticket.results["t", 0]
    assert error is not None
    assert (error.code(), error.retriable()) == (KafkaError.COORDINATOR_NOT_AVAILABLE, True)


def test_errors_are_raised_once() -> None:
    world = World()
    world.join()
    world.fail(StreamFailure("FAILED_PRECONDITION", "speak version 2", "UNSUPPORTED_VERSION"))
    with pytest.raises(KafkaException, match="speak version 2"):
        world.core.check_poll()
    world.core.check_poll()


def test_poll_needs_a_subscription() -> None:
    with pytest.raises(IllegalStateException, match="not subscribed"):
        World().core.check_poll()


TYPES = st.sampled_from([1, 2, 3, 4])
CHOICES = st.lists(st.none() | TYPES, min_size=1, max_size=40)


@given(rounds=st.lists(CHOICES, min_size=1, max_size=4), locks=st.integers(1, 5))
def test_every_acknowledged_record_goes_out_once_with_its_type(
    rounds: list[list[int | None]], locks: int
) -> None:
    """Whatever is acknowledged in whichever commit, the wire says exactly that."""
    count = max(map(len, rounds))
    ranges = equal_ranges(count, locks)
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.receive(make_batch([b"x"] * count, ranges=ranges))
    spans = world.poll()
    columns = spans[0].columns
    free = set(range(count))
    wanted: list[dict[int, int]] = []
    for choices in rounds:
        chosen = {o: c for o, c in enumerate(choices) if c is not None and o in free}
        for offset, kind in chosen.items():
            columns.states[offset] = kind
        free -= set(chosen)
        wanted.append(chosen)
        world.core.begin_commit(world.now)
        world.drive()
    names = {1: "ACCEPT", 2: "RELEASE", 3: "REJECT", 4: "RENEW"}
    sent = [acks_of(request) for request in world.sent if request.acknowledge_id]
    assert [expand(acks) for acks in sent] == [
        {offset: names[kind] for offset, kind in chosen.items()} for chosen in wanted if chosen
    ]
    for acks in sent:
        assert all(a.last < b.first for a, b in pairwise(acks))
        step = -(-count // locks)
        assert all(a.token == (a.first // step) * step + 1 for a in acks)


def expand(acks: list[Ack]) -> dict[int, str]:
    """Offset -> type."""
    return {offset: ack.kind for ack in acks for offset in range(ack.first, ack.last + 1)}


@given(
    cuts=st.lists(st.integers(1, 7), max_size=30),
    deltas=st.lists(st.integers(1, 4), min_size=1, max_size=60),
)
def test_the_spans_of_a_lock_cover_it_without_overlap(cuts: list[int], deltas: list[int]) -> None:
    offsets = [sum(deltas[:i]) for i in range(len(deltas))]
    batch = make_batch([b"x"] * len(offsets), base=10, deltas=offsets)
    columns = Columns(batch, PartitionKey("t", 0, TOPIC_ID), 0.0)
    (lock,) = columns.locks
    rest = Span(columns, lock, lock.start, lock.stop)
    pieces = []
    for cut in cuts:
        if cut < len(rest):
            middle = rest.start + cut
            pieces.append(rest.within(rest.start, middle))
            rest = rest.within(middle, rest.stop)
    pieces.append(rest)
    assert pieces[0].first_offset == lock.first_offset
    assert pieces[-1].last_offset == lock.last_offset
    for one, next_one in pairwise(pieces):
        assert one.last_offset + 1 == next_one.first_offset
    assert [o for piece in pieces for o in piece.offsets()] == [10 + o for o in offsets]


# -- credit ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=60))
def test_credit_never_promises_more_than_the_room(steps: list[tuple[bool, int]]) -> None:
    window = StreamCredit(100, 1_000_000)
    granted = window.restart().records_total
    received = buffered = 0
    for arrives, count in steps:
        if arrives:
            count = min(count, granted - received)
            window.add(count, count * 10)
            received += count
            buffered += count
        else:
            count = min(count, buffered)
            window.remove(count, count * 10)
            buffered -= count
        credit = window.refill()
        if credit is not None:
            assert credit.records_total >= granted
            granted = credit.records_total
        assert granted - received + buffered <= 100
        # What is not promised yet is less than an eighth of the room.
        assert received + 100 - buffered - granted < 13


def test_credit_in_bytes_keeps_ahead_of_what_the_coordinator_counts() -> None:
    window = StreamCredit(10**9, 1_000_000)
    granted = window.restart().bytes_total
    counted = 0
    for _ in range(100_000):
        window.add(1, 100)
        counted += 100
        window.remove(1, 100)
        credit = window.refill()
        granted = granted if credit is None else credit.bytes_total
        assert granted > counted


# -- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_text", "addresses"),
    [
        ("h:1", ("h:1",)),
        ("h", ("h:7070",)),
        (" h:1 , g:2,h:1 ", ("h:1", "g:2")),
        ("unix:/run/s.sock", ("unix:/run/s.sock",)),
        ("[::1]:9", ("[::1]:9",)),
        ("[::1]", ("[::1]:7070",)),
        ("PLAINTEXT://h:1,SSL://g:2", ("h:1", "g:2")),
    ],
)
def test_addresses(given_text: str, addresses: tuple[str, ...]) -> None:
    config = read_config(({"group.id": "g", "bootstrap.servers": given_text},), {})
    assert config.addresses == addresses


@pytest.mark.parametrize("wrong", ["", ",", "h:x", "h:0", "h:70000", "unix:", "http://h:1", ":1"])
def test_addresses_that_can_not_be(wrong: str) -> None:
    with pytest.raises(KafkaException, match=r"bootstrap\.servers"):
        read_config(({"group.id": "g", "bootstrap.servers": wrong},), {})


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"max.pol.records": 1}, "did you mean max.poll.records?"),
        ({"value.deserializer": print}, "use DeserializingShareConsumer"),
        ({"statistics.interval.ms": 1000}, "emits no statistics"),
        ({"enable.ssl.certificate.verification": "false"}, "always verifies"),
        ({"sasl.oauthbearer.method": "magic"}, "one of default, oidc"),
        ({"sasl.oauthbearer.grant.type": "password"}, "oauth_cb"),
        ({"sasl.oauthbearer.assertion.file": "x"}, "oauth_cb"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "TLS only"),
        ({"security.protocol": "SSL", "ssl.key.pem": "x"}, "go together"),
        ({"share.acknowledgement.mode": "x"}, "one of implicit, explicit"),
        ({"max.poll.records": "1.5"}, "Invalid value"),
    ],
)
def test_refusals_name_the_key_and_the_fix(config: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaException) as caught:
        read_config(({"group.id": "g", **config},), {})
    error = caught.value.args[0]
    assert error.code() == KafkaError._INVALID_ARG
    assert text in error.str()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a:b", "sasl.password": "c"}, "a colon"),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "use PLAIN or OAUTHBEARER"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "oauth_cb"),
        ({"group.id": ""}, "group.id"),
    ],
)
def test_incomplete_credentials_are_refused(config: dict[str, Any], text: str) -> None:
    full = {"group.id": "g", "security.protocol": "SASL_SSL", **config}
    with pytest.raises(ValueError, match="Failed to create share consumer") as caught:
        read_config((full,), {})
    assert text in str(caught.value)


def test_keys_that_tune_a_kafka_client_leave_a_debug_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("DEBUG", "sharecoord_sdk"):
        read_config(({"group.id": "g", "fetch.min.bytes": 5},), {})
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert "fetch.min.bytes is accepted and has no effect" in record.getMessage()


# -- the pace of this consumer --------------------------------------------------------------------


def busy_ms(world: World) -> list[float]:
    """What the messages with acknowledgements said, in milliseconds."""
    return [r.busy_us / 1000 for r in world.sent if r.acknowledgements]


def test_acknowledgements_say_how_long_the_application_had_records() -> None:
    world = World()
    world.join()
    world.now += 5
    world.receive(make_batch([b"x", b"y"], token=1))
    world.now += 7  # in the buffer: not the application's time
    assert len(world.poll()) == 1
    world.now += 0.25
    world.poll()
    world.now += 3  # the application waits
    world.receive(make_batch([b"z"], base=2, token=2))
    world.poll()
    world.now += 0.5
    world.poll()
    assert busy_ms(world) == [250, 500]


def test_what_the_application_keeps_goes_on_counting() -> None:
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.receive(make_batch([b"x", b"y"], token=1))
    columns = world.poll()[0].columns
    for row, seconds in enumerate((1, 2)):
        world.now += seconds
        columns.states[row] = int(types_pb.ACKNOWLEDGE_TYPE_ACCEPT)
        world.core.begin_commit(world.now)
        world.drive()
    assert busy_ms(world) == [1_000, 2_000]


def test_only_what_nobody_waits_for_may_wait() -> None:
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    for base, kind in enumerate(("ACCEPT", "ACCEPT", "RENEW")):
        world.receive(make_batch([b"v"], base=base, token=base + 1))
        world.poll()[0].columns.states[0] = types_pb.AcknowledgeType.Value(
            f"ACKNOWLEDGE_TYPE_{kind}"
        )
        if base == 1:
            world.core.begin_commit(world.now)
            world.drive()
    world.poll()
    assert [r.may_wait for r in world.sent if r.acknowledge_id] == [True, False, False]


def test_a_topic_that_kafka_refuses_is_told_once() -> None:
    world = World()
    world.join()
    refused = service_pb.Assignment(refused_topics={"closed": "allow READ on 'closed'"})
    told = []
    for assignment in (refused, refused, service_pb.Assignment(), refused):
        world.receive(assignment=assignment)
        told.append(
            [(n.text, n.error and n.error.code()) for n in take_notices(world.core) if n.error]
        )
    note = ("allow READ on 'closed'", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert told == [[note], [], [], [note]]
