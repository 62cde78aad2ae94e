"""`sharecoord keys`."""

from __future__ import annotations

import json

import pytest
from sharecoord_sdk.admin import BlockedKey, InvalidRequestError

from tests.unit.cli.support import FakeAdmin, run, words

LISTED = [
    BlockedKey(b"customer-17", 1_700_000_000_000, "ticket 4711", 12),
    BlockedKey(b"\xff\x00", 1_700_000_000_005, "", 0),
]


def test_keys_are_blocked_by_text_and_by_hex() -> None:
    admin = FakeAdmin(block_keys=None)
    named = ["--key", "a", "--key-hex", "ff 00", "--key", "a", "--key", ""]
    done = run("keys", "block", "--group", "g", *named, "--reason", "why", admin=admin)
    assert (done.exit_code, done.stdout) == (0, "Blocked 3 keys of group g.\n")
    assert admin.calls == [("block_keys", ("g", [b"a", b"", b"\xff\x00"]), {"reason": "why"})]


def test_keys_are_unblocked_and_those_that_were_not_blocked_are_named() -> None:
    admin = FakeAdmin(unblock_keys=[b"b"])
    done = run("keys", "unblock", "--group", "g", "--key", "a", "--key", "b", admin=admin)
    assert (done.exit_code, done.stdout) == (1, "Unblocked 1 key of group g.\n")
    assert done.stderr == "sharecoord: error: key 'b' was not blocked\n"


def test_all_keys_are_unblocked() -> None:
    admin = FakeAdmin(list_blocked_keys=LISTED, unblock_keys=[])
    done = run("keys", "unblock", "--group", "g", "--all", admin=admin)
    assert (done.exit_code, done.stdout) == (0, "Unblocked 2 keys of group g.\n")
    assert admin.calls[1] == ("unblock_keys", ("g", [b"customer-17", b"\xff\x00"]), {})
    none = run("keys", "unblock", "--group", "g", "--all", admin=FakeAdmin(list_blocked_keys=[]))
    assert none.stdout == "Unblocked 0 keys of group g.\n"


def test_they_are_listed() -> None:
    admin = FakeAdmin(list_blocked_keys=LISTED)
    table = run("keys", "list", "--group", "g", admin=admin)
    head, first, *_ = table.stdout.splitlines()
    assert words(head) == ["KEY", "KEY-HEX", "SINCE", "WAITING", "REASON"]
    assert words(first)[0] == "customer-17"
    assert words(first)[2:] == ["2023-11-14T22:13:20.000+00:00", "12", "ticket", "4711"]
    rows = json.loads(run("keys", "list", "--group", "g", "-o", "json", admin=admin).stdout)
    assert rows[1] == {
        "key": None,
        "key_hex": "ff00",
        "since": "2023-11-14T22:13:20.005+00:00",
        "waiting": 0,
        "reason": "",
    }
    none = run("keys", "list", "--group", "g", admin=FakeAdmin(list_blocked_keys=[]))
    assert "group 'g' has no blocked keys" in none.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["block", "--group", "g"], "name the key with --key TEXT or --key-hex HEX"),
        (["block", "--group", "g", "--key-hex", "xy"], "--key-hex xy: it must be pairs of"),
        (["block", "--key", "a"], "Missing option '--group'"),
        (["unblock", "--group", "g", "--all", "--key", "a"], "--all takes no --key"),
    ],
)
def test_wrong_usage_is_named(arguments: list[str], text: str) -> None:
    done = run("keys", *arguments)
    assert done.exit_code == 2
    assert text in done.stderr


def test_a_refusal_is_one_line() -> None:
    error = InvalidRequestError("share.ordering=unordered: set it to key")
    done = run("keys", "block", "--group", "g", "--key", "a", admin=FakeAdmin(block_keys=error))
    assert done.exit_code == 1
    assert "share.ordering=unordered: set it to key" in done.stderr
