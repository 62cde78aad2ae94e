"""State that changed in the store without this coordinator's actors: elsewhere, or by an operator.

A share-partition that commits finds out by itself, because the epochs of its row have moved on. One
with nothing to commit is told here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import structlog

from sharecoord.core.changes import PartitionKey
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.group import loading
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.groups import Groups
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState

log = structlog.get_logger(__name__)

LOADED_POLL_S = 0.05
"""Interval of looks at a share-partition that was loading when its row changed."""


def see_rows(group: GroupActor | None, keys: Iterable[PartitionKey]) -> None:
    """Makes the live actors of share-partitions see their rows; None = the group is not live."""
    if group is None:
        return
    for key in keys:
        actor = group.actor_of(key)
        if actor is not None:
            see_row(group, actor)


def see_row(group: GroupActor, actor: PartitionActor) -> None:
    """Makes a live share-partition load its row, or commit so that it is fenced."""
    context = group.context
    if actor.state is ActorState.LOADING:
        context.tasks.spawn(_fence_when_loaded(context, actor), "see-row")
    elif actor.state is ActorState.ACTIVE:
        context.committer.add(actor)
    else:
        actor.deactivate(ActorState.LOADING)
        loading.start_loading(group, actor)


async def _fence_when_loaded(context: Context, actor: PartitionActor) -> None:
    """Fences a load that began before the change, and so ends with the state before."""
    while actor.state is ActorState.LOADING:  # noqa: ASYNC110 - an actor has no such event
        await asyncio.sleep(LOADED_POLL_S)
    context.committer.add(actor)


async def see_changes(
    context: Context, groups: Groups, fleet: Fleet, group_epochs: Mapping[str, int]
) -> None:
    """Follows settings, resets and deletions made elsewhere, by the epochs of all stored groups.

    Raises:
        SharecoordError: The store does not answer.
    """
    has_changed = False
    for group in list(groups.values()):
        stored = group_epochs.get(group.group_id)
        if stored is None:
            await _see_deleted(context, groups, group)
        elif stored > group.seen_epoch:
            await _see_group(context, groups, fleet, group, stored)
            has_changed = True
    if has_changed:
        # A redrive may be what has changed.
        await context.lanes.ask(None)


async def _see_deleted(context: Context, groups: Groups, group: GroupActor) -> None:
    async with groups.making(group.group_id):
        if await context.calls.group(group.group_id) is not None:
            # The group was made after the look.
            return
        if groups.get(group.group_id) is group:
            groups.remove(group)
            log.info("group was deleted elsewhere", group=group.group_id)


async def _see_group(
    context: Context, groups: Groups, fleet: Fleet, group: GroupActor, epoch: int
) -> None:
    served = list(group.partitions.items())
    compared = fleet.gateway.compared_of(group.group_id)
    listed = await context.caller.call(context.store.list_partitions, group.group_id)
    rows = {row.partition_id: row for row in listed}
    present = {row.key for row in listed if not row.closed}
    fleet.gateway.forget_compared({k: e for k, e in compared.items() if k not in present})
    # Without share-partitions that came or went meanwhile.
    served = [(place, actor) for place, actor in served if group.partitions.get(place) is actor]
    deleted = {topic for (topic, _), actor in served if actor.partition_id not in rows}
    if deleted:
        for (topic, _), actor in served:
            if topic in deleted:
                actor.notices.deleted()
        group.forget(deleted, "its offsets were deleted")
        for session in list(group.sessions.values()):
            if not session.topics.isdisjoint(deleted):
                groups.subscription_changed(group, session)
    for (topic, _), actor in served:
        if topic not in deleted and rows[actor.partition_id].state_epoch != actor.state_epoch:
            see_row(group, actor)
    row = await context.calls.group(group.group_id)
    if row is not None and row.group_epoch > group.group_epoch and not group.closed:
        group.apply_config(row)
        log.info("group was changed elsewhere", group=group.group_id, epoch=row.group_epoch)
    # Last: an error before leaves the group to the next look. `group_epoch` can not tell, for a
    # change made here moves it on past deletions elsewhere that were not followed.
    group.seen_epoch = epoch
