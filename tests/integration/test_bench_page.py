"""The page of a benchmark in a real browser: offline, narrow and wide, light and dark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest

from sharecoord.bench.engine.cell import Cell, Consumer
from sharecoord.bench.run.folder import PAGE_NAME, write_summary
from sharecoord.bench.run.page import page as render
from tests.browser import (
    CONTRAST,
    READABLE_PX,
    apart,
    browser,
    contrast,
    look_at,
)
from tests.unit.bench.engine.support import make_result, make_trial

__all__ = ["browser"]

CELLS: Final = [
    Cell(consumer, consumers=consumers, payload_bytes=payload_bytes, work_ms=5.0)
    for consumers in (10, 50)
    for payload_bytes in (100, 1000)
    for consumer in (Consumer.SHARECOORD, Consumer.KAFKA_SHARE)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result folder with every table and plot; its figures are made up."""
    directory = tmp_path_factory.mktemp("result")
    chance = random.Random(7)
    trials = []
    for number, cell in enumerate(CELLS):
        speed = 9000 if cell.consumer is Consumer.SHARECOORD else 1500
        for repeat in range(4):
            counts = [chance.randrange(100, 400) for _ in range(cell.consumers)]
            figures = {
                "records_per_s": speed * chance.uniform(0.8, 1.2),
                "busy_percent": speed / 100,
                "jain_ratio": chance.uniform(0.5, 1.0),
                "p50_ms": chance.uniform(1, 9),
                "p99_ms": chance.uniform(9, 90),
                "first_record_s": chance.uniform(0.1, 5),
                "cpu_total_s_per_million": chance.uniform(8, 20),
                "starved_consumers": chance.randrange(3),
                "missing_records": 1_234_567,
            }
            trials.append(make_trial(number, repeat, counts, **figures))
    latencies = {
        number: sorted(chance.lognormvariate(1, 0.8) for _ in range(300))
        for number in range(len(CELLS))
    }
    result = make_result(trials, CELLS, latencies_ms=latencies)
    write_summary(result, directory)
    (directory / PAGE_NAME).write_text(render(result), encoding="utf-8")
    return directory


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1400])
def test_the_page_is_whole_and_readable_without_a_network(
    browser: Any, folder: Path, width: int, scheme: str
) -> None:
    seen = look_at(browser, folder / PAGE_NAME, width, scheme)
    background = seen["background"]
    assert seen["tables"]
    if width >= 1280:
        cells, more, *_ = seen["tables"]
        assert all(each["width"] <= each["shown"]["width"] for each in (cells, more)), "not cut"
    check_bars(seen, width, background)
    check_plots(seen, width, background)


def check_bars(seen: dict[str, Any], width: int, background: str) -> None:
    """Bars and whiskers have an area, lie on their tracks, and have name and value beside them."""
    bars = 7 * len(CELLS)
    assert [len(seen[name]) for name in ("fills", "whiskers", "names", "values")] == [bars] * 4
    for fill in seen["fills"]:
        assert fill["width"] * fill["height"] > 20
        assert contrast(fill["color"], background) >= 3
    for drawn in (*seen["fills"], *seen["whiskers"]):
        assert drawn["track"]["width"] > 100
        assert drawn["track"]["left"] <= drawn["left"]
        # A whisker without a range is its two ends, of a pixel each.
        assert drawn["right"] <= drawn["track"]["right"] + 2
    for text in (*seen["names"], *seen["values"]):
        assert text["height"] > READABLE_PX
        assert 0 <= text["left"] < text["right"] <= width


def check_plots(seen: dict[str, Any], width: int, background: str) -> None:
    """Lines have an area and colors that can be seen; labels are large enough and do not touch."""
    assert len(seen["plots"]) == 2
    for plot in seen["plots"]:
        assert plot["right"] <= width, "scaled, and not cut"
        assert len(plot["lines"]) == len(CELLS)
        for line in plot["lines"]:
            assert line["width"] > 40
            assert line["height"] > 40
            assert contrast(line["color"], background) >= 3
        for text in plot["texts"]:
            assert text["height"] > READABLE_PX
            assert plot["left"] <= text["left"] < text["right"] <= plot["right"]
            assert contrast(text["color"], background) >= CONTRAST
        rows: dict[int, list[dict[str, Any]]] = {}
        for text in plot["texts"]:
            rows.setdefault(round(text["top"]), []).append(text)
        assert all(apart(row) for row in rows.values())
    assert len(seen["keys"]) == 2 * len(CELLS)
    assert all(key["right"] <= width for key in seen["keys"])
