"""Effects that happen once (`sharecoord_sdk.contrib.sqlalchemy`), without a coordinator."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
from sharecoord_sdk import Message, Worker
from sharecoord_sdk._core.columns import Columns, PartitionKey
from sharecoord_sdk._core.errors import IllegalStateException
from sharecoord_sdk._core.records import messages_of
from sharecoord_sdk._proto import share_service_pb2 as share_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk.admin import CoordinatorUnavailableError
from sharecoord_sdk.contrib.sqlalchemy import (
    AckOutbox,
    AckRelay,
    AlreadySettledError,
    RelayReport,
)
from sharecoord_sdk.contrib.sqlalchemy._outbox import delivery_id_of
from sharecoord_sdk.testing import make_message, make_messages, run_handler
from sqlalchemy import Connection, Engine, insert, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.sdk.output_world import Clock, created

TOPIC_ID = bytes(range(16))
DAY_S = 86_400.0


@pytest.fixture
def outbox(engine: Engine, clock: Clock) -> AckOutbox:
    """Beside a table of the application."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE booking (what TEXT NOT NULL)"))
    return created(AckOutbox(clock=clock), engine)


def received(
    *offsets: int, topic: str = "orders", member: str = "m1", token: int = 7, replay_epoch: int = 0
) -> list[Message]:
    """Messages of one delivery."""
    batch = types_pb.RecordBatch(
        base_offset=offsets[0],
        record_count=len(offsets),
        offset_deltas=[offset - offsets[0] for offset in offsets],
        values=[b"%d" % offset for offset in offsets],
        replay_epoch=replay_epoch,
    )
    batch.ranges.add(
        first_offset=offsets[0], last_offset=offsets[-1], delivery_count=1, lock_token=token
    )
    columns = Columns(batch, PartitionKey(topic, 3, TOPIC_ID), 0.0)
    columns.holder = ("billing", member)
    columns.unpack()
    return messages_of(columns, 0, len(offsets))


def bookings(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(text("SELECT what FROM booking")).scalars())


def rows(engine: Engine, outbox: AckOutbox) -> list[tuple[int, int, int | None]]:
    """Offset, replay epoch, and when it is relayed."""
    columns = outbox.table.c
    query = select(columns.record_offset, columns.replay_epoch, columns.relay_at_ms)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query.order_by(*query.selected_columns))]


def book(connection: Connection, given: Message | list[Message]) -> None:
    for message in given if isinstance(given, list) else [given]:
        what = message.value().decode()
        connection.execute(text("INSERT INTO booking VALUES (:what)"), {"what": what})


def fail(connection: Connection, message: Message) -> None:
    book(connection, message)
    raise RuntimeError("the handler failed")


# -- a record -------------------------------------------------------------------------------------


def test_a_message_knows_its_delivery() -> None:
    found = delivery_id_of(received(5, 9, replay_epoch=4)[1])
    assert found == ("billing", "orders", TOPIC_ID.hex(), 3, 9, 4, "m1", 7)
    made = delivery_id_of(make_message(topic="orders", offset=2))
    assert made == ("", "orders", "", 0, 2, 0, "", 0)
    with pytest.raises(ValueError, match="names no record"):
        delivery_id_of(Message())


def test_the_effect_and_its_row_are_one(engine: Engine, outbox: AckOutbox, clock: Clock) -> None:
    handle = outbox.once(engine)(book)
    (message,) = received(5)
    handle(message)
    assert bookings(engine) == ["5"]
    due_ms = int(clock.now_s * 1000) + 10_000
    assert rows(engine, outbox) == [(5, 0, due_ms)]
    with pytest.raises(RuntimeError, match="the handler failed"):
        outbox.once(engine)(fail)(*received(6))
    assert bookings(engine) == ["5"]
    assert rows(engine, outbox) == [(5, 0, due_ms)]


def test_a_record_that_comes_again_finds_its_row(engine: Engine, outbox: AckOutbox) -> None:
    handle = outbox.once(engine)(book)
    handle(*received(5))
    handle(*received(5, member="m2", token=8))
    assert bookings(engine) == ["5"]
    # Neighbours, other topics, and the same record after a reset are others.
    handle(*received(6))
    handle(*received(5, topic="refunds"))
    handle(*received(5, replay_epoch=1))
    assert bookings(engine) == ["5", "5", "5", "6"]


def test_of_a_batch_the_function_gets_what_is_new(engine: Engine, outbox: AckOutbox) -> None:
    handle = outbox.once(engine)(book)
    handle(received(5, 9))
    seen: list[int] = []

    def note(connection: Connection, messages: list[Message]) -> None:
        seen.extend(message.offset() or 0 for message in messages)
        book(connection, messages)

    outbox.once(engine)(note)(received(4, 5, 6, 9, 12))
    assert seen == [4, 6, 12]
    outbox.once(engine)(note)(received(4, 12))
    assert seen == [4, 6, 12]
    assert bookings(engine) == ["12", "4", "5", "6", "9"]
    # One record twice in a batch counts once.
    outbox.once(engine)(note)([*received(20), *received(20)])
    assert seen == [4, 6, 12, 20]


def test_who_is_beaten_to_it_rolls_back(engine: Engine, outbox: AckOutbox) -> None:
    calls: list[int] = []

    class Beaten(AckOutbox):
        """Another worker commits between the look and the row, once."""

        def _known(self, connection: Connection, ids: Sequence[Any]) -> Any:
            known = super()._known(connection, ids)
            if not calls:
                calls.append(len(ids))
                times = {"settled_at_ms": 0, "relay_at_ms": None}
                row = {**ids[0]._asdict(), "member_id": "other", **times}
                with engine.begin() as other:
                    other.execute(insert(self.table), row)
                    other.execute(text("INSERT INTO booking VALUES ('of the other')"))
            return known

    beaten = Beaten()
    message, second = received(5, 6)
    with pytest.raises(AlreadySettledError), engine.begin() as connection:
        beaten.settle(connection, message)
    calls.clear()
    beaten.once(engine)(book)([second])
    assert bookings(engine) == ["of the other"] * 2


def test_a_function_and_its_engine_fit(engine: Engine, outbox: AckOutbox) -> None:
    async def wait(connection: Any, message: Message) -> None:
        """Never called."""

    with pytest.raises(TypeError, match="async function: it needs an AsyncEngine"):
        outbox.once(engine)(wait)
    other = create_async_engine("postgresql+psycopg://nowhere/")
    with pytest.raises(TypeError, match="plain function: it needs an Engine"):
        outbox.once(other)(book)
    assert inspect.iscoroutinefunction(outbox.once(other)(wait))


def test_it_is_a_handler_like_any_other(engine: Engine, outbox: AckOutbox) -> None:
    worker = Worker({"bootstrap.servers": "localhost:7070", "group.id": "billing"})
    handle = worker.handler("orders")(outbox.once(engine)(book))
    assert list(inspect.signature(handle).parameters) == ["given"]
    assert handle.__name__ == "book"
    for _ in range(2):
        assert run_handler(handle, make_message(b"tested")).type.name == "ACCEPT"
    assert bookings(engine) == ["tested"]
    # Nobody can be told of what a test made.
    assert rows(engine, outbox) == [(0, 0, None)]
    assert len(make_messages([b"a", b"b"])) == 2


# -- the relay ------------------------------------------------------------------------------------

OK = types_pb.ACKNOWLEDGE_OUTCOME_UNSPECIFIED
FINISHED = types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED
BELOW = types_pb.ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME
LOST = types_pb.ACKNOWLEDGE_OUTCOME_LOCK_LOST


class FakeClient:
    """A coordinator that answers by offset, or not at all."""

    def __init__(self, outcomes: dict[int, int] | str) -> None:
        self.outcomes = outcomes
        self.heard: list[tuple[str, str, list[tuple[int, int, int]]]] = []

    def _run(self, call: Any) -> Any:
        if self.outcomes == "away":
            raise CoordinatorUnavailableError("nobody there", reason="UNAVAILABLE")
        request = call.request
        answer = share_pb.AcknowledgeResponse()
        for item in request.acknowledgements:
            said = [(r.first_offset, r.last_offset, r.lock_token) for r in item.ranges]
            self.heard.append((request.member_id, item.partition.topic, said))
            outcome = types_pb.PartitionOutcome(partition=item.partition)
            if isinstance(self.outcomes, str):
                outcome.error_reason = self.outcomes
            else:
                for offset, kind in self.outcomes.items():
                    if kind != OK and any(first <= offset <= last for first, last, _ in said):
                        outcome.exceptions.add(
                            first_offset=offset, last_offset=offset, outcome=kind
                        )
            answer.outcomes.append(outcome)
        return call.read(answer)

    def close(self) -> None:
        """Nothing is open."""


def relay_of(
    engine: Engine, outbox: AckOutbox, clock: Clock, *clients: FakeClient, **settings: Any
) -> AckRelay:
    relay = AckRelay(
        outbox, engine, {"bootstrap.servers": "localhost:7070"}, clock=clock, **settings
    )
    relay._clients = list(clients)  # type: ignore[assignment]
    return relay


def settle(engine: Engine, outbox: AckOutbox, messages: list[Message]) -> None:
    with engine.begin() as connection:
        assert outbox.settle_all(connection, messages) == messages


def test_what_was_committed_is_said_once_its_worker_had_time(
    engine: Engine, outbox: AckOutbox, clock: Clock
) -> None:
    settle(engine, outbox, received(5, 6, 7, 9))
    settle(engine, outbox, received(8, token=11))
    settle(engine, outbox, received(1, topic="refunds", member="m2"))
    client = FakeClient({})
    relay = relay_of(engine, outbox, clock, client)
    assert relay.run_once() == RelayReport(0, 0, 0)
    clock.now_s += 11
    assert relay.run_once() == RelayReport(6, 0, 0)
    assert client.heard == [
        ("m1", "orders", [(5, 7, 7), (8, 8, 11), (9, 9, 7)]),
        ("m2", "refunds", [(1, 1, 7)]),
    ]
    assert {at for _, _, at in rows(engine, outbox)} == {None}
    assert relay.run_once() == RelayReport(0, 0, 0)


def test_what_is_final_is_finished_and_what_is_lost_is_said_again(
    engine: Engine, outbox: AckOutbox, clock: Clock
) -> None:
    settle(engine, outbox, received(5, 6, 7))
    client = FakeClient({5: FINISHED, 6: BELOW, 7: LOST})
    relay = relay_of(engine, outbox, clock, client)
    clock.now_s += 11
    assert relay.run_once() == RelayReport(2, 1, 0)
    assert relay.run_once() == RelayReport(0, 0, 0)
    # It came again, found its row, and was accepted: now it is finished there, too.
    client.outcomes = {7: FINISHED}
    clock.now_s += 12
    assert relay.run_once() == RelayReport(1, 0, 0)
    assert [said for _, _, said in client.heard] == [[(5, 7, 7)], [(7, 7, 7)]]


def test_every_coordinator_of_a_fleet_is_asked(
    engine: Engine, outbox: AckOutbox, clock: Clock
) -> None:
    settle(engine, outbox, received(5))
    away, other, owner = FakeClient("away"), FakeClient("NOT_OWNER"), FakeClient({})
    clock.now_s += 11
    assert relay_of(engine, outbox, clock, away, other).run_once() == RelayReport(0, 1, 0)
    clock.now_s += 301
    assert relay_of(engine, outbox, clock, away, other, owner).run_once() == RelayReport(1, 0, 0)
    assert len(owner.heard) == 1


def test_of_two_lives_of_a_record_the_newer_one_is_said(
    engine: Engine, outbox: AckOutbox, clock: Clock
) -> None:
    settle(engine, outbox, received(5, replay_epoch=1, token=99))
    settle(engine, outbox, received(5))
    clock.now_s += 11
    client = FakeClient({})
    assert relay_of(engine, outbox, clock, client).run_once() == RelayReport(2, 0, 0)
    assert client.heard == [("m1", "orders", [(5, 5, 99)])]


def test_rows_go_when_they_are_old_and_their_records_finished(
    engine: Engine, outbox: AckOutbox, clock: Clock
) -> None:
    settle(engine, outbox, received(5, 6))
    client = FakeClient({6: LOST})
    relay = relay_of(engine, outbox, clock, client, keep_s=2 * DAY_S)
    clock.now_s += DAY_S
    assert relay.run_once() == RelayReport(1, 1, 0)
    clock.now_s += DAY_S + 1
    assert relay.run_once() == RelayReport(0, 1, 1)
    assert [offset for offset, _, _ in rows(engine, outbox)] == [6]


def test_a_relay_in_its_thread(
    engine: Engine, outbox: AckOutbox, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    settle(engine, outbox, received(5))
    clock.now_s += 11
    relay = relay_of(engine, outbox, clock, FakeClient("away"), every_s=0.001)
    with relay, pytest.raises(IllegalStateException, match="runs once"):
        relay.start()
    relay = relay_of(engine, outbox, clock, FakeClient("away"))
    assert relay.run_once().waiting == 0
    clock.now_s += 400
    assert relay.run_once().waiting == 1
    assert any("acknowledgements of an outbox are not taken" in r.message for r in caplog.records)


def test_a_negative_wait_is_refused() -> None:
    with pytest.raises(ValueError, match="relay_after_s must be 0 seconds or more"):
        AckOutbox(relay_after_s=-1)


@pytest.mark.parametrize("setting", ["every_s", "keep_s"])
def test_bad_times_are_refused(
    engine: Engine, outbox: AckOutbox, clock: Clock, setting: str
) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be more than 0 seconds"):
        relay_of(engine, outbox, clock, **{setting: 0})
