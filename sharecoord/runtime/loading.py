"""Claims share-partitions and brings them to life: rows, start offsets, lock grace, reading.

A reload after a failed commit is the same, as a claim that shows the former incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

import structlog

from sharecoord.config.group import GroupConfig, IsolationLevel
from sharecoord.core.changes import (
    LoadedPartition,
    MemberRow,
    PartitionClaim,
    PartitionHead,
    PartitionKey,
    PartitionRelease,
    PartitionStart,
)
from sharecoord.core.lending import HERE
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.share_partition import SharePartition
from sharecoord.core.start_offset import resolve_start
from sharecoord.core.states import Ordering
from sharecoord.errors import (
    MemberFencedError,
    NotOwnerError,
    SharecoordError,
    StoreFatalError,
)
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, TopicInfo
from sharecoord.runtime import log_changes, parking
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.bounded import Bound, BoundedSink
from sharecoord.runtime.context import Context
from sharecoord.runtime.partition_actor import PartitionActor
from sharecoord.runtime.passing_over import PassedOver, PassingOver, forget_beyond
from sharecoord.runtime.recovery import ranges_of
from sharecoord.runtime.sessions import Session
from sharecoord.runtime.topic_life import GuardedReading, TopicLife

log = structlog.get_logger(__name__)

RETRY_DELAY_S = 0.1
"""First wait after a failed attempt; doubles."""

RETRY_DELAY_MAX_S = 2.0


class LoadingGroup(Protocol):
    """What loading needs of a group."""

    config: GroupConfig
    settings: PartitionSettings
    sessions: dict[str, Session]

    def remember(self, member: MemberRow) -> None:
        """A member that is known from the store alone."""

    def fenced(self, session: Session, error: SharecoordError) -> None:
        """The member has a newer stream elsewhere."""

    def forget_place(self, place: tuple[str, int], why: str) -> None:
        """Takes a share-partition out of the group."""

    def activated(self, actor: PartitionActor) -> None:
        """A share-partition is served from now on."""

    def topic_found(self, topic: str, info: TopicInfo) -> None:
        """Opens what is new of a topic: another id is another life of it."""


def start_loading(context: Context, group: LoadingGroup, actor: PartitionActor) -> None:
    """Loads in a task of its own, which ends with the actor; a claim shows what it was before."""
    work = load(context, group, actor, previous_incarnation=actor.incarnation or None)
    actor.loader = context.spawn(work, f"load-{actor.key.name}-{actor.key.partition}")


async def load(
    context: Context,
    group: LoadingGroup,
    actor: PartitionActor,
    *,
    previous_incarnation: int | None = None,
) -> None:
    """Loads until it succeeds, or until another coordinator turns out to own the partition."""
    delay_s = RETRY_DELAY_S
    # One number for all attempts: a claim whose outcome is not known is made again, not fenced.
    incarnation = context.new_incarnation()
    while True:
        try:
            await _load_once(
                context,
                group,
                actor,
                incarnation=incarnation,
                previous_incarnation=previous_incarnation,
            )
        except NotOwnerError as error:
            if not _comes_here(context, actor):
                log.warning("stood down", partition=actor.key, why=error.message)
                actor.deactivate(ActorState.CLOSED, error.message)
                group.forget_place(actor.key.place, error.message)
                return
            # Its former owner serves it until it has given it free, or its lease has ended. Alone,
            # it was a late word of this coordinator's own former process.
            incarnation, previous_incarnation = context.new_incarnation(), None
        except StoreFatalError:
            raise
        except SharecoordError as error:
            log.warning("loading failed", partition=actor.key, why=error.message)
        except Exception:
            log.exception("loading failed", partition=actor.key)
        else:
            return
        actor.freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await actor.freed.wait()
        delay_s = min(delay_s * 2, RETRY_DELAY_MAX_S)


def _comes_here(context: Context, actor: PartitionActor) -> bool:
    """Whether a share-partition that another coordinator owns should be this one's.

    All should be a lone coordinator's; one whose place another has taken ends with its lease.
    """
    return context.fleet is None or context.fleet.owner_of(actor.key) == HERE


async def _load_once(
    context: Context,
    group: LoadingGroup,
    actor: PartitionActor,
    *,
    incarnation: int,
    previous_incarnation: int | None,
) -> None:
    claim = PartitionClaim(
        actor.partition_id,
        incarnation,
        previous_incarnation,
        parking.delayed_max(context, group.settings),
    )
    asked_ms = context.clock.now_ms()
    loaded = await context.claims.ask(claim)
    if loaded is None:
        raise NotOwnerError("another coordinator claimed the share-partition")
    context.clock.measured(loaded.store_now_ms, asked_ms=asked_ms)
    if context.lanes is not None and group.settings.ordering is Ordering.KEY:
        # Whoever had a lane before this claim may have keys out.
        await context.lanes.ask(None)
    if loaded.row.stopped_reason:
        actor.deactivate(ActorState.STOPPED, loaded.row.stopped_reason)
        if context.fleet is not None:
            # Nobody serves it: whoever should when it goes on must not wait for this coordinator.
            release = PartitionRelease(actor.partition_id, loaded.row.owner_epoch)
            await context.caller.call(context.store.release_partitions, [release])
        return
    log_start, log_end = await _log_bounds(context, group, actor.key)
    truncated_at = await log_changes.judge_log_end(context, actor, loaded.row, log_end)
    head = loaded.row.head
    if head is None:
        start = log_start
        if not loaded.row.starts_at_zero:
            at_time = await _offset_for_time(context, group, actor.key)
            start = resolve_start(group.config.auto_offset_reset, log_start, log_end, at_time)
        head = PartitionHead(start, start, -1, 0, 0)
        begin = PartitionStart(actor.partition_id, loaded.row.owner_epoch, head)
        if not await context.starts.ask(begin):
            raise NotOwnerError("another coordinator initialised the share-partition")
    if context.fleet is not None:
        await _meet_holders(context, group, loaded)
    _activate(context, group, actor, loaded, head, incarnation)
    actor.log_end_offset = actor.bound.cap(log_end)
    if truncated_at is not None:
        actor.truncate(truncated_at)
    actor.log_start_moved(log_start)
    forget_beyond(context, actor, log_end)
    assert actor.partition is not None, "activated above"
    # What the log has lost meanwhile is nobody's work.
    actor.letters.done_at_load = actor.partition.window.done
    group.activated(actor)


async def _meet_holders(context: Context, group: LoadingGroup, loaded: LoadedPartition) -> None:
    """Who holds something and is not known here joined at another coordinator (design 9).

    Whose stream here is not its newest either: nobody must go by the lock book of the old one.
    """
    holders = loaded.in_flight.members
    for member in await context.members.ask(None) if holders else ():
        if member.member_id not in holders or member.group_id != loaded.row.key.group_id:
            continue
        known = group.sessions.get(member.member_id)
        if known is not None and known.member_epoch < member.member_epoch:
            group.fenced(known, MemberFencedError("a newer stream of this member id joined"))
            known.cancel_timers()
            group.remember(member)
        elif known is None:
            group.remember(member)


def _activate(
    context: Context,
    group: LoadingGroup,
    actor: PartitionActor,
    loaded: LoadedPartition,
    head: PartitionHead,
    incarnation: int,
) -> None:
    parking.check_parked(loaded, group.settings)
    partition = SharePartition(head, owner_epoch=loaded.row.owner_epoch, settings=group.settings)
    partition.load(
        *ranges_of(loaded.in_flight, context.clock, lock_grace_ms=context.lock_grace_ms),
        loaded.parked.offsets,
        parking.parked_from_ms(context, loaded),
    )
    actor.parking.begin(loaded)
    actor.letters.begin(loaded, group.settings)
    actor.checkpoints.begin(loaded)
    partition.kept = actor.kept.begin(loaded)
    row = loaded.row
    if row.stops_at is not None or row.rate_limit:
        actor.bound = Bound(row.stops_at, row.rate_limit, now_ms=context.clock.now_ms())
    actor.state_epoch, actor.replay_epoch = loaded.row.state_epoch, loaded.row.replay_epoch
    actor.activate(partition, incarnation=incarnation)
    actor.life = TopicLife(context, group, actor)
    actor.passed_over = PassedOver(loaded.row.passed_over)
    log.info(
        "share-partition loaded",
        group=actor.key.group_id,
        topic=actor.key.name,
        partition=actor.key.partition,
        start=partition.window.start_offset,
        end=partition.window.end_offset,
        acquired=partition.window.acquired,
        due=partition.window.due,
        owner_epoch=partition.owner_epoch,
    )


def start_reading(context: Context, group: LoadingGroup, actor: PartitionActor) -> None:
    """Reads from the window's end on, unless nothing is to be read there."""
    assert actor.partition is not None, "active"
    assert actor.life is not None, "activated by this module"
    stops_at = actor.bound.stops_at
    if stops_at is not None and actor.partition.window.end_offset >= stops_at:
        return
    sink = PassingOver(context, actor) if actor.passed_over.ranges else actor
    bounded = None if stops_at is None else BoundedSink(sink, stops_at)
    guarded = GuardedReading(actor.life, bounded or sink)
    reading = context.reader.read(
        actor.key.topic,
        actor.key.partition,
        actor.partition.window.end_offset,
        committed=group.config.isolation_level is IsolationLevel.READ_COMMITTED,
        sink=guarded,
    )
    actor.reading = guarded.over(reading)
    if bounded is not None:
        bounded.over(actor.reading)


async def _log_bounds(context: Context, group: LoadingGroup, key: PartitionKey) -> tuple[int, int]:
    """Log start and log end (last stable offset under read_committed)."""
    committed = group.config.isolation_level is IsolationLevel.READ_COMMITTED
    first, last = await asyncio.gather(
        context.offset(OffsetQuery(key.topic, key.partition, EARLIEST), committed=committed),
        context.offset(OffsetQuery(key.topic, key.partition, LATEST), committed=committed),
    )
    return first, last


async def _offset_for_time(context: Context, group: LoadingGroup, key: PartitionKey) -> int | None:
    """For `by_duration` the first offset of that time; else None."""
    reset = group.config.auto_offset_reset
    if reset.duration_ms is None:
        return None
    now_ms = context.clock.to_store(context.clock.now_ms())
    query = OffsetQuery(key.topic, key.partition, max(0, now_ms - reset.duration_ms))
    return await context.offset(query)
