"""`sharecoord bench jobs` on a small log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharecoord.analytics.generate.job import TRUTH
from sharecoord.bench.jobs import BARE, MIN_EVENTS
from tests.analytics.support import busy, write
from tests.unit.cli.support import run


def arguments(tmp_path: Path, events: int) -> list[str]:
    """Of a run that measures one job once."""
    given = ["bench", "jobs", "--events", str(events), "--only", "locks", "--repeats", "1"]
    given += ["--driver-memory", "1g", "--logs", str(tmp_path / "logs")]
    return [*given, "--output", str(tmp_path / "out")]


def check(tmp_path: Path, shown: str) -> None:
    """Looks at what was measured."""
    assert "| locks " in shown
    stored = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [each["job"] for each in stored["passes"]] == [BARE, "locks"]
    for each in stored["passes"]:
        assert each["wall_s"] > 0
        assert each["cpu_s"] > 0
        # More than Python alone has, and not more than Spark may take beside its heap.
        assert 200 < each["peak_mb"] < 3_000


@pytest.mark.usefixtures("spark")
def test_jobs_are_measured_beside_the_bare_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The session is shared by all tests: the command does not end it here.
    monkeypatch.setattr("sharecoord.analytics.session.stop", lambda _: None)
    log = tmp_path / "logs" / f"events-{MIN_EVENTS}"
    write(log, busy(0, 20))
    (log / TRUTH).write_text("{}")  # as if a run before had made it
    done = run(*arguments(tmp_path, MIN_EVENTS))
    assert done.exit_code == 0, done.output
    check(tmp_path, done.stdout)


@pytest.mark.long
def test_the_log_is_made_when_it_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from sharecoord.cli.main import main; main()"]
    done = subprocess.run(
        [*command, *arguments(tmp_path, 60_000)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    check(tmp_path, done.stdout)
    assert (tmp_path / "logs" / "events-60000" / TRUTH).is_file()
