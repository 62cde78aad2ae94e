"""The files of security that coordinators under test and under measurement get."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.security import RULES, TOKENS, token_name, token_of, write_security
from sharecoord.security.actions import MEANINGS, Action, Resource, group
from sharecoord.security.principals import ANONYMOUS, Principal
from sharecoord.security.rules import read_rules
from sharecoord.security.tokens import SETTING, read_tokens


def test_the_last_line_of_a_thousand_decides(tmp_path: Path) -> None:
    settings = write_security(tmp_path, ["User:worker-0999"])
    content = (tmp_path / "rules.yaml").read_bytes()
    assert len(content.splitlines()) == RULES
    rules = read_rules(content)
    worker = Principal("User:worker-0999")
    for meaning in MEANINGS:
        decision = rules.decide(worker, meaning.action, Resource(meaning.kind, "any"))
        assert (decision.is_allowed, decision.line) == (True, RULES)
    assert not rules.decide(ANONYMOUS, Action.CONSUME, group("any")).is_allowed
    assert rules.quota_of(worker).members
    assert settings["security.audit.sink"] == f"file:{tmp_path / 'audit.jsonl'}"


def test_each_token_is_of_somebody_else(tmp_path: Path) -> None:
    write_security(tmp_path)
    tokens = read_tokens({SETTING: (tmp_path / "tokens.yaml").read_bytes()})
    assert len(tokens.tokens) == TOKENS
    identity = tokens.find(token_of())
    assert identity is not None
    assert identity.principal.name == f"User:{token_name()}"
    assert tokens.find(token_of(0)) != identity


def test_a_coordinator_of_a_run_with_security_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoordinatorProcess, "has_security", True)
    file = tmp_path / "coordinator.yaml"
    CoordinatorProcess("k:9092", tmp_path)
    assert "security.rules.file" in file.read_text()
    CoordinatorProcess("k:9092", tmp_path, settings={"security.rules.file": ""})
    assert "tokens.yaml" not in file.read_text()
