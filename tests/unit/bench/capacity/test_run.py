"""The course of a run: order, refusals, files, what a failure leaves; figures are made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sharecoord.bench.capacity import run as course
from sharecoord.bench.capacity.figures import (
    FULL,
    QUICK,
    CapacityResult,
    Extent,
    IdleFigures,
    Pattern,
    RecordFigures,
    Section,
    StoreFigures,
    WorkerFigures,
)
from sharecoord.bench.capacity.report import MARKS
from sharecoord.bench.cluster import Cluster
from sharecoord.bench.errors import BenchError
from sharecoord.bench.standard.plans import MIN_RECORDS
from sharecoord.cli.bench import bench
from sharecoord.errors import InvalidConfigError, SharecoordError
from tests.unit.bench.capacity.support import make_record
from tests.unit.bench.support import MACHINE

BEGIN, END = MARKS


class Measurements:
    """In the place of the real ones."""

    made: list[str] = []
    fails_at = ""

    def __init__(self, cluster: Cluster, scratch: Path, extent: Extent) -> None:
        assert cluster.bootstrap_servers == "h:1"
        assert scratch.is_dir()
        self.tick: Callable[[], None] | None = None

    def _note(self, what: str) -> None:
        assert self.tick is not None, "the bar can move"
        self.tick()
        if what == self.fails_at:
            raise BenchError("the coordinator ended")
        self.made.append(what)

    def record(self, value_bytes: int) -> RecordFigures:
        self._note(f"record {value_bytes}")
        return make_record(value_bytes)

    def store(self, pattern: Pattern) -> StoreFigures:
        self._note(f"store {pattern.name}")
        return StoreFigures(pattern, 10, 1.0, 1.0, 1.0)

    def workers(self, members: int, work_ms: float) -> WorkerFigures:
        self._note(f"workers {members}")
        return WorkerFigures(members, work_ms, 1.0, {"coordinator": 1.0}, 1.0, 1.0)

    def bare(self) -> IdleFigures:
        self._note("bare")
        return IdleFigures(0, None, 80.0, 0.1)

    def _idle(self, what: str, count: int) -> IdleFigures:
        self._note(f"{what} {count}")
        return IdleFigures(count, 0.5, 80.0 + count, 0.1)

    def members(self, count: int) -> IdleFigures:
        return self._idle("members", count)

    def partitions(self, count: int) -> IdleFigures:
        return self._idle("partitions", count)

    def groups(self, count: int) -> IdleFigures:
        return self._idle("groups", count)

    def fanouts(self, count: int) -> IdleFigures:
        return self._idle("fanouts", count)


@pytest.fixture(autouse=True)
def pretend(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the measurements; the list is filled with what would have been measured."""
    made: list[str] = []
    monkeypatch.setattr(Measurements, "made", made)
    monkeypatch.setattr(course, "Measurements", Measurements)
    monkeypatch.setattr(course, "FULL", QUICK)
    return made


EVERYTHING = [
    *(
        "record 100",
        "workers 4",
        "store RANGES",
        "store ALTERNATING",
        "bare",
        "members 1",
        "members 20",
    ),
    *("partitions 1", "partitions 4", "groups 1", "groups 4"),
    *("fanouts 1", "fanouts 3"),
]


def test_all_is_measured_and_written(
    tmp_path: Path, pretend: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    assert course.run(kafka="h:1", output=tmp_path / "r", update=page) == 0
    assert pretend == EVERYTHING
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert names == {"summary.json", "machine.json", "report.md"}
    stored = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert stored["complete"] is True
    assert stored["disk"]["per_s"] > 0
    assert [row["count"] for row in stored["members"]] == [0, 1, 20]
    printed = capsys.readouterr()
    report = (tmp_path / "r" / "report.md").read_text(encoding="utf-8")
    assert printed.out.strip() == report.strip()
    assert report in page.read_text(encoding="utf-8")
    assert (
        "[14/14] groups on one partition: 3: 83.0 MB, 0.1% of a core idle (0 s left)" in printed.err
    )


def test_a_part_is_measured_alone(tmp_path: Path, pretend: list[str]) -> None:
    argv = ["--only", "store,group", "--kafka", "h:1", "--output", str(tmp_path / "r")]
    assert CliRunner().invoke(bench, ["capacity", *argv]).exit_code == 0
    assert pretend == ["store RANGES", "store ALTERNATING", "groups 1", "groups 4"]


def test_what_was_measured_before_a_failure_is_kept_but_not_on_the_page(
    tmp_path: Path,
    pretend: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Measurements, "fails_at", "members 20")
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    with pytest.raises(SharecoordError, match="the coordinator ended"):
        course.run(kafka="h:1", output=tmp_path / "r", update=page)
    assert pretend == EVERYTHING[:6]
    assert "not finished; what was measured is in" in capsys.readouterr().err
    stored = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert (stored["complete"], len(stored["members"])) == (False, 2)
    assert "Broken off" in (tmp_path / "r" / "report.md").read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == f"{BEGIN}\n{END}\n"


def test_what_can_not_be_is_refused_before_anything_starts(
    tmp_path: Path, pretend: list[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks", encoding="utf-8")
    for given, said in (
        ({"only": "records"}, "only: 'records' is not measured"),
        ({"update": page}, "has no place for the figures"),
        ({"update": page, "only": "disk"}, "drop --only and --quick, or --update"),
        ({"update": page, "quick": True}, "drop --only and --quick, or --update"),
        ({"output": page}, "is a file"),
    ):
        with pytest.raises(InvalidConfigError, match=said):
            course.run(kafka="h:1", **given)
    assert pretend == []


def test_extents_are_what_the_drivers_take() -> None:
    for extent in (FULL, QUICK):
        assert all(count >= MIN_RECORDS for count in extent.records.values())
        assert set(extent.store_records) == set(Pattern)
        for counts in (extent.members, extent.partitions, extent.groups, extent.fanouts):
            assert list(counts) == sorted(set(counts))
            assert len(counts) >= 2
            assert counts[0] == 1


def test_a_full_run_fits_into_ten_minutes() -> None:
    result = CapacityResult(MACHINE, FULL)
    by = Measurements(Cluster("h:1"), Path(), FULL)
    todo = list(course.steps(result, list(Section), by, Path()))  # type: ignore[arg-type]
    assert sum(step.expected_s for step in todo) < 600
