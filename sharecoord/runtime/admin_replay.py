"""What a replay delivers again: a plan, partition by partition. Changes nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sharecoord.core.changes import PartitionKey
from sharecoord.core.lanes import Replayed, Run, divided, merged
from sharecoord.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    KafkaUnavailableError,
    LimitExceededError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, TopicCatalog, TopicInfo
from sharecoord.runtime.admin_types import Place
from sharecoord.runtime.lanes import RUNS_MAX


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """A part of logs for a side group: a time range, or single offsets.

    Attributes:
        group_id: Whose records they are.
        into_group_id: Who gets them: a new group, or one whose replay is finished.
        topics: Topic to its partitions, no partition = all of them. With `runs` it may be empty.
        from_ms: Records of this time or later, milliseconds since the epoch.
        to_ms: Records before this time; None = until the end of the log as it is now.
        duration_ms: Instead of `from_ms`: so long ago.
        runs: Instead of times: first and last offsets by place.
        rate_per_s: Records per second of all partitions together; 0 = no limit.
        with_settings: Whether the side group gets the settings of the group.
        dry_run: Only say what would happen.
    """

    group_id: str
    into_group_id: str
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    from_ms: int | None = None
    to_ms: int | None = None
    duration_ms: int | None = None
    runs: Mapping[Place, Sequence[Run]] = field(default_factory=dict)
    rate_per_s: int = 0
    with_settings: bool = False
    dry_run: bool = False


def not_finished(group_id: str) -> GroupNotEmptyError:
    """Why a group can not be a side group."""
    return GroupNotEmptyError(
        f"group {group_id!r} has records of its own, or a replay that is not finished; name a new "
        "group, or delete this one first"
    )


async def plan_replay(
    catalog: TopicCatalog, command: ReplayCommand, *, now_ms: int, committed: bool
) -> list[Replayed]:
    """The share-partitions of the side group.

    Args:
        catalog: Kafka's topics and offsets.
        command: What is wanted.
        now_ms: The store's clock, for `duration_ms`.
        committed: Whether logs end at their last stable offset.

    Raises:
        SharecoordError: As `Admin.replay`.
    """
    topics = command.topics or {topic: () for topic, _ in command.runs}
    infos = await catalog.describe(sorted(topics))
    wanted = {place for topic in topics for place in _places(topic, topics[topic], infos)}
    for topic, partition in command.runs:
        if (topic, partition) not in wanted:
            raise UnknownTopicOrPartitionError(
                f"offsets: {topic}[{partition}] is not among the topics and partitions to replay"
            )
    from_ms = now_ms - command.duration_ms if command.duration_ms is not None else command.from_ms
    queries = [OffsetQuery(*place, at) for place in wanted for at in (EARLIEST, LATEST)]
    times = [at for at in (from_ms, command.to_ms) if at is not None]
    queries += [OffsetQuery(*place, max(0, at)) for place in wanted for at in times]
    found = await catalog.offsets(queries, committed=committed)
    parts: list[Replayed] = []
    for topic, info in sorted(infos.items()):
        for partition in info.partitions:
            key = PartitionKey(command.into_group_id, topic, info.topic_id, partition)
            place = (topic, partition)
            if place not in wanted or (command.runs and place not in command.runs):
                # Its log is not followed either: the side group has a part of the topic only.
                parts.append(Replayed(key, 0, 0))
            elif command.runs:
                parts.append(_by_offsets(key, command.runs[place], found))
            else:
                parts.append(_by_time(key, from_ms, command.to_ms, found))
    return _with_rates(parts, command.rate_per_s)


def check_replay(command: ReplayCommand) -> None:
    """Refuses what is wrong by itself.

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
    if bool(command.runs) == (times or command.to_ms is not None):
        raise InvalidRequestError("give either a range of times or offsets, one of them")
    if not command.runs and not command.topics:
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
    runs = sum(map(len, command.runs.values()))
    if runs > RUNS_MAX:
        raise LimitExceededError(f"offsets: {runs} runs, {RUNS_MAX} are the most of one replay")


def _places(topic: str, partitions: Sequence[int], infos: Mapping[str, TopicInfo]) -> list[Place]:
    info = infos.get(topic)
    if info is None:
        raise UnknownTopicOrPartitionError(f"the cluster has no topic {topic!r}")
    for partition in partitions:
        if partition not in info.partitions:
            count = len(info.partitions)
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {partition}; it has {count} (0 to {count - 1})"
            )
    return [(topic, partition) for partition in partitions or info.partitions]


def _offset(key: PartitionKey, at: int, found: Mapping[OffsetQuery, int]) -> int:
    offset = found.get(OffsetQuery(key.topic, key.partition, at))
    if offset is None:
        raise KafkaUnavailableError(
            f"Kafka gave no offsets for {key.topic}[{key.partition}]; is its leader up?",
            retry_after_ms=1000,
        )
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
    key: PartitionKey, runs: Sequence[Run], found: Mapping[OffsetQuery, int]
) -> Replayed:
    start, end = _offset(key, EARLIEST, found), _offset(key, LATEST, found)
    wanted = merged(runs)
    for first, last in wanted:
        if not start <= first <= last < end:
            raise InvalidRequestError(
                f"offsets: {first} to {last} of {key.topic}[{key.partition}] are not in its log, "
                f"which has {start} to {end - 1}"
            )
    return Replayed(key, wanted[0].first, wanted[-1].last + 1, tuple(wanted))


def _with_rates(parts: Sequence[Replayed], rate_per_s: int) -> list[Replayed]:
    """A total rate in proportion to what each partition has."""
    counts = [part.records for part in parts]
    rates = divided(rate_per_s, counts)
    return [part.limited(rate) for part, rate in zip(parts, rates, strict=True)]
