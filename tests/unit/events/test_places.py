"""Names of directories and files."""

from __future__ import annotations

import os
from datetime import date

import pytest

from sharecoord.events import places


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("orders-workers_1.x", "orders-workers_1.x"),
        ("", "__HIVE_DEFAULT_PARTITION__"),
        # What Spark's ExternalCatalogUtils escapes, and nothing else.
        ("a/b:c=d", "a%2Fb%3Ac%3Dd"),
        ("100%", "100%25"),
        ("\"#'*?\\{[]^\x7f\x01\x1f", "%22%23%27%2A%3F%5C%7B%5B%5D%5E%7F%01%1F"),
        (" }<>|&+,;@!$()~`", " }<>|&+,;@!$()~`"),
        ("Größe 😀", "Größe 😀"),
        ("_x", "_x"),
    ],
)
def test_values_are_escaped_as_spark_does(value: str, name: str) -> None:
    assert places.escape(value) == name
    assert places.unescape(name) == value
    assert places.group_directory(value) == f"group={name}"


@pytest.mark.parametrize("value", ["x" * 300, "😀" * 249, "/" * 249, "a" + "/" * 248])
def test_a_long_name_is_cut_and_stays_unique(value: str) -> None:
    name = places.group_directory(value)
    other = places.group_directory(value[:-1] + "b")
    assert len(os.fsencode(name)) <= 255
    assert name != other
    assert name.startswith("group=")
    assert "~" in name
    assert value.startswith(places.unescape(name[6:].partition("~")[0]))


def test_a_name_of_255_bytes_is_not_cut() -> None:
    assert places.group_directory("x" * 249) == "group=" + "x" * 249


@pytest.mark.parametrize(
    ("time_us", "directory"),
    [
        (0, "date=1970-01-01"),
        (1763855999_999999, "date=2025-11-22"),
        (1763856000_000000, "date=2025-11-23"),
        (253402300799_999999, "date=9999-12-31"),
    ],
)
def test_the_date_is_that_of_utc(time_us: int, directory: str) -> None:
    assert places.date_directory(places.day_of(time_us)) == directory
    assert places.date_of(directory) == date.fromisoformat(directory[5:])


@pytest.mark.parametrize("time_us", [None, "1", 1.5, -1, 253402300800_000000])
def test_a_time_without_a_date_is_refused(time_us: object) -> None:
    with pytest.raises(ValueError, match="microseconds since 1970"):
        places.day_of(time_us)


def test_the_segment_stands_in_a_files_name() -> None:
    name = places.events_file("host-1.a_b", 1763856000_500000, "00ff00ff00ff", 12)
    assert name == "events-host-1.a_b-20251123T000000-00ff00ff00ff-12.parquet"
    assert places.segment_of(name) == "00ff00ff00ff"
    assert places.segment_of("part-00000-c000.zstd.parquet") == ""
    assert places.date_of("date=2026-13-01") is None
