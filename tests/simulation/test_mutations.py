"""Every mistake of `mutations` is found by the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS, seeds_until_found

SEEDS_QUICK = range(200)
SEEDS_MORE = {
    # One life of three has dead letters, and every second of these exactly once.
    "a dead letter that Kafka refused counts as arrived": range(2, 2_000, 3),
    "dead letters of a topic that was made again are left": range(2, 3_000, 3),
    "what a former owner has sent is sent again": range(5, 3_000, 6),
    # One of four has redrives.
    "a letter is redriven a second time": range(3, 3_000, 4),
    "a redrive ends locks of an earlier one": range(3, 2_000, 4),
    "a restart keeps what its former process owned": range(1_000),
}
"""Of mistakes that take longer to show: the lives in which they can."""

SLOW = {
    "a delivery of a former owner is passed on": range(2_000),
    # One life of sixteen has order and redrives.
    "letters go out while their partition is served elsewhere": range(1, 8_000, 16),
}
"""They need certain circumstances, hence more lives than `make test` has time for."""


def test_each_mistake_stands_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([^|]+) \| \d+ \|", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(MUTATIONS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", sorted(MUTATIONS.keys() - SLOW.keys()))
def test_a_mistake_is_found_at_once(mistake: str) -> None:
    lives = SEEDS_MORE.get(mistake, SEEDS_QUICK)
    assert seeds_until_found(MUTATIONS[mistake], lives) is not None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mistake", sorted(SLOW))
def test_a_mistake_is_found(mistake: str) -> None:
    assert seeds_until_found(MUTATIONS[mistake], SLOW[mistake]) is not None
