"""The plan of a read: which task reads which offsets; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sharecoord.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError

Ends = Mapping[int, tuple[int, int]]
"""First offset of the log and its end, by partition."""


class Part(NamedTuple):
    """The offsets of one task: [start, end) of a partition."""

    partition: int
    start: int
    end: int


def resolved(topic: str, wanted: int | Mapping[int, int], ends: Ends) -> dict[int, int]:
    """An offset of each partition, in the place of `EARLIEST` (-2) and `LATEST` (-1).

    Raises:
        UnknownTopicOrPartitionError: The partitions named are not those of the topic.
    """
    if not isinstance(wanted, Mapping):
        wanted = dict.fromkeys(ends, wanted)
    missing, unknown = sorted(ends.keys() - wanted.keys()), sorted(wanted.keys() - ends.keys())
    if missing or unknown:
        what = f"has no partition {unknown[0]}" if unknown else f"has a partition {missing[0]}, too"
        raise UnknownTopicOrPartitionError(
            f'topic "{topic}" {what}: offsets must name each of its {len(ends)} partitions'
        )
    index = {-2: 0, -1: 1}
    return {
        partition: ends[partition][index[offset]] if offset < 0 else offset
        for partition, offset in sorted(wanted.items())
    }


def parts(start: Mapping[int, int], end: Mapping[int, int], size: int) -> list[Part]:
    """Ranges of at most `size` offsets, as equal as they can be; a new partition begins at 0.

    The first parts of all partitions come first, so that few tasks at a time read from many.
    """
    by_partition = [
        list(_split(partition, start.get(partition, 0), end[partition], size))
        for partition in sorted(end)
    ]
    longest = max(map(len, by_partition), default=0)
    return [each[turn] for turn in range(longest) for each in by_partition if turn < len(each)]


def _split(partition: int, start: int, end: int, size: int) -> Iterator[Part]:
    count = -(-(end - start) // size)
    for turn in range(count):
        first = start + (end - start) * turn // count
        yield Part(partition, first, start + (end - start) * (turn + 1) // count)


def limited(start: Mapping[int, int], end: Mapping[int, int], most: int | None) -> dict[int, int]:
    """Ends of a micro-batch with at most `most` offsets in all.

    Each partition gets its part of them by the offsets that it has, so that none falls behind; at
    least one partition gets one.
    """
    left = {partition: end[partition] - start.get(partition, 0) for partition in end}
    total = sum(left.values())
    if most is None or total <= most:
        return {partition: end[partition] for partition in sorted(end)}
    chosen = {partition: each * most // total for partition, each in left.items()}
    # The rest of the rounding goes to the largest partitions, so that the sum is `most`.
    order = sorted(left, key=lambda partition: (-left[partition], partition))
    for partition in order[: most - sum(chosen.values())]:
        chosen[partition] += 1
    return {partition: start.get(partition, 0) + chosen[partition] for partition in sorted(end)}


def checked(
    topic: str, start: Mapping[int, int], ends: Ends, *, fail_on_data_loss: bool
) -> dict[int, int]:
    """Starts that the log still has; without `fail_on_data_loss` offsets that are gone are skipped.

    Raises:
        OffsetOutOfRangeError: The log begins behind a start, ends before it, or a partition is
            gone: messages were deleted, or the topic was made anew.
    """
    valid = {}
    for partition, offset in start.items():
        low, high = ends.get(partition, (0, -1))
        if low <= offset <= high:
            valid[partition] = offset
            continue
        if fail_on_data_loss:
            what = f"has {low} to {high}" if high >= 0 else "is gone"
            raise OffsetOutOfRangeError(
                f"{topic}-{partition} {what}, and reading was to go on at {offset}: messages were "
                "deleted before they were read, or the topic was made anew. Name another "
                "checkpoint, or set the option failOnDataLoss=false to go on with what is there"
            )
        if high >= 0:
            valid[partition] = low
    return valid
