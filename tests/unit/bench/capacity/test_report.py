"""Tables, the files of a result, the page of the documentation, and what follows for a rate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sharecoord.bench.capacity.figures import (
    CapacityResult,
    IdleFigures,
    Section,
    each_kb,
)
from sharecoord.bench.capacity.report import (
    MARKS,
    markdown,
    size,
    write_tables,
)
from sharecoord.bench.text import read_names
from sharecoord.errors import InvalidConfigError
from tests.architecture.sources import ROOT
from tests.unit.bench.capacity.support import make_record, make_result
from tests.unit.bench.support import MACHINE

BEGIN, END = MARKS


def rows(text: str, first: str) -> list[list[str]]:
    """The rows of all tables that begin with a cell."""
    split = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [row for row in split if row[0] == first]


def test_every_section_is_a_table_with_its_command() -> None:
    text = markdown(make_result())
    for section in Section:
        assert text.count(f"`sharecoord bench capacity --only {section}`") == 1
    assert rows(text, "1 kB") == [
        [
            *("1 kB", "100,000 (90,000-110,000)", "-", "3.00 (2.00-4.00)", "1.20", "2.00", "-"),
            "150 MB (140-160)",
        ]
    ]
    assert rows(text, "100 x 5 ms") == [
        ["100 x 5 ms", "19,000", "-", "12.00", "40.00", "9.00", "-"]
    ]
    assert rows(text, "every second record released once")[0][1:] == ["100", "1.5", "9.00", "-"]
    assert rows(text, "ext4") == [["ext4", "0.500 ms", "2.000 ms", "1,500/s"]]
    assert rows(text, "0") == [["0", "-", "80.0", "0.5"]]
    assert rows(text, "101") == [["101", "0.60", "92.0", "1.0", "1.50"]]
    assert "One more: 30.0 kB." in text
    assert "One more: 20.0 kB." in text
    assert text.count("One more") == 2
    assert rows(text, "CPU")[0][1] == "Test CPU, 2 cores for us"


def test_what_was_not_measured_is_not_there() -> None:
    alone = CapacityResult(MACHINE, make_result().extent, records=[make_record(100)])
    text = markdown(alone)
    assert "Broken off before the end." in text
    assert text.count("--only") == 1
    # Nothing is known of records of 1 kB.
    assert "records/s of" not in text
    assert "Broken off" not in markdown(make_result())


def test_a_busy_machine_is_said_aloud() -> None:
    result = make_result()
    result.machine = dataclasses.replace(MACHINE, load_average=(5.0, 0.0, 0.0))
    assert "busy with other work" in markdown(result)
    assert "busy with other work" not in markdown(make_result())


def test_the_folder_has_all_figures(tmp_path: Path) -> None:
    result = make_result()
    write_tables(result, tmp_path)
    stored = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (stored["format"], stored["mode"], stored["complete"]) == (1, "capacity", True)
    assert stored["records"][1]["cpu_us"]["coordinator"]["median"] == 3.0
    assert stored["store"][1]["pattern"] == "every second record released once"
    assert stored["partitions"][1]["restart_s"] == 1.5
    assert json.loads((tmp_path / "machine.json").read_text(encoding="utf-8"))["cores"] == 2
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == markdown(result)


# -- the page -------------------------------------------------------------------------------------


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Above\n{BEGIN}\nold\n{END}\nbelow\n", encoding="utf-8")
    for tables in ("new tables\n", "newer\n"):
        MARKS.update(page, tables)
        assert page.read_text("utf-8") == f"# Above\n{BEGIN}\n\n{tables}\n{END}\nbelow\n"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}\n{BEGIN}\n", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_the_marks_is_refused_with_the_fix(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfigError, match="put these two lines there once") as raised:
        MARKS.check(page)
    assert BEGIN in raised.value.message
    with pytest.raises(InvalidConfigError, match=r"update: .* can not be read"):
        MARKS.check(tmp_path / "none.md")
    with pytest.raises(InvalidConfigError):
        MARKS.update(page, "x")
    assert page.read_text(encoding="utf-8") == text


def test_the_documentation_can_be_updated_and_has_figures() -> None:
    text = MARKS.check(ROOT / "docs" / "capacity.md")
    measured = text[text.index(BEGIN) : text.index(END)]
    for section in Section:
        assert f"--only {section}`" in measured, "run sharecoord bench capacity --update"
    assert "records/s of 1 kB" in measured


# -- arithmetic -----------------------------------------------------------------------------------


def test_a_million_records_need_as_many_cores_as_they_cost_and_a_margin() -> None:
    lines = {line.what: line for line in size(make_result())}
    # 3 us each at 60% of a core: 200,000 records/s.
    best = lines["coordinator processes, few members that take all they can"]
    assert best.value == "5 + 1 spare"
    assert "3.0 cores" in best.because
    assert "200,000 records/s each" in best.because
    # Small deliveries cost four times as much.
    assert lines["the same, members at work as 100 x 5 ms"].value == "20 + 1 spare"
    assert lines["cores of workers, for receiving"].value == "2"
    assert "cores of brokers, for reading" not in lines
    # 200,000 records/s x 2 per 1,000.
    assert lines["transactions of each process"].value == "400 per second"
    assert "1,500 waits per second" in lines["transactions of each process"].because
    assert lines["rows of all stores, implicit"].value == "10,000 per second"
    assert lines["rows of all stores, at worst"].value == "1,500,000 per second"
    # 6 x 150 MB, and 10,000 x 30 kB.
    assert lines["memory of all coordinators"].value == "1.2 GB"
    assert lines["network of the coordinators"].value == "16 Gbit/s"


def test_without_figures_nothing_is_reckoned() -> None:
    result = make_result()
    result.records = result.records[:1]
    assert size(result) == []
    result = CapacityResult(MACHINE, result.extent, records=[make_record(cost_us=12.0)])
    assert [line.what for line in size(result)] == [
        "coordinator processes, few members that take all they can",
        "cores of workers, for receiving",
        "transactions of each process",
        "memory of all coordinators",
        "network of the coordinators",
    ]
    assert size(result)[0].value == "20 + 1 spare"


def test_what_is_missing_is_said_and_not_reckoned_with() -> None:
    result = make_result()
    result.groups.append(IdleFigures(1000, None, 700.0, 99.0, missing=165))
    text = markdown(result)
    assert rows(text, "1,000") == [["1,000", "835 after 120", "700.0", "99.0"]]
    assert each_kb(result.groups) is None


def test_one_more_is_between_the_least_and_the_most() -> None:
    bare, few, some, many = (
        IdleFigures(count, None, rss_mb, 0.0)
        for count, rss_mb in ((0, 10.0), (1, 50.0), (11, 999.0), (101, 60.0))
    )
    assert each_kb([bare, few, some, many]) == 100
    assert each_kb([bare, few]) is None
    assert each_kb([]) is None


def test_sections_are_named_or_all() -> None:
    assert read_names(None, Section) == list(Section)
    assert read_names("store, record", Section) == ["store", "record"]
    with pytest.raises(InvalidConfigError, match=r"only: 'x' is not measured; give some of disk,"):
        read_names("record,x", Section)
    with pytest.raises(InvalidConfigError, match="only: '' is not measured"):
        read_names("", Section)
