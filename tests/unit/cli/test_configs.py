"""`sharecoord configs`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sharecoord_sdk.admin import ConfigEntry, ConfigSource, InvalidConfigError

from tests.unit.cli.support import FakeAdmin, lines, run

ENTRIES = [
    ConfigEntry("share.auto.offset.reset", "latest", ConfigSource.DEFAULT, "Where it begins."),
    ConfigEntry("share.record.lock.duration.ms", "20000", ConfigSource.GROUP, "How long."),
    ConfigEntry("errors.deadletterqueue.topic.name", "", ConfigSource.COORDINATOR, "Topic."),
]
GROUP = ("--entity-type", "groups", "--entity-name", "g")


def test_describe_shows_every_setting_with_its_source() -> None:
    admin = FakeAdmin(describe_group_configs=ENTRIES)
    result = run("configs", *GROUP, "--describe", admin=admin)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == lines(
        """
        NAME                               VALUE   SOURCE
        share.auto.offset.reset            latest  default
        share.record.lock.duration.ms      20000   group
        errors.deadletterqueue.topic.name  -       coordinator
        """
    )
    assert admin.calls == [("describe_group_configs", ("g",), {})]


def test_describe_as_json_has_the_meaning_too() -> None:
    admin = FakeAdmin(describe_group_configs=ENTRIES)
    result = run("configs", *GROUP, "--describe", "--all", "-o", "json", admin=admin)
    assert json.loads(result.stdout)[1] == {
        "name": "share.record.lock.duration.ms",
        "value": "20000",
        "source": "group",
        "documentation": "How long.",
        "problem": "",
    }


def test_describe_says_which_stored_value_is_not_in_force() -> None:
    bad = replace(ENTRIES[0], problem="it is not valid: so. Do this.")
    admin = FakeAdmin(describe_group_configs=[bad, *ENTRIES[1:]])
    result = run("configs", *GROUP, "--describe", admin=admin)
    assert result.stderr == "a stored value is not in force: it is not valid: so. Do this.\n"


def test_alter_sets_and_deletes() -> None:
    admin = FakeAdmin(alter_group_configs=None)
    options = ("--add-config", "a=1, b=[x,y],c=p=q", "--add-config", "d=")
    deleted = ("--delete-config", "e, f", "--delete-config", "g")
    result = run("configs", *GROUP, "--alter", *options, *deleted, admin=admin)
    assert (result.exit_code, result.stdout) == (0, "Completed updating config for group g.\n")
    (call,) = admin.calls
    assert call[1] == ("g", {"a": "1", "b": "x,y", "c": "p=q", "d": ""}, ["e", "f", "g"])
    assert call[2] == {"validate_only": False}


def test_alter_can_only_check() -> None:
    admin = FakeAdmin(alter_group_configs=None)
    result = run(
        "configs", *GROUP, "--alter", "--add-config", "a=1", "--validate-only", admin=admin
    )
    assert result.stdout == "The settings are valid for group g.\n"
    assert admin.calls[0][2] == {"validate_only": True}


def test_a_bad_setting_is_one_line() -> None:
    error = InvalidConfigError('a="1": no such setting. Did you mean b?', reason="INVALID_CONFIG")
    admin = FakeAdmin(alter_group_configs=error)
    result = run("configs", *GROUP, "--alter", "--add-config", "a=1", admin=admin)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == 'sharecoord: error: a="1": no such setting. Did you mean b?\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--describe --alter", "one of --describe and --alter"),
        ("", "one of --describe and --alter"),
        ("--describe --add-config a=1", "--describe takes no --add-config"),
        ("--alter", "--alter takes --add-config K=V or --delete-config K"),
        ("--alter --add-config a", "it must be NAME=VALUE"),
        ("--alter --add-config =1", "it must be NAME=VALUE"),
        ("--alter --add-config a=1,a=2", "a: it is set twice"),
        ("--alter --add-config a=[1,2", "brackets are not in pairs"),
        ("--describe --entity-type topics", "'topics' is not"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: str, message: str) -> None:
    result = run("configs", *GROUP, *arguments.split())
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
