"""The writer's sink for a topic: how rows become messages, and what becomes of trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from sharecoord.eventlog.schema import EventBlock
from sharecoord.events import kafka_topic
from sharecoord.events.frames import lost_block
from sharecoord.events.kafka_topic import LINGER_S, MESSAGE_BYTES_MAX, MESSAGE_ROWS_MAX, KafkaSink
from sharecoord.events.schema import SCHEMA
from tests.unit.events.support import NOON_US, block, payload


class FakeTopic:
    """Keeps messages; delivers them in `poll` and `flush`."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, dict[str, str]]] = []
        self.under_way: list[Callable[[str], None]] = []
        self.problem = ""
        self.full_for = 0
        self.refusal: Exception | None = None

    def produce(
        self, key: str, value: bytes, headers: dict[str, str], done: Callable[[str], None]
    ) -> bool:
        if self.refusal is not None:
            raise self.refusal
        if self.full_for:
            self.full_for -= 1
            return False
        self.sent.append((key, value, headers))
        self.under_way.append(done)
        return True

    def poll(self, timeout_s: float) -> None:
        done, self.under_way = self.under_way, []
        for each in done:
            each(self.problem)

    flush = poll

    @property
    def waiting(self) -> int:
        return len(self.under_way)


class World:
    def __init__(self) -> None:
        self.now_s = 50.0
        self.topic = FakeTopic()
        self.sink = KafkaSink(
            self.topic,  # type: ignore[arg-type]
            name="kafka:t",
            coordinator_id="c",
            now_s=lambda: self.now_s,
        )

    def put(self, *blocks: EventBlock) -> None:
        self.sink.take(payload(*blocks))
        self.sink.work()

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.sink.work()

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.sink.counts
        return counts.settled, counts.written, counts.lost

    @property
    def rows(self) -> list[list[dict[str, Any]]]:
        return [rows_of(value) for _, value, _ in self.topic.sent]


def rows_of(value: bytes) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(value) as stream:
        assert stream.schema == SCHEMA
        (batch,) = list(stream)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


@pytest.fixture
def world() -> World:
    return World()


def test_rows_of_a_group_wait_for_each_other(world: World) -> None:
    assert world.sink.wait_s() is None
    world.put(block("g", 0, 2), block("h", 0, 1))
    assert world.sink.wait_s() == LINGER_S
    world.pass_s(LINGER_S / 2)
    world.put(block("g", 2, 1), block("late", 0, 1))
    assert world.topic.sent == []
    assert world.counts == (0, 0, 0)
    world.pass_s(LINGER_S / 2)
    assert [key for key, _, _ in world.topic.sent] == ["g", "h"]
    assert [row["first_offset"] for row in world.rows[0]] == [0, 1, 2]
    assert world.rows[0][0]["coordinator_id"] == "c"
    assert world.topic.sent[0][2] == {
        "sharecoord-schema-version": "1",
        "content-type": "application/vnd.apache.arrow.stream",
    }
    assert world.counts == (4, 4, 0)
    assert world.sink.wait_s() == LINGER_S / 2


def test_rows_are_written_when_kafka_has_them(world: World) -> None:
    world.put(block("g", 0, 2))
    world.sink._send_group("g")
    assert world.counts == (0, 0, 0)
    assert world.sink.wait_s() == kafka_topic.POLL_S
    world.sink.work()
    assert world.counts == (2, 2, 0)


def test_many_rows_do_not_wait(world: World) -> None:
    world.put(block("g", 0, MESSAGE_ROWS_MAX - 1))
    assert world.topic.sent == []
    world.put(block("g", 5000, 1))
    assert len(world.rows[0]) == MESSAGE_ROWS_MAX


def test_a_message_is_bounded_in_bytes(world: World) -> None:
    common = {"kind": "range", "time": NOON_US, "group_id": "g"}
    rows = [(n, "r" * 4000) for n in range(300)]
    world.put(EventBlock(common, ("first_offset", "reason"), rows))
    world.sink.close()
    sizes = [len(value) for _, value, _ in world.topic.sent]
    assert max(sizes) <= MESSAGE_BYTES_MAX
    assert len(sizes) == 4
    assert [row["first_offset"] for rows in world.rows for row in rows] == list(range(300))
    assert world.counts == (300, 300, 0)


def test_a_row_that_fits_into_no_message_is_counted(world: World) -> None:
    common = {"kind": "range", "time": NOON_US, "group_id": "g"}
    rows = [(1, "short"), (2, "x" * MESSAGE_BYTES_MAX), (3, "short")]
    world.put(EventBlock(common, ("first_offset", "reason"), rows))
    world.pass_s(LINGER_S)
    assert world.counts == (3, 2, 1)
    kept = [row["first_offset"] for rows in world.rows for row in rows if row["kind"] == "range"]
    assert kept == [1, 3]
    world.pass_s(LINGER_S)
    assert [(r["kind"], r["records"]) for r in world.rows[-1]] == [("lost", 1)]


def test_what_kafka_did_not_take_is_counted_and_said_once_it_takes_again(world: World) -> None:
    world.topic.problem = "_MSG_TIMED_OUT Local: Message timed out"
    world.put(block("g", 0, 2), lost_block(NOON_US, 7))
    world.pass_s(LINGER_S)
    assert world.counts == (3, 0, 3)
    world.pass_s(LINGER_S)
    assert len(world.topic.sent) == 2  # nothing is said in vain
    world.topic.problem = ""
    world.put(block("g", 2, 1))
    world.pass_s(LINGER_S)
    assert world.counts == (4, 1, 3)
    assert [(r["kind"], r["group_id"], r["records"]) for r in world.rows[-1]] == [("lost", "", 10)]
    world.pass_s(LINGER_S)
    assert len(world.topic.sent) == 4
    assert world.sink.counts.unsaid == 0


def test_a_full_queue_is_waited_for(world: World) -> None:
    world.topic.full_for = 3
    world.put(block("g", 0, 2))
    world.pass_s(LINGER_S)
    assert world.counts == (2, 2, 0)


def test_a_message_that_is_refused_is_counted(world: World) -> None:
    world.topic.refusal = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    world.put(block("g", 0, 2))
    world.pass_s(LINGER_S)
    assert world.counts == (2, 0, 2)


def test_a_producer_that_is_done_for_ends_the_writer(world: World) -> None:
    world.topic.refusal = KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))
    world.put(block("g", 0, 2))
    with pytest.raises(KafkaException, match="fenced"):
        world.pass_s(LINGER_S)


def test_rows_that_do_not_fit_are_counted_and_the_others_sent(world: World) -> None:
    bad = EventBlock({"time": NOON_US, "group_id": "g"}, ("first_offset",), [("x",)])
    world.put(block("g", 0, 2))
    world.put(bad)
    world.put(EventBlock({"group_id": "g"}, ("event",), [("x",)]))
    world.put(block("g", 2, 1))
    world.pass_s(LINGER_S)
    assert world.counts == (5, 3, 2)
    kept = [row["first_offset"] for rows in world.rows for row in rows if row["kind"] == "range"]
    assert kept == [0, 1, 2]


def test_close_sends_everything(world: World) -> None:
    world.put(block("g", 0, 2))
    world.sink.close()
    assert world.counts == (2, 2, 0)
