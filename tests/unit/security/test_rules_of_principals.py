"""Which rules and quotas of many speak of a principal."""

from __future__ import annotations

import random

from sharecoord.security.actions import Action, group
from sharecoord.security.principals import ANONYMOUS, Principal
from sharecoord.security.rules import Pattern, Quota, QuotaRule, Rule, Rules

WORDS = ("", "a", "ab", "abc", "b", "ba", "anonymous", "anon")
ANY_RESOURCE = ((None, Pattern("", is_prefix=True)),)


def patterns(chance: random.Random) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(
            chance.choice(("User:", "Group:")) + chance.choice(WORDS),
            is_prefix=chance.random() < 0.5,
        )
        for _ in range(chance.randrange(1, 3))
    )


def is_meant(rule: Rule | QuotaRule, principal: Principal) -> bool:
    """Looks at each pattern, as a reader of the file does."""
    names = [principal.name, *(f"Group:{each}" for each in principal.groups)]
    return any(
        (name.startswith(each.text) and name != ANONYMOUS.name)
        if each.is_prefix
        else name == each.text
        for each in rule.principals
        for name in names
    )


def people() -> list[Principal]:
    names = [Principal(f"User:{word}") for word in WORDS]
    grouped = [Principal("User:z", frozenset({word, "b"})) for word in WORDS]
    return [ANONYMOUS, *names, *grouped]


def test_a_principal_has_the_rules_that_name_it_or_a_beginning_of_it() -> None:
    chance = random.Random(1)
    for _ in range(200):
        rules = [
            Rule(
                line,
                allows=chance.random() < 0.7,
                actions=frozenset({Action.CONSUME}),
                principals=patterns(chance),
                is_for_all=chance.random() < 0.1,
                resources=ANY_RESOURCE,
            )
            for line in range(1, 6)
        ]
        found = Rules(tuple(rules))
        for who in people():
            mine = [
                rule
                for rule in sorted(rules, key=lambda each: each.allows)
                if (rule.is_for_all and who != ANONYMOUS) or is_meant(rule, who)
            ]
            decision = found.decide(who, Action.CONSUME, group("g"))
            expected = (mine[0].allows, mine[0].line) if mine else (False, 0)
            assert decision == expected, (who, rules)


def test_the_first_quota_that_means_a_principal_holds() -> None:
    chance = random.Random(2)
    for _ in range(200):
        quotas = [
            QuotaRule(line, patterns(chance), chance.random() < 0.1, Quota(members=line))
            for line in range(1, 6)
        ]
        found = Rules(quotas=tuple(quotas))
        for who in people():
            mine = (each for each in quotas if each.is_for_all or is_meant(each, who))
            expected = next((each.line for each in mine), None)
            assert found.quota_of(who).members == expected, (who, quotas)
