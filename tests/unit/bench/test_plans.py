"""Order and bounds of the plan."""

from __future__ import annotations

from typing import Any

import pytest

from sharecoord.bench.engine.cell import Consumer
from sharecoord.bench.standard.plans import (
    CONTENDERS,
    TARGETS,
    WARM_UP_REPEAT,
    Options,
    throughput_plan,
)
from sharecoord.errors import InvalidConfigError


def test_by_default_three_repeats_of_both_sizes() -> None:
    plan = throughput_plan(Options())
    assert plan.records == {100: 1_500_000, 1000: 1_000_000}
    assert plan.settings.repeats == 3


@pytest.mark.parametrize(("size", "records"), [(300, 1_500_000), (2000, 500_000), (20_000, 50_000)])
def test_large_values_come_in_smaller_numbers(size: int, records: int) -> None:
    assert throughput_plan(Options(sizes=[size])).records == {size: records}


def test_quick_gives_way_to_what_is_said() -> None:
    quick = throughput_plan(Options(quick=True))
    assert (set(quick.records.values()), quick.settings.repeats) == ({200_000}, 1)
    said = throughput_plan(Options(quick=True, records=60_000, repeats=2))
    assert (set(said.records.values()), said.settings.repeats) == ({60_000}, 2)


def test_peers_are_measured_side_by_side_and_every_second_round_goes_backwards() -> None:
    plan = throughput_plan(Options(sizes=[1000], repeats=2))
    keys = [contender.key for contender in CONTENDERS]
    steps = [(step.repeat, step.contender.key) for step in plan.steps()]
    warm_up = [(WARM_UP_REPEAT, key) for key in keys]
    first = [(1, key) for key in keys]
    second = [(2, key) for key in reversed(keys)]
    assert steps == warm_up + first + second
    for contender in CONTENDERS:
        if contender.peer:
            assert abs(keys.index(contender.key) - keys.index(contender.peer)) == 1


def test_the_warm_up_takes_no_more_than_there_is() -> None:
    plan = throughput_plan(Options(sizes=[100, 1000], records=60_000))
    step = next(plan.steps())
    assert (step.repeat, step.records, step.cell.payload_bytes) == (WARM_UP_REPEAT, 60_000, 1000)


def test_only_ours_is_compared_and_with_its_own_mode() -> None:
    modes = {contender.key: contender for contender in CONTENDERS}
    for contender in CONTENDERS:
        assert (contender.peer is not None) == (contender.cell.consumer is Consumer.SHARECOORD)
        if contender.peer:
            assert modes[contender.peer].cell.ack is contender.cell.ack
            assert modes[contender.peer].cell.consumer is Consumer.KAFKA_SHARE
    assert {key for target in TARGETS for key in target.keys} <= set(modes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": []}, "sizes: none is given"),
        ({"sizes": [100, 100]}, "sizes: .* names one twice"),
        ({"sizes": [9]}, "sizes: 9 must be from 10 to 20000"),
        ({"sizes": [20_001]}, "sizes: 20001 must be"),
        ({"records": 49_999}, "records: 49999 are too few, use 50000"),
        ({"records": 0, "quick": True}, "records: 0 are too few"),
        ({"batch_bytes": 0}, "batch_bytes: 0 must be from 1 to 1000000"),
        ({"batch_bytes": 1_000_001}, "batch_bytes: 1000001 must be"),
        ({"repeats": 0}, "repeats: 0 must be from 1 to 100"),
        ({"repeats": 101}, "repeats: 101 must be"),
    ],
)
def test_what_is_out_of_bounds_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        throughput_plan(Options(**wrong))
