"""The relay of outputs: who is at work, what fails, its thread; without a Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from sharecoord_sdk import IllegalStateException
from sharecoord_sdk.contrib.sqlalchemy import (
    ProduceOutbox,
    ProduceReport,
)
from sqlalchemy import Engine, text, update
from sqlalchemy.exc import OperationalError

from tests.sdk.fake_kafka import FakeBroker, FakeProducer, error
from tests.sdk.output_world import NOTHING, STANDBY, Clock, Relays, owner, put, waiting

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


def test_every_wait_for_kafka_gives_signs_of_life(
    engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, relay_of: Relays, clock: Clock
) -> None:
    late = {"before init": 14, "before marks": 3, "before metadata": 3, "before flush": 3}
    late |= {"before offsets": 3, "before commit": 3}

    def step(name: str) -> None:
        if late.get(name, 0):
            late[name] -= 1
            clock.now_s += 9
            # Somebody looks meanwhile, and sees that it lives.
            assert standby.run_once() == STANDBY
            raise error(KafkaError._TIMED_OUT)

    put(engine, outputs, "invoices", b"a", b"b", b"c")
    # A former relay left its rows on their way.
    with engine.begin() as connection:
        connection.execute(update(outputs.table).values(batch="left"))
    relay, standby = relay_of(), relay_of()
    relay._rows.take(clock)
    broker.step = step
    # More than one call of `flush`.
    broker.queued_max = 2
    assert relay.run_once() == ProduceReport(3, 0)
    assert set(late.values()) == {0}
    assert broker.values("invoices") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("takeover_s", "wait_s"), [(2.0, 0.4), (60.0, 1.0)])
def test_waits_fit_into_the_time_to_a_takeover(
    engine: Engine,
    outputs: ProduceOutbox,
    broker: FakeBroker,
    relay_of: Relays,
    takeover_s: float,
    wait_s: float,
) -> None:
    put(engine, outputs, "invoices", b"a")
    assert relay_of(takeover_s=takeover_s).run_once() == ProduceReport(1, 0)
    assert broker.longest_wait_s == pytest.approx(wait_s)


def test_a_database_that_is_away_is_tried_again(
    engine: Engine, outputs: ProduceOutbox, relay_of: Relays
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
