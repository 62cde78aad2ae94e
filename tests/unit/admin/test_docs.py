"""The generated tables of docs/security.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.runtime.admin import docs
from sharecoord.runtime.admin.operators import NEEDS
from sharecoord.security.actions import MEANINGS


def test_the_page_in_the_tree_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"]) == 0, capsys.readouterr().err


def test_every_action_and_call_is_documented() -> None:
    text = docs.render()
    for meaning in MEANINGS:
        assert f"| `{meaning.kind}` | `{meaning.action}` | {meaning.text} |" in text
    for call in NEEDS:
        assert text.count(f"| `{call}` | `") == 1, call


def test_what_is_needed_by_values_alone_stands_apart() -> None:
    lines = docs.render().splitlines()
    assert (
        "| `alter_group_configs` | `configure` on `group:GROUP` "
        "| `write` on `dead-letter-topic:TOPIC`, `write` on `consumer-group:NAME` |"
    ) in lines
    assert "| `delete_groups` | `delete` on `group:GROUP`, for each group by itself |  |" in lines


def test_an_old_page_is_found_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "security.md"
    path.write_text(f"before\n{docs.BEGIN}\nold\n{docs.END}\nafter\n")
    assert docs.main(["--check", "--output", str(path)]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert docs.main(["--output", str(path)]) == 0
    assert docs.main(["--check", "--output", str(path)]) == 0
    assert path.read_text() == f"before\n{docs.BEGIN}\n\n{docs.render()}\n{docs.END}\nafter\n"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        docs.filled("text")
