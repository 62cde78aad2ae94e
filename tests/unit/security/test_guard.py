"""The guard: what it lets pass, what it writes down; and the parts that settings ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.config.process import load
from sharecoord.errors import (
    InvalidConfigError,
    QuotaExceededError,
    UnauthenticatedError,
    UnauthorizedError,
)
from sharecoord.security.actions import Action, group, topic
from sharecoord.security.files import WatchedFiles
from sharecoord.security.guard import Guard, outcome_of
from sharecoord.security.principals import (
    NOBODY,
    Caller,
    Credentials,
    Identity,
    Mechanism,
    Principal,
)
from sharecoord.security.rules import SETTING as RULES
from sharecoord.security.rules import read_rules
from sharecoord.security.setup import Security

ALICE = Caller(Identity(Principal("User:alice")), "10.0.0.7:1")
TEXT = """
rules:
  - allow: [consume]
    principals: ["User:alice"]
    resources: ["group:g", "topic:t"]
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(TEXT)
    return path


def guard_of(path: Path) -> Guard:
    return Guard(WatchedFiles({RULES: str(path)}, lambda c: read_rules(c[RULES])))


def test_a_refusal_names_principal_action_resource_and_line(rules: Path) -> None:
    guard = guard_of(rules)
    guard.check_member(ALICE, "g", ["t"])
    with pytest.raises(UnauthorizedError) as refused:
        guard.check(ALICE, [(Action.CONSUME, group("g")), (Action.DELETE, group("g"))])
    error = refused.value
    assert "User:alice may not delete group:g: no line of the rules allows it" in error.message
    assert error.metadata == {"action": "delete", "resource": "group:g"}
    with pytest.raises(UnauthorizedError, match="topic:other"):
        guard.check_member(ALICE, "g", ["t", "other"])


def test_a_member_is_looked_at_again_by_its_credentials_too(rules: Path) -> None:
    guard = guard_of(rules)
    guard.check_still(ALICE, "g", ["t"])
    guard.holds = lambda identity: identity is not ALICE.identity
    with pytest.raises(UnauthenticatedError, match="have ended or were revoked"):
        guard.check_still(ALICE, "g", ["t"])


def test_outcomes_tell_refusals_from_failures() -> None:
    assert outcome_of(None) == "ok"
    for error in (UnauthenticatedError(""), UnauthorizedError(""), QuotaExceededError("")):
        assert outcome_of(error) == "refused"
    assert outcome_of(InvalidConfigError("")) == "failed"


# -- parts by settings ----------------------------------------------------------------------------


def security_of(**settings: object) -> Security:
    flags = {name.replace("__", "."): value for name, value in settings.items()}
    return Security(load(None, {}, {"store.url": "memory:", **flags}), None, "c1")


async def test_without_settings_everybody_gets_in_and_may_do_everything() -> None:
    security = security_of()
    identity = await security.authenticator.identify(Credentials(), "a")
    caller = Caller(identity)
    security.guard.check(caller, [(Action.DELETE, group("g")), (Action.CONSUME, topic("t"))])
    assert list(security.problems()) == []


async def test_tokens_without_rules_let_nobody_in_without_one(tmp_path: Path) -> None:
    security = security_of(security__tokens__file=str(_empty(tmp_path)))
    with pytest.raises(UnauthenticatedError, match="serves nobody without"):
        await security.authenticator.identify(Credentials(), "a")


async def test_with_rules_these_say_what_the_anonymous_may_do(tmp_path: Path, rules: Path) -> None:
    security = security_of(
        security__tokens__file=str(_empty(tmp_path)), security__rules__file=str(rules)
    )
    caller = Caller(await security.authenticator.identify(Credentials(), "a"))
    with pytest.raises(UnauthorizedError, match="User:anonymous may not consume"):
        security.guard.check_member(caller, "g", ["t"])
    assert [name for name, _ in security.problems()] == [RULES, "security.tokens.file"]


async def test_the_owner_of_a_socket_file_is_nobody_at_the_kafka_port(rules: Path) -> None:
    security = security_of(security__rules__file=str(rules))
    security.authenticator.socket = Identity(Principal("User:alice"), Mechanism.SOCKET)
    assert await security.port_authenticator.identify(Credentials(), "a") == NOBODY


def _empty(folder: Path) -> Path:
    path = folder / "tokens.yaml"
    path.write_text("[]")
    return path


def test_keys_that_can_not_be_had_are_a_problem() -> None:
    security = security_of(
        security__oidc__issuer="i",
        security__oidc__audience="a",
        security__oidc__jwks="http://127.0.0.1:9/jwks.json",
    )
    assert dict(security.problems())["security.oidc.jwks"]
    assert "oidc-keys" in security.loops


@pytest.mark.parametrize("setting", ["security__rules__file", "security__tokens__file"])
def test_a_file_that_is_not_there_stops_the_start(setting: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=setting.replace("__", r"\.")):
        security_of(**{setting: str(tmp_path / "none")})
