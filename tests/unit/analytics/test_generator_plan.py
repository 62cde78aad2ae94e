"""Numbers of a generated log, without Spark."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.generate.plan import (
    ACTIVE_S_MIN,
    DELIVERY_LIMIT,
    PATTERN_SLOTS,
    RETRY_SLOTS,
    GeneratorSettings,
    Slot,
    make_pattern,
    make_plan,
    truth,
)


def test_slots_follow_each_other_in_the_log() -> None:
    fresh = [slot for slot in make_pattern(GeneratorSettings(1)) if slot.delivery_count == 1]
    assert fresh[0].first == 0
    for before, slot in itertools.pairwise(fresh):
        assert slot.first == before.next == before.first + before.size


@pytest.mark.parametrize("poison_keys", [0, 3])
def test_every_range_ends_within_the_pattern(poison_keys: int) -> None:
    by_range: dict[tuple[int, int], list[Slot]] = defaultdict(list)
    pattern = make_pattern(GeneratorSettings(1, poison_keys=poison_keys))
    assert [slot.slot for slot in pattern] == list(range(PATTERN_SLOTS))
    for slot in pattern:
        by_range[slot.first, slot.size].append(slot)
    for slots in by_range.values():
        assert [slot.delivery_count for slot in slots] == list(range(1, len(slots) + 1))
        assert [slot.state for slot in slots[:-1]] == ["available"] * (len(slots) - 1)
        assert {b.slot - a.slot for a, b in itertools.pairwise(slots)} <= {RETRY_SLOTS}
        poison = slots[0].key == "poison"
        assert slots[-1].state == ("archived" if poison else "acknowledged")
        assert len(slots) <= DELIVERY_LIMIT
        assert not poison or len(slots) == DELIVERY_LIMIT
    poisoned = sum(slots[0].key == "poison" for slots in by_range.values())
    assert poisoned == (4 if poison_keys else 0)
    assert sum(len(slots) == 2 for slots in by_range.values()) == 2 * PATTERN_SLOTS // 64


def test_the_seed_decides() -> None:
    assert make_pattern(GeneratorSettings(1, seed=2)) == make_pattern(GeneratorSettings(9, seed=2))
    assert make_pattern(GeneratorSettings(1, seed=2)) != make_pattern(GeneratorSettings(1, seed=3))


@pytest.mark.parametrize(
    "given",
    [
        {"events": 100_000},
        {"events": 1_000_000, "hours": 24},
        {"events": 1_000_000, "hours": 0.1},
        {"events": 100_000_000, "groups": 100, "members": 3},
        {"events": 20_000, "groups": 1, "members": 1, "partitions": 1},
    ],
)
def test_as_many_rows_as_asked_for(given: dict[str, Any]) -> None:
    plan = make_plan(GeneratorSettings(**given))
    wanted = plan.settings
    too_few = wanted.events - plan.rows
    assert 0 <= too_few < 2 * wanted.partitions * wanted.groups * plan.blocks + wanted.groups
    assert plan.period_s >= plan.block_s
    if wanted.hours:
        assert plan.blocks * plan.period_s <= wanted.hours * 3600
        assert plan.blocks * plan.period_s >= 0.9 * wanted.hours * 3600
    # What is in flight ends with its block.
    assert (plan.slots + plan.in_flight) / plan.slots_per_s < plan.block_s


def test_too_few_events_say_how_many_it_takes() -> None:
    with pytest.raises(AnalyticsError, match=r"need at least (\d+) events") as caught:
        make_plan(GeneratorSettings(1_000))
    least = int(caught.value.message.split("at least ")[1].split()[0])
    assert make_plan(GeneratorSettings(least)).active_s >= ACTIVE_S_MIN
    with pytest.raises(AnalyticsError):
        make_plan(GeneratorSettings(least - 10))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"groups": 0}, "--groups 0"),
        ({"members": 1, "starved": 1}, "--starved 1: it must be from 0 to 0"),
        ({"poison_keys": -1}, "--poison-keys"),
        ({"lag_spikes": 100_000}, "--lag-spikes"),
        ({"lag_spikes": 9_000}, "seconds of traffic"),
        ({"poison_keys": 9_000}, "have room for"),
        ({"drop": 1.0}, "--drop"),
        ({"skew": -1.0}, "--skew"),
        ({"hours": 0.0}, "--hours"),
        ({"hours": 0.001}, "need at least"),
    ],
)
def test_bad_values_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(AnalyticsError, match=says):
        make_plan(GeneratorSettings(1_000_000, **given))


def test_the_truth_names_what_is_planted() -> None:
    wanted = GeneratorSettings(
        1_000_000, groups=3, members=4, starved=5, poison_keys=2, lag_spikes=4
    )
    found = truth(make_plan(wanted), 7, {"group-1": 3})
    assert (found["rows"], found["lost"]) == (7, {"group-1": 3})
    assert [each["group"] for each in found["starved"]] == ["group-0"] * 2 + ["group-1"] * 2 + [
        "group-2"
    ]
    assert len({each["member"] for each in found["starved"]}) == 5
    assert found["poison"][2] == {"group": "group-2", "keys": ["poison-0", "poison-1"]}
    assert [each["group"] for each in found["lag_spikes"]] == [f"group-{i}" for i in (0, 1, 2, 0)]
    assert found["first_time"] < found["starved"][0]["since"] < found["last_time"]
