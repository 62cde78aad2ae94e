"""Share-partitions of a group that move between the coordinators of a fleet (design 9).

The former owner stops acquiring, lets everything that it decided become durable and go out, and
gives the row free. Locks move with it. The next owner claims it, and compares the lock books of all
members before it delivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from sharecoord.core.changes import PartitionKey, PartitionRelease
from sharecoord.core.decisions import HeldRange
from sharecoord.core.lending import HERE
from sharecoord.core.peering import Freed
from sharecoord.errors import SharecoordError
from sharecoord.runtime import lock_books
from sharecoord.runtime.partition_actor import ActorState, PartitionActor

if TYPE_CHECKING:
    from sharecoord.runtime.fleet import Fleet
    from sharecoord.runtime.group_actor import GroupActor
    from sharecoord.runtime.sessions import Session

log = structlog.get_logger(__name__)


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
    group.owners[topic] = frozenset(owners)


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
    for place, actor in list(group.partitions.items()):
        if place in group.elsewhere:
            await hand_over(fleet, group, actor)


async def hand_over(fleet: Fleet, group: GroupActor, actor: PartitionActor) -> None:
    """Gives a share-partition to its next owner; without effect when that fails: tried again."""
    place = actor.key.topic, actor.key.partition
    if actor.state is not ActorState.ACTIVE:
        return
    actor.leave()
    committer = group.context.committer
    await committer.flush()
    partition = actor.partition
    if partition is None or group.partitions.get(place) is not actor:
        return
    group.forget_place(place, "another coordinator serves it")
    try:
        await group.context.caller.call(
            group.context.store.release_partitions,
            [PartitionRelease(actor.partition_id, partition.owner_epoch)],
        )
    except SharecoordError as error:
        # Its next owner waits until our lease ends, or until we are asked again.
        log.warning("share-partition not released", partition=actor.key, why=error.message)
    owner = group.elsewhere.get(place)
    if owner is not None:
        fleet.gateway.say(owner, Freed(actor.key))
    log.info("share-partition handed over", partition=actor.key, to=owner)


def compare_all(fleet: Fleet | None, group: GroupActor, actor: PartitionActor) -> None:
    """A share-partition is served from now on: what do its members hold?"""
    place = actor.key.topic, actor.key.partition
    for session in group.sessions.values():
        if session.comparing or session.is_lent:
            continue
        if fleet is not None and session.channel is None:
            # It may have joined elsewhere meanwhile; if it comes back, it shows its book.
            continue
        away = session.away
        if away is not None and session.book is not None and place in away.books:
            session.book[place] = away.books[place].held()
        lock_books.compare_place(session, place, actor)
    if fleet is not None and actor.partition is not None:
        for link in fleet.gateway_links.values():
            link.ask_books(actor.key, actor.partition.owner_epoch)


def compare_book(
    group: GroupActor,
    session: Session,
    key: PartitionKey,
    owner_epoch: int,
    held: Sequence[HeldRange],
) -> None:
    """A gateway said what a member holds of a share-partition that was claimed here."""
    place = key.topic, key.partition
    actor = group.partitions.get(place)
    if group.sessions.get(session.member_id) is not session or place in session.compared:
        return
    if actor is None or actor.partition is None:
        return
    if actor.partition.owner_epoch == owner_epoch and actor.key == key:
        session.compared.add(place)
        actor.compare_lock_book(session.member_id, held)
        group.dispatcher.offer(session)
