"""Dead letters in transactions: a transactional id per outbox, whose offset marks the last letter.

Each transaction commits, with its messages, an offset of the consumer group that is called like the
outbox: the mark of its last letter. Whoever opens an outbox fences its former owner, lets Kafka
decide what that one left open, and reads the mark. The offset is one of the dead-letter topic: it
goes with the letters when that is deleted, and not with the source of the records.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException, Producer, TopicPartition

from sharecoord.core.letters.dead_letters import TOKEN_CHARACTERS, OutboxMark
from sharecoord.errors import KafkaUnavailableError, SharecoordError
from sharecoord.kafka.client import KafkaError, make_group_reader, make_producer
from sharecoord.kafka.headers import produce
from sharecoord.kafka.offsets_export import metadata_of
from sharecoord.ports import OutgoingMessage

T = TypeVar("T")

AT_ONCE_MAX: Final = 4
"""Transactions that wait for Kafka at the same time, each in a thread."""

OPEN_TIMEOUT_S: Final = 15.0
"""For each answer until an outbox is open: a former owner's transaction may still be ending."""

COMMIT_TIMEOUT_S: Final = 30.0
"""Longest wait for a commit; a transaction that is undecided by then is looked at again."""

_DEFAULTS: Final[dict[str, Any]] = {
    # Three to four seconds. Then the transaction ends with Kafka's reason and is made again later:
    # while a topic lacks replicas or room it keeps no thread from the other outboxes.
    "retries": 6
}
_FIXED: Final[dict[str, Any]] = {"transaction.timeout.ms": 60_000, "linger.ms": 5}

Problem = Callable[[str, KafkaError], SharecoordError]


class KafkaLetterTransactions:
    """The `ports.LetterTransactions` of one outbox on a real cluster."""

    def __init__(
        self,
        owner: Transactions,
        outbox: str,
        producer: Producer,
        group: Any,
        mark: OutboxMark | None,
    ) -> None:
        self._owner = owner
        self.outbox = outbox
        self.producer = producer
        self.group = group
        """Consumer group metadata, as librdkafka wants it back."""
        self.mark = mark

    @property
    def is_open(self) -> bool:
        """Whether the outbox can still send: nothing has failed, and nothing was closed."""
        return self._owner.has(self)

    async def send(self, topic: str, messages: Sequence[OutgoingMessage], mark: OutboxMark) -> None:
        """Sends letters and the outbox's mark in one transaction."""
        await self._owner.send(self, topic, messages, mark)


class Transactions:
    """Producers of outboxes; beyond `producers_max` the least recently used one is closed."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        producer_settings: Mapping[str, Any],
        producers_max: int,
        problem: Problem,
    ) -> None:
        """Starts nothing.

        Args:
            settings: librdkafka's, of every client.
            producer_settings: Those of a producer of dead letters.
            producers_max: Most clients that are kept, of 2 MiB and some threads each.
            problem: Turns Kafka's error about a topic into ours.
        """
        self._settings = settings
        self._producer_settings = {**_DEFAULTS, **producer_settings, **_FIXED}
        self._producers_max = producers_max
        self._problem = problem
        self._open: OrderedDict[str, KafkaLetterTransactions] = OrderedDict()
        """Idle transactions by the name of their outbox, the most recently used one last."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None

    def has(self, found: KafkaLetterTransactions) -> bool:
        """Whether these transactions are the newest of their outbox, and can send."""
        return self._open.get(found.outbox) is found

    async def open(self, outbox: str, topic: str) -> KafkaLetterTransactions:
        """See `ports.DeadLetterSink`."""

        async def opened() -> KafkaLetterTransactions:
            self._open.pop(outbox, None)
            found = await self._in_thread(lambda: self._open_in_thread(outbox, topic))
            self._keep(found)
            return found

        return await self._one_by_one(outbox, opened())

    async def send(
        self,
        found: KafkaLetterTransactions,
        topic: str,
        messages: Sequence[OutgoingMessage],
        mark: OutboxMark,
    ) -> None:
        """See `ports.LetterTransactions`."""

        async def sent() -> None:
            if not self.has(found):
                raise KafkaUnavailableError(f"outbox {found.outbox!r} was closed for others")
            # Not kept after an error: opening the outbox anew shows the outcome of this.
            del self._open[found.outbox]
            await self._in_thread(lambda: self._send_in_thread(found, topic, messages, mark))
            self._keep(found)

        await self._one_by_one(found.outbox, sent())

    async def close(self) -> None:
        """Lets transactions under way end, and closes every producer."""
        await asyncio.gather(*self._work, return_exceptions=True)
        self._open.clear()
        if self._threads is not None:
            self._threads.shutdown()

    async def _one_by_one(self, outbox: str, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work on an outbox alone, to its end even when the caller gives up waiting."""
        lock = self._locks.setdefault(outbox, asyncio.Lock())

        async def locked() -> T:
            async with lock:
                return await work

        task = asyncio.create_task(locked(), name=f"transaction-{outbox}")
        self._work.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            # Marks the error as seen, also when nobody waits for it any more.
            task.exception()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            threads = min(AT_ONCE_MAX, self._producers_max)
            self._threads = ThreadPoolExecutor(threads, "sharecoord-letters")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _keep(self, found: KafkaLetterTransactions) -> None:
        self._open[found.outbox] = found
        while len(self._open) > self._producers_max:
            # Without its producer it is opened again when letters come.
            idle, _ = self._open.popitem(last=False)
            if not self._locks[idle].locked():
                del self._locks[idle]

    def _open_in_thread(self, outbox: str, topic: str) -> KafkaLetterTransactions:
        config = {**self._producer_settings, "transactional.id": outbox}
        producer = make_producer(config)
        try:
            producer.init_transactions(OPEN_TIMEOUT_S)
            # Read-committed: the answer waits for transactions that are still open.
            settings = {**self._settings, "isolation.level": "read_committed"}
            reader = make_group_reader(settings, outbox)
            try:
                (place,) = reader.committed([TopicPartition(topic, 0)], timeout=OPEN_TIMEOUT_S)
                group = reader.consumer_group_metadata()
            finally:
                reader.close()
        except KafkaException as error:
            raise self._problem(topic, error.args[0]) from error
        if place.error is not None and place.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise self._problem(topic, place.error)
        mark = None
        if place.error is None and place.offset >= 0:
            mark = OutboxMark(place.offset, metadata_of(place)[:TOKEN_CHARACTERS])
        return KafkaLetterTransactions(self, outbox, producer, group, mark)

    def _send_in_thread(
        self,
        found: KafkaLetterTransactions,
        topic: str,
        messages: Sequence[OutgoingMessage],
        mark: OutboxMark,
    ) -> None:
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            # Messages that an abort purges are not refused by Kafka.
            if error is not None and error.code() != KafkaError._PURGE_QUEUE:
                refused.append(error)

        producer = found.producer
        place = TopicPartition(topic, 0, mark.sequence, mark.token)
        try:
            producer.begin_transaction()
            for message in messages:
                produce(producer, topic, message, delivered)
            producer.flush(COMMIT_TIMEOUT_S)
            if not refused:
                producer.send_offsets_to_transaction([place], found.group, OPEN_TIMEOUT_S)
                producer.commit_transaction(COMMIT_TIMEOUT_S)
                return
            error = refused[0]
        except KafkaException as problem:
            error = refused[0] if refused else problem.args[0]
        except BufferError:
            error = KafkaError(KafkaError._QUEUE_FULL)
        with contextlib.suppress(KafkaException):
            # If the abort fails, the next owner of the outbox ends the transaction.
            producer.purge()
            producer.abort_transaction(OPEN_TIMEOUT_S)
        raise self._problem(topic, error)
