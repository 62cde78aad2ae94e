"""Who should own a share-partition: the same everywhere, spread out, and moving little."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sharecoord.core.changes import PartitionKey, key_of, lane_of, served_by
from sharecoord.core.fleet.placement import wanted_owner

KEYS = [PartitionKey("g", f"t{n % 7}", f"{n % 7:032x}", n) for n in range(600)]


def owners(*coordinator_ids: str) -> list[str | None]:
    return [wanted_owner(key, coordinator_ids) for key in KEYS]


def test_nobody_there_owns_nothing() -> None:
    assert wanted_owner(KEYS[0], []) is None


def test_all_come_to_the_same_result_in_whatever_order_they_see_the_others() -> None:
    assert owners("a", "b", "c") == owners("c", "a", "b")


def test_partitions_are_spread() -> None:
    counts = Counter(owners("a", "b", "c"))
    assert set(counts) == {"a", "b", "c"}
    assert min(counts.values()) > 150  # of 200 each, 6 standard deviations wide


def test_one_that_goes_moves_only_what_it_had() -> None:
    before, after = owners("a", "b", "c"), owners("a", "b")
    assert all(b == a for b, a in zip(before, after, strict=True) if b != "c")


def test_one_that_comes_takes_its_part_and_nothing_else_moves() -> None:
    before, after = owners("a", "b"), owners("a", "b", "c")
    moved = [a for b, a in zip(before, after, strict=True) if b != a]
    assert set(moved) == {"c"}
    assert 140 < len(moved) < 260


def test_the_lives_of_a_topic_and_the_letters_of_a_partition_are_where_the_partition_is() -> None:
    for key in KEYS[:100]:
        lane = lane_of(key.topic, key.partition)
        others = [
            replace(key, topic_id="ab" * 16),
            replace(key, topic_id=""),
            PartitionKey("g", "dead", "cd" * 16, 5, lane),
            PartitionKey("g", "dead", "cd" * 16, 0, lane),
        ]
        assert {wanted_owner(each, "abc") for each in others} == {wanted_owner(key, "abc")}


@pytest.mark.parametrize(
    ("lane", "home"),
    [
        ("", ("dead", 5)),
        ("orders", ("orders", -1)),
        ("orders/3", ("orders", 3)),
        ("orders/0", ("orders", 0)),
        ("orders/", ("orders", -1)),
        ("orders/-1", ("orders", -1)),
        ("orders/three", ("orders", -1)),
    ],
)
def test_a_name_says_where_records_come_from(lane: str, home: tuple[str, int]) -> None:
    key = PartitionKey("g", "dead", "cd" * 16, 5, lane)
    assert (key.home, key.served) == (home, home[0])
    assert key_of("g", key.name, key.topic_id, key.partition) == key
    assert served_by(key.name) == key.served


def test_lanes_with_letters_of_several_partitions_are_spread_by_their_own() -> None:
    lanes = [PartitionKey("g", "dead", "cd" * 16, n, "orders") for n in range(64)]
    assert {wanted_owner(key, "ab") for key in lanes} == {"a", "b"}
