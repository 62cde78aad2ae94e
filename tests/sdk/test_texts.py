"""Texts that the wire or a database can not hold: names are refused, words are kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from sharecoord_sdk import (
    AcknowledgeType,
    KafkaError,
    KafkaException,
    Reject,
    ShareConsumer,
    TopicPartition,
)
from sharecoord_sdk._admin.calls import Call
from sharecoord_sdk._worker.failures import settlement_of
from sharecoord_sdk.admin import AdminClient, DeadLetterFilter

from tests.sdk.driver import EXPLICIT, Drivers, joined
from tests.sdk.fake_coordinator import FakeCoordinator, make_batch

BAD = "caf\udce9"
"""A file name in Latin-1, as `os.listdir` gives it."""


def test_a_reason_that_can_not_be_sent_loses_no_verdict(
    drivers: Drivers, coordinator: FakeCoordinator
) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"%d" % number for number in range(9)]))
    for message in consumer.poll(10):
        if message.offset() == 4:
            consumer.acknowledge(message, AcknowledgeType.REJECT, reason=f"no file {BAD}\x00!")
        else:
            consumer.acknowledge(message)
    assert consumer.commit_sync(10) == {TopicPartition("t", 0): None}
    told = [(ack.first, ack.last, ack.kind, ack.reason) for ack in stream.acks()]
    assert told == [
        (0, 3, "ACCEPT", ""),
        (4, 4, "REJECT", "no file caf\\udce9\\x00!"),
        (5, 8, "ACCEPT", ""),
    ]


def test_a_reason_is_measured_as_it_is_sent(drivers: Drivers, coordinator: FakeCoordinator) -> None:
    consumer, stream = joined(drivers, coordinator, **EXPLICIT)
    stream.send(make_batch([b"a"]))
    (message,) = consumer.poll(10)
    with pytest.raises(ValueError, match="at most 1024 bytes"):
        consumer.acknowledge(message, AcknowledgeType.REJECT, reason="\udc80" * 200)


@pytest.mark.parametrize("error", [Reject(f"{BAD}\x00"), FileNotFoundError(f"{BAD}\x00")])
def test_a_workers_reason_is_kept_too(error: Exception) -> None:
    assert settlement_of(error).details.reason.endswith("caf\\udce9\\x00")


NAMES: dict[str, Callable[[Any], Any]] = {
    "subscribe": lambda c: c.subscribe([BAD]),
    "subscribe NUL": lambda c: c.subscribe(["a\x00"]),
    "acknowledge_offset": lambda c: c.acknowledge_offset(BAD, 0, 0),
    "acknowledge_offset NUL": lambda c: c.acknowledge_offset("a\x00", 0, 0),
    "pause": lambda c: c.pause([TopicPartition(BAD, 0)]),
    "resume": lambda c: c.resume([TopicPartition(BAD, 0)]),
    "set_sasl_credentials": lambda c: c.set_sasl_credentials("u", BAD),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_refused_where_they_are_given(
    drivers: Drivers, coordinator: FakeCoordinator, name: str
) -> None:
    consumer, _ = joined(drivers, coordinator, **EXPLICIT)
    with pytest.raises(ValueError, match=r"surrogate|NUL|is no name"):
        NAMES[name](consumer)
    assert consumer.poll(0).is_empty(), "it goes on"


@pytest.mark.parametrize("value", [BAD, "a\x00b"])
@pytest.mark.parametrize(
    "name", ["group.id", "client.id", "client.rack", "bootstrap.servers", "sasl.username"]
)
def test_settings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(KafkaException, match=f'"{name}".*(surrogate|NUL)') as caught:
        ShareConsumer({"group.id": "g", name: value})
    assert caught.value.args[0].code() == KafkaError._INVALID_ARG


def test_paths_of_files_need_not_be_unicode() -> None:
    with ShareConsumer({"group.id": "g", "ssl.ca.location": BAD}) as consumer:
        assert consumer.subscription() == []


@pytest.mark.parametrize("call", ["poll", "commit_sync"])
def test_a_timeout_that_is_no_number_does_not_wait_for_ever(
    drivers: Drivers, coordinator: FakeCoordinator, call: str
) -> None:
    consumer, _ = joined(drivers, coordinator)
    with pytest.raises(ValueError, match="not NaN; -1 waits for ever"):
        getattr(consumer, call)(math.nan)


CALLS: dict[str, Callable[[AdminClient], Any]] = {
    "group_id": lambda admin: admin.pause_group(BAD),
    "each of keys": lambda admin: admin.block_keys("g", [b"\xff", BAD]),
    "topic": lambda admin: admin.list_dead_letters("g", DeadLetterFilter(topic=BAD)),
    "each of ids": lambda admin: admin.list_dead_letters("g", DeadLetterFilter(ids=(BAD,))),
    "key": lambda admin: admin.list_dead_letters("g", DeadLetterFilter(headers=((BAD, b""),))),
    "each of member_ids": lambda admin: admin.pause_group("g", (), (BAD,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_operators_name_the_argument(name: str) -> None:
    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(ValueError, match=f"^{name} .*surrogate"):
        CALLS[name](admin)


def test_reasons_of_operators_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def send(_: str, call: Call[Any]) -> Any:
        sent.append(call.request)
        return call.answer()

    admin = AdminClient({"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(admin, "_send", send)
    admin.pause_group("g", reason=BAD)
    admin.block_keys("g", [b"k"], reason=BAD)
    assert [request.reason for request in sent] == ["caf\\udce9"] * 2
