"""Medians, ratios and targets."""

from __future__ import annotations

import pytest

from sharecoord.bench.standard.plans import Options, throughput_plan
from sharecoord.bench.standard.results import Run, judge, summarize
from sharecoord.bench.text import Spread, spread_of
from tests.unit.bench.support import make_run


def test_a_spread_is_median_least_and_greatest() -> None:
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)
    assert spread_of([]) is None
    assert spread_of([None, 4.0]) == Spread(4.0, 4.0, 4.0)


def test_ratios_are_taken_within_a_repeat() -> None:
    # Other work halves every speed in the second repeat: the ratio does not move.
    runs = [
        make_run("kafka-implicit", 100_000, repeat=1),
        make_run("sharecoord-implicit", 300_000, repeat=1, idle_rss_mb=90),
        make_run("kafka-implicit", 50_000, repeat=2),
        make_run("sharecoord-implicit", 150_000, repeat=2, idle_rss_mb=90),
    ]
    peer, ours = summarize(throughput_plan(Options(sizes=[1000])), runs)
    assert peer.ratio is None
    assert ours.ratio is not None
    assert ours.ratio.low == pytest.approx(3.0)
    assert ours.ratio.high == pytest.approx(3.0)
    assert ours.figures["records_per_s"].median == pytest.approx(225_000)
    assert ours.figures["cpu_total_s_per_million"].median == pytest.approx(3.0)


def test_warm_up_other_sizes_and_other_modes_do_not_count() -> None:
    runs = [
        make_run("kafka-implicit", 1, repeat=0),
        make_run("kafka-explicit", 2),
        make_run("kafka-implicit", 3, size_bytes=100),
        make_run("kafka-implicit", 100_000, repeated=7),
    ]
    lines = summarize(throughput_plan(Options(sizes=[1000])), runs)
    assert [line.contender for line in lines] == ["kafka-implicit", "kafka-explicit"]
    assert lines[0].figures["records_per_s"].high == pytest.approx(100_000)
    assert lines[0].repeated == 7


def ours_and_peer(
    ratio: float, *, cpu: float, first_record_s: float, idle_rss_mb: float
) -> list[Run]:
    return [
        make_run("kafka-implicit", 100_000, first_record_s=5.0),
        make_run(
            "sharecoord-implicit",
            100_000 * ratio,
            first_record_s=first_record_s,
            idle_rss_mb=idle_rss_mb,
            cpu_s=cpu,
        ),
    ]


@pytest.mark.parametrize(
    ("ratio", "cpu", "first_record_s", "idle_rss_mb", "passed"),
    [
        # Three processes against two with 1 s each: 0.4 s each would be 0.6x.
        (2.6, 0.39, 0.5, 120.0, [True, True, True, True]),
        (2.4, 0.39, 0.5, 120.0, [False, True, True, True]),
        (2.6, 0.41, 0.5, 120.0, [True, False, True, True]),
        (2.6, 0.39, 0.51, 120.0, [True, True, False, True]),
        (2.6, 0.39, 0.5, 120.1, [True, True, True, False]),
    ],
)
def test_each_target_is_judged_by_its_own_figure(
    ratio: float, cpu: float, first_record_s: float, idle_rss_mb: float, passed: list[bool]
) -> None:
    runs = ours_and_peer(ratio, cpu=cpu, first_record_s=first_record_s, idle_rss_mb=idle_rss_mb)
    verdicts = judge(throughput_plan(Options(sizes=[1000])), runs)
    assert [verdict.bound for verdict in verdicts] == [2.5, 0.6, 0.5, 120.0]
    assert [verdict.passed for verdict in verdicts] == passed
    assert [verdict.unit for verdict in verdicts] == ["x", "x", "s", "MB"]


def test_small_records_have_bounds_of_their_own() -> None:
    runs = [
        make_run("kafka-explicit", 100_000, size_bytes=100),
        make_run("sharecoord-explicit", 181_000, size_bytes=100, idle_rss_mb=90),
    ]
    verdict = judge(throughput_plan(Options(sizes=[100])), runs)[0]
    assert "100 B" in verdict.title
    assert (verdict.bound, verdict.passed) == (1.8, True)


def test_the_median_is_judged() -> None:
    runs = [
        make_run("sharecoord-implicit", 1, repeat=repeat, first_record_s=first, idle_rss_mb=90)
        for repeat, first in enumerate((0.1, 0.2, 9.0), start=1)
    ]
    first_record = judge(throughput_plan(Options(sizes=[1000])), runs)[0]
    assert first_record.measured == Spread(0.2, 0.1, 9.0)
    assert first_record.passed


def test_nothing_is_judged_without_a_run_of_ours() -> None:
    runs = [make_run("plain", 1), make_run("kafka-implicit", 1, first_record_s=5.0)]
    assert judge(throughput_plan(Options(sizes=[1000])), runs) == []
