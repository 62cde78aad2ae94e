"""Resets start offsets, and deletes those of whole topics."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from sharecoord.core.changes import PartitionKey, PartitionRow, Place
from sharecoord.errors import (
    InvalidRequestError,
    SharecoordError,
    StoreOutcomeUnknownError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import (
    EARLIEST,
    LATEST,
    OffsetQuery,
    TopicCatalog,
    TopicInfo,
    end_queries,
)
from sharecoord.runtime.admin.group_access import (
    GroupAccess,
    no_offsets,
    no_partition,
    not_empty,
    not_found,
)
from sharecoord.runtime.group.events import tell_reset, told_when_done
from sharecoord.runtime.group.refused_topics import no_topic
from sharecoord.runtime.group.settings import reads_committed

log = structlog.get_logger(__name__)


class ResetKind(enum.Enum):
    """Where start offsets are moved to."""

    EARLIEST = "to_earliest"
    LATEST = "to_latest"
    TIMESTAMP = "to_timestamp_ms"
    DURATION = "by_duration_ms"
    OFFSET = "to_offset"
    CURRENT = "to_current"
    OFFSETS = "to_offsets"


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The target of a reset."""

    kind: ResetKind
    value: int = 0
    """OFFSET: the offset. TIMESTAMP: milliseconds since the epoch. DURATION: before now."""
    offsets: Mapping[Place, int] = field(default_factory=dict)
    """By place, for OFFSETS."""


@dataclass(frozen=True, slots=True)
class ResetCommand:
    """A reset of start offsets; fields as of `ResetOffsetsRequest` in admin_service.proto."""

    group_id: str
    to: ResetTo
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dry_run: bool = False
    force: bool = False


NO_PARTITION = -1
"""Partition number of a result that is about a whole topic."""


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The outcome of a reset for one share-partition; with `dry_run` what it would be.

    admin_service.proto explains the fields, at `ResetPartition`.
    """

    topic: str
    partition: int
    topic_id: str = ""
    new_offset: int = 0
    old_offset: int | None = None
    requested_offset: int | None = None
    error: SharecoordError | None = None


class ResetCommands(GroupAccess):
    """The commands that move and delete start offsets."""

    async def reset_offsets(self, command: ResetCommand) -> list[ResetResult]:
        """Moves start offsets: what is in flight is forgotten, old lock tokens are dead.

        Partitions that do not exist or do not answer carry an error; the others are reset.

        Raises:
            GroupNotEmptyError: The group has members, and `force` is not set.
            GroupNotFoundError: There is no such group, and no topics are named.
            InvalidRequestError: A negative offset or time.
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: The group is new, and there are as many as there may be.
        """
        groups, members = await self._load()
        group_id = command.group_id
        found = members.get(group_id, [])
        if found and not command.force:
            fix = "; stop them, or reset with force: then their locks on these partitions are void"
            raise not_empty(group_id, len(found), fix)
        named = command.topics or command.to.kind is ResetKind.OFFSETS
        if group_id not in groups and not named:
            raise not_found(group_id)
        rows = await self._log_rows(group_id)
        self._coordinator.groups.check_room(group_id)
        results = await plan_reset(
            self._context.catalog,
            command,
            rows,
            committed=reads_committed(self._config(groups.get(group_id))),
            now_ms=self._context.clock.store_now_ms(),
        )
        if not command.dry_run:
            await self._to_the_end(self._execute_reset(group_id, results))
        return results

    async def _execute_reset(self, group_id: str, results: Sequence[ResetResult]) -> None:
        heads = {
            PartitionKey(group_id, r.topic, r.topic_id, r.partition): r.new_offset
            for r in results
            if r.error is None
        }
        if not heads:
            return
        await self._open_siblings(group_id, {key.topic for key in heads})
        try:
            reset = await self._context.caller.call(self._context.store.reset_partitions, heads)
            tell_reset(self._context, group_id, reset)
        except StoreOutcomeUnknownError:
            await self._reload(group_id, heads)
            raise
        await self._reload(group_id, heads)
        log.info("offsets reset", group=group_id, partitions=len(heads))

    async def _open_siblings(self, group_id: str, topics: Iterable[str]) -> None:
        """Makes the rows of all partitions of topics that the reset is the first use of.

        Partitions that a first reset leaves out would else be taken for partitions that were added
        to the topic later (see `ports.Store.open_partitions`).
        """
        keys = [
            PartitionKey(group_id, topic, info.topic_id, partition)
            for topic, info in (await self._context.catalog.describe(sorted(topics))).items()
            for partition in info.partitions
        ]
        await self._context.caller.call(self._context.store.open_partitions, keys)

    async def delete_offsets(
        self, group_id: str, topics: Sequence[str], *, only_empty: bool = False
    ) -> dict[str, SharecoordError | None]:
        """Forgets the state of whole topics; the reset policy decides where they start again.

        Returns None by topic, or the error.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: A member subscribes to one of the topics; with `only_empty` there
                is a member at all.
            InvalidRequestError: No topic is named.
        """
        if not topics:
            raise InvalidRequestError("topics is empty; name one topic at least")
        _, members = await self._existing(group_id)
        if members and only_empty:
            raise not_empty(group_id, len(members), "; stop them first")
        for topic in topics:
            count = sum(topic in member.topics for member in members)
            if count:
                fix = f" subscribed to {topic!r}; stop them first, or use a reset with force"
                raise not_empty(group_id, count, fix)
        known = {row.key.served for row in await self._rows(group_id)}
        wanted = [topic for topic in dict.fromkeys(topics) if topic in known]
        if wanted:
            await self._to_the_end(self._delete_topics(group_id, wanted))
        return {
            topic: None
            if topic in known
            else UnknownTopicOrPartitionError(
                f"group {group_id!r} has no offsets for topic {topic!r}"
            )
            for topic in topics
        }

    async def _delete_topics(self, group_id: str, topics: Sequence[str]) -> None:
        group = await self._coordinator.groups.open(group_id)
        rows = await self._rows(group_id)
        await self._context.committed()
        names = group.names_served(topics) | {r.key.name for r in rows if r.key.served in topics}
        if group.closed:
            raise not_found(group_id)
        group.forget(names, "its offsets were deleted")
        try:
            # In the same step as `forget`: who opens the topics from now on comes after the call.
            with told_when_done(self._context, group_id, sorted(names)):
                await self._context.caller.call(self._context.store.delete_topics, group_id, topics)
        finally:
            for session in group.sessions.values():
                if not session.topics.isdisjoint(topics):
                    self._coordinator.groups.subscription_changed(group, session)
            # Last: members that came meanwhile are served even if the store does not answer.
            if not group.closed:
                await self._refresh(group_id)
        log.info("offsets deleted", group=group_id, topics=list(topics))


async def plan_reset(
    catalog: TopicCatalog,
    command: ResetCommand,
    rows: Sequence[PartitionRow],
    *,
    committed: bool,
    now_ms: int,
) -> list[ResetResult]:
    """Says for each partition what its start offset becomes, by topic and partition.

    `rows` are the group's share-partitions; `committed` = the group reads committed records only,
    so that its logs end at their last stable offset. Partitions that can not be reset carry an
    error.

    Raises:
        InvalidRequestError: A negative offset or time.
        KafkaUnavailableError: Kafka does not answer.
    """
    _check(command.to)
    if command.to.kind is ResetKind.DURATION:
        at = ResetTo(ResetKind.TIMESTAMP, max(0, now_ms - command.to.value))
        command = replace(command, to=at)
    wanted = _wanted(command, rows)
    infos = await catalog.describe(sorted(wanted))
    places, results = _existing(catalog, wanted, infos)
    known = {row.key.log_id: row for row in rows}
    times = [command.to.value] if command.to.kind is ResetKind.TIMESTAMP else []
    found = await catalog.offsets(end_queries(places, *times), committed=committed)
    for topic, partition in places:
        topic_id = infos[topic].topic_id
        row = known.get((topic, topic_id, partition))
        results.append(_result(command.to, found, topic, partition, topic_id, row))
    return sorted(results, key=lambda result: (result.topic, result.partition))


def _check(to: ResetTo) -> None:
    if to.value < 0:
        raise InvalidRequestError(f"{to.kind.value} is {to.value}; it must be 0 or more")
    if to.kind is ResetKind.OFFSETS and not to.offsets:
        raise InvalidRequestError("to_offsets is empty; name one partition at least")
    for (topic, partition), offset in to.offsets.items():
        if offset < 0:
            raise InvalidRequestError(
                f"to_offsets: {topic}[{partition}] has offset {offset}; it must be 0 or more"
            )


def _wanted(command: ResetCommand, rows: Iterable[PartitionRow]) -> dict[str, set[int]]:
    """Topic to partitions; an empty set = all partitions of the topic."""
    wanted: dict[str, set[int]] = {}
    if command.to.kind is ResetKind.OFFSETS:
        for topic, partition in command.to.offsets:
            asked = command.topics.get(topic)
            if not command.topics or (asked is not None and partition in (asked or (partition,))):
                wanted.setdefault(topic, set()).add(partition)
    elif command.topics:
        wanted = {topic: set(partitions) for topic, partitions in command.topics.items()}
    else:
        for row in rows:
            wanted.setdefault(row.key.topic, set()).add(row.key.partition)
    return wanted


def _existing(
    catalog: TopicCatalog, wanted: Mapping[str, set[int]], infos: Mapping[str, TopicInfo]
) -> tuple[list[Place], list[ResetResult]]:
    """The wanted places that the cluster has, and errors for those that it has not."""
    places: list[Place] = []
    errors: list[ResetResult] = []
    for topic, partitions in wanted.items():
        info = infos.get(topic)
        if info is None:
            error = no_topic(catalog, topic)
            asked = sorted(partitions) or [NO_PARTITION]
            errors += [ResetResult(topic, partition, error=error) for partition in asked]
            continue
        for partition in sorted(partitions or info.partitions):
            if partition in info.partitions:
                places.append((topic, partition))
                continue
            error = no_partition(topic, partition, len(info.partitions))
            errors.append(ResetResult(topic, partition, error=error))
    return places, errors


def _result(
    to: ResetTo,
    found: Mapping[OffsetQuery, int],
    topic: str,
    partition: int,
    topic_id: str,
    row: PartitionRow | None,
) -> ResetResult:
    start = found.get(OffsetQuery(topic, partition, EARLIEST))
    end = found.get(OffsetQuery(topic, partition, LATEST))
    old = row.head.start_offset if row is not None and row.head is not None else None
    requested: int | None
    match to.kind:
        case ResetKind.EARLIEST:
            requested = start
        case ResetKind.LATEST:
            requested = end
        case ResetKind.TIMESTAMP | ResetKind.DURATION:
            requested = found.get(OffsetQuery(topic, partition, to.value))
        case ResetKind.OFFSET:
            requested = to.value
        case ResetKind.CURRENT:
            # As Kafka's tools do: what has no offset yet begins at the end.
            requested = end if old is None else old
        case ResetKind.OFFSETS:
            requested = to.offsets[topic, partition]
    if start is None or end is None or requested is None:
        error = no_offsets(topic, partition)
        return ResetResult(topic, partition, topic_id, old_offset=old, error=error)
    if row is not None and row.stops_at is not None:
        # A replay has no more than its part of the log.
        end = min(end, row.stops_at)
    new = min(max(requested, start), end)
    return ResetResult(
        topic, partition, topic_id, new, old, requested if requested != new else None
    )
