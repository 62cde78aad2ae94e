"""`ShareConsumer`: the twin of `confluent_kafka.ShareConsumer`, served by a coordinator."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from queue import Empty
from typing import Any, Self, TypeVar

from sharecoord_sdk._core.base import BaseShareConsumer, Steps
from sharecoord_sdk._core.core import Arrival, Connection
from sharecoord_sdk._core.errors import KafkaException
from sharecoord_sdk._core.records import Message, Messages, TopicPartition
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._tokens import token_source

from .stream import END_S, Reminder, Stream
from .tokens import TokenTimer
from .unseen import Inbox

T = TypeVar("T")


class _StreamSlot:
    __slots__ = ("ending", "stream", "tokens")

    def __init__(self, tokens: TokenTimer) -> None:
        self.tokens = tokens
        self.stream: Stream | None = None
        #: Earlier streams: cancelled or broken, and perhaps not quite at their end.
        self.ending: list[Stream] = []

    def cancel(self) -> None:
        if self.stream is not None:
            self.stream.cancel()
            self.ending.append(self.stream)
            self.stream = None


def _abandon(slot: _StreamSlot, pid: int) -> None:
    """Ends the stream of a consumer that was dropped without `close`."""
    # In a forked child the call belongs to the parent: leave it alone.
    if os.getpid() == pid:
        slot.tokens.cancel()
        slot.cancel()


class ShareConsumer(BaseShareConsumer):
    """A consumer of a share group (KIP-932), without a Kafka client.

    The twin of `confluent_kafka.ShareConsumer`: same configuration keys, methods, classes and
    errors; `bootstrap.servers` is the address of a coordinator. Import and constructor start
    nothing; the connection opens at the first `subscribe`. Not thread-safe: a call while another
    thread is inside one raises ConcurrentModificationException. Does not survive a fork: make
    consumers in the process that uses them.

    A consumer that is dropped without `close` is collected and its connection ended; its records
    come back to the group when the session times out. So use `close`, or a `with` block.

    Where it differs from the twin on purpose: `share.acknowledgement.mode` takes only `implicit`
    and `explicit`; numbers must be whole; settings that can not be honoured here (statistics,
    unverified TLS, ...) are refused by name; RENEW, `delay_ms`, `reason`, `pause`, `resume` and
    `acquisition_lock_timeout_ms` come on top.

    Args:
        config: Keys of Kafka's and librdkafka's share consumers; `group.id` is required. Keywords
            are added to it.

    Raises:
        TypeError: Not a dict.
        ValueError: No `group.id`, or a key that share consumers do not have.
        KafkaException: _INVALID_ARG: an unknown key, or a value out of bounds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inbox = Inbox(self)
        # Arrivals that `_wait` took out of the inbox.
        self._early: deque[Arrival] = deque()
        self._token_source = token_source(self._config.sasl)
        self._slot = _StreamSlot(TokenTimer(self))
        self._finalizer = weakref.finalize(self, _abandon, self._slot, self._pid)

    def subscribe(self, topics: list[str]) -> None:
        """Replaces the topics. An empty list is `unsubscribe`.

        Acknowledged records are sent; records that wait in this process go back uncounted.

        Raises:
            TypeError: Not a list.
            ValueError: An empty name, or a name twice.
            IllegalStateException: Closed.
        """
        self._subscribe_now(topics)

    def unsubscribe(self) -> None:
        """Ends the subscription.

        Raises:
            IllegalStateException: Closed.
        """
        self._subscribe_now([])

    def poll(self, timeout: float = -1) -> Messages:
        """Waits for records.

        Implicit mode accepts the records of the last poll first. Explicit mode wants all of them
        acknowledged. Acknowledgements travel with this call; it does not wait for their outcome.

        Args:
            timeout: Seconds; a negative number waits for ever.

        Returns:
            At most `max.poll.records` messages, per partition in order of offset; none when
            nothing came in time.

        Raises:
            TypeError: Not a number.
            IllegalStateException: Not subscribed, unacknowledged records, or closed.
            KafkaException: The coordinator refused this consumer.
            KeyboardInterrupt: Ctrl-C while it waited.
        """
        messages = self._run(self._poll_steps(timeout))
        # The last step before the return: from here on the records are the application's.
        messages._hand_out.given = messages._count
        return messages

    def commit_sync(self, timeout: float = 60) -> dict[TopicPartition, KafkaException | None]:
        """Sends acknowledgements and waits until they are durable.

        Args:
            timeout: Seconds; a negative number waits for ever.

        Returns:
            Per partition None, or the error: INVALID_RECORD_STATE for records whose lock was
            lost, _TIMED_OUT when no answer came in time. Empty when there was nothing to send.

        Raises:
            TypeError: Not a number.
            IllegalStateException: Closed.
            KafkaException: The coordinator refused this consumer.
        """
        return self._run(self._commit_steps(timeout))

    def checkpoint(self, message: Message, data: bytes, timeout: float = 60) -> None:
        """Stores how far the work on a record has come, for the next delivery of it.

        It takes the place of the one before, is durable afterwards, and goes when the record is
        finished; `Message.checkpoint_data` reads it. The lock starts again with it; the record
        stays with the application. Both acknowledgement modes.

        Args:
            message: A message of the last poll, not acknowledged yet.
            data: At most 64 KiB, and `share.checkpoint.max.bytes` of the group.
            timeout: Seconds; a negative number waits for ever.

        Raises:
            TypeError: Not a message, not bytes, not a number.
            ValueError: More than 64 KiB.
            IllegalStateException: The record is not in flight, or the consumer is closed.
            KafkaException: INVALID_RECORD_STATE: the lock is lost. INVALID_REQUEST: more than the
                group allows. THROTTLING_QUOTA_EXCEEDED (retriable): the group has too many.
                _TIMED_OUT: no answer in time; it may be stored all the same.
        """
        self._run(self._checkpoint_steps(message, data, timeout))

    def close(self) -> None:
        """Sends acknowledgements, hands back what was not seen, and leaves the group.

        Waits for the coordinator's word, at most `socket.timeout.ms`. An acknowledgement whose
        partition moves at the moment is repeated for up to 5 s before the leave. Records of the
        last poll that were not committed are released (KIP-932). A second call does nothing.

        Raises:
            ConcurrentModificationException: Another thread is inside a call.
        """
        try:
            self._run(self._close_steps())
        finally:
            self._end()

    def _end(self) -> None:
        if self._core is None or not self._closed:
            return
        self._finalizer.detach()
        self._slot.tokens.cancel()
        self._slot.cancel()
        deadline = time.monotonic() + END_S
        while self._slot.ending:
            self._slot.ending.pop().join(deadline)
        self._inbox.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- the shell ----------------------------------------------------------------------------

    def _run(self, steps: Steps[T]) -> T:
        try:
            while True:
                self._wait(next(steps))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    def _wait(self, wait_s: float) -> None:
        try:
            # As one call of C: no signal's handler can come between taking out and putting in.
            self._early.extend(map(self._inbox.get, (True,), (wait_s,)))
        except Empty:
            pass

    def _arrivals(self) -> Iterator[Arrival]:
        while self._early:
            yield self._early.popleft()
        while not self._inbox.empty():
            yield self._inbox.get_nowait()

    def _open_stream(self, connection: Connection) -> None:
        self._slot.cancel()
        self._slot.ending = [stream for stream in self._slot.ending if not stream.is_over]
        tls = self._config.tls
        material = None if tls is None else tls.current()
        self._slot.stream = Stream(connection, material, self._inbox)

    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        if self._slot.stream is not None:
            self._slot.stream.send(requests)

    def _schedule_hand_back(self, at: float) -> None:
        self._inbox.schedule(at)

    def _send_held_at(self, at: float) -> None:
        if self._slot.stream is not None:
            self._slot.stream.remind(Reminder(at, weakref.ref(self)))

    def _fetch_token_at(self, at: float) -> None:
        self._slot.tokens.schedule(at)

    def _arrived(self, arrival: Arrival) -> None:
        self._inbox.put(arrival)

    def _caller_id(self) -> int:
        return threading.get_ident()
