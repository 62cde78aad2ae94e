"""Share-partitions of a group that move between the coordinators of a fleet (design 9).

The former owner stops acquiring, commits and sends everything that it decided, and gives the row
free. Locks move along. The next owner claims the share-partition, and compares the lock books of
all members before it delivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from sharecoord.core.changes import PartitionKey, PartitionRelease, Place
from sharecoord.core.fleet.lending import HERE
from sharecoord.core.fleet.peering import Freed
from sharecoord.errors import SharecoordError
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState

log = structlog.get_logger(__name__)

MOVED_TOGETHER_MAX = 50
"""Share-partitions of one commit and one release, which take some ten milliseconds."""


async def follow(fleet: Fleet, group: GroupActor) -> None:
    """After coordinators came or went: gives share-partitions away, and takes its own."""
    for topic in list(group.topic_ids):
        fleet.place_topic(group, topic)
        group.opener.open(topic)
    for session in group.sessions.values():
        if not session.is_lent:
            fleet.gateway.introduce_anew(group, session)
            # The parts of credit turn: no member waits for an owner that cannot serve.
            group.offer(session)
    await hand_over(fleet, group)


async def hand_over(fleet: Fleet, group: GroupActor) -> None:
    """Gives share-partitions to their next owners; those being loaded follow at the next look.

    A few at a time, so that each pauses only as long as a few take.
    """
    moving = [place for place in group.partitions if place in group.elsewhere]
    for first in range(0, len(moving), MOVED_TOGETHER_MAX):
        await _hand_over(fleet, group, moving[first : first + MOVED_TOGETHER_MAX])


async def _hand_over(fleet: Fleet, group: GroupActor, places: Sequence[Place]) -> None:
    leaving: dict[Place, PartitionActor] = {}
    for place in places:
        actor = group.partitions.get(place)
        if actor is None or place not in group.elsewhere:
            continue
        if actor.state is ActorState.ACTIVE:
            actor.leave()
            group.shared_order.look_at(actor.key.home)
            leaving[place] = actor
        elif actor.state is ActorState.STOPPED:
            # No coordinator serves it, and its row is free already.
            group.forget_place(place, "another coordinator has it")
    if not leaving:
        return
    await group.context.committed()
    # Deliveries of that commit that could not be sent went back unseen: these changes are stored.
    await group.context.committed()
    given: list[PartitionKey] = []
    for place, actor in leaving.items():
        # Else its last commit failed: it is loaded anew, and moves later.
        if actor.partition is not None and group.partitions.get(place) is actor:
            fleet.unreleased.append(
                PartitionRelease(actor.partition_id, actor.partition.owner_epoch)
            )
            given.append(actor.key)
            group.forget_place(place, "another coordinator serves it")
    await release(fleet, group.context)
    for key in given:
        owner = group.elsewhere.get(key.place, HERE)
        fleet.gateway.say(owner, Freed(key))
        log.info("share-partition handed over", partition=key, to=owner)


async def release(fleet: Fleet, context: Context) -> None:
    """Releases given-up share-partitions in the store; each look tries failed ones again."""
    releases, fleet.unreleased = fleet.unreleased, []
    if not releases:
        return
    try:
        await context.caller.call(context.store.release_partitions, releases)
    except SharecoordError as error:
        fleet.unreleased += releases
        log.warning("share-partitions not released", count=len(releases), why=error.message)


async def release_former(context: Context, group_ids: Iterable[str]) -> None:
    """Releases what a former process of this name owned, now that the lease lives again.

    Raises:
        SharecoordError: The store does not answer.
    """
    for group_id in group_ids:
        rows = await context.caller.call(context.store.list_partitions, group_id)
        mine = [
            PartitionRelease(row.partition_id, row.owner_epoch)
            for row in rows
            if row.owner == context.coordinator_id
        ]
        for first in range(0, len(mine), MOVED_TOGETHER_MAX):
            releases = mine[first : first + MOVED_TOGETHER_MAX]
            await context.caller.call(context.store.release_partitions, releases)
