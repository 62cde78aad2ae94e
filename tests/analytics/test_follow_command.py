"""`sharecoord analyze fairness --follow` as people run it: killed, started again, ended."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sharecoord.analytics.session import FOR_FEW_ROWS
from tests.analytics.support import busy, end
from tests.analytics.topics import EventTopic
from tests.conftest import TopicFactory
from tests.support import KafkaUnderTest, eventually
from tests.unit.cli.support import run

COMMAND = [sys.executable, "-c", "from sharecoord.cli.main import main; main()", "analyze"]
START_S = 200.0
"""Spark and its first micro-batches, when the machine does other work, too."""
SPARK = shlex.join(
    [*(f"--conf={key}={value}" for key, value in FOR_FEW_ROWS.items()), "pyspark-shell"]
)
"""What a user may give Spark: of so few rows, most of the time would be its compilers'."""
RULES = "rules:\n- {name: hungry, kind: starved, group: g}\n"


class Job:
    """A running command, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._threads = [
            threading.Thread(target=lambda: self.out.extend(iter(process.stdout.readline, ""))),  # type: ignore[union-attr]
            threading.Thread(target=lambda: self.err.extend(iter(process.stderr.readline, ""))),  # type: ignore[union-attr]
        ]
        for thread in self._threads:
            thread.start()

    def windows(self) -> list[dict[str, Any]]:
        """Rows of the group that were printed."""
        found = [json.loads(line) for line in list(self.out)]
        return [row for row in found if row["group_id"] == "g"]

    def wait(self) -> int:
        code = self.process.wait(START_S)
        for thread in self._threads:
            thread.join()
        return code


@contextmanager
def job(topic: EventTopic, out: Path, rules: Path) -> Iterator[Job]:
    command = [*COMMAND, "fairness", "--follow", "--events", f"kafka:{topic.name}"]
    command += ["--kafka", topic.settings["bootstrap.servers"], "--out", str(out), "--json"]
    command += ["--watermark", "5s", "--alerts", str(rules), "--since", "2026-01-05"]
    command += ["--master", "local[2]", "--driver-memory", "1g"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = {**os.environ, "TZ": "Asia/Tokyo", "PYSPARK_SUBMIT_ARGS": SPARK}
    with subprocess.Popen(command, text=True, env=environ, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Job(process)
        finally:
            process.kill()


@pytest.mark.timeout(600)
def test_killed_and_started_again(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, tmp_path: Path
) -> None:
    events = EventTopic(kafka_broker, topic(partitions=2))
    out, rules = tmp_path / "out", tmp_path / "alerts.yaml"
    rules.write_text(RULES)
    events.send_rows([*busy(0, 30, starving=range(10, 35)), *end(20)])
    with job(events, out, rules) as first:
        eventually(lambda: len(first.windows()) >= 2, START_S, "two windows are closed")
        first.process.kill()
        first.wait()
    events.send_rows([*busy(30, 60, starving=range(10, 35)), *end(60)])
    with job(events, out, rules) as second:
        eventually(lambda: "00:01:00Z" in str(second.windows()), START_S, "all are closed")
        second.process.send_signal(signal.SIGTERM)
        assert second.wait() == 0, "".join(second.err)
    # Killed between two steps of a micro-batch it may have been done again, and shown again.
    ends = {row["window_end"] for row in [*first.windows(), *second.windows()]}
    minute = [f"00:00:{second}Z" for second in range(10, 60, 10)]
    assert ends == {f"2026-01-05 {time}" for time in [*minute, "00:01:00Z"]}
    table = pq.read_table(out / "fairness_live").to_pylist()
    assert sorted(r["starved"] for r in table if r["group_id"] == "g") == [0, 0, 0, 1, 1, 1]
    said = [line for line in [*first.err, *second.err] if "alert" in line]
    assert sum("alert begins: hungry: group g" in line for line in said) == 1
    assert sum("alert ends: hungry: group g" in line for line in said) == 1
    assert "Traceback" not in "".join(second.err)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--once"], "--once belongs to --follow"),
        (["--watermark", "1m"], "--watermark belongs to --follow"),
        (["--follow", "--once", "--until-idle", "3"], "--once and --until-idle say two ends"),
        (["--follow", "--skip-corrupt"], "--skip-corrupt with --follow is for topics"),
        (["--kafka", "h:1"], "--kafka and --kafka-config belong to --events kafka:TOPIC"),
    ],
)
def test_what_does_not_fit_together(tmp_path: Path, options: list[str], says: str) -> None:
    done = run("analyze", "fairness", "--events", str(tmp_path), "--out", "o", *options)
    assert done.exit_code == 2
    assert says in done.stderr


def test_alerts_to_kafka_need_a_cluster(tmp_path: Path) -> None:
    rules = tmp_path / "alerts.yaml"
    rules.write_text("rules: [{name: n, kind: starved, to: kafka alerts}]")
    command = ["analyze", "fairness", "--follow", "--alerts", str(rules)]
    command += ["--events", str(tmp_path / "events"), "--out", str(tmp_path / "o")]
    done = run(*command)
    assert done.exit_code == 2
    assert "a rule goes to Kafka" in done.stderr
    rules.write_text("rules: [{name: n, kind: hungry}]")
    done = run(*command)
    assert done.exit_code == 1
    assert done.stderr.startswith(f'sharecoord: error: {rules}:1: kind: "hungry" must be one of')
