"""The groups of a coordinator: made at their first use, joined, and removed when deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

import structlog

from sharecoord.core.changes import GroupRow, PartitionKey
from sharecoord.core.delivery import LostRange
from sharecoord.errors import (
    DrainingError,
    GroupNotFoundError,
    KafkaUnavailableError,
    LimitExceededError,
    StoreFencedError,
)
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.admission import Admission
from sharecoord.runtime.group.group import Peers
from sharecoord.runtime.group.settings import check_subscription
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.channel import MemberChannel
from sharecoord.runtime.member.session import JoinCommand, Session
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.security.principals import Caller

log = structlog.get_logger(__name__)

JOIN_LIVES_MAX = 3
"""A join that meets a deletion of its group goes on in the group's next life, in this many lives at
most: an operator who deletes in a loop must not hold streams for ever."""


class Groups(Mapping[str, GroupActor]):
    """The groups that are known here, by name."""

    def __init__(self, context: Context, peers: Peers) -> None:
        self._context = context
        self.peers = peers
        self._actors: dict[str, GroupActor] = {}
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.draining = False
        """Whether the coordinator goes down: nobody joins any more."""
        self.admission = Admission(context.guard, self)
        self.topics_wanted = asyncio.Event()
        """Set when members want topics that may not be open."""

    def __getitem__(self, group_id: str) -> GroupActor:
        return self._actors[group_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._actors)

    def __len__(self) -> int:
        return len(self._actors)

    def actor_of(self, key: PartitionKey) -> PartitionActor | None:
        """The live actor of a share-partition."""
        group = self._actors.get(key.group_id)
        return None if group is None else group.actor_of(key)

    async def load(self) -> None:
        """Takes in all groups that the store has, when the coordinator starts."""
        rows = await self._context.caller.call(self._context.store.load_groups)
        for row in rows:
            self._actors[row.group_id] = GroupActor(self._context, row, self.peers)

    def remove(self, group: GroupActor) -> None:
        """Ends a deleted group; the next use of its name makes a new one."""
        if self._actors.get(group.group_id) is group:
            del self._actors[group.group_id]
        group.close()

    async def open(self, group_id: str, made_by: str = "") -> GroupActor:
        """The group's actor; made on first use, by this principal.

        Raises:
            LimitExceededError: The group is new, and there are as many as there may be.
        """
        found = self._actors.get(group_id)
        if found is not None:
            return found
        async with self.making(group_id):
            found = self._actors.get(group_id)
            if found is None:
                self.check_room(group_id)
                row: GroupRow = await self._context.caller.call(
                    self._context.store.ensure_group, group_id, made_by=made_by
                )
                found = self._actors[group_id] = GroupActor(self._context, row, self.peers)
        return found

    async def stored(self, group_id: str) -> GroupActor | None:
        """The actor of a group that the store has; unlike `open` it makes no row.

        Raises:
            LimitExceededError: As `open`.
        """
        async with self.making(group_id):
            row = await self._context.calls.group(group_id)
            if row is not None and group_id not in self._actors:
                self.check_room(group_id)
                self._actors[group_id] = GroupActor(self._context, row, self.peers)
        return self._actors.get(group_id)

    def check_room(self, group_id: str) -> None:
        """Refuses a new group when there are too many.

        Raises:
            LimitExceededError: There are as many as there may be.
        """
        if group_id not in self._actors and len(self._actors) >= self._context.limits.groups_max:
            raise LimitExceededError(
                f"group {group_id!r} is new and there are {len(self._actors)} groups already; "
                "delete those that nobody uses, or raise limits.groups.max",
                retry_after_ms=5_000,
            )

    def making(self, group_id: str) -> asyncio.Lock:
        """The lock that is held while a group is made or deleted."""
        return self._making.setdefault(group_id, asyncio.Lock())

    async def existing(self, group_id: str) -> GroupActor:
        """The actor of a group that is there.

        Raises:
            GroupNotFoundError: There is no group of that name.
        """
        found = self._actors.get(group_id)
        if found is None:
            raise GroupNotFoundError(
                f"there is no share group {group_id!r}; it is made when its first member joins"
            )
        return found

    async def join(
        self, group_id: str, command: JoinCommand, channel: MemberChannel | None
    ) -> tuple[GroupActor, Session, list[LostRange]]:
        """Brings a member into its group and opens the topics it wants.

        A group that is deleted meanwhile is made again, as if the join had come after.

        Raises:
            DrainingError: This coordinator is going down.
            LimitExceededError: Too many files are open for one more.
            UnauthorizedError: The caller may not be such a member.
            SharecoordError: As `GroupActor.join`.
        """
        if self.draining:
            raise DrainingError.of_this_coordinator()
        caller = command.caller = command.caller or Caller()
        self.admission.check_join(caller, group_id, command.member_id, command.topics)
        self._check_files(group_id, command.member_id)
        for lives_left in reversed(range(JOIN_LIVES_MAX)):
            group = await self.open(group_id, caller.principal.name)
            await self._open_topics(group, command.topics)
            try:
                session, lost = await group.join(command, channel)
            except StoreFencedError:
                if not group.closed or not lives_left:
                    raise
                log.info("joining a group that was deleted meanwhile: a new one", group=group_id)
            else:
                self.topics_wanted.set()
                return group, session, lost
        raise AssertionError("the last attempt returns or raises")

    def _check_files(self, group_id: str, member_id: str) -> None:
        """Refuses an unknown member when too few files may be opened."""
        group = self._actors.get(group_id)
        sessions = () if group is None else group.sessions
        if member_id not in sessions:
            self._context.files.check_member(needs_reader=not sessions)

    async def admit(
        self,
        group_id: str,
        command: JoinCommand,
        channel: MemberChannel,
        *,
        epoch: int,
        gateway: str,
    ) -> tuple[GroupActor, Session, list[LostRange]]:
        """Takes in a member whose gateway is another coordinator, and opens the topics it wants.

        Raises:
            DrainingError: This coordinator is going down.
            SharecoordError: As `GroupActor.admit`.
        """
        if self.draining:
            raise DrainingError.of_this_coordinator()
        group = await self.open(group_id)
        await self._open_topics(group, command.topics)
        session, lost = await group.admit(command, channel, epoch, gateway=gateway)
        self.topics_wanted.set()
        return group, session, lost

    async def _open_topics(self, group: GroupActor, topics: Sequence[str]) -> None:
        """Starts to open topics that the group does not serve yet; waits for Kafka's answer."""
        missing = [topic for topic in topics if topic not in group.topic_ids]
        if not missing:
            return
        try:
            found = await self._context.catalog.describe(missing)
        except KafkaUnavailableError as error:
            log.warning("topics not known yet", topics=missing, why=error.message)
            return
        for topic, info in found.items():
            group.topic_found(topic, info)

    def subscribe(self, group: GroupActor, session: Session, topics: Sequence[str]) -> None:
        """Lets a member have other topics from now on, and opens them.

        Raises:
            InvalidRequestError: The topic of the group's own dead letters is among them.
            UnauthorizedError: The member may not have one of them.
        """
        check_subscription(group.config, topics)
        self.admission.check_subscription(session, topics)
        group.subscribe(session, topics)
        self.subscription_changed(group, session)

    def subscription_changed(self, group: GroupActor, session: Session) -> None:
        """Opens the topics that a member wants now."""
        self._context.tasks.spawn(self._open_topics(group, sorted(session.topics)), "subscribe")
