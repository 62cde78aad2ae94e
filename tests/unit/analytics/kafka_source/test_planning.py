"""Which task reads which offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.analytics.kafka_source.options import EARLIEST, LATEST
from sharecoord.analytics.kafka_source.planning import Part, checked, limited, parts, resolved
from sharecoord.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError

ENDS = {0: (3, 10), 1: (0, 0)}


def test_words_and_numbers() -> None:
    assert resolved("t", EARLIEST, ENDS) == {0: 3, 1: 0}
    assert resolved("t", LATEST, ENDS) == {0: 10, 1: 0}
    assert resolved("t", {0: 5, 1: LATEST}, ENDS) == {0: 5, 1: 0}


@pytest.mark.parametrize(("wanted", "says"), [({0: 5}, "a partition 1, too"), ({2: 1}, "2")])
def test_partitions_that_are_not_those_of_the_topic(wanted: dict[int, int], says: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match=says):
        resolved("t", wanted, ENDS)


def test_parts_are_equal_and_take_turns() -> None:
    assert parts({0: 0, 1: 5}, {0: 10, 1: 7, 2: 1}, 4) == [
        *(Part(0, 0, 3), Part(1, 5, 7), Part(2, 0, 1)),
        *(Part(0, 3, 6), Part(0, 6, 10)),
    ]
    assert parts({0: 5}, {0: 5}, 4) == []
    assert parts({}, {}, 4) == []


offsets = st.dictionaries(st.integers(0, 5), st.integers(0, 50), min_size=1)


@given(offsets, offsets, st.integers(1, 20))
def test_parts_cover_everything_once(
    start: dict[int, int], more: dict[int, int], size: int
) -> None:
    end = {p: start.get(p, 0) + more.get(p, 0) for p in start.keys() | more.keys()}
    found = parts(start, end, size)
    assert all(0 < part.end - part.start <= size for part in found)
    read = [(part.partition, n) for part in found for n in range(part.start, part.end)]
    wanted = [(p, n) for p in end for n in range(start.get(p, 0), end[p])]
    assert sorted(read) == sorted(wanted)


@given(offsets, offsets, st.integers(1, 100))
def test_a_limit_is_kept_and_reached(
    start: dict[int, int], more: dict[int, int], most: int
) -> None:
    end = {p: start.get(p, 0) + more.get(p, 0) for p in start.keys() | more.keys()}
    found = limited(start, end, most)
    moved = {p: found[p] - start.get(p, 0) for p in end}
    assert sum(moved.values()) == min(most, sum(more.values()))
    assert all(0 <= moved[p] <= more.get(p, 0) for p in end)
    assert list(found) == sorted(found)


def test_without_a_limit_everything_is_read() -> None:
    assert limited({0: 1}, {0: 9, 1: 4}, None) == {0: 9, 1: 4}


def test_offsets_that_the_log_no_longer_has() -> None:
    ends = {0: (5, 10)}
    assert checked("t", {0: 5}, ends, fail_on_data_loss=True) == {0: 5}
    assert checked("t", {0: 10}, ends, fail_on_data_loss=True) == {0: 10}
    for start, says in (
        ({0: 4}, "t-0 has 5 to 10, and reading was to go on at 4"),
        ({0: 11}, "t-0 has 5 to 10, and reading was to go on at 11"),
        ({1: 0}, "t-1 is gone"),
    ):
        with pytest.raises(OffsetOutOfRangeError, match=says):
            checked("t", start, ends, fail_on_data_loss=True)
    assert checked("t", {0: 4, 1: 7}, ends, fail_on_data_loss=False) == {0: 5}
    assert checked("t", {0: 11}, ends, fail_on_data_loss=False) == {0: 5}
