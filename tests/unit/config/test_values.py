"""Texts to values and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.config import values

_WHOLE = st.integers(min_value=0, max_value=10**15)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("7d", 604_800_000),
        ("250ms", 250),
        ("1h30m", 5_400_000),
        ("1m0.5s", 60_500),
        ("1.5s", 1_500),
        ("30000", 30_000),
        (" 2s ", 2_000),
        ("-1", -1),
        ("0ms", 0),
    ],
)
def test_durations_are_read(text: str, expected_ms: int) -> None:
    assert values.parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "s", "1.5", "-1s", "0.5ms", "1m1m", "1s1m", "30 s", "1h 30m", "1S", "1w", "٣s", "9" * 40],
)
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        values.parse_duration_ms(text)


@given(_WHOLE)
def test_a_formatted_duration_reads_back(duration_ms: int) -> None:
    assert values.parse_duration_ms(values.format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("512MiB", 536_870_912),
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("1.5GiB", 1_610_612_736),
        ("512Mi", 536_870_912),
        ("1 TiB", 1 << 40),
        ("100B", 100),
        ("4096", 4_096),
        ("0", 0),
    ],
)
def test_sizes_are_read(text: str, expected_bytes: int) -> None:
    assert values.parse_size_bytes(text) == expected_bytes


@pytest.mark.parametrize("text", ["", "MiB", "1XB", "1.5", "0.5B", "-1MiB", "1MiB2", "9" * 40])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        values.parse_size_bytes(text)


@pytest.mark.parametrize("text", ["512M", "512m"])
def test_an_ambiguous_size_names_both_readings(text: str) -> None:
    with pytest.raises(ValueError, match=r"^512MiB \(powers of 1024\) or 512MB \(of 1000\)$"):
        values.parse_size_bytes(text)


@given(_WHOLE)
def test_a_formatted_size_reads_back(size_bytes: int) -> None:
    assert values.parse_size_bytes(values.format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("PT1H", 3_600_000),
        ("P1D", 86_400_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.001s", 1),
        ("PT0,25S", 250),
        ("PT0S", 0),
        ("PT0.0009S", 0),
        ("PT1H-30M", 1_800_000),
        ("+PT1S", 1_000),
        ("-PT-1S", 1_000),
    ],
)
def test_iso_durations_are_read_as_java_does(text: str, expected_ms: int) -> None:
    assert values.parse_iso_duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "P1M", "PT1D", "-PT1S", "PT1.5H"])
def test_bad_iso_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ISO-8601"):
        values.parse_iso_duration_ms(text)


@given(_WHOLE)
def test_a_formatted_iso_duration_reads_back(duration_ms: int) -> None:
    assert values.parse_iso_duration_ms(values.format_iso_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize("text", ["1_000", "0x10", "1.0", "", "one", "٣", "9" * 5000])
def test_bad_integers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^an integer$"):
        values.parse_int(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "1_0", "", "x"])
def test_bad_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a number$"):
        values.parse_float(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back(number: float) -> None:
    assert values.parse_float(str(number)) == number


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("False", False), (" TRUE ", True)])
def test_booleans_are_read(text: str, *, expected: bool) -> None:
    assert values.parse_bool(text) is expected


@pytest.mark.parametrize("text", ["yes", "1", "on", ""])
def test_bad_booleans_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^true or false$"):
        values.parse_bool(text)
