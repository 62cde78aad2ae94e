"""Confluent's parallel-consumer as a peer: its jars through Maven, and how its driver is started.

The driver is one Java file that is compiled as it starts; it needs a JDK. The jars are kept in the
cache of `sharecoord.devenv.maven`, under `parallel-consumer/<version>/`.
"""

from __future__ import annotations

import functools
import itertools
import subprocess
import time
from array import array
from pathlib import Path
from typing import Final

from sharecoord.bench.engine.job import LoadJob
from sharecoord.bench.engine.work import TABLE_LENGTH, work_times_s
from sharecoord.bench.errors import BenchError
from sharecoord.devenv import maven
from sharecoord.devenv.errors import DevenvError

VERSION: Final = "0.5.3.3"
HINT: Final = "apt-get install -y openjdk-17-jdk-headless maven, or leave parallel-consumer out"
_HERE: Final = Path(__file__).resolve().parent
_DRIVER: Final = _HERE / "ParallelConsumerLoad.java"
_POM: Final = _HERE / "parallel_consumer.xml"
_HEAP: Final = "-Xmx1g"
_COMPILER: Final = "jdk.compiler@"
_MODULES_S: Final = 60.0


@functools.cache
def prepare() -> tuple[Path, Path]:
    """Finds the Java program and the directory of the jars, which the first call downloads.

    Raises:
        BenchError: Java, its compiler or Maven is missing, or the download failed.
    """
    try:
        java = maven.find_java()
        _check_compiler(java)
        home = maven.cache_root() / "parallel-consumer" / VERSION
        main_jar = f"parallel-consumer-core-{VERSION}.jar"
        return java, maven.resolved_jars(home, _POM.read_text(encoding="utf-8"), main_jar=main_jar)
    except DevenvError as error:
        raise BenchError(f"consumer parallel-consumer: {error.message}; {HINT}") from error


def command(job: LoadJob, times: Path) -> list[str]:
    """How the consumers of a process are started; BenchError as of `prepare`.

    The file `times` is written: for each of the consumers as many work times, in ns.
    """
    java, libs = prepare()
    length = _write_times(job, times)
    cell = job.cell
    told = {
        "bootstrap_servers": job.bootstrap_servers,
        "group": job.group,
        "topic": job.topic,
        "process": job.process,
        "processes": job.processes,
        "first_consumer": job.first_consumer,
        "consumers": job.consumers,
        "all_consumers": cell.consumers,
        "slots": cell.parallel.slots,
        "batch": cell.batch,
        "ordering": cell.ordering.name,
        "max_poll_records": cell.max_poll_records or 0,
        "payload_bytes": cell.payload_bytes,
        "per_record": int(job.per_record),
        "latency": int(job.latency),
        "board": job.board,
        "samples": job.samples,
        "times": times,
        "times_length": length,
        "clock_ns": time.monotonic_ns(),
    }
    # Errors only: a line for each commit would be work that nobody asked for.
    options = [_HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    start = [str(java), *options, "-cp", f"{libs}/*", str(_DRIVER)]
    return start + [f"{name}={value}" for name, value in told.items()]


def _write_times(job: LoadJob, path: Path) -> int:
    """Writes the work times of all consumers of the process; how many each has."""
    cell = job.cell
    length = 1 if not cell.work_ms or cell.work_distribution == "constant" else TABLE_LENGTH
    table = array("q")
    for consumer in range(job.first_consumer, job.first_consumer + job.consumers):
        times = work_times_s(cell.distribution, cell.work_ms, job.seed, consumer)
        table.extend(round(each * 1e9) for each in itertools.islice(times, length))
    with path.open("wb") as file:
        table.tofile(file)
    return length


def _check_compiler(java: Path) -> None:
    try:
        answer = subprocess.run(
            [java, "--list-modules"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_MODULES_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DevenvError(f"{java} did not answer within {_MODULES_S:.0f} s") from error
    if _COMPILER not in answer.stdout:
        raise DevenvError(f"{java} has no compiler, it is a JRE: a JDK is needed")
