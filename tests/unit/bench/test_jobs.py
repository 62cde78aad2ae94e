"""`sharecoord bench jobs` without Spark: options and figures."""

from __future__ import annotations

import pytest

from sharecoord.bench.jobs import (
    BARE,
    JOBS,
    MAX_EVENTS,
    MIN_EVENTS,
    Pass,
    growth,
    markdown,
    ratios,
    read_sizes,
)
from sharecoord.bench.text import read_names
from sharecoord.errors import InvalidConfigError
from tests.unit.bench.support import MACHINE

PASSES = [
    Pass(10_000, 1, BARE, 2.0, 3.0, 500.0),
    Pass(10_000, 1, "lag", 3.0, 6.0, 600.0),
    Pass(10_000, 2, BARE, 1.0, 3.0, 600.0),
    Pass(10_000, 2, "lag", 3.0, 3.0, 700.0),
    Pass(100_000, 1, BARE, 10.0, 30.0, 800.0),
    Pass(100_000, 1, "lag", 24.0, 45.0, 900.0),
]


def test_sizes_are_read_least_first() -> None:
    assert read_sizes("100000, 10000,100000") == [10_000, 100_000]
    assert read_sizes(f"{MIN_EVENTS},{MAX_EVENTS}") == [MIN_EVENTS, MAX_EVENTS]


@pytest.mark.parametrize("text", ["", "many", "10000,", str(MIN_EVENTS - 1), str(MAX_EVENTS + 1)])
def test_sizes_that_can_not_be_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"^events: {text!r} .*; use numbers from"):
        read_sizes(text)


def test_jobs_are_chosen_by_name() -> None:
    assert read_names(None, JOBS) == list(JOBS)
    assert read_names("locks, lag", JOBS) == ["locks", "lag"]
    with pytest.raises(InvalidConfigError, match=r"^only: 'rust' is not measured; give some of"):
        read_names("lag,rust", JOBS)


def test_a_job_is_compared_with_the_bare_query_of_its_repeat() -> None:
    assert ratios(PASSES, 10_000, "lag", "wall_s") == [1.5, 3.0]
    assert ratios(PASSES, 10_000, "lag", "cpu_s") == [2.0, 1.0]


def test_growth_is_time_by_events() -> None:
    assert growth(PASSES, 10_000, 100_000, "lag") == pytest.approx(0.8)


def test_the_table_has_a_row_for_each_size_and_job() -> None:
    lines = [line.split("|") for line in markdown(PASSES, MACHINE).splitlines()]
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines if len(line) == 10]
    assert [row[:2] for row in cells[2:]] == [
        ["10,000", BARE],
        ["10,000", "lag"],
        ["100,000", BARE],
        ["100,000", "lag"],
    ]
    assert cells[3][2:] == [
        *("3.0", "2.25x (1.50-3.00)", "4.5 (3.0-6.0)", "1.50x (1.00-2.00)", "-", "700"),
    ]
    assert cells[5][6] == "0.80"
