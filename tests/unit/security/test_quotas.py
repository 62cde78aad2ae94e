"""What metrics tell of principals: those with a quota, or without luck, and not too many."""

from __future__ import annotations

import pytest

from sharecoord.errors import QuotaExceededError
from sharecoord.security.principals import Principal
from sharecoord.security.quotas import USES_MAX, Quotas, Use
from sharecoord.security.rules import NO_QUOTA, Quota

ALICE, BOB = Principal("User:alice"), Principal("User:bob", frozenset({"team"}))


def of_team(principal: Principal) -> Quota:
    """Two members for everybody of the group `team`."""
    return Quota(members=2) if "team" in principal.groups else NO_QUOTA


def test_principals_with_a_quota_are_shown_while_they_use_something() -> None:
    quotas = Quotas(of_team, lambda: 0.0)
    for principal in (ALICE, BOB):
        quotas.stream(principal, 1)
        quotas.member(principal, 1)
    assert quotas.uses() == {"User:bob": Use(members=1, streams=1, refused=0)}
    quotas.stream(BOB, -1)
    assert quotas.uses() == {"User:bob": Use(members=1, streams=0, refused=0)}
    quotas.member(BOB, -1)
    assert quotas.uses() == {}


def test_who_was_refused_stays_in_sight() -> None:
    quotas = Quotas(of_team, lambda: 0.0)
    quotas.member(BOB, 1)
    quotas.check_member(BOB)
    quotas.member(BOB, 1)
    with pytest.raises(QuotaExceededError, match="2 members"):
        quotas.check_member(BOB)
    quotas.member(BOB, -2)
    assert quotas.uses() == {"User:bob": Use(members=0, streams=0, refused=1)}


def test_rules_that_change_show_others() -> None:
    limited = {"User:bob"}
    quotas = Quotas(
        lambda principal: Quota(streams=9) if principal.name in limited else NO_QUOTA, lambda: 0.0
    )
    for principal in (ALICE, BOB):
        quotas.member(principal, 1)
    assert [*quotas.uses()] == ["User:bob"]
    limited.clear()
    limited.add("User:alice")
    assert [*quotas.uses()] == ["User:alice"]


def test_of_many_those_with_the_most_members_are_shown() -> None:
    quotas = Quotas(lambda _: Quota(members=1_000), lambda: 0.0)
    for number in range(2 * USES_MAX):
        for _ in range(number):
            quotas.member(Principal(f"User:{number}"), 1)
    shown = quotas.uses()
    assert [use.members for use in shown.values()] == [*range(2 * USES_MAX - 1, USES_MAX - 1, -1)]
    assert shown["User:150"].members == 150
