"""docs/guarantees.md says nothing that is not tested: each row of its tables names a test."""

from __future__ import annotations

import pytest

from tests.acceptance.chaos.crew import ROOT
from tests.architecture.test_evidence import CODE_SPAN, exists, rows

PAGE = ROOT / "docs" / "guarantees.md"
ROWS_MIN = 25


def proofs(cells: str) -> list[str]:
    """The test ids among the code spans of a row."""
    return [span for span in CODE_SPAN.findall(cells) if "::" in span]


def problems(text: str) -> list[str]:
    """Rows without a test, and tests that do not exist."""
    found = []
    for number, what, cells in rows(text):
        named = proofs(cells)
        if not named:
            found.append(f"{number}: {what}: no test")
        found += [f"{number}: {what}: no {proof}" for proof in named if not exists(proof, ROOT)]
    return found


def test_every_row_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert problems(text) == []
    assert len(rows(text)) >= ROWS_MIN


@pytest.mark.parametrize(
    ("row", "count"),
    [
        ("| a | no | `tests/acceptance/test_hostile.py::test_a_flood_of_pings` |", 0),
        ("| a | no | `tests/acceptance/test_hostile.py::test_of_nothing` |", 1),
        ("| a | no | by design |", 1),
        ("| a | no | `docs/guarantees.md` |", 1),
    ],
)
def test_a_row_without_proof_is_reported(row: str, count: int) -> None:
    assert len(problems(f"| what | lost | proof |\n|---|---|---|\n{row}\n")) == count
