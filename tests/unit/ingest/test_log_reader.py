"""The reader of Kafka, on a consumer that is made up."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from sharecoord.core.records import RecordChunk
from sharecoord.errors import InvalidConfigError
from sharecoord.ingest import log_reader, pool
from sharecoord.ingest.log_reader import KafkaLogReader
from sharecoord.kafka.client import KafkaError, KafkaException
from tests.unit.ingest.test_columns import FakeMessage


class Good(FakeMessage):
    def error(self) -> None:
        return None


class FakeConsumer:
    """Breaks once in the middle of reading, then gives records."""

    def __init__(self) -> None:
        self.assigned: list[int] = []
        self._answers: list[Any] = [RuntimeError("a mistake"), [Good(0, b"a", None, None)]]

    def incremental_assign(self, places: list[Any]) -> None:
        self.assigned += [place.offset for place in places]

    def incremental_unassign(self, places: list[Any]) -> None:
        assert places

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def close(self) -> None:
        self._answers.clear()


class QuietConsumer(FakeConsumer):
    """Gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._answers.clear()
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Sink:
    def __init__(self) -> None:
        self.chunks: list[RecordChunk] = []
        self.came = asyncio.Event()

    def on_chunk(self, chunk: RecordChunk) -> None:
        self.chunks.append(chunk)
        self.came.set()

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        raise AssertionError(end_offset, last_epoch)

    def on_out_of_range(self) -> None:
        raise AssertionError

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        raise AssertionError(epoch, end_offset)

    def on_gone(self) -> None:
        raise AssertionError


async def first_records(
    monkeypatch: pytest.MonkeyPatch, consumer: FakeConsumer
) -> tuple[KafkaLogReader, Sink]:
    """A reader that restarts at once, when its first records have come."""
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "RESTART_DELAY_S", 0.0)
    reader, sink = KafkaLogReader({}), Sink()
    reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=sink)
    async with asyncio.timeout(20):
        await sink.came.wait()
    return reader, sink


async def test_a_mistake_while_reading_starts_the_partitions_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = FakeConsumer()
    reader, sink = await first_records(monkeypatch, consumer)
    assert consumer.assigned == [0, 0]
    assert [chunk.values for chunk in sink.chunks] == [[b"a"]]
    await reader.close()


class StubbornConsumer(FakeConsumer):
    """Does not give up its partitions at the first attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 2

    def incremental_unassign(self, places: list[Any]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise KafkaException(KafkaError(KafkaError._STATE))


async def test_a_restart_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = StubbornConsumer()
    reader, _ = await first_records(monkeypatch, consumer)
    assert (consumer.refusals, consumer.assigned) == (0, [0, 0])
    await reader.close()


class CountingConsumer(QuietConsumer):
    """Keeps each assignment; the first one is refused."""

    def __init__(self, *, refuses: int = 0) -> None:
        super().__init__()
        self.refuses = refuses
        self.assignments: list[list[int]] = []
        self.third = asyncio.Event()

    def incremental_assign(self, places: list[Any]) -> None:
        self.assignments.append([place.partition for place in places])
        if len(self.assignments) == 3:
            self.third.set()
        if self.refuses:
            self.refuses -= 1
            raise KafkaException(KafkaError(KafkaError._STATE))

    def incremental_unassign(self, places: list[Any]) -> None:
        raise AssertionError("nothing that was assigned is taken away here")


async def test_partitions_that_start_together_are_assigned_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = CountingConsumer()
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    reader = KafkaLogReader({})
    readings = [
        reader.read("t", n, 0, last_epoch=-1, committed=False, sink=Sink()) for n in range(5)
    ]
    readings[2].close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert consumer.assignments == [[0, 1, 3, 4]]
    await reader.close()


async def test_an_assignment_that_is_refused_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = CountingConsumer(refuses=2)
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "RESTART_DELAY_S", 0.0)
    reader = KafkaLogReader({})
    for partition in range(2):
        reader.read("t", partition, 0, last_epoch=-1, committed=False, sink=Sink())
    async with asyncio.timeout(20):
        await consumer.third.wait()
    assert consumer.assignments == [[0, 1]] * 3
    await reader.close()


async def test_the_reader_tells_since_when_its_queue_was_not_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full batch may have been fetched long ago; after a part of one all is new."""
    consumer = FakeConsumer()
    full = [[Good(i, b"x", None, None) for i in range(at, at + 3)] for at in (0, 3)]
    consumer._answers = [*full, [Good(6, b"x", None, None)], [Good(7, b"x", None, None)]]
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "CONSUME_RECORDS_MAX", 3)
    reader, drained = KafkaLogReader({}), list[float]()

    class Noting(Sink):
        def on_chunk(self, chunk: RecordChunk) -> None:
            drained.append(reading.drained_s)
            self.chunks.append(chunk)
            if chunk.last == 7:
                self.came.set()

    sink = Noting()
    began_s = asyncio.get_running_loop().time()
    reading = reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=sink)
    async with asyncio.timeout(20):
        await sink.came.wait()
    assert [chunk.last for chunk in sink.chunks] == [2, 5, 6, 7]
    assert drained[0] == drained[1] == drained[2] >= began_s
    assert drained[3] > drained[2]
    await reader.close()


async def test_the_pool_closes_what_reads_nothing_and_shares_what_it_fetches_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[int, QuietConsumer]] = []

    def make(settings: dict[str, Any], *, committed: bool) -> QuietConsumer:
        assert committed
        made.append((settings["queued.max.messages.kbytes"], QuietConsumer()))
        return made[-1][1]

    monkeypatch.setattr(log_reader, "make_consumer", make)
    reader = KafkaLogReader({})
    readings = [
        reader.read("t", 0, 0, last_epoch=-1, committed=True, sink=Sink()) for _ in range(3)
    ]
    reader.read("t", 1, 0, last_epoch=-1, committed=True, sink=Sink())
    assert [kbytes for kbytes, _ in made] == [8_192, 4_096, 2_730]
    for reading in readings:
        reading.close()
    async with asyncio.timeout(20):
        for _, consumer in made[1:]:
            await asyncio.to_thread(consumer.closed.wait)
    assert not made[0][1].closed.is_set()
    reader.read("t", 0, 0, last_epoch=-1, committed=True, sink=Sink())
    assert len(made) == 3
    await reader.close()
    assert made[0][1].closed.is_set()


async def test_what_the_user_sets_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def make(settings: dict[str, Any], *, committed: bool) -> QuietConsumer:
        found.append(settings["queued.max.messages.kbytes"])
        return QuietConsumer()

    monkeypatch.setattr(log_reader, "make_consumer", make)
    reader = KafkaLogReader({"queued.max.messages.kbytes": 500})
    for _ in range(2):
        reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=Sink())
    assert found == [500, 500]
    await reader.close()


async def test_the_more_comes_at_a_time_the_more_rarely_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream of records is taken in company; a backlog without a pause."""
    sizes = [1, log_reader.GATHER_RECORDS, log_reader.BACKLOG_RECORDS, 2]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    consumer = FakeConsumer()
    consumer._answers = [
        [Good(offset, b"x", None, None) for offset in range(end - size, end)]
        for size, end in zip(sizes, ends, strict=True)
    ]
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("sharecoord.ingest.log_reader.asyncio.sleep", noted)
    reader, sink = KafkaLogReader({}), Sink()
    reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=sink)
    async with asyncio.timeout(20):
        while len(pauses) < len(sizes):
            await sleep(0)
    assert [chunk.last + 1 for chunk in sink.chunks] == ends
    look_s, gather_s = log_reader.LOOK_S, log_reader.GATHER_S
    assert pauses[: len(sizes)] == [look_s, gather_s, 0, look_s]
    await reader.close()


async def test_the_queue_was_empty_until_the_end_of_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: QuietConsumer())
    reader = KafkaLogReader({})
    reading = reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=Sink())
    began_s = asyncio.get_running_loop().time()
    drained_before_s, messages, drained_s = reading._slot._wait()
    assert not messages
    assert drained_before_s is not None
    assert drained_before_s >= began_s
    assert drained_s is None, "no earlier time may replace it"
    await reader.close()


class TwoPartitions(QuietConsumer):
    """Notes what is paused, and how often it was asked for records."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[str, int]] = []
        self.asked = 0

    def pause(self, places: list[Any]) -> None:
        self.changes += [("pause", place.partition) for place in places]

    def resume(self, places: list[Any]) -> None:
        self.changes += [("resume", place.partition) for place in places]

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        self.asked += 1
        return []


async def reading_of_two(
    monkeypatch: pytest.MonkeyPatch, full_s: float
) -> tuple[KafkaLogReader, TwoPartitions, list[log_reader.Reading]]:
    """A reader of two partitions; one that is full for `full_s` is paused."""
    consumer = TwoPartitions()
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "FULL_S", full_s)
    reader = KafkaLogReader({})
    readings = [reader.read("t", p, 0, last_epoch=-1, committed=False, sink=Sink()) for p in (0, 1)]
    await asked_again(consumer)
    return reader, consumer, readings


async def asked_again(consumer: TwoPartitions) -> None:
    """The reader looked, and not only once."""
    before = consumer.asked
    async with asyncio.timeout(20):
        while consumer.asked < before + 3:  # noqa: ASYNC110 - asked on the loop and in a thread
            await asyncio.sleep(0)


async def reading_a_full_one(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[KafkaLogReader, TwoPartitions, log_reader.Reading]:
    """A reader of two partitions, one of which has been full for long enough."""
    reader, consumer, (full, _) = await reading_of_two(monkeypatch, full_s=0.001)
    full.want_more(wanted=False)
    await asked_again(consumer)
    return reader, consumer, full


async def test_a_partition_that_is_full_for_a_moment_is_not_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, consumer, (full, _) = await reading_of_two(monkeypatch, full_s=1e6)
    full.want_more(wanted=False)
    for _ in range(200):
        await asyncio.sleep(0)
    asked = consumer.asked
    for _ in range(200):
        await asyncio.sleep(0)
    assert consumer.asked == asked, "what lies in front of the other's records is full"
    full.want_more(wanted=True)
    await asked_again(consumer)
    assert not consumer.changes
    await reader.close()


async def test_a_partition_that_stays_full_is_paused_and_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, consumer, full = await reading_a_full_one(monkeypatch)
    assert consumer.changes == [("pause", 0)]
    full.want_more(wanted=True)
    await asked_again(consumer)
    assert consumer.changes == [("pause", 0), ("resume", 0)]
    # It is known to be slow now.
    monkeypatch.setattr(log_reader, "FULL_S", 1e6)
    full.want_more(wanted=False)
    await asked_again(consumer)
    assert consumer.changes[2:] == [("pause", 0)]
    # Until it was quick once.
    full.want_more(wanted=True)
    await asked_again(consumer)
    full.want_more(wanted=False)
    full.want_more(wanted=True)
    await asked_again(consumer)
    assert consumer.changes[3:] == [("resume", 0)]
    await reader.close()


async def test_a_reading_that_ends_while_it_is_paused_leaves_no_pause_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka keeps a pause over an unassignment: the next reading would wait for ever."""
    reader, consumer, full = await reading_a_full_one(monkeypatch)
    full.close()
    assert consumer.changes == [("pause", 0), ("resume", 0)]
    await reader.close()


# -- messages of an assignment that has ended -----------------------------------------------------


class Event(FakeMessage):
    """An error, or the end of the partition."""

    def __init__(self, offset: int, code: int) -> None:
        super().__init__(offset, None, None, None)
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code)


class SlowConsumer(QuietConsumer):
    """Holds what the thread took from the queue until it may have it."""

    def __init__(self, *answers: list[FakeMessage]) -> None:
        super().__init__()
        self.in_hand, self.passes = threading.Event(), threading.Event()
        self.waited_for = list(answers)

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        if timeout_s and self.waited_for:
            answer = self.waited_for.pop(0)
            self.in_hand.set()
            assert self.passes.wait(20.0)
            return list(answer)
        return super().consume(count, timeout_s)


class EndSink(Sink):
    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        self.ends.append(end_offset)
        self.came.set()


@pytest.mark.parametrize(
    "left", [[Good(5, b"late", None, None)], [Event(9, KafkaError._PARTITION_EOF)]]
)
async def test_what_an_ended_assignment_left_in_the_threads_hand_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, left: list[FakeMessage]
) -> None:
    """It is ahead of where the new reading begins: what lies between would pass for a gap."""
    consumer = SlowConsumer(left)
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "SPIN_S", 0.0)
    reader, sink = KafkaLogReader({}), EndSink()
    former = reader.read("t", 0, 5, last_epoch=-1, committed=False, sink=Sink())
    async with asyncio.timeout(20):
        await asyncio.to_thread(consumer.in_hand.wait)
        former.close()
        reader.read("t", 0, 2, last_epoch=-1, committed=False, sink=sink)
        consumer.waited_for.append([Good(2, b"a", None, None), Good(3, b"b", None, None)])
        consumer.passes.set()
        await sink.came.wait()
    assert [(chunk.covers_from, chunk.values) for chunk in sink.chunks] == [(2, [b"a", b"b"])]
    assert sink.ends == []
    # What was passed over could have been of the new assignment: it is made once more.
    assert consumer.assigned == [5, 2, 2]
    await reader.close()


class RereadConsumer(QuietConsumer):
    """Gives what lies at an offset to whoever is assigned to it."""

    def __init__(self, **at: list[FakeMessage]) -> None:
        super().__init__()
        self._at = at

    def incremental_assign(self, places: list[Any]) -> None:
        super().incremental_assign(places)
        self._answers += [self._at[f"from_{place.offset}"] for place in places]

    def resume(self, places: list[Any]) -> None:
        raise AssertionError("nothing is paused")


async def a_and_b(sink: Sink) -> None:
    """Waits for two chunks, of a record each."""
    while len(sink.chunks) < 2:
        await sink.came.wait()
        sink.came.clear()
    assert [(c.covers_from, c.values) for c in sink.chunks] == [(0, [b"a"]), (1, [b"b"])]


class OfAnother(Good):
    """A record of partition 1."""

    def partition(self) -> int:
        return 1


@pytest.mark.parametrize("settled_s", [0.0, 1e6])
async def test_what_another_partition_left_in_the_threads_hand_is_not_the_last_ones(
    monkeypatch: pytest.MonkeyPatch, settled_s: float
) -> None:
    """Its record would be handed out under an offset of the partition that is left."""
    left = [Good(0, b"a", None, None), OfAnother(7, b"not its own", None, None)]
    consumer = SlowConsumer(left)
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "SPIN_S", 0.0)
    monkeypatch.setattr(log_reader, "SETTLED_S", settled_s)
    reader, sink = KafkaLogReader({}), Sink()
    reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=sink)
    other = reader.read("t", 1, 7, last_epoch=-1, committed=False, sink=Sink())
    async with asyncio.timeout(20):
        await asyncio.to_thread(consumer.in_hand.wait)
        other.close()
        consumer.waited_for.append([Good(1, b"b", None, None)])
        consumer.passes.set()
        await a_and_b(sink)
    await reader.close()


async def test_what_comes_behind_an_error_waits_for_a_new_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is known of what was between."""
    broken = Event(1, KafkaError._BAD_COMPRESSION)
    behind = [Good(4, b"e", None, None), Event(5, KafkaError._PARTITION_EOF)]
    consumer = RereadConsumer(
        from_0=[Good(0, b"a", None, None), broken, *behind], from_1=[Good(1, b"b", None, None)]
    )
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(log_reader, "RESTART_DELAY_S", 0.01)
    reader, sink = KafkaLogReader({}), Sink()
    reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=sink)
    async with asyncio.timeout(20):
        await a_and_b(sink)
    await reader.close()


async def test_a_partition_waits_while_no_consumer_may_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[QuietConsumer] = []
    second_assigned = asyncio.Event()

    class Opened(QuietConsumer):
        def incremental_assign(self, places: list[Any]) -> None:
            if self is not made[0]:
                second_assigned.set()

    def make(*_: object, **__: object) -> QuietConsumer:
        made.append(Opened())
        return made[-1]

    monkeypatch.setattr(log_reader, "make_consumer", make)
    monkeypatch.setattr(pool, "OPEN_AGAIN_S", 0.0)
    room: list[bool] = []
    reader = KafkaLogReader({}, may_open=lambda: bool(room) and room.pop())
    first = reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=Sink())
    second, third = (
        reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=Sink()) for _ in range(2)
    )
    assert (len(made), reader.waiting) == (1, 2)
    third.want_more(wanted=False)
    third.close()
    await asyncio.sleep(0.0)
    assert (len(made), reader.waiting) == (1, 1)
    room.append(True)
    async with asyncio.timeout(20):
        await second_assigned.wait()
    assert (len(made), reader.waiting) == (2, 0)
    fourth = reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=Sink())
    assert reader.waiting == 1
    await reader.close()
    await asyncio.sleep(0.0)
    assert (len(made), reader.waiting) == (2, 0)
    assert {first.place, second.place, fourth.place} == {("t", 0)}


# -- consumers that are made anew -----------------------------------------------------------------


async def test_a_renewed_consumer_reads_on_where_the_one_before_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = RereadConsumer(from_0=[Good(0, b"a", None, None)])
    after = RereadConsumer(from_1=[Good(1, b"b", None, None)])
    made = [before, after]
    monkeypatch.setattr(log_reader, "make_consumer", lambda *_, **__: made.pop(0))
    reader, sink = KafkaLogReader({}), Sink()
    reading = reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=sink)
    async with asyncio.timeout(20):
        await sink.came.wait()
        # The one that nothing is wanted of is renewed as well.
        reading.want_more(wanted=False)
        reader.renew()
        await asyncio.to_thread(before.closed.wait)
        assert after.assigned == [1]
        reading.want_more(wanted=True)
        await a_and_b(sink)
    await reader.close()
    assert after.closed.is_set()


async def test_a_consumer_that_can_not_be_made_leaves_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer, said = TwoPartitions(), asyncio.Event()

    def make(*_: Any, **__: Any) -> TwoPartitions:
        if consumer.assigned:
            said.set()
            raise InvalidConfigError("kafka.ssl.key.location: librdkafka refuses it")
        return consumer

    monkeypatch.setattr(log_reader, "make_consumer", make)
    reader = KafkaLogReader({})
    reader.read("t", 0, 0, last_epoch=-1, committed=False, sink=Sink())
    async with asyncio.timeout(20):
        await asked_again(consumer)
        reader.renew()
        await said.wait()
        await asked_again(consumer)
    assert not consumer.closed.is_set()
    assert consumer.assigned == [0]
    await reader.close()
