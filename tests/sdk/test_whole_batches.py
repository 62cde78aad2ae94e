"""Record batches that the SDK opens: when, within which limits, and what if it can not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from sharecoord_sdk import AcknowledgeType, DeserializingShareConsumer, KafkaError, KafkaException
from sharecoord_sdk._core import whole
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.raw_batches import Rec, batch
from tests.sdk.driver import Drivers, inner, joined, served
from tests.sdk.fake_coordinator import FakeCoordinator, make_batch
from tests.sdk.worker_running import Make, covered, wait_covered
from tests.sdk.world import World

EVERY = (0, 1, 2, 3, 4)
BATCH_RECORDS = 3


def raw(first: int, count: int = BATCH_RECORDS, **wishes: Any) -> bytes:
    recs = [
        Rec(at, b"v%d" % at, b"k%d" % at, [("h", b"%d" % at)]) for at in range(first, first + count)
    ]
    return batch(recs, **wishes)


def whole_of(*contents: bytes, count: int | None = None, **fields: Any) -> types_pb.RecordBatch:
    """A message with these batches, of three records each from offset 0 on, under one lock."""
    count = len(contents) * BATCH_RECORDS if count is None else count
    made = make_batch([None] * count, **fields)
    for name in ("values", "null_values", "timestamps_ms"):
        made.ClearField(name)
    made.whole_batches.extend(contents)
    made.credit_bytes = sum(map(len, contents))
    return made


def damaged(content: bytes) -> bytes:
    """With one bit of its last byte changed: its CRC is not what it says."""
    return content[:-1] + bytes([content[-1] ^ 1])


def reframed(content: bytes, attributes: int) -> bytes:
    """With other attributes, and the CRC that fits."""
    import crc32c

    behind = attributes.to_bytes(2, "big") + content[23:]
    return content[:17] + crc32c.crc32c(behind).to_bytes(4, "big") + behind


BROKEN = {
    "crc": damaged(raw(3)),
    "codec": reframed(raw(3), 6),
    "records": reframed(raw(3), 4),
    "cut": raw(3)[:-1],
    "missing": raw(60),
    "old": b"\0" * 16 + b"\1" + b"\0" * 60,
}
"""Batches in the place of the one with the offsets 3 to 5."""


def test_a_consumer_names_what_it_opens(
    drivers: Drivers, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuple(joined(drivers, coordinator)[1].join.opens) == EVERY
    off = joined(drivers, coordinator, sharecoord_record_batches="false")
    assert tuple(off[1].join.opens) == ()
    monkeypatch.setattr(whole.codecs, "HAS_CRAMJAM", False)
    assert tuple(joined(drivers, coordinator)[1].join.opens) == (0, 1)
    monkeypatch.setattr(whole.opener, "HAS_NATIVE", False)
    assert tuple(joined(drivers, coordinator)[1].join.opens) == ()
    monkeypatch.setattr(whole, "HAS_BATCHES", False)
    assert tuple(joined(drivers, coordinator)[1].join.opens) == ()


def test_records_come_out_of_batches(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    sent = whole_of(raw(0), raw(3, codec=4))
    _, _, messages = served(drivers, coordinator, sent)
    assert messages.values() == [b"v%d" % at for at in range(6)]
    assert messages.keys() == [b"k%d" % at for at in range(6)]
    assert [m.headers() for m in messages] == [[("h", b"%d" % at)] for at in range(6)]
    assert {m.timestamp() for m in messages} == {(1, 1_000)}
    assert [m.error() for m in messages] == [None] * 6


def test_what_nobody_looks_at_is_never_opened(
    drivers: Drivers, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "read", None)
    monkeypatch.setattr(whole, "header_of", None)
    consumer, stream, messages = served(
        drivers, coordinator, whole_of(raw(0), raw(3)), share_acknowledgement_mode="explicit"
    )
    assert messages.offsets() == list(range(6))
    consumer.acknowledge(messages)
    consumer.commit_sync()
    assert [(ack.first, ack.last, ack.kind) for ack in stream.acks()] == [(0, 5, "ACCEPT")]


def test_only_the_batches_of_a_poll_are_opened(
    drivers: Drivers, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Sequence[int]] = []
    read = whole.read
    monkeypatch.setattr(whole, "read", lambda *args: opened.append(args[2]) or read(*args))
    consumer, _, messages = served(
        drivers, coordinator, whole_of(raw(0), raw(3)), max_poll_records=2
    )
    assert messages.values() == [b"v0", b"v1"]
    assert opened == [range(3)]
    assert consumer.poll(10).values() == [b"v2", b"v3"]
    assert opened == [range(3), range(3, 6)]


def test_what_waits_counts_as_it_came() -> None:
    world = World()
    world.join()
    sent = whole_of(raw(0, codec=3), raw(3, codec=3))
    world.receive(sent)
    assert world.core._credit.buffered_bytes == sum(map(len, sent.whole_batches))
    world.poll()
    assert world.core._credit.buffered_bytes == 0


# -- batches that can not be opened ---------------------------------------------------------------


@pytest.mark.parametrize("kind", BROKEN)
def test_records_that_can_not_be_opened_have_an_error_and_are_released(
    drivers: Drivers, coordinator: FakeCoordinator, kind: str
) -> None:
    consumer, stream, messages = served(
        drivers, coordinator, whole_of(raw(0), BROKEN[kind], raw(6))
    )
    errors = [m.error() for m in messages]
    assert [error is None for error in errors] == [True] * 3 + [False] * 3 + [True] * 3
    text = errors[3].str()
    assert errors[3].code() == KafkaError._BAD_MSG
    for part in ("offsets 3 to 5 of t [0]", "sharecoord.record.batches", "released"):
        assert part in text
    assert [m.value() for m in messages] == [
        *(b"v%d" % at for at in range(3)), None, None, None, *(b"v%d" % at for at in range(6, 9)),
    ]  # fmt: skip
    consumer.poll(0.01)
    acks = stream.wait_acks(3)
    assert [(a.first, a.last, a.kind) for a in acks] == [
        (0, 2, "ACCEPT"), (3, 5, "RELEASE"), (6, 8, "ACCEPT"),
    ]  # fmt: skip
    assert "can not be opened" in acks[1].reason


def test_columns_of_records_that_can_not_be_opened_raise_and_lose_nothing(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(drivers, coordinator, whole_of(raw(0), BROKEN["crc"]))
    for column in (messages.values, messages.keys):
        with pytest.raises(KafkaException) as raised:
            column()
        assert "its checksum" in str(raised.value)
    assert messages[0].value() == b"v0"
    consumer.poll(0.01)
    acks = stream.wait_acks(1)
    assert {a.kind for a in acks} == {"RELEASE"}
    assert covered(acks) == list(range(6))


def test_a_program_may_say_otherwise(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream, messages = served(
        drivers, coordinator, whole_of(BROKEN["crc"], base=3),
        share_acknowledgement_mode="explicit",
    )  # fmt: skip
    first, *_ = messages
    assert first.error() is not None
    consumer.acknowledge(first, AcknowledgeType.REJECT)
    consumer.commit_sync()
    assert [(a.first, a.last, a.kind) for a in stream.acks()] == [
        (3, 3, "REJECT"), (4, 5, "RELEASE"),
    ]  # fmt: skip


def test_no_deserializer_sees_what_can_not_be_opened(coordinator: FakeCoordinator) -> None:
    seen: list[bytes | None] = []
    conf = {
        "bootstrap.servers": coordinator.address,
        "group.id": "g",
        "value.deserializer": lambda value, _: seen.append(value) or value,
    }
    with DeserializingShareConsumer(conf) as consumer:
        consumer.subscribe(["t"])
        stream = coordinator.stream()
        stream.send(whole_of(raw(0), BROKEN["records"]))
        messages = consumer.poll(10)
        assert seen == [b"v0", b"v1", b"v2"]
        assert [m.error() is None for m in messages] == [True] * 3 + [False] * 3
        consumer.poll(0.01)
        assert [a.kind for a in stream.wait_acks(2)] == ["ACCEPT", "RELEASE"]


@pytest.mark.parametrize("is_async", [False, True])
def test_no_handler_is_called_for_what_can_not_be_opened(make: Make, *, is_async: bool) -> None:
    seen: list[bytes | None] = []
    running = make(concurrency=1)

    def plain(message: Any) -> None:
        seen.append(message.value())

    async def coroutine(message: Any) -> None:
        seen.append(message.value())

    running.worker.handler("t")(coroutine if is_async else plain)
    stream = running.start()
    stream.send(whole_of(raw(0), BROKEN["crc"], raw(6)))
    assert wait_covered(stream, 9) == list(range(9))
    assert sorted(map(str, seen)) == sorted(str(b"v%d" % at) for at in (0, 1, 2, 6, 7, 8))
    kinds = {at: a.kind for a in stream.acks() for at in range(a.first, a.last + 1)}
    assert [kinds[at] for at in (2, 3, 5, 6)] == ["ACCEPT", "RELEASE", "RELEASE", "ACCEPT"]


def test_a_call_of_many_records_goes_back_whole(make: Make) -> None:
    running = make(concurrency=1)
    calls: list[int] = []
    running.worker.handler("t", batch=6)(lambda messages: calls.append(len(messages)))
    stream = running.start()
    stream.send(whole_of(raw(0), BROKEN["crc"]))
    assert wait_covered(stream, 6) == list(range(6))
    assert calls == []
    assert {a.kind for a in stream.acks()} == {"RELEASE"}


@pytest.mark.parametrize("ordering", ["key", "partition", None])
def test_lines_of_a_worker_take_their_keys_from_batches(make: Make, ordering: str | None) -> None:
    seen: list[bytes | None] = []
    running = make(concurrency=4)

    def note(message: Any) -> None:
        seen.append(message.value())

    running.worker.handler("t", ordering=ordering)(note)
    stream = running.start()
    keys = [b"a", b"b", b"a"]
    content = batch([Rec(at, b"v%d" % at, key) for at, key in enumerate(keys)], codec=4)
    stream.send(whole_of(content, raw(3)))
    assert wait_covered(stream, 6) == list(range(6))
    assert sorted(map(str, seen)) == [str(b"v%d" % at) for at in range(6)]
    if ordering is not None:
        assert seen.index(b"v0") < seen.index(b"v2")


def test_records_that_a_call_took_and_did_not_give_are_not_accepted_later(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream, messages = served(
        drivers, coordinator, whole_of(raw(0), BROKEN["crc"], raw(6)), max_poll_records=9
    )
    core = inner(consumer)._core
    assert len(list(messages)) == 9
    (hand_out,) = core.locks._hand_outs
    hand_out.given = 0
    again = consumer.poll(10)
    assert again.offsets() == list(range(9))
    consumer.poll(0.01)
    acks = stream.wait_acks(3)
    assert [a.kind for a in acks] == ["ACCEPT", "RELEASE", "ACCEPT"]


# -- limits ---------------------------------------------------------------------------------------


def test_a_batch_that_needs_too_much_memory_is_not_opened(
    drivers: Drivers, coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "OPENED_BYTES_MAX", 1_000)
    large = batch([Rec(at, b"x" * 400) for at in range(3)], codec=4)
    _, _, messages = served(drivers, coordinator, whole_of(large, raw(3)))
    assert "more than 1000 bytes" in messages[0].error().str()
    assert messages[3].value() == b"v3"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"record_count": whole.RECORDS_MAX + 1}, "at most 100000 come in one message"),
        ({"record_count": 0}, "0 records"),
        ({"record_count": 4}, "4 records, 3 offsets in ranges"),
        ({"base_offset": 1}, "3 records, 3 offsets in ranges"),
        ({"offset_deltas": [0, 1]}, "3 records, 2 offset deltas"),
    ],
)
def test_a_message_that_contradicts_itself_is_refused_before_anything_is_made(
    change: dict[str, Any], why: str
) -> None:
    world = World()
    world.join()
    sent = whole_of(raw(0))
    sent.MergeFrom(types_pb.RecordBatch(**change))
    if change.get("record_count") == 0:
        sent.record_count = 0
    world.receive(sent)
    with pytest.raises(KafkaException, match=why):
        world.core.raise_error()


def test_a_member_that_did_not_ask_refuses_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.join()
    monkeypatch.setattr(whole, "HAS_BATCHES", False)
    world.receive(whole_of(raw(0)))
    with pytest.raises(KafkaException, match="did not ask for"):
        world.core.raise_error()


def test_batches_that_overlap_give_each_record_once() -> None:
    world = World()
    world.join()
    world.receive(whole_of(raw(0), raw(2, 4), count=6))
    (span,) = world.poll()
    span.columns.open(0, 6)
    assert span.columns.values == [b"v%d" % at for at in range(6)]
    assert span.columns.errors is None


def test_where_order_by_key_came_later_keys_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(share_acknowledgement_mode="explicit")
    world.join()
    world.core.ordering = "key"
    same = batch([Rec(at, b"v", b"k") for at in range(3)])
    world.receive(whole_of(same))
    (span,) = world.poll()
    assert (span.start, span.stop) == (0, 1)
