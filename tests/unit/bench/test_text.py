"""How figures and tables are written."""

from __future__ import annotations

import dataclasses

import pytest

from sharecoord.bench.text import markdown_table, spread_text
from tests.unit.bench.support import MACHINE


@pytest.mark.parametrize(
    ("spread", "form", "unit", "text"),
    [
        ((2.5, 2.0, 3.0), ".2f", "x", "2.50x (2.00-3.00)"),
        ((1234.5, 1000.0, 9999.0), ",.0f", "", "1,234 (1,000-9,999)"),
        # What is equal once it is written has no range.
        ((2.001, 2.0, 2.004), ".2f", " MB", "2.00 MB"),
        (None, ".2f", " MB", "-"),
    ],
)
def test_a_spread_is_its_median_and_its_range(
    spread: tuple[float, float, float] | None, form: str, unit: str, text: str
) -> None:
    assert spread_text(spread, form, unit) == text


def test_columns_of_a_table_line_up() -> None:
    assert markdown_table(["a", "long head"], [["12345", "x"]]).splitlines() == [
        "| a     | long head |",
        "| ----- | --------- |",
        "| 12345 | x         |",
    ]
    assert markdown_table(["a"], []).splitlines() == ["| a   |", "| --- |"]


def test_a_machine_is_busy_when_others_want_a_quarter_of_each_core() -> None:
    assert MACHINE.cores == 2
    for load, busy in ((0.5, False), (0.51, True)):
        assert dataclasses.replace(MACHINE, load_average=(load, 9, 9)).busy is busy


def test_every_fact_of_a_machine_is_shown() -> None:
    rows = dict(MACHINE.rows())
    assert rows["CPU"] == "Test CPU, 2 cores for us"
    assert rows["SQLite"] == "3.40.1, on ext4"
    assert (rows["grpcio"], rows["SQLAlchemy"]) == ("1.85.1", "not installed")
    shown = " ".join(rows.values())
    for field in dataclasses.fields(MACHINE):
        value = getattr(MACHINE, field.name)
        if isinstance(value, str):
            assert value in shown, field.name
    assert dict(dataclasses.replace(MACHINE, commit="").rows())["commit"] == "unknown"
