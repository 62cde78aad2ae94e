"""`sharecoord tokens`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharecoord.security.tokens import SETTING, read_tokens
from tests.unit.cli.support import run, words

VARIABLE = "SHARECOORD_SECURITY__TOKENS_FILE"


def test_a_token_is_printed_once_and_alone_on_stdout(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    result = run("tokens", "create", "orders", "--file", str(path))
    assert result.exit_code == 0
    secret = result.stdout.removesuffix("\n")
    assert secret.startswith("sct_")
    assert secret not in result.stderr
    assert secret not in path.read_text()
    assert "sasl.username=orders" in result.stderr
    assert "let the coordinator run as the same" in result.stderr
    found = read_tokens({SETTING: path.read_bytes()}).find(secret)
    assert found is not None
    assert found.principal.name == "User:orders"
    again = run("tokens", "create", "orders", "--file", str(path))
    assert "new file" not in again.stderr
    assert again.stdout != result.stdout


def test_a_token_for_scram(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    result = run("tokens", "create", "orders", "--scram", "--file", str(path))
    assert result.exit_code == 0
    assert result.stdout.strip() not in path.read_text()
    found = read_tokens({SETTING: path.read_bytes()})
    assert found.scram_mechanisms == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    table = run("tokens", "list", "--file", str(path)).stdout
    assert "SCRAM" not in table


def test_groups_and_end_are_listed_and_no_sums(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.yaml")
    run(
        "tokens", "create", "orders", "--group", "a", "--group", "b", "--days", "30", "--file", path
    )
    run("tokens", "create", "zoé", "--file", path)
    rows = json.loads(run("tokens", "list", "--file", path, "-o", "json").stdout)
    assert [(row["name"], row["groups"]) for row in rows] == [("orders", "a,b"), ("zoé", "")]
    assert rows[0]["expires"] > "2026"
    assert rows[1]["expires"] is None
    table = run("tokens", "list", "--file", path).stdout
    header, *lines = table.splitlines()
    assert words(header) == ["NAME", "GROUPS", "EXPIRES", "LINE"]
    assert words(lines[1]) == ["zoé", "-", "-", str(rows[1]["line"])]
    for token in read_tokens({SETTING: Path(path).read_bytes()}).tokens:
        assert token.digest.hex() not in table


def test_the_file_is_the_one_that_serve_takes(tmp_path: Path) -> None:
    by_variable, by_config = tmp_path / "a.yaml", tmp_path / "b.yaml"
    config = tmp_path / "config.yaml"
    config.write_text(f"security.tokens.file: {by_config}\n")
    assert run("tokens", "create", "a", env={VARIABLE: str(by_variable)}).exit_code == 0
    assert run("tokens", "create", "b", "--config", str(config)).exit_code == 0
    assert "name: a" in by_variable.read_text()
    assert "name: b" in by_config.read_text()
    listed = run("tokens", "list", "--file", str(by_config), env={VARIABLE: str(by_variable)})
    assert words(listed.stdout.splitlines()[1])[0] == "b"


@pytest.mark.parametrize("command", [["list"], ["create", "a"]])
def test_without_a_file_it_is_wrong_usage(command: list[str]) -> None:
    result = run("tokens", *command)
    assert result.exit_code == 2
    assert "give --file, or set security.tokens.file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["create", "a:b", "--file", "{path}"], "has a colon"),
        (["create", "", "--file", "{path}"], "is empty"),
        (["create", "a", "--group", "b\n", "--file", "{path}"], "a group's name"),
        (["create", "a", "--file", "{folder}/none/tokens.yaml"], "No such file or directory"),
        (["list", "--file", "{path}"], "can not read"),
    ],
)
def test_what_can_not_be_is_one_line(tmp_path: Path, arguments: list[str], problem: str) -> None:
    places = {"path": tmp_path / "tokens.yaml", "folder": tmp_path}
    result = run("tokens", *(each.format(**places) for each in arguments))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sharecoord: error: ")
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_bad_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("- name: a\n  sha256: sct_by-mistake\n")
    for command in (["list"], ["create", "b"]):
        result = run("tokens", *command, "--file", str(path))
        assert result.exit_code == 1
        assert f"{SETTING}:2: " in result.stderr
        assert "by-mistake" not in result.stderr
    assert run("tokens", "create", "a", "--days", "0", "--file", str(path)).exit_code == 2
