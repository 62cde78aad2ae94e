"""Output to Kafka with the effect (`sharecoord_sdk.contrib.sqlalchemy`), without a Kafka."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from sharecoord_sdk import IllegalStateException, Message
from sharecoord_sdk.admin import InvalidConfigError
from sharecoord_sdk.contrib.sqlalchemy import (
    AckOutbox,
    ProduceOutbox,
    ProduceRelay,
    ProduceReport,
)
from sharecoord_sdk.contrib.sqlalchemy._produce_relay import HELD_MAX
from sharecoord_sdk.testing import make_message
from sqlalchemy import Connection, Engine, create_engine, delete, event, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from .fake_kafka import FakeBroker, FakeProducer, Written, error

NOTHING = ProduceReport(0, 0)
STANDBY = ProduceReport(0, 0, is_standby=True)
CONF = {"bootstrap.servers": "localhost:9092"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    made = FakeBroker("invoices", "mails")
    monkeypatch.setattr(confluent_kafka, "Producer", made.producer)
    monkeypatch.setattr(confluent_kafka, "Consumer", made.consumer)
    return made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    event.listen(made, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    yield made
    made.dispose()


@pytest.fixture
def outputs(engine: Engine, clock: Clock) -> ProduceOutbox:
    made = ProduceOutbox(clock=clock)
    made.create(engine)
    # A second time does nothing.
    made.create(engine)
    return made


Relays = Any


@pytest.fixture
def relay_of(engine: Engine, outputs: ProduceOutbox, clock: Clock) -> Relays:
    def make(**settings: Any) -> ProduceRelay:
        given = {"transactional_id": "ledger", "clock": clock, **settings}
        return ProduceRelay(outputs, engine, CONF, **given)

    return make


def put(engine: Engine, outputs: ProduceOutbox, topic: str, *values: bytes) -> None:
    with engine.begin() as connection:
        for value in values:
            outputs.produce(connection, topic, value)


def waiting(engine: Engine, outputs: ProduceOutbox) -> list[tuple[bytes, str | None]]:
    """Value and error of each row."""
    columns = outputs.table.c
    query = select(columns.record_value, columns.error).order_by(columns.id)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


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
    assert relay_of(rows_max=3).run_once() == ProduceReport(7, 0)
    assert broker.transactions == [3, 3, 1]
    broker.transactions.clear()
    sizes = (1_000, 1_000, 5_000, 10, 10)
    put(engine, outputs, "mails", *(b"x" * size for size in sizes))
    relay = relay_of(bytes_max=2_500)
    assert relay.run_once() == STANDBY
    relay = relay_of(bytes_max=2_500, takeover_s=0.3)
    relay._rows._me = owner(engine, outputs)
    assert relay.run_once() == ProduceReport(5, 0)
    assert broker.transactions == [2, 1, 2]
    assert broker.values("invoices") == values


def owner(engine: Engine, outputs: ProduceOutbox) -> Any:
    with engine.connect() as connection:
        return connection.execute(select(outputs.relay_table.c.owner)).scalar()


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


# -- who relays -----------------------------------------------------------------------------------


def test_a_second_relay_stands_by_and_takes_over_from_one_that_is_gone(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    first, second = relay_of(), relay_of()
    assert first.run_once() == NOTHING
    assert broker.epochs == {"ledger": 1}
    # Nothing waits, and yet the first one gives signs of life.
    for _ in range(10):
        assert second.run_once() == STANDBY
        clock.now_s += 9
        assert first.run_once() == NOTHING
    assert second.run_once() == STANDBY
    clock.now_s += 10
    put(engine, outputs, "invoices", b"a")
    assert second.run_once() == ProduceReport(1, 0)
    put(engine, outputs, "invoices", b"b")
    # The first one finds itself overtaken and does not fight.
    for _ in range(3):
        assert first.run_once() == STANDBY
    assert broker.epochs == {"ledger": 2}
    assert second.run_once() == ProduceReport(1, 0)
    # One that stops in order is followed at once.
    second.stop()
    put(engine, outputs, "invoices", b"c")
    assert first.run_once() == ProduceReport(1, 0)
    assert broker.values("invoices") == [b"a", b"b", b"c"]


def test_two_that_see_the_same_gap_do_not_both_take_it(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    relay_of().run_once()
    second, third = relay_of(), relay_of()
    assert (second.run_once(), third.run_once()) == (STANDBY, STANDBY)
    clock.now_s += 11
    assert (second.run_once(), third.run_once()) == (NOTHING, STANDBY)


def test_a_stranger_under_the_same_id_is_told(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    relay = relay_of()
    relay.run_once()
    broker.epochs["ledger"] += 1
    put(engine, outputs, "invoices", b"a")
    with pytest.raises(KafkaException) as raised:
        relay.run_once()
    assert raised.value.args[0].code() == KafkaError._FENCED
    assert relay.run_once() == ProduceReport(1, 0)
    assert broker.values("invoices") == [b"a"]


def test_the_transactional_id_changes_when_nothing_is_on_its_way(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    put(engine, outputs, "invoices", b"a")
    first = relay_of()

    def step(name: str) -> None:
        if name == "after commit":
            raise error(KafkaError._TIMED_OUT)

    broker.step = step
    with pytest.raises(KafkaException):
        first.run_once()
    first.stop()
    broker.step = lambda name: None
    other = relay_of(transactional_id="books")
    for _ in range(2):
        with pytest.raises(IllegalStateException, match="on their way under 'ledger'"):
            other.run_once()
    again = relay_of()
    assert again.run_once() == ProduceReport(1, 0)
    again.stop()
    assert other.run_once() == NOTHING
    assert broker.values("invoices") == [b"a"]


def test_a_relay_is_overtaken_while_it_takes_over(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind its look at the head, one of another id comes, and ends behind its commit."""
    put(engine, outputs, "invoices", b"a")
    former, other, late = relay_of(rows_max=1), relay_of(transactional_id="books"), relay_of()
    assert former.run_once().sent == 1
    put(engine, outputs, "invoices", b"b")

    def step(name: str) -> None:
        if name == "after commit":
            raise error(KafkaError._TRANSPORT)

    def is_gone(turn: int, now_s: float) -> bool:
        former.stop()
        broker.step = step
        with pytest.raises(KafkaException):
            other.run_once()
        broker.step = lambda name: None
        return True

    monkeypatch.setattr(late._rows, "_is_gone", is_gone)
    assert late.run_once() == STANDBY
    assert other.run_once() == ProduceReport(1, 0)
    assert broker.values("invoices") == [b"a", b"b"]


# -- errors ---------------------------------------------------------------------------------------

CALLS = ("init", "marks", "metadata", "flush", "offsets", "commit")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "fatal", "abort"),
    [
        (KafkaError._TRANSPORT, False, False),
        (KafkaError._TIMED_OUT, False, False),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, False, True),
        (KafkaError._FENCED, True, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False, False),
    ],
    ids=["away", "late", "abort", "fatal", "topic"],
)
def test_whatever_fails_nothing_is_lost_or_doubled(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    call: str,
    moment: str,
    code: int,
    fatal: bool,
    abort: bool,
) -> None:
    """Both outcomes of a call that fails: it had its effect, or it had none."""
    if (call, moment) == ("metadata", "after"):
        moment = "before"
    put(engine, outputs, "invoices", b"a", b"b")
    put(engine, outputs, "mails", b"m")
    failing = {"marks": 2}.get(call, 1)

    def step(name: str) -> None:
        nonlocal failing
        if call == "marks" and name == "after commit" and failing == 2:
            # Leaves something that marks are looked up for.
            failing = 1
            raise error(KafkaError._TRANSPORT)
        if name == f"{moment} {call}" and failing == 1:
            failing = 0
            raise error(code, fatal=fatal, abort=abort)

    broker.step = step
    relay = relay_of()
    sent, failures = 0, 0
    for _ in range(4):
        try:
            sent += relay.run_once().sent
        except KafkaException:
            failures += 1
    assert failing == 0
    assert failures <= 2
    assert broker.values("invoices") == [b"a", b"b"]
    assert broker.values("mails") == [b"m"]
    assert waiting(engine, outputs) == []
    # A commit that was late and came through is sent once more by the client, as librdkafka does.
    assert sent == 3


def test_a_wait_goes_on_where_it_was_and_gives_signs_of_life(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    late = {"before init": 14, "before flush": 3, "before offsets": 3, "before commit": 3}

    def step(name: str) -> None:
        if late.get(name, 0):
            late[name] -= 1
            clock.now_s += 9
            # Somebody looks meanwhile, and sees that it lives.
            assert standby.run_once() == STANDBY
            raise error(KafkaError._TIMED_OUT)

    put(engine, outputs, "invoices", b"a")
    relay, standby = relay_of(), relay_of()
    relay._rows.take(clock)
    broker.step = step
    assert relay.run_once() == ProduceReport(1, 0)
    assert set(late.values()) == {0}
    assert broker.values("invoices") == [b"a"]


def test_a_database_that_is_away_is_tried_again(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    put(engine, outputs, "invoices", b"a")
    relay = relay_of()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE sharecoord_output RENAME TO away"))
    with pytest.raises(OperationalError):
        relay.run_once()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE away RENAME TO sharecoord_output"))
    assert relay.run_once() == ProduceReport(1, 0)


def test_a_topic_that_is_deleted_in_a_transaction_waits(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka goes on waiting for it, and says nothing."""
    put(engine, outputs, "mails", b"m")
    put(engine, outputs, "invoices", b"a")
    flush = FakeProducer.flush

    def silent(self: FakeProducer, timeout: float) -> int:
        if any(topic not in broker.topics for topic, *_ in self._queue):
            return 1
        return flush(self, timeout)

    def step(name: str) -> None:
        if name == "before metadata" and len(broker.topics) == 2:
            broker.step = lambda name: broker.topics.pop("mails", None) and None

    broker.step = step
    monkeypatch.setattr(FakeProducer, "flush", silent)
    relay = relay_of()
    assert relay.run_once() == ProduceReport(1, 0, ("mails",))
    assert broker.aborted == 1
    assert broker.values("invoices") == [b"a"]


def test_a_refusal_is_kept_when_the_abort_fails(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    broker.record_bytes_max["invoices"] = 10
    put(engine, outputs, "invoices", b"x" * 11)

    def step(name: str) -> None:
        if name == "before abort":
            raise error(KafkaError._FATAL, fatal=True)

    broker.step = step
    assert relay_of().run_once() == ProduceReport(0, 1)
    assert waiting(engine, outputs)[0][1] is not None


# -- the thread -----------------------------------------------------------------------------------


def test_a_relay_in_its_thread(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(engine, outputs, "invoices", b"a")
    failing = [2]

    def step(name: str) -> None:
        if name == "before init" and failing[0]:
            failing[0] -= 1
            raise error(KafkaError._TRANSPORT)

    broker.step = step
    relay = relay_of()
    relay._stop.wait = lambda timeout: relay._stop.is_set()
    with relay, pytest.raises(IllegalStateException, match="runs once"):
        relay.start()
    with relay_of(every_s=0.001) as relay:
        put(engine, outputs, "invoices", b"b")
    # The last look comes after the stop.
    assert broker.values("invoices") == [b"a", b"b"]
    assert owner(engine, outputs) is None
    told = [each.message for each in caplog.records]
    assert len(told) <= 1
    assert all("outputs can not be sent" in each for each in told)


def test_a_stop_does_not_wait_for_a_long_queue(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    put(engine, outputs, "invoices", *(b"%d" % n for n in range(5)))
    relay = relay_of(rows_max=1)

    def step(name: str) -> None:
        if name == "after commit":
            clock.now_s += 2

    broker.step = step
    relay._until_s = clock.now_s + 5
    assert relay.run_once() == ProduceReport(3, 0)
    assert [value for value, _ in waiting(engine, outputs)] == [b"3", b"4"]


def test_a_row_that_was_changed_by_hand_is_told_apart(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays
) -> None:
    """A batch that no relay of ours knows, as after a restored backup: it waits, and is sent."""
    put(engine, outputs, "invoices", b"a")
    with engine.begin() as connection:
        connection.execute(update(outputs.table).values(batch="f" * 32))
    assert relay_of().run_once() == ProduceReport(1, 0)
    assert broker.values("invoices") == [b"a"]
