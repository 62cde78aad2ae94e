"""A core on its own: no grpc, no threads, a clock that the test moves."""

from __future__ import annotations

from typing import Any

from sharecoord_sdk._core import frames
from sharecoord_sdk._core.columns import Span
from sharecoord_sdk._core.config import read_config
from sharecoord_sdk._core.core import ConsumerCore, Notice
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.fake_coordinator import Ack, acks_of

GONE = StreamFailure("UNAVAILABLE", "gone")
OWNER = object()


def take_notices(core: ConsumerCore) -> list[Notice]:
    """Notices since the last call."""
    out = list(core.notices)
    core.notices.clear()
    return out


class World:
    """A core, its clock, and everything that it wanted sent."""

    def __init__(self, *, chance: float = 0.0, oauth_cb: Any = None, **config: Any) -> None:
        full = {name.replace("_", "."): value for name, value in config.items()}
        callback = {} if oauth_cb is None else {"oauth_cb": oauth_cb}
        given_config = {"group.id": "g", "bootstrap.servers": "a:1,b:2", **full, **callback}
        self.core = ConsumerCore(read_config((given_config,), {}), "me", lambda: chance)
        self.now = 100.0
        self.sent: list[service_pb.ConsumeRequest] = []
        self.opened: list[str] = []

    def drive(self) -> None:
        """What a shell does between two waits."""
        self.core.tick(self.now)
        connection = self.core.connect(self.now)
        if connection is not None:
            self.opened.append(connection.address)
            self.sent.extend(connection.requests)
        self.sent.extend(self.core.take_outbox())

    def receive(self, *batches: types_pb.RecordBatch, **fields: Any) -> None:
        """A message comes in."""
        response = service_pb.ConsumeResponse(batches=batches, **fields)
        frame = frames.read(response.SerializeToString())
        self.core.received(self.core.link.generation, frame, self.now)

    def join(self) -> None:
        """Subscribes and is answered."""
        self.core.subscribe(["t"], self.now)
        self.drive()
        self.receive(joined=service_pb.Joined(lock_duration_ms=30_000))

    def poll(self) -> list[Span]:
        """One poll that does not wait."""
        self.core.check_poll()
        self.core.begin_poll(self.now)
        hand_out = self.core.take(self.now, OWNER)
        self.core.flush(self.now, polling=True, may_hold=True)
        self.drive()
        hand_out.given = sum(map(len, hand_out.spans))
        self.core.locks.note_given(at_rest=True)
        return hand_out.spans

    def acks(self) -> list[Ack]:
        """Every acknowledged range that was sent."""
        return [ack for request in self.sent for ack in acks_of(request)]

    def answer(self, *outcomes: types_pb.PartitionOutcome) -> None:
        """Answers the last acknowledgements."""
        last = max(request.acknowledge_id for request in self.sent)
        result = service_pb.AcknowledgeResult(acknowledge_id=last, outcomes=outcomes)
        self.receive(results=[result])

    def fail(self, failure: StreamFailure = GONE) -> None:
        """The stream ends."""
        self.core.stream_ended(self.core.link.generation, failure, self.now)


def equal_ranges(count: int, locks: int) -> list[types_pb.AcquiredRange]:
    """The offsets from 0 to `count` under at most `locks` locks, each of as many records."""
    step = -(-count // locks)
    return [
        types_pb.AcquiredRange(
            first_offset=first,
            last_offset=min(first + step, count) - 1,
            lock_token=first + 1,
            lock_remaining_ms=60_000,
        )
        for first in range(0, count, step)
    ]
