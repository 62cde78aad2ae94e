"""The verdicts on a group, first on the page: what is wrong, since when, and what cures it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sharecoord.analytics.fairness import verdict as fairness
from sharecoord.analytics.lag import verdict as lag
from sharecoord.analytics.locks import verdict as locks
from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.poison import verdict as poison
from sharecoord.analytics.report.model import FULL, GroupPart

PLACES_NAMED: Final = 3
"""Most share-partitions of a group that are described when they are behind; others are counted."""


class Sentence(NamedTuple):
    """A sentence about a group."""

    text: str
    trouble: bool
    """Whether the group needs attention."""


def verdicts(part: GroupPart) -> list[str]:
    """Sentences about a group, the most important first; never empty."""
    sentences = [*_fairness(part), *_lag(part), *_poison(part), *_locks(part)]
    ordered = sorted(sentences, key=lambda sentence: not sentence.trouble)
    return _without_repeats(each.text for each in ordered) or ["nothing happened in this range"]


def _without_repeats(sentences: Iterable[str]) -> list[str]:
    """Leaves out what an earlier sentence has: every job says how incomplete the log is."""
    seen: set[str] = set()
    texts = []
    for sentence in sentences:
        parts = [part for part in sentence.split("; ") if part not in seen]
        seen.update(parts)
        if parts:
            texts.append("; ".join(parts))
    return texts


def cure(part: GroupPart) -> str | None:
    """Advice that ends starvation, by the measured figures; None when no member starved."""
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
    waited = _waited(part)
    if waited:
        return (
            f"up to {waited:,} records waited meanwhile: see whether the coordinator was cut off "
            "from these members"
        )
    return "no records waited meanwhile: others got what there was, and fewer members would do"


def _waited(part: GroupPart) -> int:
    """The most records that waited, as the plot shows them, while a member starved."""
    ends_ms = [*(row["at_ms"] for row in part.waiting[1:]), math.inf]
    times = [
        (since_ms, since_ms + member["starvation_ms"])
        for member in part.members
        if member["starved"] and (since_ms := _ms(member["starved_since"])) is not None
    ]
    waited = (
        row["waiting"]
        for row, end_ms in zip(part.waiting, ends_ms, strict=False)
        if any(since_ms < end_ms and row["at_ms"] < until_ms for since_ms, until_ms in times)
    )
    return max(waited, default=0)


def _ms(text: str | None) -> float | None:
    """A time as text of a table, in milliseconds since the epoch."""
    return None if text is None else datetime.fromisoformat(text).timestamp() * 1_000


def _fairness(part: GroupPart) -> Iterator[Sentence]:
    row = part.fairness
    if row is None:
        return
    unfair, text = fairness.is_unfair(row), fairness.verdict(row)
    since = _since(part)
    yield Sentence(f"{text} since {since}" if since and part.starved else text, unfair)
    remedy = cure(part)
    if remedy:
        yield Sentence(remedy, unfair)


def _since(part: GroupPart) -> str | None:
    """Time at which the first of the listed members began to starve."""
    known = [row["starved_since"] for row in part.members if row["starved"]]
    return min((str(each) for each in known if each is not None), default=None)


def _lag(part: GroupPart) -> Iterator[Sentence]:
    behind = part.behind
    for place in behind[:PLACES_NAMED]:
        name = f"{place['topic']}[{place['partition']}]"
        yield Sentence(f"{name} {lag.verdict(place)}", trouble=True)
    if len(behind) > PLACES_NAMED:
        yield Sentence(
            f"{len(behind) - PLACES_NAMED} more share-partitions are behind", trouble=True
        )
    if part.places and not behind:
        yield Sentence("; ".join(_kept_up(part)), trouble=False)


def _kept_up(part: GroupPart) -> Iterator[str]:
    """Sentences on a group that keeps up, which explain its plot of waiting records."""
    now = sum(place["waiting"] for place in part.places)
    yield (
        f"keeps up: {now:,} {'record waits' if now == 1 else 'records wait'}" if now else "keeps up"
    )
    most = max(part.waiting, key=lambda row: row["waiting"], default=None)
    if most is not None and most["waiting"] > now:
        at = datetime.fromtimestamp(most["at_ms"] / 1_000, UTC)
        yield f"at most {most['waiting']:,} waited, about {at:%Y-%m-%d %H:%M:%S}Z"
    past = sum(1 for place in part.places if place["stretches"])
    if past:
        yield f"{past} share-partitions were behind before"


def _poison(part: GroupPart) -> Iterator[Sentence]:
    row = part.poison
    if row is not None and row["failed"]:
        yield Sentence(poison.verdict(row), poison.is_failing(row))


def _locks(part: GroupPart) -> Iterator[Sentence]:
    no_advice = (None, Advice.TOO_FEW, Advice.FITS)
    if part.locks is not None and part.locks["advice"] not in no_advice:
        yield Sentence(locks.verdict(part.locks), part.locks["advice"] != Advice.SHORTER)
