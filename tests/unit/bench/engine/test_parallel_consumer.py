"""The Java peer: what is needed for it, what it is told, and how it complains."""

from __future__ import annotations

import subprocess
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharecoord.bench.engine import parallel_consumer
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Cell, Consumer
from sharecoord.bench.engine.fleet import Fleet
from sharecoord.bench.engine.job import LoadJob
from sharecoord.bench.engine.work import TABLE_LENGTH, work_times_s
from sharecoord.bench.errors import BenchError
from sharecoord.devenv import maven
from sharecoord.devenv.errors import DevenvError
from tests.unit.bench.engine.test_load import make_job

PEER = Cell(Consumer.PARALLEL_CONSUMER, consumers=3, parallelism="continuous:8", work_ms=2.5)
JAR = f"parallel-consumer-core-{parallel_consumer.VERSION}.jar"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    parallel_consumer.prepare.cache_clear()
    yield
    parallel_consumer.prepare.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a Java with a compiler, and a Maven that is never called."""
    monkeypatch.setenv(maven.CACHE_VARIABLE, str(tmp_path / "cache"))
    use_java(tmp_path, monkeypatch, modules="java.base@17\njdk.compiler@17")
    monkeypatch.setattr(maven, "find_maven", lambda: Path("mvn"))
    monkeypatch.setattr(maven, "_run_maven", lambda *_: pytest.fail("Maven was called"))
    return tmp_path / "cache" / "parallel-consumer" / parallel_consumer.VERSION


def use_java(directory: Path, monkeypatch: pytest.MonkeyPatch, *, modules: str) -> Path:
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho '{modules}'\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setattr(maven, "find_java", lambda: java)
    return java


def resolving(*jars: str) -> Callable[[Path, Path], None]:
    """A Maven that finds these."""

    def run(_program: Path, project: Path) -> None:
        assert parallel_consumer.VERSION in (project / "pom.xml").read_text(encoding="utf-8")
        (project / "libs").mkdir()
        for jar in jars:
            (project / "libs" / jar).touch()

    return run


# -- what is needed -------------------------------------------------------------------------------


def test_jars_are_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(maven, "_run_maven", resolving(JAR, "kafka-clients.jar"))
        _, libs = parallel_consumer.prepare()
    assert libs == cache / "libs"
    assert (libs / JAR).is_file()
    parallel_consumer.prepare.cache_clear()
    assert parallel_consumer.prepare()[1] == libs, "from the cache: Maven would fail the test"


def test_a_cache_of_other_jars_is_filled_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "libs").mkdir(parents=True)
    (cache / "pom.xml").write_text("<old/>", encoding="utf-8")
    monkeypatch.setattr(maven, "_run_maven", resolving(JAR))
    _, libs = parallel_consumer.prepare()
    assert [each.name for each in libs.iterdir()] == [JAR]


def refuse(message: str) -> Callable[[], Path]:
    def find() -> Path:
        raise DevenvError(message)

    return find


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["find_java", "find_maven"])
def test_what_is_missing_is_named_with_the_fix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, name, refuse("it was not found"))
    with pytest.raises(BenchError, match="parallel-consumer: it was not found; apt-get install"):
        parallel_consumer.prepare()


@pytest.mark.usefixtures("cache")
def test_a_java_without_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = use_java(tmp_path, monkeypatch, modules="java.base@17")
    with pytest.raises(BenchError, match=rf"{java} has no compiler, .* openjdk-17-jdk-headless"):
        parallel_consumer.prepare()


@pytest.mark.usefixtures("cache")
def test_a_maven_that_finds_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "_run_maven", resolving("kafka-clients.jar"))
    with pytest.raises(BenchError, match=f"there is no {JAR}"):
        parallel_consumer.prepare()


@pytest.mark.usefixtures("cache")
def test_a_cache_that_can_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file in the way", encoding="utf-8")
    with pytest.raises(BenchError, match=f"can not be filled: .*; set {maven.CACHE_VARIABLE}"):
        parallel_consumer.prepare()


# -- what it is told ------------------------------------------------------------------------------


def test_the_driver_is_told_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_consumer, "prepare", lambda: (Path("j"), Path("libs")))
    cell = replace(PEER, handler="batch:7", work_ms=0.0, max_poll_records=9)
    job = replace(make_job(tmp_path, cell, per_record=False), first_consumer=1, consumers=2)
    argv = parallel_consumer.command(job, tmp_path / "times")
    assert argv[0] == "j"
    assert argv[argv.index("-cp") + 1] == "libs/*"
    told = dict(each.split("=", 1) for each in argv if "=" in each and not each.startswith("-"))
    assert time.monotonic_ns() - int(told.pop("clock_ns")) < 60e9
    assert told == {
        "bootstrap_servers": "h:1",
        "group": "g",
        "topic": "t",
        "process": "0",
        "processes": "1",
        "first_consumer": "1",
        "consumers": "2",
        "all_consumers": "3",
        "ordering": "UNORDERED",
        "slots": "8",
        "batch": "7",
        "max_poll_records": "9",
        "payload_bytes": "1000",
        "per_record": "0",
        "latency": "1",
        "board": str(tmp_path / "board"),
        "samples": str(tmp_path / "samples"),
        "times": str(tmp_path / "times"),
        "times_length": "1",
    }
    assert Path(argv[argv.index("-cp") + 2]).is_file(), "the driver ships"


@pytest.mark.parametrize("distribution", ["constant", "lognormal:1"])
def test_it_works_as_long_as_the_others(
    distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_consumer, "prepare", lambda: (Path("j"), Path("libs")))
    cell = replace(PEER, work_distribution=distribution)
    parallel_consumer.command(
        replace(make_job(tmp_path, cell), first_consumer=1, consumers=2), tmp_path / "times"
    )
    table = array("q")
    table.frombytes((tmp_path / "times").read_bytes())
    length = len(table) // 2
    assert length == (1 if distribution == "constant" else TABLE_LENGTH)
    for place, consumer in enumerate((1, 2)):
        times = work_times_s(cell.distribution, 2.5, 1, consumer)
        own = table[place * length : (place + 1) * length]
        assert list(own) == [round(next(times) * 1e9) for _ in range(length)]


# -- the driver itself ----------------------------------------------------------------------------


@pytest.fixture
def java_peer() -> None:
    """Skips where there is no JDK, or no way to the jars."""
    try:
        parallel_consumer.prepare()
    except BenchError as error:
        pytest.skip(error.message)


@pytest.mark.kafka
@pytest.mark.usefixtures("java_peer")
def test_a_driver_that_fails_says_why_in_a_line(tmp_path: Path) -> None:
    job = make_job(tmp_path, replace(PEER, consumers=1))
    Board.create(tmp_path / "board", consumers=1, processes=1, records=0).close()
    argv = parallel_consumer.command(job, tmp_path / "times")
    in_an_hour = f"clock_ns={time.monotonic_ns() + 3_600_000_000_000}"
    done = subprocess.run(
        [in_an_hour if each.startswith("clock_ns=") else each for each in argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "is not the monotonic clock" in done.stderr
    assert not (tmp_path / "samples").exists()


@pytest.mark.kafka
@pytest.mark.usefixtures("java_peer")
def test_a_fleet_quotes_a_driver_that_fails(tmp_path: Path) -> None:
    fleet = Fleet(LoadJob(PEER, "no address", "g", "t", per_record=True), tmp_path, per_process=2)
    assert len(fleet._processes) == 2
    with fleet, pytest.raises(BenchError, match=r"a load process ended: .*bootstrap.servers"):
        fleet.wait_ready()
