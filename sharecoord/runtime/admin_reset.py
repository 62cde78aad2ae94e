"""Where a reset moves start offsets to: a plan, partition by partition. Changes nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sharecoord.core.changes import PartitionRow
from sharecoord.errors import (
    InvalidRequestError,
    KafkaUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, TopicCatalog, TopicInfo
from sharecoord.runtime.admin_types import (
    NO_PARTITION,
    Place,
    ResetCommand,
    ResetKind,
    ResetResult,
    ResetTo,
)

Rows = Mapping[tuple[str, str, int], PartitionRow]
"""The group's share-partitions by topic, topic id and partition."""


async def plan_reset(
    catalog: TopicCatalog,
    command: ResetCommand,
    rows: Sequence[PartitionRow],
    *,
    committed: bool,
    now_ms: int,
) -> list[ResetResult]:
    """Says for each partition what its start offset becomes.

    Args:
        catalog: Kafka's topics and offsets.
        command: What is wanted.
        rows: The group's share-partitions, without the closed ones.
        committed: Whether the group reads committed records only; then its log ends at the last
            stable offset.
        now_ms: By the store's clock.

    Returns:
        By topic and partition; those that can not be reset carry an error.

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
    places, results = _existing(wanted, infos)
    known: Rows = {(r.key.topic, r.key.topic_id, r.key.partition): r for r in rows}
    found = await catalog.offsets(_queries(command.to, places), committed=committed)
    for topic, partition in places:
        topic_id = infos[topic].topic_id
        row = known.get((topic, topic_id, partition))
        results.append(_result(command.to, found, topic, partition, topic_id, row))
    return sorted(results, key=lambda result: (result.topic, result.partition))


def _check(to: ResetTo) -> None:
    if to.value < 0:
        name = "by_duration_ms" if to.kind is ResetKind.DURATION else f"to_{to.kind.value}"
        raise InvalidRequestError(f"{name} is {to.value}; it must be 0 or more")
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
    wanted: Mapping[str, set[int]], infos: Mapping[str, TopicInfo]
) -> tuple[list[Place], list[ResetResult]]:
    """The places that the cluster has, and errors for the others."""
    places: list[Place] = []
    errors: list[ResetResult] = []
    for topic, partitions in wanted.items():
        info = infos.get(topic)
        if info is None:
            error = UnknownTopicOrPartitionError(f"the cluster has no topic {topic!r}")
            asked = sorted(partitions) or [NO_PARTITION]
            errors += [ResetResult(topic, partition, error=error) for partition in asked]
            continue
        for partition in sorted(partitions or info.partitions):
            if partition in info.partitions:
                places.append((topic, partition))
                continue
            count = len(info.partitions)
            error = UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {partition}; it has {count} (0 to {count - 1})"
            )
            errors.append(ResetResult(topic, partition, error=error))
    return places, errors


def _queries(to: ResetTo, places: Sequence[Place]) -> list[OffsetQuery]:
    """What Kafka is asked: both ends of each log, and the place of a time."""
    queries = [OffsetQuery(t, p, at) for t, p in places for at in (EARLIEST, LATEST)]
    if to.kind is ResetKind.TIMESTAMP:
        queries += [OffsetQuery(t, p, to.value) for t, p in places]
    return queries


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
        error = KafkaUnavailableError(
            f"Kafka gave no offsets for {topic}[{partition}]; is its leader up?",
            retry_after_ms=1000,
        )
        return ResetResult(topic, partition, topic_id, old_offset=old, error=error)
    if row is not None and row.stops_at is not None:
        # A replay has no more than its part of the log.
        end = min(end, row.stops_at)
    new = min(max(requested, start), end)
    return ResetResult(
        topic, partition, topic_id, new, old, requested if requested != new else None
    )
