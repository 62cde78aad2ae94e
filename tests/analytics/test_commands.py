"""`sharecoord analyze` as people and scripts run it: in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharecoord.analytics.fairness.job import JSON_KEYS
from tests.analytics.support import handed, sample, write

pytestmark = pytest.mark.long


COMMAND = [sys.executable, "-c", "from sharecoord.cli.main import main; main()", "analyze"]
TIMEOUT_S = 300


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env={**os.environ, "TZ": "Asia/Tokyo"},
    )


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated log, made by the command."""
    folder = tmp_path_factory.mktemp("generated") / "log"
    done = run(
        *(*COMMAND, "generate", "--out", str(folder), "--events", "30000", "--groups", "2"),
        *("--members", "5", "--partitions", "4", "--starved", "1"),
        *("--master", "local[2]", "--driver-memory", "1g"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return folder


def test_json_is_one_object_per_group(events: Path, tmp_path: Path) -> None:
    done = run(
        *(*COMMAND, "fairness", "--events", str(events), "--out", str(tmp_path / "out"), "--json"),
        *("--master", "local[2]", "--driver-memory", "1g"),
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    truth = json.loads((events / "_truth.json").read_text(encoding="utf-8"))
    assert [tuple(each) for each in found] == [JSON_KEYS] * 2
    assert [each["group"] for each in found] == truth["groups"]
    assert [each["starved"] for each in found] == [1, 0]
    assert found[0]["starved_members"] == [truth["starved"][0]["member"]]
    assert found[1]["jain"] > 0.99 > found[0]["jain"]
    tables = {path.parent.name for path in (tmp_path / "out").glob("*/*.parquet")}
    assert tables == {"fairness_windows", "fairness_members", "fairness_groups"}


def test_a_table_with_verdicts_and_warnings(tmp_path: Path) -> None:
    rows = [sample(s, "a", 9, 9, schema_version=99) for s in range(1, 9)]
    rows += [sample(s, "b", 9, 0) for s in range(1, 9)] + [handed(1, "a", 9)]
    write(tmp_path / "e", rows)
    (broken,) = write(tmp_path / "e", rows, name="events-2")
    broken.write_bytes(b"x")
    command = [*COMMAND, "fairness", "--events", str(tmp_path / "e"), "--out", str(tmp_path / "o")]
    command += ["--master", "local[2]", "--driver-memory", "1g"]
    done = run(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"sharecoord: error: {broken} can not be read" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    done = run(*command, "--skip-corrupt")
    assert done.returncode == 0, done.stderr
    title, line = done.stdout.splitlines()
    assert title.split()[:3] == ["GROUP", "MEMBERS", "STARVED"]
    assert line.startswith("g ")
    assert line.endswith("unfair: 1 of 2 members starved")
    assert f"left out, because it can not be read: {broken}" in done.stderr
    assert "schema version 99" in done.stderr


def test_the_job_by_itself_as_spark_submit_runs_it(events: Path, tmp_path: Path) -> None:
    done = run(
        *(sys.executable, "-m", "sharecoord.analytics.fairness.job"),
        *("--events", str(events), "--out", str(tmp_path / "out"), "--group", "group-1"),
        *("--since", "2026-01-05T00:00:10", "--window", "30s", "--master", "local[2]"),
    )
    assert done.returncode == 0, done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (found["group"], found["starved"], found["complete"]) == ("group-1", 0, 1.0)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = run(
        *(*COMMAND, "fairness", "--events", str(tmp_path / "none"), "--out", str(tmp_path / "o")),
        *("--master", "local[1]", "--driver-memory", "512m"),
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"sharecoord: error: --events {tmp_path}/none: there is no such folder")


def test_lag_in_words_and_failures_as_json(events: Path, tmp_path: Path) -> None:
    given = ["--events", str(events), "--out", str(tmp_path / "out")]
    given += ["--master", "local[2]", "--driver-memory", "1g"]
    done = run(*COMMAND, "lag", *given)
    assert done.returncode == 0, done.stderr
    title, *lines = done.stdout.splitlines()
    assert title.split()[:3] == ["GROUP", "TOPIC", "PARTITION"]
    assert len(lines) == 2 * 4
    assert all("keeps up" in line for line in lines)
    done = run(*COMMAND, "poison", *given, "--json", "--group", "group-1")
    assert done.returncode == 0, done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (found["group"], found["poison_keys"], found["top_reason"]) == (
        *("group-1", 0, "TimeoutError"),
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("timeline", "--key", "k"), "--group: name one group"),
        (("timeline", "--group", "g"), "name one of --offset"),
        (("timeline", "--group", "g", "--offset", "5"), "--topic and --partition"),
        (("lag", "--out", "o", "--window", "1500ms"), "--window 1500 ms"),
        (("poison", "--out", "o", "--top", "0"), "--top 0"),
        (("locks", "--out", "e/o"), "lies inside of --events"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(command: tuple[str, ...], says: str) -> None:
    done = run(*COMMAND, *command, "--events", "e")
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
