"""The verdict on the fairness of a group: its figures in words; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sharecoord.analytics.phrases import missing_changes

FAIR: Final = 0.95
"""From this Jain's index on a split is called fair."""
UNEVEN: Final = 0.80
"""Below this index a split is called unfair: as if a fifth of the members had got nothing."""


def is_unfair(group: Mapping[str, Any]) -> bool:
    """Whether the group needs attention: members starved, or the whole range was unfair."""
    return bool(group["starved"]) or (group["jain"] is not None and group["jain"] < UNEVEN)


def verdict(group: Mapping[str, Any]) -> str:
    """A row of `transform.groups` in one line."""
    return "; ".join([_fairness(group), *_doubts(group)])


def _fairness(group: Mapping[str, Any]) -> str:
    members, starved, index = group["members"], group["starved"], group["jain"]
    if not members:
        return "no members"
    if starved:
        return f"unfair: {starved} of {members} members starved"
    if index is None:
        return "not measured: no samples of members"
    if members == 1:
        return "one member: nothing to share"
    if index < FAIR:
        word = "unfair" if index < UNEVEN else "uneven"
        return f"{word}: members that wanted at the same time got unlike parts (Jain {index:.2f})"
    worst = group["worst_jain"]
    if worst is not None and worst < UNEVEN:
        return f"fair in all, unfair at times: Jain {worst:.2f} at {group['worst_window']}"
    return "fair"


def _doubts(group: Mapping[str, Any]) -> list[str]:
    """Sentences on how far the figures can be trusted."""
    sentences = missing_changes(group)
    if group["lost"]:
        sentences.append(f"its writer lost {group['lost']} rows")
    if group["over_share"]:
        sentences.append(f"{group['over_share']} members held more than their share of the window")
    return sentences
