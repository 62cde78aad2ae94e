"""The measurement of capacity, small, on a real broker."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sharecoord.bench.capacity import run as course
from sharecoord.bench.capacity.figures import QUICK, Section
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest

SMALL = dataclasses.replace(
    QUICK,
    members=(12,),
    partitions=(1, 3),
    groups=(3,),
    fanouts=(2,),
    idle_s=0.2,
    fsync_s=0.05,
)


@pytest.mark.timeout(240)
def test_every_section_has_figures_that_fit_together(
    kafka_broker: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "QUICK", SMALL)
    address = kafka_broker.bootstrap_servers
    assert course.run(kafka=address, output=tmp_path / "r", quick=True) == 0
    found = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert found["complete"]

    (record,) = found["records"]
    assert set(record["cpu_us"]) == {"coordinator", "client"}  # the broker is not ours
    for figure in (*record["cpu_us"].values(), record["records_per_s"], record["peak_mb"]):
        assert 0 < figure["low"] <= figure["median"] <= figure["high"]
    # Many records share a transaction.
    assert 0 < record["commits_per_1000"]["median"] < 1000

    (worker,) = found["workers"]
    assert worker["members"] == 4
    # Each handles 200 a second at most, and one more where the window begins within its work.
    assert 0 < worker["records_per_s"] < 4 * (200 + 1 / SMALL.idle_s)
    # In so short a window CPU time may be less than a tick of the kernel.
    assert set(worker["cpu_us"]) == {"coordinator", "client"}

    ranges, alternating = found["store"]
    # A range is one row, whatever it holds; single records are rows of their own.
    assert 0 < ranges["rows"] < 0.5 < alternating["rows"] < 10
    assert 0 < ranges["commits_per_1000"] < 1000

    counted = {
        "members": [0, 12],
        "partitions": [1, 3],
        "groups": [3],
        "fanouts": [2],
    }
    for name, counts in counted.items():
        rows = found[name]
        assert [row["count"] for row in rows] == counts
        assert [row["missing"] for row in rows] == [0] * len(counts)
        assert all(row["rss_mb"] > 20 for row in rows)
        assert all((row["all_there_s"] is None) is (row["count"] == 0) for row in rows)
    assert all(row["restart_s"] > 0 for row in found["partitions"])

    report = (tmp_path / "r" / "report.md").read_text(encoding="utf-8")
    assert all(f"--only {section}`" in report for section in Section)
    assert not [name for name in Topics(address).names() if name.startswith("capacity-")]
