"""`sharecoord acl test`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sharecoord_sdk.admin import AccessDescription

from sharecoord.cli.main import cli
from sharecoord.cli.options import Services

RULES = """
rules:
  - allow: [consume]
    principals: ["Group:team"]
    resources: ["group:orders", "topic:*"]
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def run(*arguments: str, services: Services | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["acl", "test", *arguments], obj=services)
    return result.exit_code, result.stdout, result.stderr


WHO = ("--principal", "User:a", "--principal-group", "team", "--action", "consume")


@pytest.mark.parametrize(
    ("what", "code", "why"),
    [
        (("--group", "orders"), 0, "line 3 of the rules allows it"),
        (("--topic", "any"), 0, "line 3 of the rules allows it"),
        (("--group", "other"), 1, "no line of the rules allows it"),
        (("--cluster",), 1, "no line of the rules allows it"),
    ],
)
def test_a_file_is_asked(rules: Path, what: tuple[str, ...], code: int, why: str) -> None:
    found = run(*WHO, *what, "--rules", str(rules))
    assert found[0] == code
    assert why in found[1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (WHO, "give one of --group"),
        ((*WHO, "--group", "g", "--cluster"), "give one of --group"),
        (("--principal", "a", "--action", "consume", "--group", "g"), "must be `User:NAME`"),
        (("--principal", "User:a", "--action", "eat", "--group", "g"), "unknown action 'eat'"),
    ],
)
def test_a_bad_question_is_named(rules: Path, arguments: tuple[str, ...], problem: str) -> None:
    code, _, error = run(*arguments, "--rules", str(rules))
    assert code != 0
    assert problem in error


def test_a_coordinator_is_asked_and_tells_that_its_file_is_not_in_force() -> None:
    asked: list[Any] = []

    class Admin:
        def __enter__(self) -> Admin:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

        def describe_access(self, *words: str, principal_groups: Any) -> AccessDescription:
            asked.append((*words, principal_groups))
            return AccessDescription(
                allowed=True, line=7, why="line 7 of the rules allows it", rules_problem="line 9"
            )

    services = Services(make_admin=lambda _: Admin())  # type: ignore[arg-type,return-value]
    code, shown, said = run(*WHO, "--dead-letter-topic", "dead", services=services)
    assert (code, asked) == (0, [("User:a", "consume", "dead-letter-topic:dead", ("team",))])
    assert "line 7" in shown
    assert "not in force: line 9" in said
