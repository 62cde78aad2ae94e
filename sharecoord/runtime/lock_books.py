"""What members hold, compared with what they are known to hold (design 5, Identity).

Until that is done for a share-partition, a member receives nothing from it: locks that are missing
from its book are handed back unseen, those in it go on under the same token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from sharecoord.core.changes import LANE_MARK, key_of
from sharecoord.core.decisions import HeldRange
from sharecoord.core.delivery import LostRange
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
    lock_book: Sequence[tuple[str, str, int, HeldRange]],
) -> list[LostRange]:
    """Compares the lock book of a join, partition by partition; returns what the member lost.

    A partition that is not served yet is compared as soon as it is (`GroupActor.activated`).

    Args:
        group: The member's.
        session: Its new session.
        lock_book: (topic, topic id, partition, range).

    Raises:
        MemberFencedError: A newer stream of the member joined meanwhile.
    """
    book: dict[Place, list[HeldRange]] = {}
    lost: list[LostRange] = []
    for topic, topic_id, partition, held in lock_book:
        # All lanes that are open are known: another one's locks are gone.
        lane_ended = LANE_MARK in topic and topic not in group.topic_ids
        if lane_ended and group.context.fleet is None:
            lost.append(LostRange(key_of(group.group_id, topic, topic_id, partition), held))
        elif topic_id in ("", group.topic_ids.get(topic, topic_id)):
            book.setdefault((topic, partition), []).append(held)
        else:
            key = key_of(group.group_id, topic, topic_id, partition)
            lost.append(LostRange(key, held))
    session.book = book
    if session.away is not None:
        ends_ms = group.context.clock.now_ms() + lock_left_max_ms(group.settings)
        for place, ranges in book.items():
            for held in ranges:
                session.away.book(place).put(held.first, held.last, held.lock_token, ends_ms)
    # What is to be served elsewhere may still be here.
    for place in [p for p in book if p in group.elsewhere and p not in group.partitions]:
        del book[place]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOAD_WAIT_S):
            await _until_loaded(group, list(book))
    check_current(group, session)
    for place in [p for p in book if p not in group.partitions and group.is_open(p[0])]:
        unknown = key_of(group.group_id, place[0], group.topic_ids[place[0]], place[1])
        lost += [LostRange(unknown, held) for held in book.pop(place)]
    return lost + compare_places(group, session)


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
    if epochs is not None and epochs.get(place) != actor.partition.owner_epoch:
        return []
    session.compared.add(place)
    held = session.book.pop(place, [])
    if session.away is not None:
        # The gateway's own book goes on: the place may have been another owner's at the join.
        held = session.away.books[place].held() if place in session.away.books else []
    gone = actor.compare_lock_book(session.member_id, held)
    return [LostRange(actor.key, held) for held in gone]
