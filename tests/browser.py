"""A real browser for the tests of pages: offline, narrow and wide, light and dark.

Needs Chromium (Debian: `chromium`) and the Python package `playwright`; no browser is downloaded.
Without them the tests are skipped, but not in CI (environment variable `CI`), where they fail.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
READABLE_PX: Final = 8
CONTRAST: Final = 4.5  # WCAG 2 AA for text; 3 for what is not text

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


def open_page(browser: Any, file: Path, width: int, scheme: str) -> Opened:
    """Opens a page without a network, and looks at it."""
    opened = Opened()
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    try:
        page = context.new_page()
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda said: opened.complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto(file.as_uri(), wait_until="load")
        opened.seen = page.evaluate(LOOK)
    finally:
        context.close()
    return opened


def look_at(browser: Any, file: Path, width: int, scheme: str) -> dict[str, Any]:
    """What is seen of a page that needs no network, complains of nothing and can be read."""
    opened = open_page(browser, file, width, scheme)
    assert opened.requests == [file.as_uri()]
    assert opened.complaints == []
    seen = opened.seen
    assert (sum(rgb(seen["background"])) > 600) is (scheme == "light")
    assert contrast(seen["text"], seen["background"]) >= CONTRAST
    # The page itself never scrolls sideways; tables and plots do, within the page.
    assert seen["width"] == width
    assert all(table["shown"]["right"] <= width for table in seen["tables"])
    return seen


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
