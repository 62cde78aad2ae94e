"""What principals use of one coordinator, against the quotas of the rules.

Each coordinator of a fleet counts what it serves itself, and the groups that it knows: those of the
store at its start, and those that were used here since.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from sharecoord.errors import QuotaExceededError
from sharecoord.security.principals import Principal
from sharecoord.security.rules import NO_QUOTA, Quota

ADMIN_BURST_S: Final = 10.0
"""Administrative calls are counted over this time: scripts make many at once, and rest then."""

BUCKETS_MAX: Final = 10_000
"""Principals whose administrative calls are counted at a time; the least recent one is forgotten,
who then may make a burst of calls again."""

USES_MAX: Final = 100
"""Principals that are shown in metrics: each of their names is in every scrape, and whoever keeps
the metrics keeps a series of each."""

RETRY_MS: Final = 5_000
"""When to try again what only ends when somebody leaves."""


class Use(NamedTuple):
    """What a principal uses now, and how often it was refused more."""

    members: int
    streams: int
    refused: int


class Quotas:
    """Counts members, streams and administrative calls by principal. All on the loop."""

    def __init__(self, quota_of: Callable[[Principal], Quota], now_s: Callable[[], float]) -> None:
        """Begins with nothing.

        Args:
            quota_of: The quota of a principal, by the rules in force.
            now_s: A clock that never goes back, in seconds.
        """
        self._quota_of = quota_of
        self._now_s = now_s
        self._principals: dict[str, Principal] = {}
        """Those that have members or streams, by name, with the groups they came with last."""
        self._members: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._calls: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By principal: calls left, and when that was."""

    def check_member(self, principal: Principal) -> None:
        """Refuses another member of a principal that has as many as it may.

        Raises:
            QuotaExceededError: It has.
        """
        quota, members = self._quota_of(principal), self._members[principal.name]
        if quota.members is not None and members >= quota.members:
            raise self._exceeded(principal, f"{members} members", "members")
        in_flight = quota.records_in_flight
        if in_flight is not None and members >= in_flight:
            raise self._exceeded(
                principal,
                f"{members} members, and one record in flight for each is all that it may have",
                "records_in_flight",
            )

    def check_stream(self, principal: Principal) -> None:
        """Refuses another stream of a principal that has as many as it may.

        Raises:
            QuotaExceededError: It has.
        """
        most, streams = self._quota_of(principal).streams, self._streams[principal.name]
        if most is not None and streams >= most:
            raise self._exceeded(principal, f"{streams} open streams", "streams")

    def check_group(self, principal: Principal, groups: Callable[[], int]) -> None:
        """Refuses another new group to a principal that has made as many as it may.

        Args:
            principal: The one who would make it.
            groups: Counts the groups that are there by that one; asked only if there is a quota.

        Raises:
            QuotaExceededError: It has.
        """
        most = self._quota_of(principal).groups
        if most is not None and (made := groups()) >= most:
            raise self._exceeded(principal, f"made {made} groups that are still there", "groups")

    def check_call(self, principal: Principal) -> None:
        """Counts an administrative call, or refuses it.

        Raises:
            QuotaExceededError: The principal makes them faster than it may.
        """
        rate = self._quota_of(principal).admin_requests_per_s
        if rate is None:
            return
        now_s, burst = self._now_s(), max(1.0, rate * ADMIN_BURST_S)
        left, at_s = self._calls.pop(principal.name, (burst, now_s))
        left = min(burst, left + (now_s - at_s) * rate)
        is_allowed = left >= 1
        self._calls[principal.name] = (left - is_allowed, now_s)
        if len(self._calls) > BUCKETS_MAX:
            self._calls.popitem(last=False)
        if not is_allowed:
            wait_ms = round((1 - left) / rate * 1000) if rate else RETRY_MS
            raise self._exceeded(
                principal,
                f"more than {rate:g} administrative calls a second",
                "admin_requests_per_s",
                retry_after_ms=wait_ms,
            )

    def records_each(self, principal: Principal) -> int | None:
        """How many records each member of a principal may have in flight; None = no limit."""
        most = self._quota_of(principal).records_in_flight
        return None if most is None else most // max(1, self._members[principal.name])

    def member(self, principal: Principal, change: int) -> None:
        """A member of a principal came (1) or went (-1)."""
        self._count(self._members, principal, change)

    def stream(self, principal: Principal, change: int) -> None:
        """A stream of a principal began (1) or ended (-1)."""
        self._count(self._streams, principal, change)

    def uses(self) -> dict[str, Use]:
        """What principals use that have a quota, and of those that were refused something.

        At most `USES_MAX`, those with the most members.
        """
        members, streams, refused = self._members, self._streams, self._refused
        names = sorted({*self._principals, *refused}, key=members.__getitem__, reverse=True)
        shown = (name for name in names if name in refused or self._has_quota(name))
        return {
            name: Use(members[name], streams[name], refused[name])
            for name in islice(shown, USES_MAX)
        }

    def _has_quota(self, name: str) -> bool:
        return self._quota_of(self._principals[name]) is not NO_QUOTA

    def _count(self, counter: Counter[str], principal: Principal, change: int) -> None:
        name = principal.name
        counter[name] += change
        if counter[name] <= 0:
            del counter[name]
        if name in self._members or name in self._streams:
            self._principals[name] = principal
        else:
            self._principals.pop(name, None)

    def _exceeded(
        self, principal: Principal, what: str, quota: str, *, retry_after_ms: int = RETRY_MS
    ) -> QuotaExceededError:
        if principal.name in self._refused or len(self._refused) < BUCKETS_MAX:
            self._refused[principal.name] += 1
        return QuotaExceededError(
            f"{principal} has {what}; its quota ({quota} in security.rules.file) allows no more",
            retry_after_ms=retry_after_ms,
            metadata={"principal": principal.name, "quota": quota},
        )
