"""Topics of dead letters in memory, with faults that a test can switch on.

`FakeDeadLetters` is the cluster, and a sink that everybody may share; transactions belong to a
`client()` of it each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sharecoord.core.letters.dead_letters import OutboxMark
from sharecoord.errors import (
    KafkaUnavailableError,
    LimitExceededError,
    NotOwnerError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import OutgoingMessage

__all__ = ["FakeDeadLetterClient", "FakeDeadLetters", "FakeLetterTransactions"]

ROUND_TRIP_S = 0.002
"""Virtual duration of a produce request."""

STEP_S = 1e-6

STEPS = 3
"""Steps of a transaction: begun, committed, told."""


class FakeDeadLetters:
    """A cluster with dead-letter topics; it lives on when a coordinator dies, as Kafka does."""

    def __init__(self) -> None:
        self.topics: dict[str, list[OutgoingMessage]] = {}
        """Messages that arrived, in order; a topic that is not here does not exist."""
        self.down = False
        """While true, nothing arrives."""
        self.forgets = False
        """While true, everything arrives and no request is answered."""
        self.answers = asyncio.Event()
        """See `set_silent`."""
        self.answers.set()
        self._held: list[tuple[str, OutgoingMessage, Callable[[SharecoordError | None], None]]] = []
        """Messages that clients try to send again and again while the cluster is silent."""
        self.refusal: SharecoordError | None = None
        """The reason for which nothing arrives; None: messages arrive."""
        self.most_bytes = 1 << 20
        """Most bytes of key and value of one message."""
        self.made: list[str] = []
        self.on_arrival: Callable[[OutgoingMessage], None] = lambda _: None
        self._last_s = 0.0
        self.marks: dict[tuple[str, str], OutboxMark] = {}
        """Mark that transactions have committed, by outbox and topic."""
        self.owners: dict[str, FakeLetterTransactions] = {}
        """The transactions that opened an outbox last; others are fenced."""
        self.transactions: list[int] = []
        """Sizes of the transactions that were committed."""
        self.dies_at: int | None = None
        """After so many steps of transactions, each of `STEPS`, nothing answers any more."""
        self.dead = asyncio.Event()

    def client(self) -> FakeDeadLetterClient:
        """A coordinator's way to the cluster."""
        return FakeDeadLetterClient(self)

    def set_silent(self, *, silent: bool) -> None:
        """While silent nothing arrives and nothing fails: clients try on by themselves."""
        if silent:
            self.answers.clear()
            return
        self.answers.set()
        held, self._held = self._held, []
        for each in held:
            self.send(*each)

    async def step(self) -> None:
        """A step of a transaction, in which the process may die."""
        await asyncio.sleep(ROUND_TRIP_S)
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0:
                self.dead.set()
                await asyncio.Event().wait()
        if self.down:
            raise KafkaUnavailableError("the fake cluster is down")

    def send(
        self,
        topic: str,
        message: OutgoingMessage,
        done: Callable[[SharecoordError | None], None],
    ) -> None:
        """Sends a message, which arrives after a round trip."""
        loop = asyncio.get_running_loop()
        # One after the other: a loop does not keep the order of what falls due together.
        self._last_s = max(loop.time() + ROUND_TRIP_S, self._last_s + STEP_S)
        loop.call_at(self._last_s, self._arrive, topic, message, done)

    def _arrive(
        self,
        topic: str,
        message: OutgoingMessage,
        done: Callable[[SharecoordError | None], None],
    ) -> None:
        if not self.answers.is_set():
            self._held.append((topic, message, done))
        elif self.down or self.refusal:
            done(self.refusal or KafkaUnavailableError("the fake cluster is down"))
        elif topic not in self.topics:
            done(UnknownTopicOrPartitionError(f"no topic {topic}"))
        elif self.is_too_large(message):
            done(LimitExceededError("too large"))
        else:
            self.topics[topic].append(message)
            self.on_arrival(message)
            if not self.forgets:
                done(None)

    def is_too_large(self, message: OutgoingMessage) -> bool:
        """Whether no topic takes it."""
        return len(message.key or b"") + len(message.value or b"") > self.most_bytes

    async def ensure(self, topic: str, *, create: bool) -> None:
        """Checks that a topic exists, or makes it."""
        await asyncio.sleep(ROUND_TRIP_S)
        if self.down:
            raise KafkaUnavailableError("the fake cluster is down")
        if topic in self.topics:
            return
        if not create:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist; create it")
        self.topics[topic] = []
        self.made.append(topic)

    async def close(self) -> None:
        """Nothing to end."""


class FakeDeadLetterClient:
    """A `ports.DeadLetterSink` of one coordinator."""

    unsent_bytes = 0

    def __init__(self, cluster: FakeDeadLetters) -> None:
        self._cluster = cluster
        self.send, self.ensure, self.close = cluster.send, cluster.ensure, cluster.close

    async def open(self, outbox: str, topic: str) -> FakeLetterTransactions:
        """Opens an outbox, and fences everyone who opened it before."""
        await self._cluster.step()
        mark = self._cluster.marks.get((outbox, topic))
        found = FakeLetterTransactions(self._cluster, outbox, mark)
        self._cluster.owners[outbox] = found
        return found


class FakeLetterTransactions:
    """A `ports.LetterTransactions`."""

    def __init__(self, cluster: FakeDeadLetters, outbox: str, mark: OutboxMark | None) -> None:
        self._cluster, self._outbox = cluster, outbox
        self.mark, self.is_open = mark, True

    async def send(self, topic: str, messages: Sequence[OutgoingMessage], mark: OutboxMark) -> None:
        """Commits messages and mark together, or neither; the answer may be lost."""
        cluster, self.is_open = self._cluster, False
        await cluster.step()
        self._check_owner()
        await cluster.answers.wait()
        if cluster.refusal:
            raise cluster.refusal
        if topic not in cluster.topics:
            raise UnknownTopicOrPartitionError(f"no topic {topic}")
        if any(map(cluster.is_too_large, messages)):
            raise LimitExceededError("too large")
        await cluster.step()
        self._check_owner()
        cluster.marks[self._outbox, topic] = mark
        cluster.transactions.append(len(messages))
        for message in messages:
            cluster.topics[topic].append(message)
            cluster.on_arrival(message)
        await cluster.step()
        if cluster.forgets:
            raise KafkaUnavailableError("the fake cluster forgot to answer")
        self.is_open = True

    def _check_owner(self) -> None:
        if self._cluster.owners[self._outbox] is not self:
            raise NotOwnerError("another coordinator has opened the outbox")
