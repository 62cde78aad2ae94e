"""The page and the other files of a result."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import yaml

from sharecoord.bench.engine.cell import Cell, Consumer, Mode, label, varied
from sharecoord.bench.engine.figures import Interval
from sharecoord.bench.engine.settings import read_settings
from sharecoord.bench.engine.trial import Outcome
from sharecoord.bench.run import folder
from sharecoord.bench.run.folder import SampleFile, read_summary, write_summary
from sharecoord.bench.run.page import page
from sharecoord.errors import InvalidConfigError
from sharecoord.pages.svg import Bar, Line, bars, lines, nice_step
from tests.unit.bench.engine.support import MS, make_result, make_samples, make_trial

WINDOW = Interval(1000 * MS, 2000 * MS)

CELLS = [
    Cell(consumer, consumers=consumers, work_ms=5.0)
    for consumers in (2, 50)
    for consumer in (Consumer.SHARECOORD, Consumer.KAFKA_SHARE)
]
TRIALS = [
    make_trial(
        number,
        repeat,
        [10 * number + 1, 7],
        records_per_s=1000 * (number + 1) + repeat,
        jain_ratio=0.5,
        p50_ms=1.0,
        p99_ms=2.0,
    )
    for number in range(len(CELLS))
    for repeat in (0, 1, 2)
]


class Reader(HTMLParser):
    """Collects text, tags and attributes; fails on tags that do not match."""

    VOID = ("meta", "path", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader._open == []
    return reader


def test_the_page_has_every_cell_with_its_figures() -> None:
    reader = read(page(make_result(TRIALS, CELLS)))
    names = varied(CELLS)
    for number, cell in enumerate(CELLS):
        # Table, bar plots, fairness plot and trials.
        assert reader.texts.count(label(cell, names)) >= 4
        least, most = 1000 * (number + 1) + 1, 1000 * (number + 1) + 2
        assert any(f"({least:,}-{most:,})" in text for text in reader.texts)


def test_the_page_needs_nothing_from_anywhere() -> None:
    text = page(make_result(TRIALS, CELLS, latencies_ms={0: [1.0, 2.0], 1: [0.5]}))
    assert not re.search(r"https?:|//|@import|url\(|javascript:", text)
    reader = read(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.tags)
    assert not {"src", "href", "srcset", "action"} & {name for name, _ in reader.attributes}
    assert reader.tags.count("svg") == 2 + 2 + 4  # two plots of lines, a key for each line
    assert [value for name, value in reader.attributes if name == "class"].count("bars") == 4


def test_the_page_says_what_is_wrong_with_a_result() -> None:
    text = page(make_result(TRIALS[:2], CELLS, complete=False))
    assert "Broken off before the end." in text
    assert "plain can not &lt;refill&gt;" in text
    assert "Broken off" not in page(make_result(TRIALS, CELLS))


def test_a_bar_is_as_long_as_its_median_and_its_whisker_reaches_the_ends() -> None:
    text = bars([Bar("a", 50, 25, 100, "x", 0), Bar("b", 0, 0, 0, "<", 1)])
    lengths = re.findall(r'class="fill c([01])" style="width:([0-9.]+)%"', text)
    whiskers = re.findall(r'style="left:([0-9.]+)%;width:([0-9.]+)%"', text)
    assert lengths == [("0", "50.00"), ("1", "0.00")]
    assert whiskers == [("25.00", "75.00"), ("0.00", "0.00")]
    assert "&lt;" in text


def test_lines_stay_within_their_plot_on_both_scales() -> None:
    points = [(0.0, 0.0), (1.0, 50.0), (1000.0, 97.0)]
    for log_x in (False, True):
        text = lines("t", "ms", "%", [Line("a & b", points, 0)], log_x=log_x)
        found = re.search(r'polyline points="([^"]+)"', text)
        assert found is not None
        places = [tuple(map(float, point.split(","))) for point in found.group(1).split()]
        assert [x for x, _ in places] == sorted(x for x, _ in places)
        assert all(56 <= x <= 624 and 26 <= y <= 226 for x, y in places)
        assert "a &amp; b" in text
    assert "<svg" in lines("t", "x", "y", [Line("one", [(5.0, 0.0)], 0)], log_x=True)


def test_lines_of_one_consumer_have_its_color_and_different_dashes() -> None:
    text = page(make_result(TRIALS, CELLS))
    looks = re.findall(r"<polyline [^>]*(class=[^>]*)/>", text)
    assert looks == [
        'class="l0"',
        'class="l1"',
        'class="l0" stroke-dasharray="7 3"',
        'class="l1" stroke-dasharray="7 3"',
    ]


@pytest.mark.parametrize(
    ("span", "step"),
    [(1, 0.2), (4, 1), (5, 1), (5.1, 2), (49, 10), (399, 100), (0.05, 0.01), (7e6, 2e6)],
)
def test_axes_have_round_steps_of_which_five_are_enough(span: float, step: float) -> None:
    assert nice_step(span) == pytest.approx(step)


def test_the_labels_of_an_axis_are_round_and_cover_the_values() -> None:
    text = lines("t", "x", "y", [Line("a", [(1.0, 399.0), (50.0, 12.0)], 0)], log_x=False)
    labels = re.findall(r"<text [^>]*>([0-9.]+)</text>", text)
    assert labels == ["0", "100", "200", "300", "400", "10", "20", "30", "40", "50"]
    many = lines("t", "x", "y", [Line("a", [(0.001, 1.0), (5000.0, 1.0)], 0)], log_x=True)
    assert re.findall(r'class="middle">([0-9.]+)<', many) == [
        *("0.001", "0.01", "0.1", "1", "10", "100", "1000")
    ]


def test_ratios_of_a_cell_to_a_peer_are_one_row() -> None:
    text = page(make_result(TRIALS, CELLS))
    part = text.split("<h2>Against the peers", 1)[1].split("<h2>", 1)[0]
    assert part.count("<tr>") == 3
    reader = read(part.split("</h2>", 1)[1])
    assert "0.50x" in " ".join(reader.texts)
    alone = page(make_result([make_trial(0, 1, records_per_s=1)], CELLS[:1]))
    assert "Against the peers" not in alone


# -- the folder -----------------------------------------------------------------------------------


def test_the_folder_holds_all_and_can_be_read_again(tmp_path: Path) -> None:
    settings = read_settings({"consumers": "2,50", "work_ms": 5, "mode": "throughput"})
    write_summary(make_result(TRIALS, CELLS, settings=settings), tmp_path)
    again = read_settings(yaml.safe_load((tmp_path / "settings.yaml").read_text("utf-8")))
    assert again.product() == settings.product()
    machine = json.loads((tmp_path / "machine.json").read_text("utf-8"))
    assert machine["cpu_model"] == "Test CPU"
    stored = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert len(stored["trials"]) == len(TRIALS)
    summary = read_summary(tmp_path)
    assert (summary.mode, summary.commit) == (Mode.THROUGHPUT, "abc")
    assert [each.cell for each in summary.cells] == CELLS
    assert summary.cells[0].figures["records_per_s"] == (1001.5, 1001, 1002)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}'])
def test_what_is_no_result_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"has no summary.json"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfigError, match="is not a result of this release"):
        read_summary(tmp_path)


def test_samples_are_written_as_they_came(tmp_path: Path) -> None:
    samples = make_samples((0, 1, 1500, 5, 20), (1, 3, 900, 0))
    with SampleFile(tmp_path / "s.parquet") as file:
        file.add(Outcome(make_trial(0, 1), samples, WINDOW))
        file.add(Outcome(make_trial(1, 2), make_samples((7, 1, 1000, 1)), WINDOW))
    rows = parquet.read_table(tmp_path / "s.parquet").to_pylist()
    assert rows == [
        {
            "cell": 0,
            "repeat": 1,
            "consumer": 0,
            "records": 1,
            "began_s": 0.5,
            "busy_ms": 5.0,
            "latency_ms": 20.0,
        },
        {
            "cell": 0,
            "repeat": 1,
            "consumer": 1,
            "records": 3,
            "began_s": -0.1,
            "busy_ms": 0.0,
            "latency_ms": None,
        },
        {
            "cell": 1,
            "repeat": 2,
            "consumer": 7,
            "records": 1,
            "began_s": 0.0,
            "busy_ms": 1.0,
            "latency_ms": None,
        },
    ]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(folder, "import_module", missing)
    with pytest.raises(InvalidConfigError, match=r"pip install 'sharecoord\[bench\]'"):
        folder.load_pyarrow()


def test_a_cell_without_a_counted_trial_is_not_on_the_page() -> None:
    text = page(make_result([make_trial(0, 1, records_per_s=1), make_trial(1, 0)]))
    table = text.split("<h2>Side by side</h2>", maxsplit=1)[0]
    assert "<td>sharecoord</td>" in table
    assert "kafka-share" not in table


def test_an_axis_that_counts_has_whole_numbers() -> None:
    line = Line("a", [(1.0, 2.0), (2.0, 1.0)], 0)
    counted = lines("t", "consumers", "records", [line], whole_x=True, whole_y=True)
    assert ">1.2<" in lines("t", "x", "y", [line])
    assert re.findall(r'class="(?:middle|end)">([\d.]+)<', counted) == ["0", "1", "2", "1", "2"]


def test_large_figures_of_an_axis_are_short() -> None:
    text = lines("t", "x", "y", [Line("a", [(0.0, 5.0), (4.0, 2_400_000.0)], 0)])
    assert ">500k<" in text
    assert ">2.5M<" in text


def test_the_page_says_whose_cpu_is_not_counted() -> None:
    costs = {"cpu_client_s_per_million": 3.0, "cpu_total_s_per_million": 5.0}
    outside = page(make_result([make_trial(0, 1, [1], **costs)]))
    assert "The CPU of the broker is not counted" in outside
    assert "CPU s per million: all but the broker" in outside
    own = page(make_result([make_trial(0, 1, [1], **costs, cpu_broker_s_per_million=2.0)]))
    assert "The CPU of the broker is not counted" not in own
    assert "but the broker" not in own
