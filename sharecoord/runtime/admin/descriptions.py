"""Describes groups: members, share-partitions and lag, out of committed state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import GroupRow, MemberRow, PartitionKey, PartitionRow
from sharecoord.core.dispatch.pauses import Pause, Pauses
from sharecoord.core.lag import lag as lag_of
from sharecoord.core.states import RecordState
from sharecoord.errors import SharecoordError
from sharecoord.ports import DELAYED, LATEST, OffsetQuery
from sharecoord.runtime.admin.group_access import PAGE_ROWS, GroupAccess, not_found
from sharecoord.runtime.admin.groups import GroupState, state_of
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.refused_topics import refused_of
from sharecoord.runtime.group.settings import reads_committed, why_unserved
from sharecoord.runtime.kernel.store_thread import StoreCaller
from sharecoord.runtime.partition.actor import PartitionActor

log = structlog.get_logger(__name__)

LOG_END_WAIT_S = 5.0
"""Longest wait of a description for Kafka's log ends; then it does without them."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group; `MemberDescription` of admin_service.proto explains the fields."""

    member_id: str
    member_epoch: int
    client_id: str
    host: str
    assignment: Mapping[str, tuple[int, ...]]
    acquired_records: int
    delivered_total: int | None
    acknowledged_total: int | None
    fair_share_ratio: float | None = None
    pause: Pause | None = None
    coordinator_id: str = ""
    principal: str = ""
    software: str = ""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A share-partition; `PartitionOffsets` of admin_service.proto explains the fields."""

    topic: str
    partition: int
    topic_id: str
    start_offset: int | None = None
    end_offset: int | None = None
    log_end_offset: int | None = None
    lag: int | None = None
    acquired_records: int = 0
    available_records: int = 0
    delayed_records: int = 0
    archived_records: int = 0
    leader_epoch: int | None = None
    window_full_at: int | None = None
    stopped_reason: str = ""
    memory_short: str = ""
    pause: Pause | None = None
    lane: str = ""
    stops_at: int | None = None
    rate_limit: int = 0
    payloads_not_kept: int = 0
    dead_letters_waiting: int = 0
    dead_letters_problem: str = ""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A described group; all but the id is empty where `error` is set."""

    group_id: str
    state: GroupState = GroupState.DEAD
    group_epoch: int = 0
    coordinator_id: str = ""
    member_count: int = 0
    members: tuple[MemberView, ...] = ()
    partitions: tuple[PartitionView, ...] = ()
    fairness_jain_ratio: float | None = None
    """Jain's index of the last second; None as in `MemberView`."""
    pauses: tuple[Pause, ...] = ()
    settings_problems: tuple[str, ...] = ()
    """Why stored settings are not in force, one sentence each."""
    refused_topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that Kafka refuses to the coordinator, and what to allow."""
    error: SharecoordError | None = None


class DescribeCommands(GroupAccess):
    """The command that describes groups."""

    async def describe_groups(
        self,
        group_ids: Sequence[str] = (),
        *,
        include_members: bool = True,
        include_offsets: bool = True,
    ) -> list[GroupView]:
        """Groups in the order asked for; without `group_ids` all, by name.

        A group that does not exist is answered inside. Offsets that Kafka does not give in time
        are left out.
        """
        groups, members_by_group = await self._load()
        ids = list(dict.fromkeys(group_ids)) or sorted(groups)
        # Without lanes in which nothing is left.
        rows = {
            name: [r for r in await self._rows(name) if not r.key.lane or r.is_open]
            for name in ids
            if name in groups
        }
        views = Description(self._coordinator, self._reads, groups)
        resolved = {name: self._resolved(groups[name]) for name in rows}
        configs = {name: config for name, (config, _) in resolved.items()}
        ends = await views.log_ends(configs, rows) if include_offsets else {}
        described: list[GroupView] = []
        for name in ids:
            row = groups.get(name)
            if row is None:
                described.append(GroupView(name, error=not_found(name)))
                continue
            found = members_by_group.get(name, [])
            described.append(
                GroupView(
                    group_id=name,
                    state=state_of(found),
                    group_epoch=row.group_epoch,
                    coordinator_id=self._context.coordinator_id,
                    member_count=len(found),
                    members=await views.members(name, found, rows[name]) if include_members else (),
                    partitions=await views.partitions(rows[name], ends) if include_offsets else (),
                    fairness_jain_ratio=views.fairness(name),
                    pauses=row.pauses,
                    settings_problems=tuple(each.why for each in resolved[name][1]),
                    refused_topics=views.refused_topics(name, rows[name]),
                )
            )
        return described


class Description:
    """The reads of one description; `reads` runs those of the store."""

    def __init__(
        self, coordinator: Coordinator, reads: StoreCaller, groups: Mapping[str, GroupRow]
    ) -> None:
        self._coordinator = coordinator
        self._pauses = {name: Pauses(row.pauses) for name, row in groups.items()}
        self._context = coordinator.context
        self._reads = reads

    async def log_ends(
        self, configs: Mapping[str, GroupConfig], rows: Mapping[str, Sequence[PartitionRow]]
    ) -> dict[PartitionKey, int]:
        """Log ends as Kafka says; where it does not answer in time, as the live actors know.

        A live actor that holds back its reading knows no newer end than the last record it read.
        """
        ends: dict[PartitionKey, int] = {}
        for committed in (False, True):
            keys = [
                row.key
                for name, found in rows.items()
                if reads_committed(configs[name]) is committed
                for row in found
            ]
            queries = {OffsetQuery(key.topic, key.partition, LATEST) for key in keys}
            try:
                async with asyncio.timeout(LOG_END_WAIT_S):
                    answers = await self._context.catalog.offsets(
                        sorted(queries), committed=committed
                    )
            except (SharecoordError, TimeoutError) as error:
                log.warning("log ends not known", why=str(error))
                answers = {}
            for key in keys:
                end = answers.get(OffsetQuery(key.topic, key.partition, LATEST))
                actor = self._coordinator.groups.actor_of(key)
                if end is None and actor is not None:
                    end = actor.log.end_offset
                if end is not None:
                    ends[key] = end
        return ends

    async def partitions(
        self, rows: Sequence[PartitionRow], ends: Mapping[PartitionKey, int]
    ) -> tuple[PartitionView, ...]:
        """Share-partitions with what is in flight; `ends` are their log ends."""
        views: list[PartitionView] = []
        for row in rows:
            counts = await self._reads.call(self._context.store.count_in_flight, row.partition_id)
            views.append(self._partition(row, counts, ends.get(row.key)))
        return tuple(views)

    def _partition(
        self, row: PartitionRow, counts: Mapping[int, int], log_end: int | None
    ) -> PartitionView:
        head, actor, lag, full_at = row.head, self._coordinator.groups.actor_of(row.key), None, None
        if log_end is not None and row.stops_at is not None:
            log_end = min(log_end, row.stops_at)
        if head is not None and log_end is not None:
            lag = lag_of(log_end, head.start_offset, head.finished_count)
        core = None if actor is None else actor.partition
        if core is not None and head is not None:
            full_at = core.full_at
        epoch = -1 if head is None else head.end_leader_epoch
        pauses = self._pauses[row.key.group_id]
        return PartitionView(
            topic=row.key.topic,
            partition=row.key.partition,
            topic_id=row.key.topic_id,
            start_offset=None if head is None else head.start_offset,
            end_offset=None if head is None else head.end_offset,
            log_end_offset=log_end,
            lag=lag,
            acquired_records=counts.get(RecordState.ACQUIRED, 0),
            available_records=counts.get(RecordState.AVAILABLE, 0),
            delayed_records=counts.get(DELAYED, 0),
            archived_records=counts.get(RecordState.ARCHIVED, 0),
            leader_epoch=None if epoch < 0 else epoch,
            window_full_at=full_at,
            memory_short=self._memory_short(actor),
            lane=row.key.lane,
            stops_at=row.stops_at,
            rate_limit=row.rate_limit,
            payloads_not_kept=0 if actor is None else actor.books.kept.not_kept,
            dead_letters_waiting=counts.get(RecordState.ARCHIVING, 0),
            dead_letters_problem="" if actor is None else actor.books.letters.problem,
            stopped_reason=row.stopped_reason
            or self._unserved(row.key.group_id)
            or ("" if actor is None else actor.stopped_reason),
            pause=pauses.group or pauses.of_place(row.key.topic, row.key.partition),
        )

    def _unserved(self, group_id: str) -> str:
        """Why a setting keeps the group from being served here; "" when none does."""
        group = self._coordinator.groups.get(group_id)
        return "" if group is None else why_unserved(group.unused_settings)

    def refused_topics(self, group_id: str, rows: Sequence[PartitionRow]) -> dict[str, str]:
        """Topics of a group that Kafka refuses, and what to allow."""
        group = self._coordinator.groups.get(group_id)
        topics = {row.key.topic for row in rows}
        if group is not None:
            topics |= group.topics | group.owed_topics
        return refused_of(self._context.catalog, topics)

    def fairness(self, group_id: str) -> float | None:
        """Jain's index of a group's last second."""
        group = self._coordinator.groups.get(group_id)
        return None if group is None else group.dispatcher.fairness

    @staticmethod
    def _memory_short(actor: PartitionActor | None) -> str:
        if actor is None:
            return ""
        if actor.budget.acquiring_stopped:
            return "memory.limit: nothing new is acquired"
        return "memory.limit: nothing new is read" if actor.log.held_back else ""

    async def members(
        self, group_id: str, members: Sequence[MemberRow], rows: Sequence[PartitionRow]
    ) -> tuple[MemberView, ...]:
        """Members by id, with what they hold in these share-partitions."""
        group = self._coordinator.groups.get(group_id)
        held = await self._held(rows) if members else Counter()
        views: list[MemberView] = []
        pauses = self._pauses[group_id]
        for member in sorted(members, key=lambda m: m.member_id):
            session = None if group is None else group.sessions.get(member.member_id)
            if session is not None and session.is_lent:
                # This session knows only of records that this coordinator delivered.
                session = None
            views.append(
                MemberView(
                    member_id=member.member_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    host=member.host,
                    assignment=_assignment(member.topics, rows),
                    acquired_records=held[member.member_id],
                    delivered_total=None if session is None else max(0, session.totals.delivered),
                    acknowledged_total=None
                    if session is None
                    else max(0, session.totals.acknowledged),
                    fair_share_ratio=None if session is None else session.share.ratio,
                    pause=pauses.group or pauses.of_member(member.member_id),
                    coordinator_id=member.gateway,
                    principal=member.principal,
                    software="" if session is None else session.software,
                )
            )
        return tuple(views)

    async def _held(self, rows: Sequence[PartitionRow]) -> Counter[str]:
        """How many records each member holds under a lock."""
        held: Counter[str] = Counter()
        for row in rows:
            position = 0
            while True:
                page = await self._reads.call(
                    self._context.store.read_in_flight,
                    row.partition_id,
                    from_offset=position,
                    max_rows=PAGE_ROWS,
                )
                for entry in page:
                    if entry.state == RecordState.ACQUIRED and entry.member_id is not None:
                        held[entry.member_id] += entry.last_offset - entry.first_offset + 1
                if len(page) < PAGE_ROWS:
                    break
                position = page[-1].last_offset + 1
        return held


def _assignment(topics: Iterable[str], rows: Sequence[PartitionRow]) -> dict[str, tuple[int, ...]]:
    """Any member may receive from any partition of its topics."""
    found = {topic: [r.key.partition for r in rows if r.key.name == topic] for topic in topics}
    return {topic: tuple(sorted(found[topic])) for topic in sorted(found) if found[topic]}
