"""The first lines of the report: what is wrong, since when, and what cures it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.report.model import GroupPart
from sharecoord.analytics.report.verdict import cure, verdicts

from .support import fairness_row, locks_row, place_row, poison_row, whole_part


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
        ({}, "records waited while members starved"),
        ({"places": []}, "fewer records than members wanted"),
    ],
)
def test_the_cure_follows_what_was_measured(changes: dict[str, object], words: str) -> None:
    part = replace(whole_part("g", 5, 2), use=[])
    found = cure(replace(part, **changes))
    assert found is not None
    assert words in found


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
