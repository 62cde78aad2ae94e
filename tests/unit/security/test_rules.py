"""The file of rules: what it means, and what is refused by its line."""

from __future__ import annotations

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.security.actions import (
    CLUSTER,
    KINDS_OF,
    MEANINGS,
    Action,
    Kind,
    Resource,
    consumer_group,
    dead_letter_topic,
    group,
    topic,
)
from sharecoord.security.principals import ANONYMOUS, Principal
from sharecoord.security.rules import OPEN, Decision, Rules, read_rules, resource_of

ALICE = Principal("User:alice")
TEAM = Principal("User:bob", frozenset({"team"}))


def rules_of(text: str) -> Rules:
    return read_rules(text.encode())


def rule(verb: str, actions: str, principals: str, resources: str) -> str:
    return f"  - {verb}: {actions}\n    principals: {principals}\n    resources: {resources}\n"


def allowed(text: str, who: Principal, action: Action, what: Resource) -> bool:
    return rules_of("rules:\n" + text).decide(who, action, what).is_allowed


# -- what is meant --------------------------------------------------------------------------------


def test_what_no_line_allows_is_denied() -> None:
    rules = rules_of("rules: []")
    for action in Action:
        for what in (group("g"), topic("t"), CLUSTER):
            assert rules.decide(ALICE, action, what) == Decision(is_allowed=False, line=0)


@pytest.mark.parametrize(
    ("pattern", "name", "is_meant"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "Orders", False),
        ("orders*", "orders", True),
        ("orders*", "orders-eu", True),
        ("orders*", "order", False),
        ("*", "anything", True),
        (r"a\\*", "a*", True),
        (r"a\\*", "ab", False),
        (r"a\\**", "a*b", True),
        # One looks like the other, and they are two: NFC and NFD, Latin and Cyrillic.
        ("caf\u00e9", "cafe\u0301", False),
        ("orders", "\u043erders", False),
    ],
)
def test_names_and_beginnings(pattern: str, name: str, *, is_meant: bool) -> None:
    text = rule("allow", "[consume]", '["User:alice"]', f'["group:{pattern}"]')
    assert allowed(text, ALICE, Action.CONSUME, group(name)) == is_meant


def test_what_denies_comes_first_wherever_it_stands() -> None:
    allow = rule("allow", "[consume]", '["*"]', '["group:*"]')
    deny = rule("deny", "[consume]", '["User:alice"]', '["group:secret"]')
    for text in (allow + deny, deny + allow):
        assert not allowed(text, ALICE, Action.CONSUME, group("secret"))
        assert allowed(text, ALICE, Action.CONSUME, group("other"))
        assert allowed(text, TEAM, Action.CONSUME, group("secret"))


def test_the_same_line_allowed_and_denied_is_denied_by_its_line() -> None:
    allow = rule("allow", "[consume]", '["User:alice"]', '["group:g"]')
    deny = allow.replace("allow", "deny")
    decision = rules_of("rules:\n" + allow + deny).decide(ALICE, Action.CONSUME, group("g"))
    assert decision == Decision(is_allowed=False, line=5)
    assert decision.why == "line 5 of the rules denies it"


def test_groups_of_the_identity_provider() -> None:
    text = rule("allow", "[describe]", '["Group:team"]', '["group:*"]')
    assert allowed(text, TEAM, Action.DESCRIBE, group("g"))
    assert not allowed(text, ALICE, Action.DESCRIBE, group("g"))
    assert not allowed(text, Principal("User:team"), Action.DESCRIBE, group("g"))


@pytest.mark.parametrize(
    ("principals", "is_meant"),
    [
        ('["*"]', False),
        ('["User:*"]', False),
        ('["User:an*"]', False),
        ('["User:anonymous"]', True),
        ('["*", "User:anonymous"]', True),
    ],
)
def test_the_anonymous_have_to_be_named(principals: str, *, is_meant: bool) -> None:
    text = rule("allow", "[consume]", principals, '["group:g"]')
    assert allowed(text, ANONYMOUS, Action.CONSUME, group("g")) == is_meant


def test_kinds_of_resources_are_apart() -> None:
    text = rule("allow", '["*"]', '["User:alice"]', '["topic:x", cluster]')
    assert allowed(text, ALICE, Action.CONSUME, topic("x"))
    assert allowed(text, ALICE, Action.AUDIT, CLUSTER)
    for what in (group("x"), dead_letter_topic("x"), consumer_group("x")):
        assert not allowed(text, ALICE, Action.WRITE, what)


def test_the_first_quota_that_speaks_of_a_principal_holds() -> None:
    rules = rules_of(
        "rules: []\nquotas:\n"
        '  - {principals: ["User:alice"], members: 3}\n'
        '  - {principals: ["*"], members: 9, admin_requests_per_s: 0.5}\n'
    )
    assert rules.quota_of(ALICE).members == 3
    assert rules.quota_of(ALICE).admin_requests_per_s is None
    assert rules.quota_of(ANONYMOUS).members == 9
    assert rules_of("rules: []").quota_of(ALICE).members is None


def test_without_a_file_everybody_may_do_everything() -> None:
    for who in (ALICE, ANONYMOUS):
        decision = OPEN.decide(who, Action.DELETE, group("g"))
        assert (decision.is_allowed, decision.why) == (True, "there are no rules")


def test_every_action_and_every_kind_means_something() -> None:
    assert set(KINDS_OF) == set(Action)
    assert all(KINDS_OF.values())
    assert {each.kind for each in MEANINGS} == set(Kind)


# -- what is refused ------------------------------------------------------------------------------

GOOD = rule("allow", "[consume]", '["User:a"]', '["group:g"]')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a mapping"),
        ("[]", "must be a mapping"),
        ("quotas: []", "has no `rules:`"),
        ("rules:\n  x: 1", "`rules:` must be a list"),
        ("ruls: []", 'did you mean "rules"?'),
        ("rules: []\nrules: []", "twice"),
        ("rules:\n" + GOOD.replace("allow", "alow"), "unknown key 'alow'; did you mean \"allow\""),
        ("rules:\n" + GOOD.replace("consume", "consum"), 'did you mean "consume"?'),
        ("rules:\n" + GOOD.replace("group:g", "grup:g"), 'did you mean "group"?'),
        ("rules:\n" + GOOD.replace("User:a", "alice"), "must begin with `User:` or `Group:`"),
        ("rules:\n" + GOOD.replace("group:g", "group:"), "must be `group:NAME`"),
        ("rules:\n" + GOOD.replace("group:g", "group:a*b"), "one `*` at its end"),
        ("rules:\n" + GOOD.replace("group:g", "topic:g").replace("consume", "reset"), "is about"),
        ("rules:\n" + GOOD.replace('["group:g"]', "[]"), "name one at least"),
        ("rules:\n" + GOOD.replace('["group:g"]', "[[x]]"), "must be a list of texts"),
        ("rules:\n" + GOOD.replace('    resources: ["group:g"]\n', ""), "needs `resources:`"),
        ("rules:\n  - {principals: ['*'], resources: ['*']}", "either `allow:` or `deny:`"),
        ("rules:\n  - consume", "must be a mapping"),
        ("rules: []\nquotas:\n  - {members: 1}", "needs `principals:`"),
        ("rules: []\nquotas:\n  - {principals: ['*']}", "needs one of members"),
        ("rules: []\nquotas:\n  - {principals: ['*'], members: many}", "must be a number"),
        ("rules: []\nquotas:\n  - {principals: ['*'], members: -1}", "must be a number"),
        ("rules: []\nquotas:\n  - {principals: ['*'], member: 1}", 'did you mean "members"?'),
        ("rules: [\n", "is no YAML"),
        ("rules: &a [*a]", "mapping"),
        ("\x00", "is no YAML"),
    ],
)
def test_a_bad_file_is_refused_by_its_line(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        rules_of(text)
    assert said in refused.value.message
    assert "security.rules.file" in refused.value.message


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="no YAML"):
        read_rules(b"\xff\xfe\xff")


@pytest.mark.parametrize(
    ("text", "resource"),
    [("group:a:b", group("a:b")), ("cluster", CLUSTER), ("topic:t", topic("t"))],
)
def test_resources_of_a_question(text: str, resource: Resource) -> None:
    assert resource_of(text) == resource
