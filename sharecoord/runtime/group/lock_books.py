"""Compares the lock books of members with the locks of share-partitions (design 5, Identity).

Until then a member receives nothing from a share-partition. Locks that are missing from its book
are handed back unseen, locks in the book go on under the same token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from sharecoord.core.changes import LANE_MARK, LogId, Place, key_of
from sharecoord.core.delivery import LostRange
from sharecoord.core.fleet.held_book import LockBook, held_of, log_ids_of
from sharecoord.core.partition.decisions import HeldRange
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.member.session import Session, newer_stream
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.recovery import lock_left_max_ms

LOAD_WAIT_S = 5.0
"""Longest wait of a join for the partitions of its lock book to be loaded."""


async def compare_joined(
    group: Group,
    session: Session,
    lock_book: LockBook,
) -> list[LostRange]:
    """Compares the lock book of a join, partition by partition; returns the lost entries.

    A partition that is not served yet is compared as soon as it is (`GroupActor.activated`).

    Raises:
        MemberFencedError: A newer stream of the member joined meanwhile.
    """
    book = {log_id: list(ranges) for log_id, ranges in lock_book.items()}
    lost = _of_ended_logs(group, book)
    session.comparison.book = book
    if session.away is not None:
        ends_ms = group.context.clock.now_ms() + lock_left_max_ms(group.settings)
        for log_id, ranges in book.items():
            for held in ranges:
                session.away.book(log_id).put(held.first, held.last, held.lock_token, ends_ms)
    # A share-partition that is to be served elsewhere may still be here.
    places = {log_id: (log_id[0], log_id[2]) for log_id in book}
    for log_id, place in places.items():
        if place in group.elsewhere and place not in group.partitions:
            del book[log_id]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOAD_WAIT_S):
            await _until_loaded(group, [places[log_id] for log_id in book])
    check_current(group, session)
    for log_id in list(book):
        topic, topic_id, _ = log_id
        is_open = group.is_open(topic) and topic_id in ("", group.topic_ids[topic])
        if is_open and places[log_id] not in group.partitions:
            lost += _lost(group, log_id, book.pop(log_id))
    return lost + compare_places(group, session)


def _of_ended_logs(group: Group, book: dict[LogId, list[HeldRange]]) -> list[LostRange]:
    """Takes the entries of logs that have ended out of a lock book, and returns them as lost.

    A coordinator of a fleet can not tell such logs from those that only others have heard of: these
    entries stay, and are passed on. Ended lanes are known only once the store was asked for lanes.
    """
    lost: list[LostRange] = []
    if group.context.in_fleet:
        return lost
    for log_id in list(book):
        topic, topic_id, _ = log_id
        known = group.topic_ids.get(topic)
        if known is None:
            is_over = LANE_MARK in topic and group.context.lanes.all_known
        else:
            is_over = topic_id not in ("", known)
        if is_over:
            lost += _lost(group, log_id, book.pop(log_id))
    return lost


def _lost(group: Group, log_id: LogId, ranges: Sequence[HeldRange]) -> list[LostRange]:
    topic, topic_id, partition = log_id
    key = key_of(group.group_id, topic, topic_id or group.topic_ids.get(topic, ""), partition)
    return [LostRange(key, held) for held in ranges]


async def _until_loaded(group: Group, places: Sequence[Place]) -> None:
    """Waits until share-partitions are opened and loaded, or these tasks have ended."""
    if opening := group.opening({topic for topic, _ in places}):
        await asyncio.wait(opening)
    actors = [group.partitions[place] for place in places if place in group.partitions]
    if loaders := [actor.load.task for actor in actors if actor.load.task]:
        await asyncio.wait(loaders)


def compare_places(group: Group, session: Session) -> list[LostRange]:
    """Compares a member's book with all served share-partitions that were not compared."""
    found = [compare_place(session, place, actor) for place, actor in group.partitions.items()]
    return [lost for each in found for lost in each]


async def stored(group: Group, session: Session, lost: Sequence[LostRange]) -> list[LostRange]:
    """The lost entries for which the commit is durable.

    A member forgets lost entries. If the store still had such a lock, because the commit failed,
    the member's next book would hand its records back as never received.

    Raises:
        MemberFencedError: A newer stream of the member joined meanwhile.
    """
    found = {entry.key.place for entry in lost}
    actors = [actor for place, actor in group.partitions.items() if place in found]
    errors = await asyncio.gather(*map(group.context.committed, actors))
    check_current(group, session)
    unstored = {actor.key for actor, error in zip(actors, errors, strict=True) if error is not None}
    return [entry for entry in lost if entry.key not in unstored]


def check_current(group: Group, session: Session) -> None:
    """Raises MemberFencedError unless the stream that joins is still the member's newest."""
    if group.sessions.get(session.member_id) is not session:
        raise newer_stream()


def compare_place(session: Session, place: Place, actor: PartitionActor) -> list[LostRange]:
    """Compares a member's book for one partition, once per join; returns the lost entries."""
    comparison = session.comparison
    if comparison.book is None or place in comparison.done or actor.partition is None:
        return []
    epochs = comparison.epochs
    if epochs is not None and epochs.get(actor.key.log_id) != actor.partition.owner_epoch:
        return []
    comparison.done.add(place)
    held = held_of(comparison.book, actor.key)
    for log_id in log_ids_of(actor.key):
        comparison.book.pop(log_id, None)
    if session.away is not None:
        # The gateway's own book counts: the place may have been another owner's at the join.
        held = session.away.held_of(actor.key)
    gone = actor.compare_lock_book(session, held)
    return [LostRange(actor.key, held) for held in gone]


def compare_all(group: Group, actor: PartitionActor) -> None:
    """Compares the books of all members with a share-partition that is served from now on."""
    place = actor.key.place
    for session in group.sessions.values():
        if session.comparison.pending or session.is_lent:
            continue
        if group.context.in_fleet and session.channel is None:
            # The member may have joined elsewhere; if it comes back, it shows its book.
            continue
        lost = compare_place(session, place, actor)
        actor.notices.tell_lost(session.member_id, [entry.held for entry in lost])


def compare_anew(group: Group, actor: PartitionActor) -> None:
    """Compares again after a load: records that gateways handed back may not be stored.

    For a commit failed, or another owner came first. The gateways' books tell, our own included.
    """
    for session in group.sessions.values():
        if session.is_lent or session.away is not None:
            session.comparison.done.discard(actor.key.place)
