"""What the tests of pages are built on: requests and complaints are seen, contrast is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser import apart, browser, contrast, give_up, open_page

__all__ = ["browser"]


def test_a_request_and_a_complaint_would_be_seen(browser: Any, tmp_path: Path) -> None:
    text = (
        "<!DOCTYPE html><title>x</title><body style='color:#777'>"
        "<script>console.error('broken'); fetch('http://127.0.0.1:9/x').catch(() => 0);"
        "throw new Error('thrown')</script>"
    )
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    opened = open_page(browser, file, 390, "light")
    assert "http://127.0.0.1:9/x" in opened.requests
    assert {"error: broken", "thrown"} <= set(opened.complaints)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") == pytest.approx(4.48, abs=0.01)
    assert contrast("rgb(1, 2, 3)", "rgb(1, 2, 3)") == 1
    assert apart([{"left": 5, "right": 9}, {"left": 0, "right": 5}])
    assert not apart([{"left": 4, "right": 9}, {"left": 0, "right": 5}])


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_browser_only_ci_fails(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    wanted: Any = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(wanted, match="Chromium is missing: apt-get install chromium"):
        give_up("Chromium is missing")
