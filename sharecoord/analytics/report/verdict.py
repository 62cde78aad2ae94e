"""The first lines of the page: what is wrong in each group, since when, and what cures it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sharecoord.analytics.fairness import verdict as fairness
from sharecoord.analytics.lag import verdict as lag
from sharecoord.analytics.locks import verdict as locks
from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.poison import verdict as poison
from sharecoord.analytics.report.model import FULL, GroupPart, Row

PLACES_NAMED: Final = 3
"""So many share-partitions that are behind are described; of the others the number is told."""


def verdicts(part: GroupPart) -> list[str]:
    """Sentences about a group, what matters most first; never empty."""
    found = [*_fairness(part), *_lag(part), *_poison(part), *_locks(part)]
    return _said_once(found) or ["nothing happened in this range"]


def _said_once(sentences: list[str]) -> list[str]:
    """Doubts about the log stand in the verdict of every job; here the first one says it."""
    seen: set[str] = set()
    found = []
    for sentence in sentences:
        parts = [part for part in sentence.split("; ") if part not in seen]
        seen.update(parts)
        if parts:
            found.append("; ".join(parts))
    return found


def cure(part: GroupPart) -> str | None:
    """What to do so that nobody starves, by what was measured; None when nothing is to be done."""
    if not part.starved or part.fairness is None:
        return None
    full = max((float(row["use"]) for row in part.use if row["use"] is not None), default=0.0)
    if full >= FULL:
        return (
            f"its windows were full ({full:.0%} under locks): raise "
            "share.partition.max.record.locks, or lower max.poll.records, so that more members "
            "hold fewer records each"
        )
    if part.fairness["over_share"]:
        return (
            f"{part.fairness['over_share']} members held more than their share: lower their "
            "max.poll.records, or look at why their handlers take so long"
        )
    if part.behind:
        return "records waited while members starved: see whether the coordinator was cut off"
    return "there were fewer records than members wanted: fewer members would do"


def _fairness(part: GroupPart) -> Iterator[str]:
    row = part.fairness
    if row is None:
        return
    text = fairness.verdict(row)
    since = _since(part)
    yield f"{text} since {since}" if since and part.starved else text
    remedy = cure(part)
    if remedy:
        yield remedy


def _since(part: GroupPart) -> str | None:
    """When the first of the starved members that are known began to starve."""
    known = [row["starved_since"] for row in part.members if row["starved"]]
    return min((str(each) for each in known if each is not None), default=None)


def _lag(part: GroupPart) -> Iterator[str]:
    behind = part.behind
    for place in behind[:PLACES_NAMED]:
        yield f"{_name(place)} {lag.verdict(place)}"
    if len(behind) > PLACES_NAMED:
        yield f"{len(behind) - PLACES_NAMED} more share-partitions are behind"
    if part.places and not behind:
        past = sum(1 for place in part.places if place["stretches"])
        yield "keeps up" if not past else f"keeps up; {past} share-partitions were behind before"


def _poison(part: GroupPart) -> Iterator[str]:
    if part.poison is not None and part.poison["failed"]:
        yield poison.verdict(part.poison)


def _locks(part: GroupPart) -> Iterator[str]:
    if part.locks is not None and part.locks["advice"] not in (None, *_QUIET):
        yield locks.verdict(part.locks)


_QUIET: Final[tuple[Any, ...]] = (Advice.TOO_FEW, Advice.FITS)


def _name(place: Row) -> str:
    return f"{place['topic']}[{place['partition']}]"
