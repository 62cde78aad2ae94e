"""Reads Kafka through librdkafka: a pool of consumers with partitions assigned by hand.

A consumer has one position per partition (see `pool`). Reading happens on the loop, in large
batches (a thread that trades the interpreter lock with the loop costs more than the reading
itself); only when nothing comes for a while does a thread wait in librdkafka's stead.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import methodcaller

import structlog

from sharecoord.core.records import RecordChunk
from sharecoord.errors import InvalidConfigError, UnauthorizedError
from sharecoord.ingest.columns import build_chunks
from sharecoord.ingest.pool import Pool, Waiting
from sharecoord.ingest.rereader import Rereader
from sharecoord.ingest.scanner import Scanner
from sharecoord.kafka.client import (
    END_OF_PARTITION,
    GONE,
    OUT_OF_RANGE,
    READER_DEFAULTS,
    Consumer,
    KafkaException,
    Message,
    Settings,
    TopicPartition,
    make_consumer,
    refusal,
)
from sharecoord.kafka.client_files import client_files
from sharecoord.kafka.refusals import READ, Refusals
from sharecoord.kafka.wire.held_files import HeldFiles
from sharecoord.ports import LogSink

log = structlog.get_logger(__name__)

CONSUME_RECORDS_MAX = 2_000
"""Messages of one call: 1 to 3 ms of work, so that the loop stays responsive."""

BACKLOG_RECORDS = 500
"""A call that returns so many, or more, is followed by the next one at once, on the loop."""

WAIT_S = 0.2
"""Longest wait of the thread: how late a change of assignment can be noticed by it."""

SPIN_S = 0.004
"""Time after the last record in which the loop looks, every `LOOK_S`; then a thread waits."""

LOOK_S = 0.001

GATHER_S = 0.002
"""Time between two looks once `GATHER_RECORDS` come at a time: a turn with a few records costs the
coordinator almost as much as one with hundreds."""

GATHER_RECORDS = 4

FULL_S = 0.1
"""A partition that is full for less time only makes the others wait. Pausing it would throw away
what librdkafka fetched of it ahead, to be fetched again: a hundred partitions of a fast member took
twice the time."""

SETTLED_S = 1.0
"""Time after a partition was given up in which the partition of each message is looked at."""

RESTART_DELAY_S = 0.2
"""Wait before a partition is read again after an error."""

QUEUE_SETTINGS = {
    "queued.max.messages.kbytes": 1_024,
    "queued.min.messages": 2_000,
    "fetch.message.max.bytes": 256 << 10,
}
"""Least values of librdkafka's settings for fetching ahead, per consumer. The n-th
consumer of the pool gets an n-th of it: a hundred groups on one partition fetch ten times as much
ahead as one, not a hundred times."""

_error, _topic, _partition = map(methodcaller, ("error", "topic", "partition"))


class Reading:
    """A partition being read; see `ports.LogReading`."""

    def __init__(
        self, slot: _Slot | Waiting[Reading], topic: str, partition: int, offset: int, sink: LogSink
    ) -> None:
        self.place = (topic, partition)
        self.position = offset
        self.sink = sink
        self.hungry = True
        self.full_since_s = 0.0
        self.slow = False
        """Whether it was full for longer than `FULL_S`: the next time it is paused at once."""
        self.paused = False
        self.broken = False
        """Whether an error came: messages are passed over until the partition is read anew."""
        self.closed = False
        self._refusals: Refusals | None = None
        """The refusals that name the topic, while Kafka refuses it."""
        self._slot: _Slot | Waiting[Reading] = slot

    @property
    def drained_s(self) -> float:
        """When the consumer's queue was empty last; see `ports.LogReading`."""
        return self._slot.drained_s

    def want_more(self, *, wanted: bool) -> None:
        """Back-pressure."""
        if wanted != self.hungry and not self.closed:
            now_s = asyncio.get_running_loop().time()
            if wanted:
                self.slow = now_s - self.full_since_s > FULL_S
            else:
                self.full_since_s = now_s
            self.hungry = wanted
            self._slot.appetite_changed()

    def refused(self, why: UnauthorizedError, refusals: Refusals) -> None:
        """Notes that Kafka refuses the topic; librdkafka goes on asking."""
        self._refusals = refusals
        refusals.add(self.place[0], READ, why)

    def allowed(self) -> None:
        """Notes that Kafka has answered."""
        if self._refusals is not None:
            refusals, self._refusals = self._refusals, None
            refusals.answered(self.place[0], READ)

    def close(self) -> None:
        """Stops reading."""
        self.allowed()
        if not self.closed:
            self.closed = True
            self._slot.remove(self)

    def begin(self, slot: _Slot) -> None:
        """Lets a consumer read the partition from now on."""
        self._slot = slot
        slot.add(self)

    def feed(self, messages: list[Message]) -> None:
        """Passes on messages of this partition, none of them an error."""
        self.allowed()
        for chunk in build_chunks(messages, self.position):
            if not self.closed:
                self.position = chunk.last + 1
                self.sink.on_chunk(chunk)

    def reached_end(self, offset: int) -> None:
        """The end-of-partition event closes the run: below `offset` nothing is missing."""
        self.allowed()
        if offset >= self.position:
            self.position = offset
            self.sink.on_end(offset)


class _Slot:
    """A consumer of the pool: at most one position per partition."""

    def __init__(
        self,
        settings: Settings,
        refusals: Refusals,
        *,
        committed: bool,
        on_empty: Callable[[_Slot], None],
    ) -> None:
        self.committed = committed
        self.refusals = refusals
        self._settings = settings
        self._on_empty = on_empty
        self.readings: dict[tuple[str, int], Reading] = {}
        self._consumer: Consumer = make_consumer(settings, committed=committed)
        self.drained_s = asyncio.get_running_loop().time()
        """Loop time at which librdkafka's queue was seen empty last."""
        self._unassigned: list[Reading] = []
        """Readings that are assigned with the next turn of the loop."""
        self._assign_at_s = 0.0
        """After an assignment was refused: loop time of the next attempt."""
        self._in_hand = False
        """Whether messages of the queue are being taken, or are taken and not passed on yet."""
        self._mixed: set[tuple[str, int]] = set()
        """Partitions whose messages in hand may be of an assignment that has ended."""
        self._changed_s = -math.inf
        """When an assignment ended last."""
        self._wake = asyncio.Event()
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="sharecoord-read")
        self._stopped = False
        self._is_stale = False
        """Whether the settings are others than those of the consumer."""
        self._former: set[asyncio.Task[None]] = set()
        """Ends of former consumers."""
        self._task = asyncio.create_task(self._run(), name="sharecoord-reader")

    def add(self, reading: Reading) -> None:
        """Starts to read a partition at its position."""
        self.readings[reading.place] = reading
        self._assign_soon(reading)

    def _assign_soon(self, reading: Reading) -> None:
        """Assigns a reading together with all others that start in this turn of the loop.

        An assignment takes librdkafka 3 ms, whether of one partition or of a hundred.
        """
        if not self._unassigned:
            asyncio.get_running_loop().call_soon(self._assign)
        self._unassigned.append(reading)
        self.appetite_changed()

    def _assign(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._unassigned or self._stopped or loop.time() < self._assign_at_s:
            return
        try:
            self._consumer.incremental_assign([_at(reading) for reading in self._unassigned])
        except KafkaException as error:
            log.warning("partitions not assigned; trying again", error=str(error))
            self._assign_at_s = loop.time() + RESTART_DELAY_S
            loop.call_at(self._assign_at_s, self._assign)
        else:
            self._unassigned.clear()

    def remove(self, reading: Reading) -> None:
        """Stops reading a partition."""
        if self.readings.get(reading.place) is reading:
            del self.readings[reading.place]
            if reading in self._unassigned:
                self._unassigned.remove(reading)
            else:
                self._unassign(reading)
            self.appetite_changed()
            if not self.readings:
                self._on_empty(self)

    def _unassign(self, reading: Reading) -> None:
        if reading.paused:
            # librdkafka keeps the pause for whoever reads the partition next.
            self._consumer.resume([TopicPartition(*reading.place)])
            reading.paused = False
        self._consumer.incremental_unassign([_at(reading)])
        self._changed_s = asyncio.get_running_loop().time()
        if self._in_hand:
            self._mixed.add(reading.place)

    def appetite_changed(self) -> None:
        """Wakes the loop: another partition may be read, or one less."""
        self._wake.set()

    def renew(self, settings: Settings) -> None:
        """Reads on with a new consumer of these settings, as soon as no message is in hand."""
        self._settings = {**self._settings, **settings}
        self._is_stale = True
        self._wake.set()

    def _renewed(self) -> None:
        """Lets a new consumer take all partitions over, each at its proven position."""
        self._is_stale = False
        try:
            consumer = make_consumer(self._settings, committed=self.committed)
        except InvalidConfigError as error:
            log.error("no new consumer; the one before reads on", why=error.message)
            return
        former, self._consumer = self._consumer, consumer
        self._mixed.clear()
        for reading in self.readings.values():
            reading.paused = reading.broken = False
        self._unassigned = list(self.readings.values())
        self._assign()
        task = asyncio.create_task(_closed(former), name="sharecoord-reader-renewed")
        self._former.add(task)
        task.add_done_callback(self._former.discard)

    def _may_read_in(self, now_s: float) -> float:
        """Seconds until reading may go on, if nothing changes; infinite: no reading wants more."""
        if not any(reading.hungry for reading in self.readings.values()):
            return math.inf
        full = [r for r in self.readings.values() if not (r.hungry or r.paused or r.slow)]
        return max((r.full_since_s + FULL_S - now_s for r in full), default=0.0)

    async def _until_wanted(self) -> None:
        """Waits until a partition may be read; then pauses the full ones and resumes the others.

        Returns at once while the consumer waits to be made anew.
        """
        loop = asyncio.get_running_loop()
        while not (self._stopped or self._is_stale):
            wait_s = self._may_read_in(loop.time())
            if wait_s <= 0.0:
                break
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(wait_s) else wait_s):
                    await self._wake.wait()
        if self._is_stale:
            return
        self._assign()
        for reading in self.readings.values():
            if reading.paused == reading.hungry and reading not in self._unassigned:
                change = self._consumer.resume if reading.hungry else self._consumer.pause
                change([TopicPartition(*reading.place)])
                reading.paused = not reading.hungry

    async def _run(self) -> None:
        """Reads until closed; after an unexpected error all partitions are read again."""
        has_failed = False
        while not self._stopped:
            try:
                # Within the block: to start again may fail as well, and must not end the loop.
                for reading in list(self.readings.values()) if has_failed else ():
                    self._restart(reading)
                await self._read_on()
            except Exception:
                log.exception("reading failed; all partitions of this consumer start again")
                has_failed = True
                await asyncio.sleep(RESTART_DELAY_S)

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        last_data_s = loop.time()
        while not self._stopped:
            await self._until_wanted()
            if self._is_stale:
                self._renewed()
                continue
            read = self._got(None, *self._take())
            if not read and loop.time() - last_data_s > SPIN_S:
                read = await self._got_by_waiting()
            if read:
                last_data_s = loop.time()
            if read >= BACKLOG_RECORDS:
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(GATHER_S if read >= GATHER_RECORDS else LOOK_S)

    async def _got_by_waiting(self) -> int:
        """Lets the thread wait for messages, and passes them on; returns their number."""
        loop = asyncio.get_running_loop()
        self._in_hand = True
        try:
            read = self._got(*await loop.run_in_executor(self._waiter, self._wait))
        finally:
            self._in_hand = False
            mixed, self._mixed = self._mixed, set()
        for place in mixed if read else ():
            # Messages that were passed over may have been of the new assignment.
            if place in self.readings:
                self._restart(self.readings[place])
        return read

    def _got(
        self, drained_before_s: float | None, messages: list[Message], drained_s: float | None
    ) -> int:
        """Passes messages on; returns their number.

        Args:
            drained_before_s: When the queue was empty before the first message, if it was.
            messages: The messages of the queue.
            drained_s: When the queue was empty after them, if it was.
        """
        if drained_before_s is not None:
            self.drained_s = drained_before_s
        if messages:
            self._dispatch(messages)
        if drained_s is not None:
            self.drained_s = drained_s
        return len(messages)

    def _take(self) -> tuple[list[Message], float | None]:
        """The messages of the queue, and the time at which they emptied it, if they did."""
        began_s = time.monotonic()
        messages = self._consumer.consume(CONSUME_RECORDS_MAX, 0)
        return messages, began_s if len(messages) < CONSUME_RECORDS_MAX else None

    def _wait(self) -> tuple[float | None, list[Message], float | None]:
        """In a thread: waits for a message and takes all others; returns arguments of `_got`.

        The queue was empty before, so it counts as empty until the end of the wait.
        """
        messages = self._consumer.consume(1, WAIT_S)
        drained_before_s = time.monotonic()
        if not messages:
            return drained_before_s, [], None
        more, drained_s = self._take()
        return drained_before_s, messages + more, drained_s

    def _dispatch(self, messages: list[Message]) -> None:
        """Gives each partition its run of messages, and each event its meaning."""
        # No Python function is called per message here, as everywhere on this path.
        events = [error is not None for error in map(_error, messages)]
        if self._is_alone() and True not in events:
            (place,) = self.readings
            only = self._target(place)
            if only is not None:
                self._feed(only, messages)
            return
        places = zip(map(_topic, messages), map(_partition, messages), events, strict=True)
        start = 0
        for (topic, partition, is_event), run in groupby(places):
            part = messages[start : start + len(list(run))]
            start += len(part)
            if not is_event:
                target = self._target((topic, partition))
                if target is not None:
                    self._feed(target, part)
                continue
            for message in part:
                target = self._target((topic, partition))
                if target is not None:
                    self._event(target, message)

    def _is_alone(self) -> bool:
        """Whether all messages in hand are of the one partition that is read."""
        if len(self.readings) != 1 or self._mixed:
            return False
        return asyncio.get_running_loop().time() - self._changed_s > SETTLED_S

    def _target(self, place: tuple[str, int]) -> Reading | None:
        """The reading that a message surely belongs to; None = a message of an old assignment."""
        reading = self.readings.get(place)
        if reading is None or reading.broken or reading in self._unassigned or place in self._mixed:
            return None
        return reading

    def _feed(self, reading: Reading, messages: list[Message]) -> None:
        """Feeds a reading, without messages that an earlier assignment left behind."""
        first = messages[0].offset()
        if first is not None and first < reading.position:
            messages = [m for m in messages if (m.offset() or 0) >= reading.position]
        if messages:
            reading.feed(messages)

    def _event(self, reading: Reading, message: Message) -> None:
        error = message.error()
        assert error is not None, "only events come here"
        code = error.code()
        if code == END_OF_PARTITION:
            reading.reached_end(message.offset() or 0)
        elif code in OUT_OF_RANGE:
            reading.close()
            reading.sink.on_out_of_range()
        elif code in GONE:
            reading.close()
            reading.sink.on_gone()
        elif (why := refusal(reading.place[0], error)) is not None:
            reading.refused(why, self.refusals)
        else:
            log.warning("read failed", place=reading.place, code=error.name(), text=error.str())
            reading.broken = True
            asyncio.get_running_loop().call_later(RESTART_DELAY_S, self._restart, reading)

    def _restart(self, reading: Reading) -> None:
        """Assigns a partition anew after an error, at the last proven position."""
        if not (reading.closed or self._stopped or reading in self._unassigned):
            self._unassign(reading)
            reading.broken = False
            self._assign_soon(reading)

    async def close(self) -> None:
        """Ends the consumer."""
        self._stopped = True
        self._wake.set()
        await asyncio.wait([self._task])
        self._waiter.shutdown()
        await asyncio.to_thread(self._consumer.close)
        await asyncio.gather(*self._former)


async def _closed(consumer: Consumer) -> None:
    try:
        await asyncio.to_thread(consumer.close)
    except KafkaException as error:
        log.warning("consumer did not close cleanly", error=str(error))


def _at(reading: Reading) -> TopicPartition:
    return TopicPartition(*reading.place, reading.position)


class KafkaLogReader:
    """The `LogReader` of a real cluster."""

    def __init__(
        self,
        settings: Settings,
        refusals: Refusals | None = None,
        *,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """Reads nothing yet.

        Args:
            settings: Of a Kafka client.
            refusals: Shared with the catalog of the same cluster.
            may_open: Whether another consumer may be opened; else its readings wait.
        """
        self._given = dict(settings)
        self._refusals = Refusals() if refusals is None else refusals
        self.files = client_files(settings)
        """The certificates of connections to brokers; None without. After a change: `renew`."""
        self._held = HeldFiles(settings, self.file_contents)
        self._pool: Pool[_Slot, Reading] = Pool(self._new_slot, Reading.begin, may_open=may_open)
        self._rereaders: dict[bool, Rereader] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._scanner = Scanner(self._held.settings)
        self.scan = self._scanner.scan

    def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        last_epoch: int,
        committed: bool,
        sink: LogSink,
    ) -> Reading:
        """Reads from `offset` on, until closed.

        The epoch is not shown to Kafka. librdkafka compares epochs only when the leader changes
        while it reads, and tells of a log that was cut with the code of any offset that is out of
        range (`_AUTO_OFFSET_RESET`), without the place of the cut: `on_diverged` is never called.
        """
        reading = Reading(self._pool.waiting, topic, partition, offset, sink)
        self._pool.add(reading, committed=committed)
        return reading

    @property
    def waiting(self) -> int:
        """Partitions that are not read, because that would take too many files."""
        return len(self._pool.waiting.readings)

    @property
    def open_bytes(self) -> int:
        """See `ports.LogReader`: all records are open."""
        return 0

    def _new_slot(self, number: int, committed: bool) -> _Slot:  # noqa: FBT001 - Pool's call
        queue = {
            name: max(least, int(READER_DEFAULTS[name]) // number)
            for name, least in QUEUE_SETTINGS.items()
        }
        settings = {**queue, **self._held.settings}
        return _Slot(settings, self._refusals, committed=committed, on_empty=self._retire)

    def _retire(self, slot: _Slot) -> None:
        self._pool.retire(slot, _close(slot))

    async def reread(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> list[RecordChunk]:
        """Reads [first, last] again."""
        rereader = self._rereaders.get(committed)
        if rereader is None:
            rereader = self._rereaders[committed] = Rereader(
                self._held.settings, committed=committed
            )
        return await rereader.read(topic, partition, first, last)

    @property
    def file_contents(self) -> Mapping[str, bytes]:
        """Contents of the files in force, by librdkafka's keys."""
        return {} if self.files is None else self.files.value.contents

    @property
    def certificate_ends_s(self) -> Mapping[str, float]:
        """By setting: when the certificate that brokers are shown ends, in seconds since 1970."""
        return {} if self.files is None else self.files.value.ends_s

    def renew(self) -> None:
        """Reads on with new consumers, which have the files that are in force now."""
        self._held = HeldFiles(self._given, self.file_contents)
        self._scanner.settings = self._held.settings
        for slot in self._pool.slots:
            slot.renew(self._held.settings)
        former, self._rereaders = self._rereaders, {}
        for each in former.values():
            task = asyncio.create_task(each.retire(), name="sharecoord-reread-retired")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Stops every read."""
        await self._scanner.close()
        rereaders, self._rereaders = list(self._rereaders.values()), {}
        await self._pool.close(_close)
        for each in rereaders:
            await _close(each)
        await asyncio.gather(*self._retiring, return_exceptions=True)


async def _close(part: _Slot | Rereader) -> None:
    try:
        await part.close()
    except KafkaException as error:
        log.warning("consumer did not close cleanly", error=str(error))
