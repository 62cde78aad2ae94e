"""A worker's core on its own: no grpc, no threads, no loop, a clock that the test moves."""

from __future__ import annotations

from typing import Any

from sharecoord_sdk._core.records import Message, message_at
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker.core import WorkerCore
from sharecoord_sdk._worker.handlers import read_handler
from sharecoord_sdk._worker.leases import Part
from sharecoord_sdk._worker.line import Lease
from sharecoord_sdk._worker.options import Behaviour

from tests.sdk.fake_coordinator import TOPIC_ID
from tests.sdk.world import World, take_notices


def handle(message: Message) -> None:
    """Stands for a handler; its name shows up in logs."""


def handle_other(message: Message) -> None:
    """Another one."""


class WorkerWorld(World):
    """A worker's core with a handler of topic "t", and one of "u" when `both` is set."""

    def __init__(
        self,
        *,
        concurrency: int = 100,
        batch: int | None = None,
        renew_max_s: float = 3600.0,
        both: bool = False,
        behaviour: Behaviour | None = None,
        chance: float = 0.0,
        **config: Any,
    ) -> None:
        super().__init__(share_acknowledgement_mode="explicit", **config)
        handlers = {"t": read_handler("t", handle, batch, behaviour)}
        if both:
            handlers["u"] = read_handler("u", handle_other, None)
        self.core: WorkerCore = WorkerCore(
            self.core.config,
            "me",
            lambda: chance,
            handlers=handlers,
            concurrency=concurrency,
            renew_max_s=renew_max_s,
        )

    @property
    def locks(self) -> Any:
        """What handlers have."""
        return self.core.locks

    def start(self) -> list[Part]:
        """Starts everything that may be started."""
        parts: list[Part] = []
        while (part := self.start_one()) is not None:
            parts.append(part)
        return parts

    def start_one(self) -> Part | None:
        """Starts one record, or None."""
        lease: Lease | None = self.core.head(self.now)
        if lease is None:
            return None
        row = self.core.locks.start(lease)
        return Part(lease, row, row + 1)

    def start_batch(self) -> list[Part]:
        """Starts a batch."""
        lease = self.core.head(self.now)
        assert lease is not None
        return self.core.start_batch(lease, self.now)

    def publish(self) -> None:
        """Sends what finished."""
        self.core.publish(self.now)
        self.drive()

    def pass_time(self, seconds: float) -> None:
        """Moves the clock and does what time brings about."""
        self.now += seconds
        self.drive()

    def rejoin(self, first_lost: int, last_lost: int) -> None:
        """A new stream is there; of the first batch so many offsets were lost meanwhile."""
        lost = types_pb.HeldRange(
            partition=types_pb.TopicPartition(topic="t", partition=0, topic_id=TOPIC_ID),
            first_offset=first_lost,
            last_offset=last_lost,
            lock_token=7,
        )
        self.receive(joined=service_pb.Joined(lock_duration_ms=30_000, lost=[lost]))

    def notices(self) -> list[str]:
        """What was logged since the last call."""
        return [notice.text for notice in take_notices(self.core)]

    def accept(self, *parts: Part) -> None:
        """Handlers of one record each return."""
        for part in parts:
            if part.start == part.lease.probe:
                self.core.finish([part], None, self.now)
            else:
                self.core.locks.accept(part.lease, part.start)


def value_of(part: Part) -> Any:
    """The payload of a started record."""
    return message_at(part.lease.columns, part.start).value()


def credit_of(world: World) -> int:
    """What was promised last, in records since the join."""
    totals = [r.credit.records_total for r in world.sent if r.HasField("credit")]
    totals += [r.join.credit.records_total for r in world.sent if r.HasField("join")]
    return max(totals)
