"""The generated document of all settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.config import docs
from sharecoord.config.group import GROUP_SETTINGS
from sharecoord.config.process import PROCESS_SETTINGS


def test_the_document_in_the_tree_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"]) == 0, capsys.readouterr().err


def test_every_setting_is_documented() -> None:
    text = docs.render()
    for setting in (*PROCESS_SETTINGS.values(), *GROUP_SETTINGS.values()):
        assert f"| `{setting.name}` |" in text
        assert setting.meaning in text


def test_every_table_has_equal_columns() -> None:
    widths = set()
    for line in docs.render().splitlines():
        if line.startswith("| "):
            widths.add(line.replace("\\|", "").count("|"))
    assert widths == {3, 5}


def test_an_old_document_is_found_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.md"
    assert docs.main(["--check", "--output", str(path)]) == 1
    path.write_text("old")
    assert docs.main(["--check", "--output", str(path)]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert docs.main(["--output", str(path)]) == 0
    assert docs.main(["--check", "--output", str(path)]) == 0
    assert path.read_text() == docs.render()
