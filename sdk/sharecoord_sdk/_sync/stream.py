"""One stream on grpc's synchronous stack, with one thread that reads it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import grpc

from sharecoord_sdk._core.base import Arrival
from sharecoord_sdk._core.config import TlsConfig
from sharecoord_sdk._core.core import Connection
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._grpc import CONSUME, encode, failure_of, open_channel
from sharecoord_sdk._proto import share_service_pb2 as service_pb

Inbox = SimpleQueue[Arrival]
Outbox = SimpleQueue[service_pb.ConsumeRequest | None]


class Stream:
    """A call to the coordinator. Knows nothing of the consumer, so that it can be collected."""

    def __init__(
        self,
        connection: Connection,
        tls: TlsConfig | None,
        metadata: list[tuple[str, str]],
        inbox: Inbox,
    ) -> None:
        self._outbox: Outbox = SimpleQueue()
        self.send(connection.requests)
        channel = open_channel(connection.address, tls)
        method: Any = channel.stream_stream(
            CONSUME,
            request_serializer=encode,
            response_deserializer=service_pb.ConsumeResponse.FromString,
        )
        # Ends at the None that `close`, or the reader at the end of the stream, puts.
        self._call: Any = method(iter(self._outbox.get, None), metadata=tuple(metadata))
        self._reader = Thread(
            target=_read,
            args=(self._call, channel, inbox, self._outbox, connection.generation),
            name=f"sharecoord-reader-{connection.generation}",
            daemon=True,
        )
        self._reader.start()

    def send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        """Queues messages, in order."""
        for request in requests:
            self._outbox.put(request)

    def cancel(self) -> None:
        """Ends the call; the reader closes the channel. Never blocks."""
        self._call.cancel()
        self._outbox.put(None)

    def close(self, timeout_s: float) -> None:
        """Ends the call and waits for the reader, at most so long."""
        self.cancel()
        self._reader.join(timeout_s)


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
