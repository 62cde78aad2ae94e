"""The state that all parts of a group share, and the calls of a group to the rest of a fleet."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from sharecoord.config.group import GroupConfig, UnusedSetting
from sharecoord.core.changes import LANE_MARK, MemberRow, PartitionKey, Place, key_of
from sharecoord.core.delivery import LostRange
from sharecoord.core.dispatch.pauses import Pauses
from sharecoord.core.fleet.held_book import LockBook
from sharecoord.core.fleet.lending import HERE
from sharecoord.core.partition.decisions import AcknowledgedRange, AcquiredRange
from sharecoord.core.settings import PartitionSettings
from sharecoord.errors import (
    KafkaUnavailableError,
    SharecoordError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import TopicInfo
from sharecoord.runtime.kernel.budget import GroupBudget
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.runtime.partition.collector import Collector


class OwnerLinks:
    """Links to owners elsewhere of members with streams here. This class: there are none."""

    async def introduce(self, group: Group, session: Session) -> list[LostRange]:
        """Tells the owners of a member that joined here; returns what it lost of its lock book."""
        return []

    def changed(self, group: Group, session: Session) -> None:
        """A member wants other topics, or paused other partitions."""

    def gone(self, session: Session) -> None:
        """The stream of a member has ended here."""

    def left(self, session: Session, book: LockBook | None) -> None:
        """A member leaves; `book` is what its application has, as far as it is known."""

    def balance(self, group: Group, session: Session, *, has_backlog: bool) -> None:
        """Lends what a member can take now to the owners of what it wants.

        `has_backlog` tells whether own share-partitions have more than they could hand out.
        """

    def settle(
        self,
        owner_id: str,
        session: Session,
        key: PartitionKey,
        ranges: Sequence[AcknowledgedRange],
        collector: Collector,
        *,
        may_wait: bool,
    ) -> int:
        """Passes acknowledgements on to their owner; returns how many records they settle."""
        raise AssertionError(f"{owner_id} owns {key}, and there is no other coordinator")

    def hand_back(
        self, group: Group, session: Session, key: PartitionKey, ranges: Sequence[AcquiredRange]
    ) -> None:
        """Records from another coordinator never reached their member: they go back unseen."""


class Peers:
    """The other coordinators, as a group sees them. This class: there are none."""

    def __init__(self) -> None:
        self.gateway = OwnerLinks()

    @property
    def is_blind(self) -> bool:
        """Whether changes and pauses of the others may be unknown here since long."""
        return False

    # -- who serves what ------------------------------------------------------------------------

    def owner_of(self, key: PartitionKey) -> str:
        """The coordinator that should own a share-partition: `HERE`, or another's id."""
        return HERE

    def found_topic(self, group: Group, topic: str) -> None:
        """A group has come to know a topic, or partitions of it."""

    def forget_topic(self, group: Group, topic: str) -> None:
        """The cluster does not have the topic any more: nobody owns anything of it."""

    def claimed(self, group: Group, actor: PartitionActor) -> None:
        """A share-partition is served here from now on: its members' gateways are asked."""

    def forget(self, key: PartitionKey) -> None:
        """A share-partition is not served here any more."""

    def closed(self, group: Group) -> None:
        """The group was deleted."""

    def look_at_store(self) -> None:
        """The store has news for everybody, this coordinator included."""

    def tell_news(self) -> None:
        """Tells the others that the store has news."""

    # -- members --------------------------------------------------------------------------------

    def keeps(self, group_id: str, member_id: str, gateway: str) -> bool:
        """Whether this coordinator takes a member out of its group when its session ends."""
        return True

    def introduces_for_s(self, gateway: str) -> float:
        """Seconds in which a gateway with a new link may still introduce members."""
        return 0.0

    def timed_out(self, session: Session) -> None:
        """A lock of a member ended by itself: no coordinator hands it anything more."""

    def unmet(self, group_id: str, records: Mapping[str, int]) -> None:
        """Tells gateways for how many records of a group no credit was lent, by topic."""


NOBODY = Peers()


class Group(ABC):
    """The state of one share group, and the calls of its parts to the whole."""

    def __init__(self, context: Context, group_id: str, peers: Peers) -> None:
        self.context = context
        self.group_id = group_id
        self.peers = peers
        self.config, self.unused_settings = GroupConfig(), tuple[UnusedSetting, ...]()
        self.settings = PartitionSettings()
        self.pauses = Pauses(())
        self.budget = GroupBudget(context.budget)
        self.sessions: dict[str, Session] = {}
        self.partitions: dict[Place, PartitionActor] = {}
        """The share-partitions that are served here, or about to be."""
        self.totals: dict[str, int] = {}
        """Records that members hold in all partitions; the windows count them."""
        self.chained: dict[str, int] = {}
        """The part of `totals` that waits for earlier records of its keys."""
        self.topic_ids: dict[str, str] = {}
        """Ids of the topics and lanes that the cluster has, by name."""
        self.partition_ids: dict[str, tuple[int, ...]] = {}
        self.owners: dict[str, frozenset[str]] = {}
        """In a fleet, by topic: the owners of the topic and its lanes, `HERE` included."""
        self.owners_by_name: dict[str, frozenset[str]] = {}
        """As `owners`, of each topic and each lane alone (`PartitionKey.name`)."""
        self.elsewhere: dict[Place, str] = {}
        """In a fleet: the owners of share-partitions that are not to be served here."""

    # -- what is known --------------------------------------------------------------------------

    def held(self, session: Session) -> int:
        """Records that a member holds, of all owners, as far as they take up its room.

        Records that wait behind earlier ones of their keys do not, up to a bound: later records may
        be for handlers that have nothing to do.
        """
        here = self.totals.get(session.member_id, 0)
        if chained := self.chained.get(session.member_id, 0):
            here -= min(chained, session.pace.chained_max)
        return here + session.away.held(self.elsewhere) if session.away else here

    def keys_of(self, topic: str) -> list[PartitionKey]:
        """The share-partitions of a topic, of all owners."""
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            return []
        partitions = self.partition_ids[topic]
        return [key_of(self.group_id, topic, topic_id, each) for each in partitions]

    def knows(self, place: Place) -> bool:
        """Whether a topic, or a lane, is known to have a partition."""
        return place in self.elsewhere or place[1] in self.partition_ids.get(place[0], ())

    def actor_of(self, key: PartitionKey) -> PartitionActor | None:
        """The actor of a share-partition, unless it is one of another life of the topic."""
        actor = self.partitions.get(key.place)
        return actor if actor is not None and actor.key == key else None

    def why_not_served(
        self, actor: PartitionActor | None, topic: str, topic_id: str, partition: int
    ) -> SharecoordError | None:
        """The error for acknowledgements of a share-partition; None = it is served here.

        `topic` may be the name of a lane; `topic_id` is 32 hex digits, "" = any.
        """
        if actor is None and self._may_open(topic):
            return KafkaUnavailableError(f"{topic} is not opened yet", retry_after_ms=500)
        if actor is None or (topic_id and topic_id != actor.key.topic_id):
            return UnknownTopicOrPartitionError(
                f"group {self.group_id!r} has no share-partition {topic}[{partition}]"
                + (f" with topic id {topic_id}" if topic_id else "")
            )
        if actor.state is not ActorState.ACTIVE:
            return StoreUnavailableError(
                f"{topic}[{partition}] is {actor.state.value} {actor.stopped_reason}".rstrip(),
                retry_after_ms=200,
            )
        return None

    def _may_open(self, topic: str) -> bool:
        if LANE_MARK in topic and not self.context.lanes.all_known:
            return True
        return topic in self.topics and not self.is_open(topic)

    @property
    @abstractmethod
    def topics(self) -> set[str]:
        """Topics that members want."""

    @abstractmethod
    def is_open(self, topic: str) -> bool:
        """Whether all share-partitions of a topic are known."""

    @abstractmethod
    def opening(self, topics: set[str]) -> list[asyncio.Task[None]]:
        """The tasks that open these topics."""

    # -- members --------------------------------------------------------------------------------

    @abstractmethod
    def offer(self, session: Session) -> None:
        """A member may be able to take more, or less, than before."""

    @abstractmethod
    def fenced(self, session: Session, error: SharecoordError) -> None:
        """The member has a newer stream elsewhere, or its group is gone."""

    @abstractmethod
    def remember(self, member: MemberRow) -> None:
        """Takes in a member that is known from the store alone."""

    # -- share-partitions -----------------------------------------------------------------------

    @abstractmethod
    def wake(self, actor: PartitionActor, refunded: str | None = None) -> None:
        """A share-partition may have records, or its members hold fewer than before."""

    @abstractmethod
    def window_grows(self, record_locks_max: int) -> None:
        """Lets a window that is not set by hand follow the members' pace."""

    @abstractmethod
    def topic_found(self, topic: str, info: TopicInfo) -> None:
        """Opens new partitions of a topic; another id is another life of the topic."""

    @abstractmethod
    def new_actor(self, key: PartitionKey, partition_id: int) -> PartitionActor:
        """A share-partition that is to be served here; `loading` brings it to life."""

    @abstractmethod
    def activated(self, actor: PartitionActor) -> None:
        """A share-partition is served from now on."""

    @abstractmethod
    def forget_place(self, place: Place, why: str) -> None:
        """Takes a share-partition out of the group."""
