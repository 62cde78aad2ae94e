"""The Spark session of the jobs: what it needs is checked before, so that errors are readable."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from sharecoord.analytics.errors import AnalyticsError, SparkMissingError, SparkUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17
"""What Spark 4 asks for."""
MIN_SPARK: Final = 4
JAVA_HINT: Final = (
    f"install Java {MIN_JAVA} (Debian: `apt-get install -y openjdk-{MIN_JAVA}-jre-headless`) or "
    "set JAVA_HOME to one"
)
SPARK_HINT: Final = "install it with `pip install 'sharecoord[spark]'`"
LOCAL_MASTER: Final = "local[*]"
DEFAULT_DRIVER_MEMORY: Final = "4g"
"""For 100 M events on two cores; what does not fit goes to disk."""
LOCAL_SHUFFLE_PARTITIONS: Final = 16
"""On one machine; small stages are joined by adaptive execution. Spark's own 200 are for clusters,
and cost more than the work on a laptop."""
MASTER_TIMEOUT_S: Final = 5.0
"""How long a master gets to accept a connection; Spark itself tries for a minute."""
JAVA_TIMEOUT_S: Final = 30.0

_COLLECTOR: Final = "-XX:+UseParallelGC"
"""Pauses disturb nobody here; the usual collector costs a third of a job's time."""

_COMPILE_LATE: Final = " ".join(
    (
        "-XX:Tier4InvocationThreshold=250000",
        "-XX:Tier4CompileThreshold=750000",
        "-XX:Tier4BackEdgeThreshold=2000000",
    )
)
"""The JVM's best compiler begins after 50 times as many calls and loops as usual: what is done for
each of millions of rows comes there soon. What plans and schedules does not, and to compile that
took more CPU than the rows. See decision 0028."""

FOR_FEW_ROWS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for some thousands of events: compiling costs more than the rows do."""

_MEMORY = re.compile(r"[1-9]\d*[kmgt]b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?")
_STANDALONE = "spark://"
_OTHERS = ("yarn", "k8s://")


def make_session(
    name: str,
    *,
    master: str | None = None,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """Starts Spark, or takes the session that runs already (notebook, `spark-submit`).

    Args:
        name: Of the application, as clusters show it.
        master: `local[N]`, `spark://host:port`, `yarn`, `k8s://…`; None: what `spark-submit` was
            given, without it all cores of this machine.
        driver_memory: Heap of the driver, such as `4g`; only in a session that is started here.
        settings: Further settings of Spark; they win over ours.

    Raises:
        SparkMissingError: No pyspark, no Java, or one that is too old.
        SparkUnavailableError: The master does not answer.
        AnalyticsError: `master` or `driver_memory` is malformed.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    check_pyspark()
    if not submitted:
        check_java()
        check_memory(driver_memory)
        master = master or LOCAL_MASTER
        # Spark would take any `python3` on the path; on a cluster its own setting decides.
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        check_master(master)
    chosen = _settings(master, None if submitted else driver_memory) | (settings or {})
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - whatever the JVM throws
        _raise_start_error(error, master)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _settings(master: str | None, driver_memory: str | None) -> dict[str, str]:
    """What the jobs rely on (UTC, adaptive execution), and what keeps Spark quiet."""
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        # A group named 007 is no number.
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master is not None:
        chosen["spark.master"] = master
    if driver_memory is None:
        chosen["spark.log.level"] = "ERROR"
    else:
        chosen["spark.driver.memory"] = driver_memory
        log_file = files("sharecoord.analytics") / "log4j2.properties"
        log = f"-Dlog4j2.configurationFile={log_file}"
        chosen["spark.driver.extraJavaOptions"] = f"{log} {_COLLECTOR} {_COMPILE_LATE}"
    if master is not None and master.startswith("local"):
        # The host's own name may not resolve, and nobody else has to reach this driver.
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.sql.shuffle.partitions"] = str(LOCAL_SHUFFLE_PARTITIONS)
    return chosen


def _raise_start_error(error: Exception, master: str | None) -> NoReturn:
    text = " ".join(str(error).split())
    if "Could not parse Master URL" in text:
        raise AnalyticsError(_malformed_master(master or "")) from None
    raise SparkUnavailableError(
        f"master {master or 'of spark-submit'}: Spark did not start: {text[:400]}"
    ) from error


# -- what it needs --------------------------------------------------------------------------------


def check_pyspark() -> None:
    """Raises SparkMissingError when pyspark is not installed, or older than Spark 4."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError(f"pyspark is not installed: {SPARK_HINT}")
    found = version("pyspark")
    if int(found.split(".")[0]) < MIN_SPARK:
        raise SparkMissingError(
            f"pyspark {found} is too old, {MIN_SPARK}.0 or newer is needed: {SPARK_HINT}"
        )


def check_java() -> None:
    """Raises SparkMissingError when there is no Java, or one that Spark does not run on."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise SparkMissingError(f"Java was not found and Spark needs it: {JAVA_HINT}")
    if not Path(java).is_file():
        raise SparkMissingError(f"JAVA_HOME={home} has no bin/java: {JAVA_HINT}")
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=JAVA_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkMissingError(f"{java} can not be run ({error}): {JAVA_HINT}") from None
    major = java_version(answer.stderr + answer.stdout)
    if major is None or major < MIN_JAVA:
        what = "does not tell its version" if major is None else f"is Java {major}"
        raise SparkMissingError(
            f"{java} {what} and Spark {MIN_SPARK} needs Java {MIN_JAVA} or newer: {JAVA_HINT}"
        )


def java_version(text: str) -> int | None:
    """The major version in what `java -version` prints (8 for 1.8), or None."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def check_memory(driver_memory: str) -> None:
    """Raises AnalyticsError for a size that Java does not read."""
    if not _MEMORY.fullmatch(driver_memory):
        raise AnalyticsError(
            f"--driver-memory {driver_memory}: it must be a number and k, m, g or t, such as "
            f"{DEFAULT_DRIVER_MEMORY}"
        )


def check_master(master: str) -> None:
    """Raises AnalyticsError for a malformed master, SparkUnavailableError for a silent one."""
    if _LOCAL.fullmatch(master) or master.startswith(_OTHERS):
        return
    if not master.startswith(_STANDALONE):
        raise AnalyticsError(_malformed_master(master))
    problems = []
    for address in master.removeprefix(_STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise AnalyticsError(_malformed_master(master))
        try:
            with socket.create_connection((host, int(port)), timeout=MASTER_TIMEOUT_S):
                return
        except (OSError, OverflowError) as error:
            problems.append(f"{address}: {error}")
    raise SparkUnavailableError(
        f"master {master} does not answer ({'; '.join(problems)}): start it, name another one with "
        f"--master, or leave --master out to use this machine"
    )


def _malformed_master(master: str) -> str:
    return (
        f"--master {master}: it must be local, local[N], local[*], spark://HOST:PORT[,HOST:PORT], "
        "yarn or k8s://…"
    )


def stop(session: SparkSession) -> None:
    """Ends a session; never raises."""
    with suppress(Exception):
        session.stop()


@contextmanager
def running(
    name: str,
    master: str | None,
    driver_memory: str,
    settings: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session that ends with the block; see `make_session`."""
    session = make_session(name, master=master, driver_memory=driver_memory, settings=settings)
    try:
        yield session
    finally:
        stop(session)
