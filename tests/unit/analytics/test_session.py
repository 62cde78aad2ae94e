"""What is checked before Spark starts."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

import pyspark
import pytest

from sharecoord.analytics import session
from sharecoord.analytics.errors import AnalyticsError, SparkMissingError, SparkUnavailableError


def fake_java(folder: Path, says: str) -> Path:
    """A Java home whose `java -version` prints this."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("says", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("something else", None),
    ],
)
def test_the_major_version_is_read(says: str, major: int | None) -> None:
    assert session.java_version(says) == major


def test_java_17_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'openjdk version "17.0.1"')))
    session.check_java()


@pytest.mark.parametrize("says", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "what"])
def test_an_old_java_is_named_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, says)))
    with pytest.raises(
        SparkMissingError, match=r"Java 17 or newer: install Java 17 \(Debian: `apt"
    ):
        session.check_java()


def test_no_java_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissingError, match=r"has no bin/java: install Java 17"):
        session.check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissingError, match="Java was not found"):
        session.check_java()


def test_a_java_that_can_not_be_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path, "")
    (home / "bin" / "java").write_text("#!/nothing/here\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SparkMissingError, match="can not be run"):
        session.check_java()


def test_pyspark_is_asked_for_before_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SparkMissingError, match=r"pip install 'sharecoord\[spark\]'"):
        session.make_session("t")


def test_an_old_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(SparkMissingError, match=r"pyspark 3\.5\.1 is too old"):
        session.check_pyspark()
    monkeypatch.setattr(pyspark, "__version__", "4.3.0")
    session.check_pyspark()


@pytest.mark.parametrize("memory", ["4g", "512m", "1T", "4gb"])
def test_sizes_of_memory(memory: str) -> None:
    session.check_memory(memory)


@pytest.mark.parametrize("memory", ["", "4", "0g", "g", "4 g", "-1g", "4x"])
def test_what_is_no_size(memory: str) -> None:
    with pytest.raises(AnalyticsError, match="--driver-memory"):
        session.check_memory(memory)


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2,3]", "yarn", "k8s://https://h:6443"]
)
def test_masters_that_spark_looks_at_itself(master: str) -> None:
    session.check_master(master)


@pytest.mark.parametrize("master", ["", "foo", "local[0]", "local[x]", "spark://h", "h:7077"])
def test_malformed_masters(master: str) -> None:
    with pytest.raises(AnalyticsError, match=r"it must be local, local\[N\]"):
        session.check_master(master)


def test_a_master_that_is_not_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(SparkUnavailableError, match=r"does not answer .*refused"):
            session.check_master(f"spark://127.0.0.1:{port}")
        with pytest.raises(SparkUnavailableError, match="does not answer"):
            session.check_master("spark://127.0.0.1:99999")
        taken.listen()
        session.check_master(f"spark://127.0.0.1:{port}")
        session.check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")


def test_what_spark_is_started_with() -> None:
    chosen = session._launch_settings("1g")
    assert chosen["spark.driver.memory"] == "1g"
    assert "spark.driver.extraJavaOptions" not in chosen, "those are the user's"
    log, speaks, collector, *compiler = chosen["spark.driver.defaultJavaOptions"].split()
    assert speaks == "-XX:+DisplayVMOutputToStderr"
    assert collector == "-XX:+UseParallelGC"
    assert all(option.startswith("-XX:Tier4") for option in compiler)
    file = log.partition("=")[2]
    assert "rootLogger" in Path(file).read_text(encoding="utf-8")


def test_the_page_of_spark_is_left_out_on_this_machine_alone() -> None:
    assert session._settings("local[2]", submitted=False)["spark.ui.enabled"] == "false"
    for master, submitted in (("yarn", False), ("spark://h:1", False), (None, True)):
        assert "spark.ui.enabled" not in session._settings(master, submitted=submitted)
        assert "spark.sql.shuffle.partitions" not in session._settings(master, submitted=submitted)
    assert os.environ.get("PYSPARK_GATEWAY_PORT") is None, "the tests are not under spark-submit"
