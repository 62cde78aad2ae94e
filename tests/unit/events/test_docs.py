"""The generated tables of docs/events.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.eventlog.schema import COLUMNS, GroupEvent, RangeEvent
from sharecoord.events import docs


def test_the_document_in_the_tree_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"]) == 0, capsys.readouterr().err


def test_every_column_and_value_is_documented() -> None:
    text = docs.render()
    for column in COLUMNS:
        assert f"| `{column.name}` | {column.type} |" in text
        assert column.meaning in text
    for value in (*RangeEvent, *GroupEvent):
        assert f"| `{value}` |" in text
    assert "| `expired` | The lock ended by itself. |" in text


def test_an_old_document_is_found_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.md"
    path.write_text(f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n")
    assert docs.main(["--check", "--output", str(path)]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert docs.main(["--output", str(path)]) == 0
    assert docs.main(["--check", "--output", str(path)]) == 0
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert docs.render() in text


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        docs.filled("text")
