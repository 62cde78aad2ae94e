"""The report in a real browser: whole, readable, the same size for 10,000 members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sharecoord.analytics.report.page import page
from tests.browser import CONTRAST, READABLE_PX, apart, browser, contrast, look_at
from tests.unit.analytics.report.support import whole_report

__all__ = ["browser"]

PLOTS = 5
HEAT: Any = """() => [...document.querySelectorAll('.plot path[class^=h]')].map(e => {
  const r = e.getBoundingClientRect();
  return {kind: e.getAttribute('class'), width: r.width, height: r.height,
          color: getComputedStyle(e).fill}; })"""


@pytest.fixture(scope="module", params=[50, 10_000], ids=["50 members", "10,000 members"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("report") / "report.html"
    made.write_text(page(whole_report(request.param, request.param // 3)), encoding="utf-8")
    return made


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_report_is_whole_and_readable_without_a_network(
    browser: Any, file: Path, width: int, scheme: str
) -> None:
    seen = look_at(browser, file, width, scheme)
    background = seen["background"]
    assert len(seen["plots"]) == PLOTS
    for plot in seen["plots"]:
        assert plot["right"] <= width, "scaled, and not cut"
        for line in plot["lines"]:
            assert max(line["width"], line["height"]) > 40
            assert contrast(line["color"], background) >= 3
        rows: dict[int, list[dict[str, Any]]] = {}
        for text in plot["texts"]:
            assert text["height"] > READABLE_PX
            assert contrast(text["color"], background) >= CONTRAST
            rows.setdefault(round(text["top"]), []).append(text)
        assert all(apart(row) for row in rows.values())


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_of_the_heat_map_can_be_told_apart(browser: Any, file: Path, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, offline=True)
    try:
        shown = context.new_page()
        shown.goto(file.as_uri(), wait_until="load")
        cells = shown.evaluate(HEAT)
        anchors = shown.evaluate(
            "() => [...document.querySelectorAll('.verdicts a')].map(e => "
            "document.querySelector(e.getAttribute('href')).getBoundingClientRect().top)"
        )
        words = shown.evaluate(
            "() => document.querySelector('.verdicts').getBoundingClientRect().bottom"
        )
        first_heading = anchors[0]
    finally:
        context.close()
    kinds = {cell["kind"] for cell in cells}
    assert "h0" in kinds
    assert kinds & {"h5", "h6"}
    assert all(cell["width"] > 2 and cell["height"] > 2 for cell in cells)
    colors = {cell["kind"]: cell["color"] for cell in cells}
    assert len(set(colors.values())) == len(colors)
    assert words < first_heading
