"""The first lines of the report: what is wrong, since when, and what cures it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.report.model import GroupPart
from sharecoord.analytics.report.verdict import cure, verdicts
from tests.unit.analytics.report.support import (
    START_MS,
    fairness_row,
    locks_row,
    place_row,
    poison_row,
    whole_part,
)


def test_everything_that_is_wrong_is_said_starvation_first() -> None:
    found = verdicts(whole_part("orders", 50, 23))
    assert found[0] == "unfair: 23 of 50 members starved since 2026-01-05 00:00:10Z"
    assert "raise share.partition.max.record.locks" not in found[1]
    kinds = [text.partition(":")[0].partition(" (")[0] for text in found[1:]]
    assert [text for text in found if text.startswith("payments[0] behind by 4000 records")]
    assert [text for text in found if text.startswith("poison: 1 key (order-7)")]
    assert [text for text in found if "set the lock to 45 s" in text]
    assert len(kinds) == 4


def test_a_calm_group_says_one_line_for_each_question() -> None:
    part = GroupPart(
        "g",
        fairness_row("g", 5, 0, jain=0.999, worst_jain=0.97),
        [place_row(n, behind=False) for n in range(3)],
        {**poison_row("g"), "failed": 0},
        locks_row("g", Advice.FITS),
    )
    assert verdicts(part) == ["fair", "keeps up"]
    assert part.trouble == pytest.approx((0, 0, 1 / 11, 0.001))


FULL_WINDOW = [{"at_ms": 0, "use": 0.97, "use_max": 1.0}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use": FULL_WINDOW}, "raise share.partition.max.record.locks, or lower max.poll.records"),
        (
            {"fairness": fairness_row("g", 5, 2, over_share=3)},
            "3 members held more than their share",
        ),
        ({}, "up to 420 records waited meanwhile: see whether the coordinator"),
        ({"waiting": []}, "no records waited meanwhile"),
    ],
)
def test_the_cure_follows_what_was_measured(changes: dict[str, object], words: str) -> None:
    part = replace(whole_part("g", 5, 2), use=[])
    found = cure(replace(part, **changes))
    assert found is not None
    assert words in found


def test_the_cure_does_not_contradict_the_plot() -> None:
    """1,400 records waited, long before anybody starved, and none meanwhile."""
    part = whole_part("g", 6, 1)
    before = [{"at_ms": START_MS - 60_000 + n * 10_000, "waiting": 1_400} for n in range(6)]
    later = [{"at_ms": START_MS + n * 10_000, "waiting": 0} for n in range(9)]
    calm = [place_row(0, behind=False)]
    found = verdicts(replace(part, use=[], waiting=[*before, *later], places=calm))
    assert (
        "no records waited meanwhile: others got what there was, and fewer members would do"
        in found
    )
    assert "keeps up; at most 1,400 waited, about 2026-01-04 23:59:00Z" in found
    waits = [{**row, "waiting": 70} for row in later]
    found = verdicts(replace(part, use=[], waiting=waits, places=[{**calm[0], "waiting": 70}]))
    assert [text for text in found if text.startswith("up to 70 records waited meanwhile")]
    assert "keeps up: 70 records wait" in found


def test_what_fails_is_said_before_what_is_fine() -> None:
    failing = {**poison_row("g"), "failed_share": 0.8, "poison_keys": 0, "worst_keys": []}
    calm = [place_row(0, behind=False)]
    found = verdicts(GroupPart("g", fairness_row("g", 1, 0, jain=1.0), calm, failing))
    assert found[0].startswith("80.00% of attempts failed, mostly ValueError")
    assert found[1:] == ["one member: nothing to share", "keeps up"]


def test_nobody_starved_needs_no_cure() -> None:
    assert cure(whole_part("g", 5, 0)) is None
    assert cure(GroupPart("g")) is None


def test_of_many_places_that_are_behind_three_are_described() -> None:
    part = GroupPart("g", places=[place_row(n, behind=True) for n in range(9)])
    found = verdicts(part)
    assert [text[:11] for text in found[:3]] == ["payments[0]", "payments[1]", "payments[2]"]
    assert found[3] == "6 more share-partitions are behind"


def test_groups_with_trouble_come_first() -> None:
    starving = GroupPart("a", fairness_row("a", 10, 5))
    behind = GroupPart("b", fairness_row("b", 10, 0), [place_row(0, behind=True)])
    failing = GroupPart("c", fairness_row("c", 10, 0), poison=poison_row("c"))
    uneven = GroupPart("d", fairness_row("d", 10, 0, jain=0.7))
    calm = GroupPart("e", fairness_row("e", 10, 0))
    given = [calm, uneven, failing, behind, starving]
    ordered = sorted(given, key=lambda part: part.trouble, reverse=True)
    assert [part.group_id for part in ordered] == ["a", "b", "c", "d", "e"]
