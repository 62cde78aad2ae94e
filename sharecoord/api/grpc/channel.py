"""The way to a member over its Consume stream: an outbox that the stream empties."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import TakenBack
from sharecoord.errors import SharecoordError
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service

JOINED_BYTES_MAX = 256 << 10
"""Small messages that wait together are sent as one, up to this size: a message costs the loop as
much as a hundred records. A larger one is not worth the copy."""


class StreamChannel:
    """A `MemberChannel`; messages are serialised when they are put in, so their size is known.

    Records and answers consist of repeated fields, so several of these messages in a row are one
    message with all of them. A subclass takes them, and says in `_wake` how it is woken.
    """

    __slots__ = (
        "_open_bytes",
        "_outbox",
        "_taken_bytes",
        "ended",
        "error",
        "unsent_bytes",
        "unsent_since_s",
    )

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.unsent_since_s = math.inf
        self._taken_bytes = 0
        """Memory of the message that is being written: ours, and gRPC's copy of it."""
        self.error: SharecoordError | None = None
        self.ended = False
        # Ten thousand of them are mostly empty: a deque would take 0.7 KB each.
        self._outbox: list[list[bytes]] = []
        self._open_bytes = JOINED_BYTES_MAX
        """Size of the last message when more can be joined to it, else `JOINED_BYTES_MAX`."""

    def put(self, message: service.ConsumeResponse) -> None:
        """Queues a message."""
        frame = message.SerializeToString()
        self._outbox.append([frame])
        self._open_bytes = JOINED_BYTES_MAX
        self.unsent_bytes += len(frame)
        self._wake()

    def _append(self, frame: bytes) -> None:
        """Queues a message of repeated fields, together with the one before when that is small."""
        joined_bytes = self._open_bytes + len(frame)
        if self._outbox and joined_bytes <= JOINED_BYTES_MAX:
            self._outbox[-1].append(frame)
        else:
            self._outbox.append([frame])
            joined_bytes = len(frame)
        self._open_bytes = joined_bytes
        self.unsent_bytes += len(frame)
        self._wake()

    def _wake(self) -> None:
        """Told that a message waits or that the stream is to end; often called without need."""
        raise NotImplementedError

    def take(self) -> bytes | None:
        """The next message to write, the one before being written; None when there is none."""
        self.unsent_bytes -= self._taken_bytes
        self._taken_bytes = 0
        if not self._outbox:
            return None
        parts = self._outbox.pop(0)
        frame = parts[0] if len(parts) == 1 else b"".join(parts)
        self._taken_bytes = 2 * len(frame)
        self.unsent_bytes += len(frame)
        return frame

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Sends records."""
        self._append(codec.delivery_frame(delivery, now_ms))

    def relay(self, item: Relayed) -> None:
        """Sends records that another coordinator acquired and made a message of."""
        assert isinstance(item.frame, bytes), "made by a peer's codec"
        self._append(item.frame)

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Sends the outcome of acknowledgements."""
        outcomes = [codec.partition_outcome(result) for result in results]
        result = service.AcknowledgeResult(acknowledge_id=acknowledge_id, outcomes=outcomes)
        self._append(service.ConsumeResponse(results=[result]).SerializeToString())

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Sends notices of locks that ended."""
        notices = codec.taken_back(key, ranges)
        self._append(service.ConsumeResponse(taken_back=notices).SerializeToString())

    def assigned(self, assignment: Assignment) -> None:
        """Sends a change of the assignment."""
        self.put(service.ConsumeResponse(assignment=codec.assignment(assignment)))

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """Asks the member to go elsewhere."""
        notice = service.DrainNotice(addresses=addresses, grace_ms=grace_ms)
        self.put(service.ConsumeResponse(drain=notice))

    def end(self, error: SharecoordError | None) -> None:
        """Ends the stream after what is queued; the first error is the one that is told."""
        self.error = self.error or error
        self.ended = True
        self._wake()

    def forget(self) -> None:
        """Drops all queued messages: the stream is over."""
        self._outbox.clear()
        self.unsent_bytes = self._taken_bytes = 0
        self._open_bytes = JOINED_BYTES_MAX

    def cut(self, error: SharecoordError) -> None:
        """Ends the stream after what is being written: gRPC can not take a message back."""
        taken_bytes = self._taken_bytes
        self.forget()
        self.unsent_bytes = self._taken_bytes = taken_bytes
        self.end(error)
