"""`sharecoord bench jobs` on a small log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sharecoord.bench.jobs import BARE


def test_jobs_are_measured_beside_the_bare_query(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from sharecoord.cli.main import main; main()", "bench"]
    command += ["jobs", "--events", "60000", "--only", "locks", "--repeats", "1"]
    command += ["--driver-memory", "1g", "--logs", str(tmp_path / "logs")]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "| locks " in done.stdout
    stored = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert [each["job"] for each in stored["passes"]] == [BARE, "locks"]
    for each in stored["passes"]:
        assert each["wall_s"] > 0
        assert each["cpu_s"] > 0
        # More than Python alone has, and not more than Spark may take beside its heap.
        assert 200 < each["peak_mb"] < 3_000
    assert (tmp_path / "logs" / "events-60000" / "_truth.json").is_file()
