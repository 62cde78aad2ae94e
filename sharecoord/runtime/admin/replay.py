"""Replays a part of topics' logs into a side group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from sharecoord.core.changes import PartitionKey, Place
from sharecoord.core.letters.lanes import Replayed, divided, hinders_replay
from sharecoord.core.spans import Span, union
from sharecoord.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    LimitExceededError,
    UnknownTopicOrPartitionError,
)
from sharecoord.eventlog.schema import GroupEvent
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
from sharecoord.runtime.group.events import tell
from sharecoord.runtime.group.refused_topics import no_topic
from sharecoord.runtime.group.settings import reads_committed
from sharecoord.runtime.letters.lanes import SPANS_MAX

log = structlog.get_logger(__name__)


class OffsetRange(NamedTuple):
    """Offsets of a partition, both ends inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """A part of logs for a side group: a time range, or single offsets.

    admin_service.proto explains the fields, at `ReplayRequest`.
    """

    group_id: str
    into_group_id: str
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    from_ms: int | None = None
    to_ms: int | None = None
    duration_ms: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    rate_per_s: int = 0
    with_settings: bool = False
    dry_run: bool = False

    @property
    def spans(self) -> dict[Place, list[Span]]:
        """The offsets by partition."""
        found: dict[Place, list[Span]] = {}
        for topic, partition, first, last in self.offsets:
            found.setdefault((topic, partition), []).append((first, last))
        return found


class ReplayCommands(GroupAccess):
    """The command that replays a part of topics' logs."""

    async def replay(self, command: ReplayCommand) -> list[Replayed]:
        """Delivers a part of topics' logs to a side group, from the store's view a new group.

        Returns all share-partitions of the side group, also those of which nothing is selected.

        Raises:
            GroupNotFoundError: There is no group whose records these are.
            GroupNotEmptyError: The side group has members or records of its own.
            UnknownTopicOrPartitionError: A topic or partition that the cluster does not have.
            InvalidRequestError: Bad times, offsets outside of the log, a bad rate.
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: Too many groups, or too many runs of offsets.
        """
        check_replay(command)
        groups, members = await self._load()
        if command.group_id not in groups:
            raise not_found(command.group_id)
        into = command.into_group_id
        if count := len(members.get(into, ())):
            fix = "; replay into a group of another name, or stop them first"
            raise not_empty(into, count, fix)
        if any(hinders_replay(row) for row in await self._rows(into)):
            raise not_finished(into)
        self._coordinator.groups.check_room(into)
        parts = await plan_replay(
            self._context.catalog,
            command,
            now_ms=self._context.clock.store_now_ms(),
            committed=reads_committed(self._config(groups[command.group_id])),
        )
        if not command.dry_run:
            config = groups[command.group_id].config if command.with_settings else None
            await self._to_the_end(self._replay(parts, config))
        return parts

    async def _replay(self, parts: Sequence[Replayed], config: Mapping[str, str] | None) -> None:
        into = parts[0].key.group_id
        store = self._context.store
        if not await self._context.caller.call(store.make_replay, parts, config=config):
            raise not_finished(into)
        await self._reload(into, [part.key for part in parts])
        tell(self._context, into, GroupEvent.CONFIGURED, reason="replay")
        log.info("replay", group=into, partitions=len(parts))


def not_finished(group_id: str) -> GroupNotEmptyError:
    """The error about a group that can not be a side group."""
    return GroupNotEmptyError(
        f"group {group_id!r} has records of its own, or a replay that is not finished; name a new "
        "group, or delete this one first"
    )


async def plan_replay(
    catalog: TopicCatalog, command: ReplayCommand, *, now_ms: int, committed: bool
) -> list[Replayed]:
    """The share-partitions of the side group; arguments and errors as of `plan_reset`."""
    spans = command.spans
    topics = command.topics or {topic: () for topic, _ in spans}
    infos = await catalog.describe(sorted(topics))
    wanted = {place for topic in topics for place in _places(catalog, topic, topics[topic], infos)}
    for topic, partition in spans:
        if (topic, partition) not in wanted:
            raise UnknownTopicOrPartitionError(
                f"offsets: {topic}[{partition}] is not among the topics and partitions to replay"
            )
    from_ms = now_ms - command.duration_ms if command.duration_ms is not None else command.from_ms
    times = [max(0, at) for at in (from_ms, command.to_ms) if at is not None]
    found = await catalog.offsets(end_queries(wanted, *times), committed=committed)
    parts: list[Replayed] = []
    for topic, info in sorted(infos.items()):
        for partition in info.partitions:
            key = PartitionKey(command.into_group_id, topic, info.topic_id, partition)
            place = (topic, partition)
            if place not in wanted or (spans and place not in spans):
                # Its log is not followed either: the side group has a part of the topic only.
                parts.append(Replayed(key, 0, 0))
            elif spans:
                parts.append(_by_offsets(key, spans[place], found))
            else:
                parts.append(_by_time(key, from_ms, command.to_ms, found))
    rates = divided(command.rate_per_s, [part.records for part in parts])
    return [part.limited(rate) for part, rate in zip(parts, rates, strict=True)]


def check_replay(command: ReplayCommand) -> None:
    """Refuses a command that contradicts itself.

    Raises:
        InvalidRequestError: Names the field.
        LimitExceededError: Too many runs of offsets.
    """
    if command.into_group_id == command.group_id:
        raise InvalidRequestError(
            f"into_group_id is the group itself ({command.group_id!r}); to deliver records to it "
            "again reset its offsets, or redrive its dead letters"
        )
    times = command.from_ms is not None or command.duration_ms is not None
    for topic, partition, first, last in command.offsets:
        if not 0 <= first <= last:
            raise InvalidRequestError(
                f"offsets: {first} to {last} of {topic}[{partition}] is no range of offsets"
            )
    if bool(command.offsets) == (times or command.to_ms is not None):
        raise InvalidRequestError("give either a range of times or offsets, one of them")
    if not command.offsets and not command.topics:
        raise InvalidRequestError("topics is empty; name the topic to replay")
    if command.from_ms is not None and command.duration_ms is not None:
        raise InvalidRequestError("from_ms and duration_ms exclude each other")
    for name in ("from_ms", "to_ms", "duration_ms"):
        value = getattr(command, name)
        if value is not None and value < 0:
            raise InvalidRequestError(f"{name} is {value}; it must be 0 or more")
    if (command.from_ms or 0) >= (command.to_ms or 1 << 62):
        raise InvalidRequestError(
            f"from_ms {command.from_ms} is not before to_ms {command.to_ms}: nothing lies between"
        )
    runs = len(command.offsets)
    if runs > SPANS_MAX:
        raise LimitExceededError(f"offsets: {runs} runs, {SPANS_MAX} are the most of one replay")


def _places(
    catalog: TopicCatalog, topic: str, partitions: Sequence[int], infos: Mapping[str, TopicInfo]
) -> list[Place]:
    info = infos.get(topic)
    if info is None:
        raise no_topic(catalog, topic)
    for partition in partitions:
        if partition not in info.partitions:
            raise no_partition(topic, partition, len(info.partitions))
    return [(topic, partition) for partition in partitions or info.partitions]


def _offset(key: PartitionKey, at: int, found: Mapping[OffsetQuery, int]) -> int:
    offset = found.get(OffsetQuery(key.topic, key.partition, at))
    if offset is None:
        raise no_offsets(key.topic, key.partition)
    return offset


def _by_time(
    key: PartitionKey, from_ms: int | None, to_ms: int | None, found: Mapping[OffsetQuery, int]
) -> Replayed:
    end = _offset(key, LATEST, found)
    first = _offset(key, EARLIEST, found)
    if from_ms is not None:
        first = max(first, _offset(key, max(0, from_ms), found))
    stop = end if to_ms is None else min(end, _offset(key, to_ms, found))
    return Replayed(key, min(first, stop), stop)


def _by_offsets(
    key: PartitionKey, spans: Sequence[Span], found: Mapping[OffsetQuery, int]
) -> Replayed:
    start, end = _offset(key, EARLIEST, found), _offset(key, LATEST, found)
    wanted = union(spans)
    for first, last in wanted:
        if not start <= first <= last < end:
            raise InvalidRequestError(
                f"offsets: {first} to {last} of {key.topic}[{key.partition}] are not in its log, "
                f"which has {start} to {end - 1}"
            )
    return Replayed(key, wanted[0][0], wanted[-1][1] + 1, tuple(wanted))
