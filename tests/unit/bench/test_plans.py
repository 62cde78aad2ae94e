"""Plans with targets: which there are, what options change in them, bounds."""

from __future__ import annotations

from typing import Any

import pytest

from sharecoord.bench.engine.cell import Ack, Cell, Compression, Consumer
from sharecoord.bench.engine.settings import Settings, backlogs, plan_names, read_plan
from sharecoord.bench.engine.targets import Target
from sharecoord.bench.standard.plans import (
    ALL,
    FILES,
    PLANS,
    TRIALS,
    Options,
    TrialPlan,
    make_plan,
)
from sharecoord.cli.bench import bench
from sharecoord.errors import InvalidConfigError


def test_every_plan_with_targets_is_measured_by_all() -> None:
    with_targets = {name for name in plan_names() if read_plan(name).get("targets")}
    assert with_targets == set(FILES)
    (choice,) = [each.type for each in bench.params if each.name == "plan"]
    assert choice.to_info_dict()["choices"] == (*PLANS, ALL)
    with pytest.raises(InvalidConfigError, match=f"plan: 'speed' is not known; .*, {ALL}$"):
        make_plan("speed", Options())


@pytest.mark.parametrize("name", FILES)
def test_each_target_of_a_plan_judges_a_cell_of_it(name: str) -> None:
    settings = Options().settings(name)
    cells = settings.product().cells
    for target in settings.targets:
        judged = [cell for cell in cells if target.means(cell)]
        assert judged, target
        for cell in judged:
            other = target.other(cell, settings.mode)
            assert not target.against or (other in cells and other != cell), (target, cell)


def test_the_shapes_are_small_and_large_values_batches_codecs_and_both_ways_to_acknowledge() -> (
    None
):
    settings = Options().settings("shapes")
    cells = settings.product().cells
    assert settings.repeats == 3
    ours = {cell for cell in cells if cell.consumer is Consumer.SHARECOORD}
    assert ours == {
        Cell(
            Consumer.SHARECOORD,
            payload_bytes=size,
            batch_bytes=batch,
            compression=codec,
            ack=ack,
        )
        for size in (100, 1000)
        for batch in (16_384, 1_000_000)
        for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD)
        for ack in Ack
    }
    # Peers stand beside each other, a plain consumer has no way to acknowledge.
    assert [cell.consumer for cell in cells[:3]] == [
        Consumer.PLAIN,
        Consumer.KAFKA_SHARE,
        Consumer.SHARECOORD,
    ]
    assert len(cells) == 2 * len(ours) + 12
    # Each topic is filled once.
    amounts = backlogs(settings, cells)
    assert len(amounts) == 12
    assert {(key.payload_bytes, count) for key, count in amounts.items()} == {
        (100, 1_500_000),
        (1000, 1_000_000),
    }


def bounds(figure: str) -> dict[tuple[int, int, str], tuple[float, bool]]:
    """What is promised against Kafka's own share group, by value, batch and codec."""
    settings = Options().settings("shapes")
    found: dict[tuple[int, int, str], tuple[float, bool]] = {}
    for cell in settings.product().cells:
        for target in settings.targets:
            if target.figure == figure and target.means(cell):
                assert target.against == {"consumer": (Consumer.KAFKA_SHARE,)}
                key = (cell.payload_bytes, cell.batch_bytes, str(cell.compression))
                assert found.setdefault(key, (target.bound, target.at_least)) == (
                    target.bound,
                    target.at_least,
                )
    return found


def test_what_is_promised_of_each_shape() -> None:
    packed = [(1000, batch, codec) for batch in (16_384, 1_000_000) for codec in ("lz4", "zstd")]
    assert bounds("records_per_s") == {
        (100, 16_384, "none"): (5.0, True),
        (1000, 16_384, "none"): (3.5, True),
        (100, 1_000_000, "none"): (1.3, True),
        (1000, 1_000_000, "none"): (1.3, True),
        **dict.fromkeys(packed, (1.5, True)),
    }
    assert bounds("cpu_total_s_per_million") == {
        (100, 16_384, "none"): (0.4, False),
        (1000, 16_384, "none"): (0.4, False),
        (100, 1_000_000, "none"): (0.9, False),
        (1000, 1_000_000, "none"): (0.9, False),
        **dict.fromkeys(packed, (0.7, False)),
    }


def test_partitions_are_measured_against_one() -> None:
    (target,) = Options().settings("partitions").targets
    assert target == Target(
        *("records_per_s", 0.9, True),
        {"partitions": (100,), "consumers": (1,)},
        {"partitions": (1,)},
    )


def test_quick_gives_way_to_what_is_said() -> None:
    quick = Options(quick=True).settings("shapes")
    assert (quick.records, quick.repeats, quick.rehearsal) == (200_000, 1, False)
    said = Options(quick=True, records=60_000, repeats=2).settings("shapes")
    assert (said.records, said.repeats) == (60_000, 2)
    # Handlers that work need as many records as they can handle.
    working = Options(quick=True).settings("members")
    assert (working.records, working.duration_s) == (None, 5.0)


def test_sizes_and_batches_change_the_plans_of_one_topic_and_no_others() -> None:
    options = Options(sizes=(200,), batch_bytes=500, records=60_000)
    for name in ("shapes", "stores"):
        settings = options.settings(name)
        cells = settings.product().cells
        assert {(cell.payload_bytes, cell.batch_bytes) for cell in cells} == {(200, 500)}
        assert settings.records == 60_000
    assert options.settings("latency") == Options().settings("latency")


def test_a_named_cluster_reaches_every_plan() -> None:
    for name in FILES:
        settings = make_plan(name, Options(), "h:1")
        assert isinstance(settings, Settings)
        assert settings.kafka == "h:1"
    for name in TRIALS:
        assert isinstance(make_plan(name, Options(), "h:1"), TrialPlan)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": []}, "payload-bytes: no value is given"),
        ({"sizes": [100, 100]}, "payload-bytes: .* names one twice"),
        ({"sizes": [15]}, "sizes: 15 must be from 16 to 20000"),
        ({"sizes": [20_001]}, "sizes: 20001 must be"),
        ({"records": 49_999}, "records: 49999 are too few, use 50000"),
        ({"records": 0, "quick": True}, "records: 0 are too few"),
        ({"batch_bytes": 0}, "batch-bytes: '0' can not be used; give bytes from 1 to 1000000"),
        ({"batch_bytes": 1_000_001}, "batch-bytes: '1000001' can not be used"),
        ({"repeats": 0}, "repeats: 0 must be from 1 to 20"),
        ({"repeats": 21}, "repeats: 21 must be"),
    ],
)
def test_what_is_out_of_bounds_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        make_plan("shapes", Options(**wrong))
    if "repeats" in wrong:
        with pytest.raises(InvalidConfigError, match=message):
            make_plan("restart", Options(**wrong))
