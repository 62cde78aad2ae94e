"""Claims share-partitions and brings them to life: rows, start offsets, lock grace, reading.

A reload after a failed commit is such a claim, too; it shows the former incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from sharecoord.core.changes import (
    LoadedPartition,
    PartitionClaim,
    PartitionHead,
    PartitionKey,
    PartitionRelease,
    PartitionStart,
)
from sharecoord.core.fleet.lending import HERE
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.partition.start_offset import resolve_start
from sharecoord.core.states import Ordering
from sharecoord.errors import (
    NotOwnerError,
    SharecoordError,
    StoreFatalError,
)
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery
from sharecoord.runtime.group import log_changes
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.group.settings import reads_committed
from sharecoord.runtime.member.session import newer_stream
from sharecoord.runtime.partition import parking
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.runtime.partition.recovery import ranges_of

log = structlog.get_logger(__name__)

RETRY_DELAY_S = 0.1
"""First wait after a failed attempt; doubles."""

RETRY_DELAY_MAX_S = 2.0


def start_loading(
    group: Group, actor: PartitionActor, dropped: SharecoordError | None = None
) -> None:
    """Loads in a task of its own, which ends with the actor.

    `dropped` is the error that ended the last incarnation; when the store refused its changes, the
    load waits.
    """
    wait_s = 0.0
    if dropped is not None:
        wait_s = actor.load.wait_s(dropped, asyncio.get_running_loop().time())
    if wait_s and dropped is not None:
        actor.stopped_reason = f"the store refuses its changes; again in {wait_s:g} s: {dropped}"
    previous = actor.incarnation or None
    work, name = (
        _load(group, actor, previous, wait_s),
        f"load-{actor.key.name}-{actor.key.partition}",
    )
    actor.load.task = group.context.tasks.spawn(work, name)


async def _load(
    group: Group, actor: PartitionActor, previous_incarnation: int | None, wait_s: float
) -> None:
    """Loads until it succeeds, or until another coordinator turns out to own the partition."""
    delay_s = RETRY_DELAY_S
    if wait_s:
        await asyncio.sleep(wait_s)
        actor.stopped_reason = ""
    # One number for all attempts: a claim of unknown outcome is repeated, not fenced.
    new_incarnation = group.context.new_incarnation
    incarnation = new_incarnation()
    while True:
        try:
            await _load_once(group, actor, incarnation, previous_incarnation)
        except NotOwnerError as error:
            if group.peers.owner_of(actor.key) != HERE:
                log.warning("stood down", partition=actor.key, why=error.message)
                actor.deactivate(ActorState.CLOSED, error.message)
                group.forget_place(actor.key.place, error.message)
                return
            # The former owner serves it until it gives it free, or its lease ends. Without a fleet
            # the claim met a late call of this coordinator's own former process.
            incarnation, previous_incarnation = new_incarnation(), None
        except StoreFatalError:
            raise
        except SharecoordError as error:
            log.warning("loading failed", partition=actor.key, why=error.message)
        except Exception:
            log.exception("loading failed", partition=actor.key)
        else:
            return
        actor.load.freed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await actor.load.freed.wait()
        delay_s = min(delay_s * 2, RETRY_DELAY_MAX_S)


async def _load_once(
    group: Group, actor: PartitionActor, incarnation: int, previous_incarnation: int | None
) -> None:
    context = group.context
    claim = PartitionClaim(
        actor.partition_id,
        incarnation,
        previous_incarnation,
        parking.delayed_max(context, group.settings),
    )
    asked_ms = context.clock.now_ms()
    loaded = await context.calls.claims.ask(claim)
    if loaded is None:
        raise NotOwnerError("another coordinator claimed the share-partition")
    context.clock.measured(loaded.store_now_ms, asked_ms=asked_ms)
    if group.settings.ordering is Ordering.KEY:
        # The owner of a lane before this claim may have keys out.
        await context.lanes.ask(None)
    if loaded.row.stopped_reason:
        actor.deactivate(ActorState.STOPPED, loaded.row.stopped_reason)
        if context.in_fleet:
            # Nobody serves it: its next owner must not wait for this coordinator.
            release = PartitionRelease(actor.partition_id, loaded.row.owner_epoch)
            await context.caller.call(context.store.release_partitions, [release])
        return
    log_start, log_end = await _log_bounds(group, actor.key)
    cut = await log_changes.judge_log(
        context,
        actor,
        loaded.row,
        (log_start, log_end),
        committed=reads_committed(group.config),
    )
    head = loaded.row.head
    if head is None:
        start = log_start
        if not loaded.row.starts_at_zero:
            at_time = await _offset_for_time(group, actor.key)
            start = resolve_start(group.config.auto_offset_reset, log_start, log_end, at_time)
        head = PartitionHead(start, start, -1, 0, 0)
        begin = PartitionStart(actor.partition_id, loaded.row.owner_epoch, head)
        if not await context.calls.starts.ask(begin):
            raise NotOwnerError("another coordinator initialised the share-partition")
    if context.in_fleet:
        await _meet_holders(group, loaded)
    _activate(group, actor, loaded, head, incarnation)
    actor.log.end_offset = actor.log.bound.cap(log_end)
    if cut is not None:
        actor.log.truncated(*cut)
    actor.log.start_moved(log_start)
    actor.log.ends_at(log_end)
    assert actor.partition is not None, "activated above"
    # Records that the log has lost meanwhile were finished by no member.
    actor.books.letters.done_at_load = actor.partition.window.done
    group.activated(actor)


async def _meet_holders(group: Group, loaded: LoadedPartition) -> None:
    """Takes in the holders of records that are not known here: they joined elsewhere (design 9).

    A holder that has a newer stream elsewhere is fenced: its old lock book is out of date.
    """
    holders = loaded.in_flight.members
    for member in await group.context.calls.members.ask(None) if holders else ():
        if member.member_id not in holders or member.group_id != loaded.row.key.group_id:
            continue
        known = group.sessions.get(member.member_id)
        if known is not None and known.member_epoch < member.member_epoch:
            group.fenced(known, newer_stream())
            known.presence.cancel_timers()
            group.remember(member)
        elif known is None:
            group.remember(member)


def _activate(
    group: Group,
    actor: PartitionActor,
    loaded: LoadedPartition,
    head: PartitionHead,
    incarnation: int,
) -> None:
    context = group.context
    parking.check_parked(loaded, group.settings)
    partition = SharePartition(head, owner_epoch=loaded.row.owner_epoch, settings=group.settings)
    partition.load(
        *ranges_of(loaded.in_flight, context.clock, lock_grace_ms=context.limits.lock_grace_ms),
        loaded.parked.offsets,
        parking.parked_from_ms(context, loaded),
    )
    actor.reads_committed = reads_committed(group.config)
    actor.activate(partition, loaded, incarnation=incarnation)
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


async def _log_bounds(group: Group, key: PartitionKey) -> tuple[int, int]:
    """Log start and log end; the last stable offset under read_committed."""
    offset, committed = group.context.calls.offset, reads_committed(group.config)
    first, last = await asyncio.gather(
        offset(OffsetQuery(key.topic, key.partition, EARLIEST), committed=committed),
        offset(OffsetQuery(key.topic, key.partition, LATEST), committed=committed),
    )
    return first, last


async def _offset_for_time(group: Group, key: PartitionKey) -> int | None:
    """The first offset of the time of `by_duration`; None with another policy."""
    reset = group.config.auto_offset_reset
    if reset.duration_ms is None:
        return None
    now_ms = group.context.clock.store_now_ms()
    query = OffsetQuery(key.topic, key.partition, max(0, now_ms - reset.duration_ms))
    return await group.context.calls.offset(query)
