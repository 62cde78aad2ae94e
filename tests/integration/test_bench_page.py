"""The page of a benchmark in a real browser: offline, narrow and wide, light and dark.

Needs Chromium (Debian: `chromium`) and the Python package `playwright`; no browser is downloaded.
Without them the tests are skipped, but not in CI (environment variable `CI`), where they fail.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from sharecoord.bench.grid.cell import Cell, Consumer
from sharecoord.bench.grid.folder import PAGE_NAME, write_summary
from sharecoord.bench.grid.page import page as render
from tests.unit.bench.grid.support import make_result, make_trial

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
READABLE_PX: Final = 8
CONTRAST: Final = 4.5  # WCAG 2 AA for text; 3 for what is not text
CELLS: Final = [
    Cell(consumer, consumers=consumers, payload_bytes=payload_bytes, work_ms=5.0)
    for consumers in (10, 50)
    for payload_bytes in (100, 1000)
    for consumer in (Consumer.SHARECOORD, Consumer.KAFKA_SHARE)
]

# What is drawn: places in CSS pixels of the whole page, and effective colors.
LOOK: Final = """() => {
  const box = e => { const r = e.getBoundingClientRect();
    return {left: r.left + scrollX, top: r.top + scrollY, right: r.right + scrollX,
            width: r.width, height: r.height}; };
  const all = s => [...document.querySelectorAll(s)];
  return {
    width: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.body).color,
    fills: all('.fill').map(e => ({...box(e), color: getComputedStyle(e).backgroundColor,
                                   track: box(e.parentElement)})),
    whiskers: all('.whisker').map(e => ({...box(e), track: box(e.parentElement)})),
    names: all('.name').map(box), values: all('.value').map(box),
    plots: all('.plot').map(e => ({...box(e), lines: [...e.querySelectorAll('polyline')].map(l =>
      ({...box(l), color: getComputedStyle(l).stroke})),
      texts: [...e.querySelectorAll('text')].map(t => ({...box(t), text: t.textContent,
        color: getComputedStyle(t).fill}))})),
    keys: all('.legend li').map(box),
    tables: all('table').map(e => ({...box(e), shown: box(e.parentElement)})),
  };
}"""


@dataclass
class Opened:
    """A page that was opened, and what the browser had to say.

    Attributes:
        seen: What `LOOK` found.
        requests: Addresses that were asked for.
        complaints: Errors and warnings of the console, and exceptions.
    """

    seen: dict[str, Any] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def give_up(what: str) -> NoReturn:
    """Skips, or fails in CI."""
    said = f"{what}: apt-get install chromium, pip install playwright"
    if os.environ.get("CI"):
        pytest.fail(said, pytrace=False)
    pytest.skip(said)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        give_up("Chromium is missing")
    try:
        playwright = importlib.import_module("playwright.sync_api").sync_playwright
    except ImportError:
        give_up("the Python package playwright is missing")
    with playwright() as driver:
        # As root, as in most containers, Chromium runs only without its own sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        chromium = driver.chromium.launch(executable_path=program, args=arguments)
        yield chromium
        chromium.close()


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


def open_page(browser: Any, folder: Path, width: int, scheme: str) -> Opened:
    """Opens the page of a folder without a network, and looks at it."""
    opened = Opened()
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    try:
        page = context.new_page()
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda said: opened.complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto((folder / PAGE_NAME).as_uri(), wait_until="load")
        opened.seen = page.evaluate(LOOK)
    finally:
        context.close()
    return opened


def rgb(color: str) -> tuple[float, float, float]:
    """`rgb(1, 2, 3)`."""
    red, green, blue = color.removeprefix("rgb(").removesuffix(")").split(",")
    return float(red), float(green), float(blue)


def contrast(one: str, other: str) -> float:
    """Ratio of relative luminances, as WCAG 2 defines it: from 1 to 21."""

    def luminance(color: str) -> float:
        parts = [part / 255 for part in rgb(color)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    least, most = sorted((luminance(one), luminance(other)))
    return (most + 0.05) / (least + 0.05)


def apart(boxes: list[dict[str, Any]]) -> bool:
    """Whether none of the boxes, of texts on one line, touches the next one."""
    ordered = sorted(boxes, key=lambda box: float(box["left"]))
    return all(one["right"] <= other["left"] for one, other in itertools.pairwise(ordered))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_is_whole_and_readable_without_a_network(
    browser: Any, folder: Path, width: int, scheme: str
) -> None:
    opened = open_page(browser, folder, width, scheme)
    assert opened.requests == [(folder / PAGE_NAME).as_uri()]
    assert opened.complaints == []
    seen = opened.seen
    background = seen["background"]
    assert (sum(rgb(background)) > 600) is (scheme == "light")
    assert contrast(seen["text"], background) >= CONTRAST
    # The page itself never scrolls sideways; tables and plots do, within the page.
    assert seen["width"] == width
    assert seen["tables"]
    assert all(table["shown"]["right"] <= width for table in seen["tables"])
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


def test_a_request_and_a_complaint_would_be_seen(browser: Any, tmp_path: Path) -> None:
    text = (
        "<!DOCTYPE html><title>x</title><body style='color:#777'>"
        "<script>console.error('broken'); fetch('http://127.0.0.1:9/x').catch(() => 0);"
        "throw new Error('thrown')</script>"
    )
    (tmp_path / PAGE_NAME).write_text(text, encoding="utf-8")
    opened = open_page(browser, tmp_path, 390, "light")
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
