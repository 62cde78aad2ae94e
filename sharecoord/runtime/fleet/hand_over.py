"""Share-partitions of a group that move between the coordinators of a fleet (design 9).

The former owner stops acquiring, lets everything that it decided become durable and go out, and
gives the row free. Locks move with it. The next owner claims it, and compares the lock books of all
members before it delivers.
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
"""Share-partitions that wait for one commit and one release: some ten milliseconds."""


async def follow(fleet: Fleet, group: GroupActor) -> None:
    """Coordinators came or went: gives away what is another's, takes what is this one's."""
    for topic in list(group.topic_ids):
        fleet.place_topic(group, topic)
        group.opener.open(topic)
    for session in group.sessions.values():
        if not session.is_lent:
            fleet.gateway.introduce_anew(group, session)
            # Whose turn it is changes each time: nobody waits for one that cannot serve.
            group.offer(session)
    await hand_over(fleet, group)


async def hand_over(fleet: Fleet, group: GroupActor) -> None:
    """Gives share-partitions to their next owners; what is being loaded follows at the next look.

    A few at a time: each pauses only as long as its own few take.
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
            # Nobody serves it, and its row is free already.
            group.forget_place(place, "another coordinator has it")
    if not leaving:
        return
    await group.context.committed()
    # What that commit let go and could not be sent has gone back unseen: nobody else knows of it.
    await group.context.committed()
    given: list[PartitionKey] = []
    for place, actor in leaving.items():
        # Else its last commit failed: it is loaded anew, and goes later.
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
    """Makes free in the store what was given up; what fails is tried again at each look."""
    releases, fleet.unreleased = fleet.unreleased, []
    if not releases:
        return
    try:
        await context.caller.call(context.store.release_partitions, releases)
    except SharecoordError as error:
        fleet.unreleased += releases
        log.warning("share-partitions not released", count=len(releases), why=error.message)


async def release_former(context: Context, group_ids: Iterable[str]) -> None:
    """Gives free what a former process of this name owned, now that its lease lives again.

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
