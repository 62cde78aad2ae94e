"""What headers say of the time at which a record is to be delivered."""

from __future__ import annotations

import pytest

from sharecoord.core.dispatch.schedule import (
    DELAY_HEADER,
    DELIVER_AT_HEADER,
    SCHEDULE_MAX_MS,
    due_times,
)

NOW_MS = 1_700_000_000_000


def test_both_headers_say_when() -> None:
    headers = {
        0: [(DELIVER_AT_HEADER, b"1700000005000")],
        2: [("trace", b"x"), (DELAY_HEADER, b"250")],
        3: [(DELAY_HEADER, b"0")],
        4: [(DELIVER_AT_HEADER, b"0")],
        5: [(DELAY_HEADER, b"7000"), (DELIVER_AT_HEADER, b"1700000005000")],
        6: [(DELIVER_AT_HEADER, b"1700000005000"), (DELAY_HEADER, b"1000")],
        7: [("sharecoord-delay", b"5"), ("trace", None)],
        8: [(DELAY_HEADER, str(SCHEDULE_MAX_MS).encode())],
    }
    found, unusable = due_times(headers, [NOW_MS + n for n in range(9)], NOW_MS + 8)
    assert found == {
        0: NOW_MS + 5_000,
        2: NOW_MS + 2 + 250,
        3: NOW_MS + 3,
        4: 0,
        5: NOW_MS + 5 + 7_000,
        6: NOW_MS + 5_000,
        8: NOW_MS + 8 + SCHEDULE_MAX_MS,
    }
    assert unusable == []


@pytest.mark.parametrize("name", [DELIVER_AT_HEADER, DELAY_HEADER])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (b"", "''"),
        (b"-5", "'-5'"),
        (b"1.5", "'1.5'"),
        (b" 5", "' 5'"),
        (b"5s", "'5s'"),
        (b"\xff\x00", "'\ufffd\\x00'"),
        (b"9" * 400, f"'{'9' * 40}'"),
        (str(NOW_MS * 1_000).encode(), f"'{NOW_MS}000'"),
    ],
)
def test_what_can_not_be_used_is_named_and_does_not_wait(
    name: str, value: bytes | None, shown: str
) -> None:
    found, unusable = due_times({1: [(name, value)]}, [NOW_MS, NOW_MS], NOW_MS)
    assert found == {}
    (one,) = unusable
    assert one.record == 1
    assert one.problem.startswith(f"{name}={shown}: ")
    assert "at most ten years" in one.problem


def test_an_unusable_header_beside_a_good_one_is_named_and_the_good_one_holds() -> None:
    headers = {0: [(DELAY_HEADER, b"soon"), (DELAY_HEADER, b"5")]}
    found, unusable = due_times(headers, [NOW_MS], NOW_MS)
    assert found == {0: NOW_MS + 5}
    assert len(unusable) == 1
