"""The jobs as `spark-submit` runs them, on executors that are processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from sharecoord.analytics.fairness.job import JSON_KEYS

from .support import busy, write

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
TIMEOUT_S = 400


def test_fairness_on_a_cluster(tmp_path: Path) -> None:
    write(tmp_path / "events", busy(0, 60, starving=range(20, 45)))
    package = shutil.make_archive(str(tmp_path / "sharecoord"), "zip", ROOT, "sharecoord")
    job = ROOT / "sharecoord" / "analytics" / "fairness" / "job.py"
    options = ["--master", "local-cluster[2,1,1024]", "--driver-memory", "1g"]
    options += ["--py-files", package]
    files = ["--events", str(tmp_path / "events"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-submit"), *options, str(job), *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=tmp_path,  # the package is that of the archive
        env={**os.environ, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert tuple(found) == JSON_KEYS
    assert (found["group"], found["starved"], found["starved_members"]) == ("g", 1, ["b"])
    assert list((tmp_path / "out" / "fairness_windows").glob("*.parquet"))
