"""What the figures of a group mean, in words; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sharecoord.analytics.times import span

FAILING: Final = 0.05
"""From this part of the attempts on failures are trouble: every twentieth."""

WASTED: Final = 0.01
"""From this part of the work on what is wasted is named."""
EXPIRED: Final = 0.001
"""From this part of the attempts on expired locks are named."""


def verdict(group: Mapping[str, Any]) -> str:
    """One line about a row of `transform.groups`."""
    poison, failures = _poison(group), _failures(group)
    # What matters more is said first.
    found = [poison, *failures] if group["poison_keys"] else [*failures, poison]
    return "; ".join([*found, *_doubts(group)])


def is_failing(group: Mapping[str, Any]) -> bool:
    """Whether something is to be done: keys are poison, or many attempts failed."""
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
    found = [f"{group['failed_share']:.2%} of attempts failed{reason}"]
    if group["archived"]:
        found.append(f"{group['archived']} records given up")
    expired = group["expired"]
    if expired and expired >= EXPIRED * group["attempts"]:
        whose = "the lock of one record" if expired == 1 else f"locks of {expired} records"
        found.append(f"{whose} expired")
    share = group["wasted_share"]
    if share is not None and share >= WASTED:
        wasted = span(group["wasted_hours"] * 3_600)
        found.append(f"{wasted} of the members' working time wasted ({share:.0%})")
    return found


def _doubts(group: Mapping[str, Any]) -> list[str]:
    """What speaks against the figures."""
    if group["complete"] is None or group["complete"] >= 1:
        return []
    missing = group["changes_expected"] - group["changes_seen"]
    return [f"the log lacks {missing} of {group['changes_expected']} changes"]
