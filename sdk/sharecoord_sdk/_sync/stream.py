"""A Consume stream on grpc's synchronous stack, with one thread that reads it.

grpc adds two threads of its own per call: one takes requests out of our iterator, one brings
events. All three are daemons. A daemon that still runs when the interpreter ends is stopped where
it is, and its locks stay locked; Python's own clean-up, which closes grpc's channels and takes the
same locks, may then wait for ever. So `close`, and the exit of the process, wait for the three.
"""

from __future__ import annotations

import atexit
import math
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from sharecoord_sdk._core import frames
from sharecoord_sdk._core.core import Arrival, Connection
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._core.tls_files import TlsMaterial
from sharecoord_sdk._grpc import CONSUME, encode, failure_of, open_channel
from sharecoord_sdk._proto import share_service_pb2 as service_pb

if TYPE_CHECKING:
    from sharecoord_sdk._core.base import BaseShareConsumer

Inbox = SimpleQueue[Arrival]


class Reminder(NamedTuple):
    """A consumer whose acknowledgements are held until a time (monotonic)."""

    at: float
    consumer: weakref.ref[BaseShareConsumer]

    def next(self) -> Reminder | None:
        """Lets the consumer send what was held for long enough; returns the next reminder."""
        found = self.consumer()
        at = math.inf if found is None else found._send_held()
        return None if at == math.inf else self._replace(at=at)


Outbox = SimpleQueue[service_pb.ConsumeRequest | Reminder | None]

# A cancelled call ends at once; threads that do not are left behind as daemons.
END_S: Final = 1.0


class _GrpcThread:
    """A thread that grpc started, known from its first call on."""

    def __init__(self) -> None:
        self._seen = Event()
        self._thread: Thread | None = None

    def register(self) -> None:
        """Registers the calling thread."""
        self._thread = current_thread()
        self._seen.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or has not registered yet."""
        return self._thread is None or self._thread.is_alive()

    def join(self, deadline: float) -> None:
        self._seen.wait(_left(deadline))
        if self._thread is not None:
            self._thread.join(_left(deadline))


class _Requests:
    """The iterator that grpc takes requests from; ends at the None that the end of a call puts.

    Its thread, which waits anyway, also sees to it that acknowledgements are not held for long.
    """

    def __init__(self, outbox: Outbox, sender: _GrpcThread) -> None:
        self._outbox = outbox
        self._sender: _GrpcThread | None = sender
        self._reminder: Reminder | None = None

    def __iter__(self) -> Iterator[service_pb.ConsumeRequest]:
        return self

    def __next__(self) -> service_pb.ConsumeRequest:
        if self._sender is not None:
            self._sender.register()
            self._sender = None
        while True:
            try:
                request = self._outbox.get(timeout=self._wait_s())
            except Empty:
                assert self._reminder is not None, "only a wait for it ends"
                self._reminder = self._reminder.next()
                continue
            if request is None:
                raise StopIteration
            if not isinstance(request, Reminder):
                return request
            self._reminder = request

    def _wait_s(self) -> float | None:
        return None if self._reminder is None else _left(self._reminder.at)


class Stream:
    """A call of Consume. Knows nothing of the consumer, so that the consumer can be collected."""

    def __init__(
        self,
        connection: Connection,
        tls: TlsMaterial | None,
        inbox: Inbox,
    ) -> None:
        self._pid = os.getpid()
        self._outbox: Outbox = SimpleQueue()
        self.send(connection.requests)
        channel = open_channel(connection.address, tls)
        method: Any = channel.stream_stream(
            CONSUME,
            request_serializer=encode,
            response_deserializer=frames.read,
        )
        self._sender, self._events = _GrpcThread(), _GrpcThread()
        try:
            self._start(method, channel, connection, inbox)
        except BaseException:
            # A thread could not be started, say: nothing of the call may go on without a reader.
            channel.close()
            self._outbox.put(None)
            raise
        for stream in list(_LIVE):
            stream.forget_if_over()
        _LIVE.add(self)

    def _start(
        self,
        method: Any,
        channel: grpc.Channel,
        connection: Connection,
        inbox: Inbox,
    ) -> None:
        generation, metadata = connection.generation, connection.metadata
        self._call: Any = method(_Requests(self._outbox, self._sender), metadata=metadata)
        # grpc calls back at the end of the call, in the thread that brings events.
        self._is_watched: bool = self._call.add_callback(self._events.register)
        self._reader = Thread(
            target=_read,
            args=(self._call, channel, inbox, self._outbox, generation),
            name=f"sharecoord-reader-{generation}",
            daemon=True,
        )
        self._reader.start()

    def send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        for request in requests:
            self._outbox.put(request)

    def remind(self, reminder: Reminder) -> None:
        """Sees to what a consumer holds; one reminder at a time, until it says that it is over."""
        self._outbox.put(reminder)

    def cancel(self) -> None:
        """Ends the call; the reader closes the channel. Never blocks."""
        self._call.cancel()
        self._outbox.put(None)

    def join(self, deadline: float) -> None:
        """Waits for the call's threads, until `deadline` (monotonic) at most."""
        self._reader.join(_left(deadline))
        for thread in self._grpc_threads():
            thread.join(deadline)
        self.forget_if_over()

    def forget_if_over(self) -> None:
        """Forgets the stream once nothing of it runs, so that nobody waits for it."""
        if not self._reader.is_alive() and not any(p.is_alive for p in self._grpc_threads()):
            _LIVE.discard(self)

    @property
    def is_over(self) -> bool:
        """Whether nothing of the stream was running at the last check."""
        return self not in _LIVE

    def end_at_exit(self, deadline: float) -> None:
        """Ends what a process left open. In a forked child the call is the parent's."""
        if self._pid == os.getpid():
            self.cancel()
            self.join(deadline)

    def _grpc_threads(self) -> tuple[_GrpcThread, ...]:
        return (self._sender, self._events) if self._is_watched else (self._sender,)


# Streams of which something may still run.
_LIVE: set[Stream] = set()


@atexit.register
def _end_all() -> None:
    """Ends the streams of consumers that were not closed, before the interpreter ends."""
    deadline = time.monotonic() + END_S
    for stream in list(_LIVE):
        stream.end_at_exit(deadline)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _read(call: Any, channel: grpc.Channel, inbox: Inbox, outbox: Outbox, generation: int) -> None:
    """Moves what arrives into the inbox until the stream ends, and says how it ended."""
    try:
        for response in call:
            inbox.put(Arrival(generation, response, time.monotonic()))
        failure = StreamFailure("OK", "the coordinator ended the stream")
    except Exception as error:  # noqa: BLE001 - however it ended, the consumer must hear of it
        failure = failure_of(error)
    inbox.put(Arrival(generation, failure, time.monotonic()))
    outbox.put(None)
    channel.close()
