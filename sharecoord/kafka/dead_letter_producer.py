"""Produces dead letters with librdkafka: every delivery is reported, no letter is given up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sharecoord.errors import (
    KafkaUnavailableError,
    LimitExceededError,
    NotOwnerError,
    SharecoordError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)
from sharecoord.kafka.client import (
    GONE,
    REQUEST_TIMEOUT_S,
    KafkaError,
    Settings,
    all_done,
    make_admin,
    make_producer,
)
from sharecoord.kafka.dead_letter_transactions import Transactions
from sharecoord.kafka.headers import produce
from sharecoord.ports import OutgoingMessage

_DEFAULTS: Final[dict[str, Any]] = {
    "compression.type": "lz4",
    "linger.ms": 5,
    # As Java's clients choose: the letters of one key stay in one partition, in order.
    "partitioner": "murmur2_random",
    # Beyond it letters are refused, and come again. librdkafka's default is 1 GiB.
    "queue.buffering.max.kbytes": 64 << 10,
    # A missing topic is reported soon; it is asked for again as long as letters wait.
    "topic.metadata.propagation.max.ms": 5_000,
}
_FIXED: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": 0,
    # The broker alone says what is too large.
    "message.max.bytes": 1_000_000_000,
    "allow.auto.create.topics": False,
}

POLL_S: Final = 0.1
"""Longest time until the thread notices that its producer was closed."""

CLOSE_S: Final = 2.0
"""Time for letters under way to arrive; the next owner sends the others again."""

_REFUSED: Final = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
)
_TRANSACTIONS_REFUSED: Final = frozenset(
    {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}
)
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})

Done = Callable[[SharecoordError | None], None]


class KafkaDeadLetters:
    """The `DeadLetterSink` of a real cluster; connects at the first call."""

    def __init__(self, settings: Settings, *, transactional_producers_max: int = 32) -> None:
        self._settings = dict(settings)
        unlimited = {"message.timeout.ms"}  # a transaction has a time limit
        fixed = {name: value for name, value in _FIXED.items() if name not in unlimited}
        self._transactions = Transactions(
            self._settings,
            producer_settings={**_DEFAULTS, **self._settings, **fixed},
            producers_max=transactional_producers_max,
            problem=_problem,
        )
        self.open = self._transactions.open
        kbytes = {**_DEFAULTS, **self._settings}["queue.buffering.max.kbytes"]
        self._queue_bytes_max = int(kbytes) << 10
        self._producer: Producer | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._admin: AdminClient | None = None

    @property
    def unsent_bytes(self) -> int:
        """Librdkafka's queues are bounded by `queue.buffering.max.kbytes`."""
        return 0

    def send(self, topic: str, message: OutgoingMessage, done: Done) -> None:
        """Hands a message over."""
        tell = partial(_tell, asyncio.get_running_loop(), done)

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None and error.fatal():
                self._producer = None
            tell(None if error is None else _problem(topic, error))

        size = size_of(message)
        if size > self._queue_bytes_max:
            # It would never find room.
            tell(
                LimitExceededError(
                    f"a dead letter for {topic!r} has {size} bytes, and its producer's queue takes "
                    f"{self._queue_bytes_max} (kafka.queue.buffering.max.kbytes)"
                )
            )
            return
        try:
            produce(self._started(), topic, message, delivered)
        except BufferError:
            tell(KafkaUnavailableError("more dead letters wait for Kafka than the producer holds"))
        except KafkaException as error:
            tell(_problem(topic, error.args[0]))

    def _started(self) -> Producer:
        """The producer; started anew after a fatal error."""
        if self._producer is None:
            self._producer = make_producer({**_DEFAULTS, **self._settings, **_FIXED})
            self._thread = threading.Thread(
                target=self._poll,
                args=(self._producer,),
                name="sharecoord-dead-letters",
                daemon=True,
            )
            self._thread.start()
        return self._producer

    def _poll(self, producer: Producer) -> None:
        while not self._closing and self._producer is producer:
            producer.poll(POLL_S)
        if self._closing:
            producer.flush(CLOSE_S)
        # Letters still under way are reported as failed, and are sent again.
        producer.purge()
        producer.poll(0)

    def check(self) -> None:
        """Lets librdkafka look at all settings; raises InvalidConfigError."""
        make_admin(self._settings)
        make_producer({**_DEFAULTS, **self._settings, **_FIXED})

    async def ensure(self, topic: str, *, create: bool) -> None:
        """Makes sure that a topic exists."""
        if self._admin is None:
            self._admin = make_admin(self._settings)
        known = await asyncio.to_thread(self._find, self._admin, topic)
        if known:
            return
        if not create:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} does not exist; create it, or set "
                "errors.deadletterqueue.auto.create.topics.enable=true to have it made"
            )
        # -1: the broker's defaults.
        new = NewTopic(
            topic,
            num_partitions=-1,
            replication_factor=-1,
            config={"message.timestamp.type": "CreateTime"},
        )
        made = self._admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
        await all_done(made.values())
        try:
            made[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise _problem(topic, error.args[0]) from error

    @staticmethod
    def _find(admin: AdminClient, topic: str) -> bool:
        try:
            # All topics are listed: a question about this one could make the broker create it.
            return topic in admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException as error:
            raise _problem(topic, error.args[0]) from error

    async def close(self) -> None:
        """Ends the producers."""
        await self._transactions.close()
        self._closing = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._producer = self._admin = None


def size_of(message: OutgoingMessage) -> int:
    """Bytes of a message as librdkafka's queue counts them, and its headers."""
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers


def _tell(loop: asyncio.AbstractEventLoop, done: Done, error: SharecoordError | None) -> None:
    # On a closed loop nobody waits: the next owner sends the letter again.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(done, error)


def _problem(topic: str, error: KafkaError) -> SharecoordError:
    """Kafka's error as one that names the fix."""
    code, what = error.code(), f"{error.name()} {error.str()}".rstrip()
    if code in GONE:
        return UnknownTopicOrPartitionError(f"dead-letter topic {topic!r} does not exist ({what})")
    if code in _REFUSED:
        return UnauthorizedError(
            f"Kafka refuses dead-letter topic {topic!r} to the coordinator ({what}); allow WRITE "
            "and DESCRIBE on it, and IDEMPOTENT_WRITE on the cluster before Kafka 3.0"
        )
    if code in _TRANSACTIONS_REFUSED:
        return UnauthorizedError(
            f"Kafka refuses transactions for dead-letter topic {topic!r} to the coordinator "
            f"({what}); allow WRITE and DESCRIBE on transactional ids, and READ on groups, that "
            "begin with sharecoord.dlq., and READ on the topic"
        )
    if code in _FENCED:
        return NotOwnerError(f"another coordinator sends these dead letters ({what})")
    if code in _TOO_LARGE:
        return LimitExceededError(
            f"dead-letter topic {topic!r} takes no message of this size ({what})"
        )
    return KafkaUnavailableError(f"dead-letter topic {topic!r}: {what}")
