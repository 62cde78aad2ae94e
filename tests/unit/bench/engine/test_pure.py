"""Distributions, keys, percentiles, fairness, the search for the highest rate."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.bench.engine.cell import TopicKey
from sharecoord.bench.engine.send import due_ns, routes
from sharecoord.bench.engine.stats import fairness, percentile, percentiles
from sharecoord.bench.engine.trial import search_max_rate
from sharecoord.bench.engine.work import Distribution, work_times_s, zipf_keys

DRAWS = 8_192


def draws(text: str, *, mean_ms: float = 5.0, seed: int = 1, consumer: int = 0) -> list[float]:
    times = work_times_s(Distribution.parse(text), mean_ms, seed, consumer)
    return list(itertools.islice(times, DRAWS))


# -- work times -----------------------------------------------------------------------------------


def test_constant_work_is_constant_and_no_work_is_none() -> None:
    assert set(draws("constant")) == {0.005}
    assert set(draws("lognormal:1", mean_ms=0)) == {0.0}


def test_uniform_work_lies_between_zero_and_twice_the_mean() -> None:
    times = draws("uniform")
    assert min(times) >= 0
    assert max(times) <= 0.01
    assert statistics.mean(times) == pytest.approx(0.005, rel=0.05)
    assert statistics.stdev(times) == pytest.approx(0.01 / math.sqrt(12), rel=0.05)


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
def test_lognormal_work_has_the_mean_and_the_sigma_that_were_asked_for(sigma: float) -> None:
    times = draws(f"lognormal:{sigma}")
    assert statistics.mean(times) == pytest.approx(0.005, rel=0.1)
    logs = [math.log(time) for time in times]
    assert statistics.stdev(logs) == pytest.approx(sigma, rel=0.05)


def test_a_seed_gives_the_same_times_and_each_consumer_has_its_own() -> None:
    assert draws("uniform") == draws("uniform")
    assert draws("uniform") != draws("uniform", seed=2)
    assert draws("uniform") != draws("uniform", consumer=1)


def test_a_distribution_survives_being_written() -> None:
    for text in ("constant", "uniform", "lognormal:0.5"):
        assert str(Distribution.parse(text)) == text


# -- keys -----------------------------------------------------------------------------------------


def test_keys_follow_zipf() -> None:
    counts = Counter(itertools.islice(zipf_keys(1.0, 10, seed=1), 8 * DRAWS))
    assert sorted(counts) == list(range(10))
    harmonic = sum(1 / rank for rank in range(1, 11))
    for key in (0, 1, 9):
        assert counts[key] / (8 * DRAWS) == pytest.approx(1 / (key + 1) / harmonic, rel=0.06)


def test_without_skew_all_keys_are_alike() -> None:
    counts = Counter(itertools.islice(zipf_keys(0.0, 4, seed=1), 8 * DRAWS))
    assert max(counts.values()) / min(counts.values()) < 1.05


def test_records_go_round_without_keys_and_by_key_with_them() -> None:
    assert list(itertools.islice(routes(TopicKey(3, 20, None, 10), 1), 4)) == [
        (None, 0),
        (None, 1),
        (None, 2),
        (None, 0),
    ]
    for key, partition in itertools.islice(routes(TopicKey(3, 20, 1.0, 10), 1), 100):
        assert key is not None
        assert int(key.removeprefix(b"key-")) % 3 == partition


def test_records_are_due_at_even_times() -> None:
    assert [due_ns(100, 4.0, number) for number in range(3)] == [100, 250_000_100, 500_000_100]


# -- percentiles and fairness ---------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(sorted(values), percent)
    wanted = len(values) * percent / 100
    enough = [each for each in values if sum(other <= each for other in values) >= wanted]
    assert found == min(enough)


def test_percentiles_by_name() -> None:
    values = [float(value) for value in range(1, 1001)]
    random.Random(1).shuffle(values)
    assert percentiles(values) == {"p50_ms": 500, "p95_ms": 950, "p99_ms": 990, "max_ms": 1000}
    assert percentiles([]) == {}


def test_fairness_of_shares() -> None:
    assert fairness([4, 4, 4, 4]) == {
        "jain_ratio": 1.0,
        "fewest_records": 4,
        "most_records": 4,
        "starved_consumers": 0,
    }
    assert fairness([8, 0, 0, 0])["jain_ratio"] == pytest.approx(0.25)
    assert fairness([8, 0, 0, 0])["starved_consumers"] == 3


# -- the highest rate -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [100.0, 101.0, 5_000.0, 99_000.0])
def test_the_search_closes_in_on_the_limit(limit: float) -> None:
    found, probes = search_max_rate(lambda rate: rate <= limit, 100.0, 100_000.0, 16)
    assert found <= limit
    assert limit / found < 1.03
    assert len(probes) <= 16


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_search_takes_no_more_steps_than_allowed(steps: int) -> None:
    found, probes = search_max_rate(lambda rate: rate <= 3_000, 100.0, 100_000.0, steps)
    assert len(probes) == steps
    assert 100 <= found <= 3_000
    assert all(held == (rate <= 3_000) for rate, held in probes)


def test_a_limit_outside_of_the_range_is_seen() -> None:
    above, probes = search_max_rate(lambda _: True, 100.0, 1_000.0, 8)
    assert (above, len(probes)) == (1_000, 2)
    below, probes = search_max_rate(lambda _: False, 100.0, 1_000.0, 8)
    assert (below, len(probes)) == (0, 1)
