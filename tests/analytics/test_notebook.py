"""The notebooks of docs/ run, and print what stands in them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tools.notebook import NOTEBOOKS, executed, findings


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_stands_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARECOORD_EVENTS_DIR", raising=False)
    kept = findings(nbformat.read(path, as_version=4))
    assert kept
    assert all(kept.values())
    assert findings(executed(path)) == kept
