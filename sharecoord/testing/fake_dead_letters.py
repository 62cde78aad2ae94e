"""Topics of dead letters in memory, with what stands in their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sharecoord.errors import (
    KafkaUnavailableError,
    LimitExceededError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import OutgoingMessage

__all__ = ["FakeDeadLetters"]

ROUND_TRIP_S = 0.002
"""Virtual duration of a produce request."""

STEP_S = 1e-6


class FakeDeadLetters:
    """A `ports.DeadLetterSink`; lives on when a coordinator dies, as Kafka does."""

    def __init__(self) -> None:
        self.topics: dict[str, list[OutgoingMessage]] = {}
        """What arrived, in order; a topic that is not here does not exist."""
        self.down = False
        """Nothing arrives."""
        self.forgets = False
        """Everything arrives, and nobody hears of it."""
        self.most_bytes = 1 << 20
        """Of one message: key and value."""
        self.made: list[str] = []
        self.on_arrival: Callable[[OutgoingMessage], None] = lambda _: None
        self._last_s = 0.0

    def send(
        self,
        topic: str,
        message: OutgoingMessage,
        done: Callable[[SharecoordError | None], None],
    ) -> None:
        """Arrives after a while."""
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
        if self.down:
            done(KafkaUnavailableError("the fake cluster is down"))
        elif topic not in self.topics:
            done(UnknownTopicOrPartitionError(f"no topic {topic}"))
        elif len(message.key or b"") + len(message.value or b"") > self.most_bytes:
            done(LimitExceededError("too large"))
        else:
            self.topics[topic].append(message)
            self.on_arrival(message)
            if not self.forgets:
                done(None)

    async def ensure(self, topic: str, *, create: bool) -> None:
        """Makes a topic, or finds it."""
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
