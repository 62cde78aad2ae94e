"""The way to a member over its Consume stream: an outbox that the stream's writer empties."""

from __future__ import annotations

import asyncio
from collections import deque

from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.errors import SharecoordError
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service


class StreamChannel:
    """A `MemberChannel`; messages are serialised when they are put in, so their size is known."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.error: SharecoordError | None = None
        self.ended = False
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()

    def put(self, message: service.ConsumeResponse) -> None:
        """Queues a message."""
        self._put_frame(message.SerializeToString())

    def _put_frame(self, frame: bytes) -> None:
        self._outbox.append(frame)
        self.unsent_bytes += len(frame)
        self._wake.set()

    async def next_frame(self) -> bytes | None:
        """The next message to write; None when the stream ends."""
        while not self._outbox:
            if self.ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        frame = self._outbox.popleft()
        self.unsent_bytes -= len(frame)
        return frame

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Sends records."""
        self._put_frame(codec.delivery_frame(delivery, now_ms))

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Sends the outcome of acknowledgements."""
        outcomes = [codec.partition_outcome(result) for result in results]
        result = service.AcknowledgeResult(acknowledge_id=acknowledge_id, outcomes=outcomes)
        self.put(service.ConsumeResponse(results=[result]))

    def assigned(self, assignment: Assignment) -> None:
        """Tells a change of what the member may receive."""
        self.put(service.ConsumeResponse(assignment=codec.assignment(assignment)))

    def drain(self, grace_ms: int) -> None:
        """Asks the member to go elsewhere."""
        self.put(service.ConsumeResponse(drain=service.DrainNotice(grace_ms=grace_ms)))

    def end(self, error: SharecoordError | None) -> None:
        """Ends the stream after what is queued."""
        self.error = error
        self.ended = True
        self._wake.set()
