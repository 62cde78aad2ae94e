"""The verdict on the failures of a group: its figures in words; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sharecoord.analytics.phrases import locks_of, missing_changes
from sharecoord.analytics.times import span

FAILING: Final = 0.05
"""From this part of the attempts on failures are trouble: every twentieth."""
WASTED: Final = 0.01
"""From this part of the working time on wasted time is named."""
EXPIRED: Final = 0.001
"""From this part of the attempts on expired locks are named."""


def verdict(group: Mapping[str, Any]) -> str:
    """A row of `transform.groups` in one line."""
    poison, failures = _poison(group), _failures(group)
    # What matters more is said first.
    sentences = [poison, *failures] if group["poison_keys"] else [*failures, poison]
    return "; ".join([*sentences, *missing_changes(group)])


def is_failing(group: Mapping[str, Any]) -> bool:
    """Whether the group needs attention: keys are poison, or many attempts failed."""
    return bool(group["poison_keys"]) or (group["failed_share"] or 0.0) >= FAILING


def _poison(group: Mapping[str, Any]) -> str:
    if not group["attempts"]:
        return "nothing was delivered"
    if not group["failed"]:
        return "nothing failed"
    count = group["poison_keys"]
    if count:
        named = ", ".join(group["worst_keys"])
        more = ", …" if count > len(group["worst_keys"]) else ""
        return f"poison: {count} {'key' if count == 1 else 'keys'} ({named}{more})"
    return "no key is poison"


def _failures(group: Mapping[str, Any]) -> list[str]:
    if not group["failed"]:
        return []
    reason = f", mostly {group['top_reason']}" if group["top_reason"] else ""
    sentences = [f"{group['failed_share']:.2%} of attempts failed{reason}"]
    if group["archived"]:
        sentences.append(f"{group['archived']} records given up")
    expired = group["expired"]
    if expired and expired >= EXPIRED * group["attempts"]:
        sentences.append(f"{locks_of(expired)} expired")
    share = group["wasted_share"]
    if share is not None and share >= WASTED:
        wasted = span(group["wasted_hours"] * 3_600)
        sentences.append(f"{wasted} of the members' working time wasted ({share:.0%})")
    return sentences
