"""What waits for a commit: deliveries and the answers to acknowledgements (design 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.share_partition import (
    AcknowledgedRange,
    AcquiredRange,
    HeldRange,
    RangeOutcome,
)
from sharecoord.errors import InternalError, SharecoordError
from sharecoord.runtime.channel import MemberChannel
from sharecoord.runtime.sessions import Session

if TYPE_CHECKING:
    from sharecoord.runtime.partition_actor import PartitionActor


log = structlog.get_logger(__name__)


class DeliveryEffect:
    """Records on their way to a member; looked at again before they are sent."""

    __slots__ = ("actor", "channel", "delivery", "session")

    def __init__(self, actor: PartitionActor, session: Session, delivery: Delivery) -> None:
        self.actor = actor
        self.session = session
        self.channel: MemberChannel | None = session.channel
        self.delivery = delivery

    @staticmethod
    def delivery_of(actor: PartitionActor, acquired: list[AcquiredRange]) -> Delivery:
        """What goes to a member: records by reference, and what was stored with them."""
        slices = actor.cache.slices(acquired)
        records = sum(s.stop - s.start for s in slices)
        size = sum(s.chunk.size_bytes * (s.stop - s.start) // s.chunk.count for s in slices)
        if not actor.checkpoints:
            return Delivery(actor.key, slices, acquired, records, size, (), actor.replay_epoch)
        kept = actor.checkpoints.of(acquired)
        size += sum(len(data) for _, data in kept)
        return Delivery(actor.key, slices, acquired, records, size, kept, actor.replay_epoch)

    def release(self) -> None:
        """Sends, or hands back unseen what can not be sent any more."""
        channel = self.channel
        now_ms = self.actor.clock.now_ms()
        self.actor.sending.pop(self, None)
        if channel is None or channel is not self.session.channel:
            self.hand_back()
        elif not self._is_granted(now_ms):
            self.session.refund(self.delivery.records, self.delivery.size_bytes)
            self.hand_back()
        else:
            self._deliver(channel, now_ms)

    def _is_granted(self, now_ms: int) -> bool:
        """Whether it is worth sending: tokens current, half the lock left."""
        partition = self.actor.partition
        if partition is None:
            return False
        half_ms = partition.settings.lock_duration_ms // 2
        for acquired in self.delivery.ranges:
            grant = partition.window.grants.get(acquired.lock_token)
            if grant is None or grant.remaining != acquired.last - acquired.first + 1:
                return False
            if acquired.deadline_ms - now_ms < half_ms:
                return False
        return True

    def _deliver(self, channel: MemberChannel, now_ms: int) -> None:
        away = self.session.away
        if away is not None:
            key = self.actor.key
            ends_ms = now_ms + self.actor.lock_left_max_ms
            away.received(key.log_id, self.delivery.ranges, ends_ms)
        try:
            channel.deliver(self.delivery, now_ms)
            self.actor.delivered_records += self.delivery.records
        except Exception as error:
            log.exception("a delivery could not be sent", member=self.session.member_id)
            self.session.broken = True
            self.hand_back()
            channel.end(InternalError(f"a delivery could not be sent: {error!r}"))

    def abort(self, error: SharecoordError) -> None:
        """Nobody saw them; what was stored all the same goes back after the reload."""
        self.actor.sending.pop(self, None)
        if self.channel is self.session.channel:
            self.session.refund(self.delivery.records, self.delivery.size_bytes)
        self.hand_back()

    def hand_back(self) -> None:
        """Takes back unseen what never reached the member."""
        self.actor.hand_back(self.session.member_id, self.delivery.ranges)


class HandBackEffect:
    """What goes back unseen goes back again when that commit fails: nobody else remembers it."""

    __slots__ = ("actor", "member_id", "ranges")

    def __init__(
        self,
        actor: PartitionActor,
        member_id: str,
        ranges: Sequence[AcquiredRange | HeldRange],
    ) -> None:
        self.actor = actor
        self.member_id = member_id
        self.ranges = ranges

    def release(self) -> None:
        """Durable."""

    def abort(self, error: SharecoordError) -> None:
        """Once more, after the reload."""
        self.actor.hand_back(self.member_id, self.ranges)


class Collector:
    """Gathers the answers of all partitions of one request; then answers once."""

    __slots__ = ("_on_done", "_open", "_results", "_sealed")

    def __init__(self, on_done: Callable[[list[PartitionResult]], None]) -> None:
        self._on_done = on_done
        self._open = 0
        self._sealed = False
        self._results: list[PartitionResult] = []

    def expect(self) -> None:
        """One more partition will answer."""
        self._open += 1

    def add(self, result: PartitionResult) -> None:
        """A partition answered."""
        self._open -= 1
        self._results.append(result)
        self._finish()

    def refuse(self, key: PartitionKey, error: SharecoordError) -> None:
        """A partition answers that nothing of what was asked was done."""
        self.expect()
        self.add(PartitionResult(key, error=error))

    def seal(self) -> None:
        """No more partitions are asked."""
        self._sealed = True
        self._finish()

    def _finish(self) -> None:
        if self._sealed and not self._open:
            self._on_done(self._results)


class AcknowledgeEffect:
    """The answer for one partition."""

    __slots__ = (
        "actor",
        "collector",
        "exceptions",
        "lock_remaining_ms",
        "ranges",
        "session",
        "settled",
    )

    def __init__(
        self,
        collector: Collector,
        actor: PartitionActor,
        session: Session,
        ranges: Sequence[AcknowledgedRange],
        exceptions: list[RangeOutcome],
        *,
        lock_remaining_ms: int,
        settled: int,
    ) -> None:
        collector.expect()
        self.collector = collector
        self.actor = actor
        self.session = session
        self.ranges = ranges
        self.exceptions = exceptions
        self.lock_remaining_ms = lock_remaining_ms
        self.settled = settled

    def release(self) -> None:
        """Everything is durable."""
        self.actor.settled_records += self.settled
        key, left_ms = self.actor.key, self.lock_remaining_ms
        away = self.session.away
        if away is not None:
            ends_ms = self.actor.clock.now_ms() + self.actor.lock_left_max_ms
            away.settled(key.log_id, self.ranges, self.exceptions, renewed_until_ms=ends_ms)
        self.collector.add(PartitionResult(key, self.exceptions, None, left_ms))

    def abort(self, error: SharecoordError) -> None:
        """Nobody knows, or nothing happened: the member asks again with the same tokens."""
        self.collector.add(PartitionResult(self.actor.key, error=error))


class CallbackEffect:
    """Calls back after the commit; with an error when it failed."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[SharecoordError | None], None]) -> None:
        self._callback = callback

    def release(self) -> None:
        """Durable."""
        self._callback(None)

    def abort(self, error: SharecoordError) -> None:
        """Failed."""
        self._callback(error)
