"""The verdict on a share-partition: its figures in words; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sharecoord.analytics.phrases import missing_changes
from sharecoord.analytics.times import span

UNEVEN: Final = 0.5
"""From this share of a topic's lag on a partition is named as the one that has it."""
CAUSE_TEXTS: Final = {
    "arrival_rate": "more records came",
    "service_rate": "fewer were finished",
    "released": "records were released",
    "rejected": "records were rejected",
    "expired": "locks expired",
    "departed": "holders left",
    "owned": "the owner changed",
    "reset": "offsets were reset",
    "joined": "members joined",
    "left": "members left",
    "session_ended": "sessions of members ended",
    "paused": "the group was paused",
    "resumed": "the group was resumed",
    "configured": "settings changed",
}


def verdict(place: Mapping[str, Any]) -> str:
    """A row of `transform.partitions` in one line."""
    return "; ".join([_standing(place), *_past(place), *_doubts(place)])


def _standing(place: Mapping[str, Any]) -> str:
    age = "" if place["behind_ms"] is None else f" ({span(place['behind_ms'] / 1_000)})"
    if place["behind"]:
        return f"behind by {place['waiting']} records{age}, {_going(place)}"
    grows = place["trend"] == "grows" and place["slope"]
    growing = f", growing by {place['slope']:.1f}/s" if grows else ""
    waiting = place["waiting"]
    if not waiting:
        return "keeps up"
    return f"keeps up: {waiting} {'record waits' if waiting == 1 else 'records wait'}{age}{growing}"


def _going(place: Mapping[str, Any]) -> str:
    if place["trend"] is None:
        return "too few windows for a forecast"
    if place["trend"] == "grows":
        return f"grows by {place['slope']:.1f}/s"
    if place["trend"] == "drains" and place["drain_s"] is not None:
        return f"drained in {span(place['drain_s'])}"
    return "neither grows nor drains"


def _past(place: Mapping[str, Any]) -> list[str]:
    """When the newest stretch of lag began, and its causes."""
    if place["since"] is None:
        return []
    ended = "" if place["until"] is None else f" until {place['until']}"
    if place["last_without_lag"] is None:
        began = f"behind from the beginning of the range{ended}"
    else:
        began = f"{'was behind' if ended else 'behind'} since {place['since']}{ended}"
    causes = ", ".join(map(_cause, place["causes"]))
    sentences = [f"{began}: {causes}" if causes else began]
    share = place["lag_share"]
    if place["behind"] and share is not None and UNEVEN <= share < 1:
        sentences.append(f"it has {share:.0%} of the topic's lag")
    return sentences


def _cause(cause: Mapping[str, Any]) -> str:
    name = cause["cause"]
    unit = "/s" if name.endswith("_rate") else ""
    return f"{CAUSE_TEXTS[name]} ({cause['before']:.3g} → {cause['around']:.3g}{unit})"


def _doubts(place: Mapping[str, Any]) -> list[str]:
    """Sentences on how far the figures can be trusted."""
    sentences = []
    error, naive = place["forecast_error"], place["forecast_error_naive"]
    # The error of a forecast that is not shown is not told.
    if place["behind"] and place["trend"] in ("grows", "drains") and error is not None:
        worse = ", worse than no forecast" if error > naive else ""
        sentences.append(f"an earlier forecast was off by {error:.0f} records{worse}")
    return sentences + missing_changes(place)
