"""The members that had a record without finishing it, for its dead letter (design 10).

A record has no history until its first failure, so that records that are accepted at once cost
nothing. Ranges that failed together share one value.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

MEMBERS_MAX: Final = 10
"""Members that are named: enough to see whether a record fails with one member or with all."""

MORE_MEMBERS: Final = "…"
"""Stands behind the named members when there were others."""

STEP_MS: Final = 1_000
"""The first failure is known to the second, so that records of a batch that are released one by one
stay one range."""


class History(NamedTuple):
    """The failed deliveries of a record."""

    first_failed_ms: int
    """Monotonic time, rounded down to `STEP_MS`; below 0 when it was before this machine began."""
    members: tuple[str, ...]
    """Each once, in the order of their first failures; `MORE_MEMBERS` behind `MEMBERS_MAX`."""
    error: str | None = None
    """The last error text of a worker."""


def after_failure(
    before: History | None, member_id: str | None, now_ms: int, error: str | None
) -> History:
    """The history after one more delivery failed; without `error` as when a lock ended."""
    if before is None:
        named = () if member_id is None else (member_id,)
        return History(now_ms - now_ms % STEP_MS, named, error)
    members = before.members
    if member_id is not None and member_id not in members and len(members) <= MEMBERS_MAX:
        members = (*members, member_id if len(members) < MEMBERS_MAX else MORE_MEMBERS)
    if members is before.members and error in (None, before.error):
        return before
    return History(before.first_failed_ms, members, error or before.error)


def history_to_text(history: History, store_offset_ms: int) -> str:
    """A JSON object; `store_offset_ms` is the store's clock minus the monotonic one."""
    first_ms = history.first_failed_ms + store_offset_ms
    fields = {"first_ms": first_ms, "members": history.members, "error": history.error}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def history_from_text(text: str, store_offset_ms: int = 0) -> History:
    """The inverse of `history_to_text`; with offset 0 the time stays the store's.

    Raises:
        ValueError: The text is no history.
    """
    try:
        fields = json.loads(text)
        first_ms, members, error = fields["first_ms"], fields["members"], fields["error"]
    except (TypeError, KeyError) as problem:
        raise ValueError(
            f"history {text!r} is no object with first_ms, members, error"
        ) from problem
    texts = [*members, error or ""] if isinstance(members, list) else [None]
    if type(first_ms) is not int or not all(isinstance(each, str) for each in texts):
        raise ValueError(f"history {text!r} has values of other types")
    return History(first_ms - store_offset_ms, tuple(members), error)
