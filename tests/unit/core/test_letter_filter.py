"""Which dead letters a filter means, and which filters are refused."""

from __future__ import annotations

from typing import Any

import pytest

from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.letters.letter import Letter
from sharecoord.errors import InvalidRequestError

LETTER = Letter(
    group_id="billing",
    topic="orders",
    partition=3,
    offset=17,
    id="billing:t:3:17:4",
    reason="REJECTED",
    delivery_count=2,
    message="No amount: größe",
    payload="whole",
    timestamp_ms=1_000,
    member_id="ann",
    failed_at_ms=2_000,
    key=b"k1",
    value=b"v",
    headers=(("trace", b"7"), ("trace", b"8"), ("none", None), ("empty", b""), ("\udcff", b"odd")),
)

HOLD: list[dict[str, Any]] = [
    {},
    {"reasons": ("REJECTED",)},
    {"reasons": ("DELIVERY_LIMIT", "REJECTED")},
    {"topic": "orders"},
    {"topic": "orders", "partitions": (0, 3)},
    {"topic": "orders", "partitions": (3,), "first_offset": 17, "last_offset": 17},
    {"topic": "orders", "partitions": (3,), "last_offset": 100},
    {"key": b"k1"},
    {"key_prefix": b"k"},
    {"failed_from_ms": 2_000},
    {"failed_to_ms": 2_001},
    {"failed_from_ms": 0, "failed_to_ms": 3_000},
    {"headers": (("trace", None),)},
    {"headers": (("trace", b"8"), ("empty", b""), ("none", None))},
    {"headers": (("\\xff", b"odd"),)},
    {"ids": ("other", "billing:t:3:17:4")},
    {"text": "GRÖSSE"[:3].lower()},
    {"text": "no AMOUNT"},
]

FAIL: list[dict[str, Any]] = [
    {"reasons": ("DELIVERY_LIMIT",)},
    {"topic": "payments"},
    {"topic": "orders", "partitions": (0,)},
    {"topic": "orders", "partitions": (3,), "first_offset": 18},
    {"topic": "orders", "partitions": (3,), "last_offset": 16},
    {"key": b"k"},
    {"key": b""},
    {"key_prefix": b"k2"},
    {"failed_from_ms": 2_001},
    {"failed_to_ms": 2_000},
    {"headers": (("Trace", None),)},
    {"headers": (("trace", b"9"),)},
    {"headers": (("trace", b"7"), ("none", b""))},
    {"ids": ("billing:t:3:17:5",)},
    {"text": "amounts"},
]


@pytest.mark.parametrize("given", HOLD, ids=repr)
def test_what_holds(given: dict[str, Any]) -> None:
    wanted = LetterFilter(**given)
    wanted.check()
    assert wanted.matches(LETTER)
    assert wanted.is_empty == (not given)


@pytest.mark.parametrize("given", FAIL, ids=repr)
@pytest.mark.parametrize("also", [{}, {"text": "amount"}], ids=repr)
def test_one_part_that_fails_is_enough(given: dict[str, Any], also: dict[str, Any]) -> None:
    wanted = LetterFilter(**(also | given))
    wanted.check()
    assert not wanted.matches(LETTER)


def test_no_key_is_no_key() -> None:
    silent = LETTER._replace(key=None)
    assert not LetterFilter(key=b"").matches(silent)
    assert not LetterFilter(key_prefix=b"k").matches(silent)
    assert LetterFilter(key=b"").matches(LETTER._replace(key=b""))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"reasons": ("rejected",)}, ["filter.reasons", "'rejected'", "REJECTED, DELIVERY_LIMIT"]),
        ({"partitions": (1,)}, ["filter.partitions needs filter.topic"]),
        ({"topic": "t", "first_offset": 1}, ["first_offset", "one of filter.partitions"]),
        (
            {"topic": "t", "partitions": (1, 2), "last_offset": 1},
            ["last_offset", "one of filter.partitions"],
        ),
        (
            {"topic": "t", "partitions": (1,), "first_offset": 5, "last_offset": 4},
            ["filter.last_offset 4 is before filter.first_offset 5"],
        ),
        ({"topic": "t", "partitions": (1,), "first_offset": -1}, ["first_offset is -1", "0 or"]),
        ({"failed_from_ms": 5, "failed_to_ms": 5}, ["failed_to_ms 5 is before", "no letter"]),
        ({"failed_to_ms": -5}, ["filter.failed_to_ms is -5"]),
        ({"key_prefix": b""}, ["filter.key_prefix is empty"]),
        ({"headers": (("", b"x"),)}, ["filter.headers: a name is empty"]),
        ({"ids": ("",)}, ["filter.ids: one is empty"]),
        ({"ids": ("x",) * 1_001}, ["filter.ids has more than 1000 values"]),
    ],
    ids=repr,
)
def test_bad_filters_are_refused_by_name(given: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        LetterFilter(**given).check()
    assert [part for part in named if part not in caught.value.message] == []
