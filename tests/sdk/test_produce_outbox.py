"""Output to Kafka with the effect (`sharecoord_sdk.contrib.sqlalchemy`), without a Kafka."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from confluent_kafka import KafkaError
from sharecoord_sdk import Message
from sharecoord_sdk.admin import InvalidConfigError
from sharecoord_sdk.contrib.sqlalchemy import (
    AckOutbox,
    ProduceOutbox,
    ProduceRelay,
    ProduceReport,
)
from sharecoord_sdk.contrib.sqlalchemy._produce_relay import HELD_MAX
from sharecoord_sdk.testing import make_message
from sqlalchemy import Connection, Engine, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from tests.sdk.fake_kafka import FakeBroker, Written, error
from tests.sdk.output_world import CONF, NOTHING, Clock, Relays, put, waiting

# -- a record -------------------------------------------------------------------------------------


def test_a_record_arrives_as_it_was_produced(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    every_byte = bytes(range(256))
    with engine.begin() as connection:
        outputs.produce(
            connection,
            "invoices",
            value=every_byte,
            key="käse",
            headers=[("h", every_byte), ("h", None), ("ü", "text")],
            partition=3,
            timestamp_ms=1_700_000_000_123,
        )
        outputs.produce(connection, "invoices", "text", headers={"a": b"1"})
        outputs.produce(connection, "invoices", key=b"")
    relay = relay_of()
    clock.now_s += 5
    assert relay.run_once() == ProduceReport(3, 0)
    now_ms = 1_800_000_000_000
    own = [("h", every_byte), ("h", None), ("ü", b"text")]
    assert broker.topics["invoices"] == [
        Written(every_byte, "käse".encode(), 3, 1_700_000_000_123, own),
        Written(b"text", None, -1, now_ms, [("a", b"1")]),
        Written(None, b"", -1, now_ms, None),
    ]
    assert relay.run_once() == NOTHING
    assert waiting(engine, outputs) == []


def test_outputs_share_the_fate_of_the_effect(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    outbox = AckOutbox()
    outbox.create(engine)

    @outbox.once(engine)
    def book(connection: Connection, message: Message) -> None:
        outputs.produce(connection, "invoices", message.value())
        if message.value() == b"bad":
            raise RuntimeError("the handler failed")

    for _ in range(2):
        book(make_message(b"good", offset=1))
    with pytest.raises(RuntimeError, match="the handler failed"):
        book(make_message(b"bad", offset=2))
    assert relay_of().run_once() == ProduceReport(1, 0)
    assert broker.values("invoices") == [b"good"]


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"topic": "no topic"}, ValueError, "topic: Kafka has no topic 'no topic'"),
        ({"topic": ""}, ValueError, "topic: Kafka has no topic"),
        ({"topic": ".."}, ValueError, "topic: Kafka has no topic"),
        ({"topic": "t" * 250}, ValueError, "topic: Kafka has no topic"),
        ({"topic": b"t"}, TypeError, "topic must be str, not bytes"),
        ({"value": 5}, TypeError, "value must be bytes, str or None, not int"),
        ({"key": bytearray(b"k")}, TypeError, "key must be bytes, str or None, not bytearray"),
        ({"headers": [("h", 1)]}, TypeError, "header 'h' must be bytes, str or None, not int"),
        ({"headers": ["h"]}, TypeError, "headers must be pairs of a name and a value, not 'h'"),
        ({"headers": {b"h": b"v"}}, TypeError, "headers must be pairs of a name and a value"),
        ({"partition": -1}, ValueError, "partition must be 0 to 2147483647, or None, not -1"),
        ({"partition": True}, TypeError, "partition must be int or None, not bool"),
        ({"timestamp_ms": 0}, ValueError, "timestamp_ms must be 1 to"),
        ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms must be int or None, not float"),
        ({"value": b"x" * 999_999}, ValueError, r"is over max_record_bytes \(1000000\)"),
        ({"headers": [("h", b"x" * 999_999)]}, ValueError, "is over max_record_bytes"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bad_records_are_refused_where_they_are_made(
    engine: Engine, outputs: ProduceOutbox, given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said), engine.begin() as connection:
        outputs.produce(connection, **{"topic": "invoices", **given})
    assert waiting(engine, outputs) == []


def test_bad_settings_are_refused(broker: FakeBroker, relay_of: Relays) -> None:
    for size in (0, (256 << 20) + 1):
        with pytest.raises(ValueError, match="max_record_bytes must be 1 to 268435456"):
            ProduceOutbox(max_record_bytes=size)
    for name, value, said in (
        ("every_s", 0, "every_s must be more than 0 seconds, not 0"),
        ("takeover_s", float("nan"), "takeover_s must be more than 0 seconds, not nan"),
        ("takeover_s", 0.2, r"takeover_s must be more than every_s \(0.2\), not 0.2"),
        ("rows_max", 0, "rows_max must be 1 or more, not 0"),
        ("bytes_max", -1, "bytes_max must be 1 or more, not -1"),
        ("transactional_id", "", "transactional_id must have 1 to 249 characters, not 0"),
        ("transactional_id", "x" * 250, "transactional_id must have 1 to 249 characters, not 250"),
    ):
        with pytest.raises(ValueError, match=said):
            relay_of(**{name: value})


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"transactional.id": "x"}, "conf: 'transactional.id' is the relay's own: leave it out"),
        ({"group.id": "x"}, "conf: 'group.id' is the relay's own"),
        ({"lingr.ms": 5}, 'librdkafka refuses it: No such configuration property: "lingr.ms"'),
        ({"linger.ms": "x"}, 'librdkafka refuses it: Invalid value .*"queue.buffering.max.ms"'),
        ({"acks": 1}, "librdkafka refuses it: .*acks"),
    ],
)
def test_bad_settings_of_kafka_are_refused(
    engine: Engine, outputs: ProduceOutbox, conf: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        ProduceRelay(outputs, engine, conf, transactional_id="ledger")


def test_without_confluent_kafka_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, relay_of: Relays
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ImportError, match=r"pip install 'sharecoord-sdk\[sqlalchemy,kafka\]'"):
        relay_of()


def test_connections_of_asyncio_have_their_own_call(outputs: ProduceOutbox) -> None:
    other = create_async_engine("postgresql+psycopg://nowhere/")
    with pytest.raises(TypeError, match="asyncio engine, use produce_async"):
        outputs.produce(AsyncConnection(other), "invoices")  # type: ignore[arg-type]


# -- transactions ---------------------------------------------------------------------------------


def test_transactions_are_bounded_by_rows_and_bytes(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    values = [b"%d" % n for n in range(7)]
    put(engine, outputs, "invoices", *values)
    relay = relay_of(rows_max=3)
    assert relay.run_once() == ProduceReport(7, 0)
    relay.stop()
    assert broker.transactions == [3, 3, 1]
    broker.transactions.clear()
    sizes = (1_000, 1_000, 5_000, 10, 10)
    put(engine, outputs, "mails", *(b"x" * size for size in sizes))
    assert relay_of(bytes_max=2_500).run_once() == ProduceReport(5, 0)
    assert broker.transactions == [2, 1, 2]
    assert broker.values("invoices") == values


def test_a_row_that_becomes_visible_late_is_sent_and_none_is_passed(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    """Ids of transactions that are open side by side: the lower one commits last."""
    relay = relay_of()
    put(engine, outputs, "invoices", b"a", b"b")
    with engine.begin() as connection:
        row = connection.execute(select(outputs.table)).mappings().first()
        connection.execute(delete(outputs.table).where(outputs.table.c.record_value == b"a"))
    assert row is not None
    assert relay.run_once().sent == 1
    with engine.begin() as connection:
        connection.execute(outputs.table.insert(), dict(row))
    assert relay.run_once().sent == 1
    assert broker.values("invoices") == [b"b", b"a"]


def test_a_database_that_begins_again_loses_nothing(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    put(engine, outputs, "invoices", b"a", b"b")
    assert relay_of().run_once().sent == 2
    with engine.begin() as connection:
        outputs.table.drop(connection)
        outputs.relay_table.drop(connection)
    outputs.create(engine)
    put(engine, outputs, "invoices", b"c")
    assert relay_of().run_once().sent == 1
    assert broker.values("invoices") == [b"a", b"b", b"c"]


# -- what Kafka does not take ---------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 9])
@pytest.mark.parametrize("which", [0, -1])
def test_a_record_that_kafka_never_takes_is_passed(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    caplog: pytest.LogCaptureFixture,
    count: int,
    which: int,
) -> None:
    broker.record_bytes_max["invoices"] = 100
    values = [b"%d" % n for n in range(count)]
    large = values[which] = b"x" * 101
    put(engine, outputs, "invoices", *values)
    relay = relay_of()
    assert relay.run_once() == ProduceReport(count - 1, 1)
    values.remove(large)
    assert broker.values("invoices") == values
    ((value, said),) = waiting(engine, outputs)
    assert value == large
    assert said is not None
    assert said.startswith("MSG_SIZE_TOO_LARGE")
    assert ["is refused: MSG_SIZE_TOO_LARGE" in each.message for each in caplog.records] == [True]
    # It is passed by what comes later, until somebody decides.
    put(engine, outputs, "invoices", b"later")
    assert relay.run_once() == ProduceReport(1, 0)
    broker.record_bytes_max.clear()
    with engine.begin() as connection:
        assert outputs.retry_refused(connection) == 1
    assert relay.run_once() == ProduceReport(1, 0)
    assert broker.values("invoices") == [*values, b"later", large]


def test_a_record_for_a_partition_that_is_not_there_is_passed(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    with engine.begin() as connection:
        for partition in (3, 4, 0):
            outputs.produce(connection, "invoices", b"%d" % partition, partition=partition)
    assert relay_of().run_once() == ProduceReport(2, 1)
    assert broker.values("invoices") == [b"3", b"0"]


def test_a_record_that_the_client_refuses_is_passed(
    engine: Engine, clock: Clock, broker: FakeBroker
) -> None:
    outputs = ProduceOutbox(max_record_bytes=2_000_000, clock=clock)
    outputs.create(engine)
    put(engine, outputs, "invoices", b"a", b"x" * 1_500_000, b"b")
    relay = ProduceRelay(outputs, engine, CONF, transactional_id="ledger", clock=clock)
    assert relay.run_once() == ProduceReport(2, 1)
    assert broker.values("invoices") == [b"a", b"b"]


@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "not allowed"])
def test_a_topic_that_can_not_be_written_to_waits_alone(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    is_there: bool,
) -> None:
    if is_there:
        broker.topics["later"] = []
        broker.not_allowed = {"later"}
    put(engine, outputs, "later", b"1", b"2")
    put(engine, outputs, "invoices", b"a", b"b")
    relay = relay_of()
    assert relay.run_once() == ProduceReport(2, 0, ("later",))
    assert broker.values("invoices") == [b"a", b"b"]
    put(engine, outputs, "later", b"3")
    waits = []
    for _ in range(2_000):
        held = relay._held.get("later")
        if held and held.wait_s not in waits:
            waits.append(held.wait_s)
        clock.now_s += 0.1
        assert relay.run_once() == ProduceReport(0, 0, ("later",))
    assert waits == [1, 2, 4, 8, 16, 32, 60]
    assert ["outputs for later wait: " in each.message for each in caplog.records] == [True]
    broker.topics["later"] = []
    broker.not_allowed = set()
    clock.now_s += 61
    assert relay.run_once() == ProduceReport(3, 0)
    assert broker.values("later") == [b"1", b"2", b"3"]


def test_a_reason_that_names_no_topic_is_found_by_halves(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    """The marks need READ on the topic, and the error of their call does not say which it was."""
    for value in range(8):
        put(engine, outputs, "mails" if value == 5 else "invoices", b"%d" % value)

    def step(name: str) -> None:
        if name == "after offsets" and "mails" in marked():
            raise error(KafkaError.TOPIC_AUTHORIZATION_FAILED, abort=True)

    relay = relay_of()

    def marked() -> set[str]:
        producer: Any = relay._transactions._producer
        return {place.topic for place in producer._marks}

    broker.step = step
    assert relay.run_once() == ProduceReport(7, 0, ("mails",))
    assert broker.values("mails") == []


def test_held_topics_are_bounded(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    for number in range(HELD_MAX):
        put(engine, outputs, f"missing-{number}", b"v")
    put(engine, outputs, "invoices", b"a")
    relay = relay_of()
    assert relay.run_once().sent == 1
    relay._hold("one-more", "it is not there")
    assert len(relay._held) == HELD_MAX


def test_rows_of_held_topics_that_were_deleted_are_forgotten(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    put(engine, outputs, "missing", b"v")
    relay = relay_of()
    assert relay.run_once().held == ("missing",)
    with engine.begin() as connection:
        connection.execute(delete(outputs.table))
    clock.now_s += 2
    assert relay.run_once() == NOTHING
