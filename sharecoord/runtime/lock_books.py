"""What members hold, compared with what they are known to hold (design 5, Identity).

Until that is done for a share-partition, a member receives nothing from it: locks that are missing
from its book are handed back unseen, those in it go on under the same token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from sharecoord.core.changes import LANE_MARK, LogId, key_of
from sharecoord.core.decisions import HeldRange
from sharecoord.core.delivery import LostRange
from sharecoord.core.held_book import LockBook, held_of, log_ids_of
from sharecoord.core.settings import PartitionSettings
from sharecoord.errors import MemberFencedError
from sharecoord.runtime.context import Context
from sharecoord.runtime.partition_actor import PartitionActor
from sharecoord.runtime.recovery import lock_left_max_ms
from sharecoord.runtime.sessions import Session

LOAD_WAIT_S = 5.0
"""A join waits so long for the partitions of its lock book to be loaded."""

Place = tuple[str, int]


class ComparedGroup(Protocol):
    """What a comparison needs of a group."""

    group_id: str
    context: Context
    settings: PartitionSettings
    elsewhere: dict[Place, str]
    sessions: dict[str, Session]
    partitions: dict[Place, PartitionActor]
    topic_ids: dict[str, str]

    def is_open(self, topic: str) -> bool:
        """Whether all share-partitions of a topic are known."""

    def opening(self, topics: set[str]) -> list[asyncio.Task[None]]:
        """What opens these topics."""


async def compare_joined(
    group: ComparedGroup,
    session: Session,
    lock_book: LockBook,
) -> list[LostRange]:
    """Compares the lock book of a join, partition by partition; returns what the member lost.

    A partition that is not served yet is compared as soon as it is (`GroupActor.activated`).

    Args:
        group: The member's.
        session: Its new session.
        lock_book: What it shows.

    Raises:
        MemberFencedError: A newer stream of the member joined meanwhile.
    """
    book = {log_id: list(ranges) for log_id, ranges in lock_book.items()}
    lost = _of_ended_logs(group, book) if group.context.fleet is None else []
    session.book = book
    if session.away is not None:
        ends_ms = group.context.clock.now_ms() + lock_left_max_ms(group.settings)
        for log_id, ranges in book.items():
            for held in ranges:
                session.away.book(log_id).put(held.first, held.last, held.lock_token, ends_ms)
    # What is to be served elsewhere may still be here.
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


def _of_ended_logs(group: ComparedGroup, book: dict[LogId, list[HeldRange]]) -> list[LostRange]:
    """Takes out of a lock book what belongs to logs that are no more.

    A coordinator of a fleet cannot tell them from those that only others have heard of: what it
    does not know stays in the book, and is passed on.
    """
    lost: list[LostRange] = []
    for log_id in list(book):
        topic, topic_id, _ = log_id
        known = group.topic_ids.get(topic)
        # All lanes that are open are known: another one's locks are gone.
        if LANE_MARK in topic if known is None else topic_id not in ("", known):
            lost += _lost(group, log_id, book.pop(log_id))
    return lost


def _lost(group: ComparedGroup, log_id: LogId, ranges: Sequence[HeldRange]) -> list[LostRange]:
    topic, topic_id, partition = log_id
    key = key_of(group.group_id, topic, topic_id or group.topic_ids.get(topic, ""), partition)
    return [LostRange(key, held) for held in ranges]


async def _until_loaded(group: ComparedGroup, places: Sequence[Place]) -> None:
    """Waits until it is known what becomes of share-partitions."""
    if opening := group.opening({topic for topic, _ in places}):
        await asyncio.wait(opening)
    actors = [group.partitions[place] for place in places if place in group.partitions]
    if loaders := [actor.loader for actor in actors if actor.loader]:
        await asyncio.wait(loaders)


def compare_places(group: ComparedGroup, session: Session) -> list[LostRange]:
    """Compares a member's book with what is served by now and was not compared."""
    found = [compare_place(session, place, actor) for place, actor in group.partitions.items()]
    return [lost for each in found for lost in each]


async def stored(
    group: ComparedGroup, session: Session, lost: Sequence[LostRange]
) -> list[LostRange]:
    """Of what was found lost here, what the store has so by now.

    A member forgets what it hears. Where the store had it still, because the commit failed, the
    member's next book would hand it back as never received.

    Raises:
        MemberFencedError: A newer stream of the member joined meanwhile.
    """
    found = {entry.key.place for entry in lost}
    actors = [actor for place, actor in group.partitions.items() if place in found]
    errors = await asyncio.gather(*map(group.context.committed, actors))
    check_current(group, session)
    unstored = {actor.key for actor, error in zip(actors, errors, strict=True) if error is not None}
    return [entry for entry in lost if entry.key not in unstored]


def check_current(group: ComparedGroup, session: Session) -> None:
    """Whether the stream that joins is still the member's newest.

    Raises:
        MemberFencedError: It is not.
    """
    if group.sessions.get(session.member_id) is not session:
        raise MemberFencedError("a newer stream of this member id joined")


def compare_place(session: Session, place: Place, actor: PartitionActor) -> list[LostRange]:
    """Compares a member's book for one partition, once per join; returns what it lost."""
    if session.book is None or place in session.compared or actor.partition is None:
        return []
    epochs = session.book_epochs
    if epochs is not None and epochs.get(actor.key.log_id) != actor.partition.owner_epoch:
        return []
    session.compared.add(place)
    held = held_of(session.book, actor.key)
    for log_id in log_ids_of(actor.key):
        session.book.pop(log_id, None)
    if session.away is not None:
        # The gateway's own book goes on: the place may have been another owner's at the join.
        held = session.away.held_of(actor.key)
    gone = actor.compare_lock_book(session.member_id, held)
    return [LostRange(actor.key, held) for held in gone]
