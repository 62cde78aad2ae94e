"""Share-partitions of a group that move between the coordinators of a fleet (design 9).

The former owner stops acquiring, lets everything that it decided become durable and go out, and
gives the row free. Locks move with it. The next owner claims it, and compares the lock books of all
members before it delivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from sharecoord.core.changes import PartitionKey, PartitionRelease, served_by
from sharecoord.core.decisions import HeldRange
from sharecoord.core.lending import HERE
from sharecoord.core.peering import Freed
from sharecoord.errors import SharecoordError
from sharecoord.runtime import lock_books
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.partition_actor import PartitionActor

if TYPE_CHECKING:
    from sharecoord.runtime.context import Context
    from sharecoord.runtime.fleet import Fleet
    from sharecoord.runtime.group_actor import GroupActor
    from sharecoord.runtime.sessions import Session

log = structlog.get_logger(__name__)

MOVED_TOGETHER_MAX = 50
"""Share-partitions that wait for one commit and one release: some ten milliseconds."""

Place = tuple[str, int]


def place_topic(fleet: Fleet, group: GroupActor, topic: str) -> None:
    """Notes who should own the share-partitions of a topic."""
    owners: set[str] = set()
    for key in group.keys_of(topic):
        owner = fleet.owner_of(key)
        owners.add(owner)
        if owner == HERE:
            group.elsewhere.pop((topic, key.partition), None)
        else:
            group.elsewhere[topic, key.partition] = owner
    group.owners_by_name[topic] = frozenset(owners)
    served = served_by(topic)
    others = (o for name, o in group.owners_by_name.items() if served_by(name) == served)
    group.owners[served] = frozenset().union(*others)


async def follow(fleet: Fleet, group: GroupActor) -> None:
    """Coordinators came or went: gives away what is another's, takes what is this one's."""
    for topic in list(group.topic_ids):
        place_topic(fleet, group, topic)
        group.open_again(topic)
    for session in group.sessions.values():
        if not session.is_lent:
            fleet.gateway.introduce_anew(group, session)
            # Whose turn it is changes each time: nobody waits for one that cannot serve.
            group.dispatcher.offer(session)
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


def compare_all(fleet: Fleet | None, group: GroupActor, actor: PartitionActor) -> None:
    """A share-partition is served from now on: what do its members hold?"""
    place = actor.key.place
    for session in group.sessions.values():
        if session.comparing or session.is_lent:
            continue
        if fleet is not None and session.channel is None:
            # It may have joined elsewhere meanwhile; if it comes back, it shows its book.
            continue
        lock_books.compare_place(session, place, actor)
    if fleet is not None and actor.partition is not None:
        fleet.gateway.compares(actor.key, actor.partition.owner_epoch)
        for link in fleet.gateway_links.values():
            link.ask_books(actor)


def compare_anew(group: GroupActor, actor: PartitionActor) -> None:
    """A commit failed, or another owner came first: what gateways handed back may not be stored.

    Their books show it as soon as the share-partition is loaded again; this coordinator's own, too.
    """
    for session in group.sessions.values():
        if session.is_lent or session.away is not None:
            session.compared.discard(actor.key.place)


def compare_book(
    group: GroupActor,
    session: Session,
    key: PartitionKey,
    owner_epoch: int,
    held: Sequence[HeldRange],
) -> None:
    """A gateway said what a member holds of a share-partition that was claimed here."""
    place = key.place
    actor = group.partitions.get(place)
    if group.sessions.get(session.member_id) is not session or place in session.compared:
        return
    if actor is None or actor.partition is None:
        return
    if actor.partition.owner_epoch == owner_epoch and actor.key == key:
        session.compared.add(place)
        actor.compare_lock_book(session.member_id, held, is_shown_again=True)
        group.dispatcher.offer(session)
