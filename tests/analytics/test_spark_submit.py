"""The jobs as `spark-submit` runs them, where pip has installed neither Spark nor anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharecoord.analytics.fairness.job import JSON_KEYS
from sharecoord.analytics.session import FOR_FEW_ROWS
from tests.analytics.spark_home import ROOT, submit
from tests.analytics.support import busy, write

JOB = ROOT / "sharecoord" / "analytics" / "fairness" / "job.py"
GIVEN = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.log.level": "WARN",
}
"""What a user of a cluster gives, each other than what the jobs would choose."""
PROGRAM = f"""
import json, sys
from pyspark.sql import SparkSession
from sharecoord.analytics.fairness import job

code = job.main(sys.argv[1:])
session = SparkSession.active()
found = {{key: session.conf.get(key) for key in {list(GIVEN)}}}
found["packages"] = [name for name in sys.modules if name in ("pyarrow", "pandas", "click")]
print(json.dumps(found))
sys.exit(code)
"""


def test_what_the_user_gives_spark_stays(tmp_path: Path) -> None:
    write(tmp_path / "events", busy(0, 60, starving=range(20, 45)))
    places = ("--events", str(tmp_path / "events"), "--out", str(tmp_path / "out"))
    done = submit(
        tmp_path, PROGRAM, *places, conf={**FOR_FEW_ROWS, "spark.master": "local[2]", **GIVEN}
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]
    found, session = [json.loads(line) for line in done.stdout.splitlines()]
    assert (found["group"], found["starved"], found["starved_members"]) == ("g", 1, ["b"])
    assert session == {**GIVEN, "packages": []}


@pytest.mark.long
def test_fairness_on_a_cluster(tmp_path: Path) -> None:
    write(tmp_path / "events", busy(0, 60, starving=range(20, 45)))
    places = ("--events", str(tmp_path / "events"), "--out", str(tmp_path / "out"))
    conf = {**FOR_FEW_ROWS, "spark.master": "local-cluster[2,1,1024]"}
    done = submit(tmp_path, JOB.read_text(encoding="utf-8"), *places, conf=conf)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert tuple(found) == JSON_KEYS
    assert (found["group"], found["starved"], found["starved_members"]) == ("g", 1, ["b"])
    assert list((tmp_path / "out" / "fairness_windows").glob("*.parquet"))
