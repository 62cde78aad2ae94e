"""The Spark session of the jobs: its needs are checked first, so that errors are readable."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from sharecoord.analytics.errors import AnalyticsError, SparkMissingError, SparkUnavailableError
from sharecoord.analytics.progress import is_submitted, said_at_times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""
MIN_SPARK: Final = 4
JAVA_HINT: Final = (
    f"install Java {MIN_JAVA} (Debian: `apt-get install -y openjdk-{MIN_JAVA}-jre-headless`) or "
    "set JAVA_HOME to one"
)
SPARK_HINT: Final = "install it with `pip install 'sharecoord[spark]'`"
LOCAL_MASTER: Final = "local[*]"
DEFAULT_DRIVER_MEMORY: Final = "4g"
"""Enough for 100 M events on two cores; frames that do not fit go to disk."""
LOCAL_SHUFFLE_PARTITIONS: Final = 16
"""Partitions on one machine; adaptive execution joins small stages. Spark's own 200 are for
clusters, and cost more than the work on a laptop."""
MASTER_TIMEOUT_S: Final = 5.0
"""How long a master has to accept a connection; Spark itself tries for a minute."""
JAVA_TIMEOUT_S: Final = 30.0

_COMPILE_LATE: Final = (
    "-XX:Tier4InvocationThreshold=250000",
    "-XX:Tier4CompileThreshold=750000",
    "-XX:Tier4BackEdgeThreshold=2000000",
)
"""The JVM's best compiler begins after 50 times as many calls and loops as usual. Code that runs
for each of millions of rows soon comes there; code that plans and schedules does not, and to
compile it took more CPU than the rows. See decision 0028."""
_COMPILE_ONCE: Final = ("-XX:TieredStopAtLevel=1",)
"""The JVM's best compiler never begins, and its quick one does not count calls for it."""

_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
"""The key of options that stand before the user's `spark.driver.extraJavaOptions`."""


def _java_options(compiler: tuple[str, ...]) -> str:
    """Options of the driver's JVM; `compiler` says when it compiles."""
    log = f"-Dlog4j2.configurationFile={files('sharecoord.analytics') / 'log4j2.properties'}"
    # Without the second a warning of the JVM would stand in the output of a job, which programs
    # read. The third is a collector with pauses, which are harmless here; the usual one costs a
    # third of a job's time.
    return " ".join((log, "-XX:+DisplayVMOutputToStderr", "-XX:+UseParallelGC", *compiler))


FOR_FEW_ROWS: Final = {
    _JAVA_OPTIONS: _java_options(_COMPILE_ONCE),
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for some thousands of events: compiling costs more than the rows do, and so does it to
plan each stage anew when the stage before it is done."""

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
    """Starts Spark, or takes the session that runs already (in a notebook), as it is.

    The user's settings of Spark (`--conf`, `spark-defaults.conf`, `PYSPARK_SUBMIT_ARGS`) win: the
    settings here are defaults.

    Args:
        name: Name of the application, as clusters show it.
        master: `local[N]`, `spark://host:port`, `yarn`, `k8s://…`; None: that of `spark-submit`,
            without it all cores of this machine.
        driver_memory: Heap of the driver, such as `4g`; only in a session that is started here.
        settings: Further defaults; they win over the others.

    Raises:
        SparkMissingError: No pyspark, no Java, or one that is too old.
        SparkUnavailableError: The master does not answer.
        AnalyticsError: `master` or `driver_memory` is malformed.
    """
    check_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        running_session: SparkSession = SparkSession.builder.getOrCreate()
        return running_session
    submitted = is_submitted()
    if not submitted:
        check_java()
        check_memory(driver_memory)
        master = master or LOCAL_MASTER
        # Spark would take any `python3` on the path; on a cluster its own setting decides.
        if master.startswith("local"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is not None:
        check_master(master)
    try:
        with said_at_times(lambda: f"{name}: Spark starts"):
            return _started(
                name,
                ({} if master is None else {"spark.master": master}),
                ({} if submitted else _launch_settings(driver_memory)) | (settings or {}),
                _settings(master, submitted=submitted),
            )
    except Exception as error:  # noqa: BLE001 - whatever the JVM throws
        _raise_start_error(error, master)


def _started(
    name: str, asked: dict[str, str], launch: dict[str, str], defaults: dict[str, str]
) -> SparkSession:
    """Starts a session: `asked` wins over the user's settings, which win over the others."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized(
        conf=SparkConf(loadDefaults=False).setAll([*(launch | asked).items()])
    )
    # The JVM has the user's settings, in whatever way they were given.
    given = SparkConf()
    builder = SparkSession.builder.appName(name)
    for key, value in (defaults | launch).items():
        if not given.contains(key):
            builder = builder.config(key, value)
    for key, value in asked.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _launch_settings(driver_memory: str) -> dict[str, str]:
    """Settings of the start of the driver's JVM."""
    return {
        "spark.driver.memory": driver_memory,
        _JAVA_OPTIONS: _java_options(_COMPILE_LATE),
        "spark.ui.showConsoleProgress": "false",
    }


def _settings(master: str | None, *, submitted: bool) -> dict[str, str]:
    """Settings that make Spark quiet, and small on one machine; no result depends on them."""
    chosen = {"spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
    if not submitted and master is not None and master.startswith("local"):
        chosen |= {
            "spark.ui.enabled": "false",
            # The host's own name may not resolve, and nobody else has to reach this driver.
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS),
        }
    return chosen


def _raise_start_error(error: Exception, master: str | None) -> NoReturn:
    text = " ".join(str(error).split())
    if "Could not parse Master URL" in text:
        raise AnalyticsError(_malformed_master(master or "")) from None
    raise SparkUnavailableError(
        f"master {master or 'of spark-submit'}: Spark did not start: {text[:400]}"
    ) from error


# -- needs of Spark -------------------------------------------------------------------------------


def check_pyspark() -> None:
    """Raises SparkMissingError when pyspark is not installed, or older than Spark 4."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkMissingError(f"pyspark is not installed: {SPARK_HINT}")
    # Not from pip's metadata: Spark's own Python part has none.
    from pyspark import __version__ as version

    if int(version.split(".")[0]) < MIN_SPARK:
        raise SparkMissingError(
            f"pyspark {version} is too old, {MIN_SPARK}.0 or newer is needed: {SPARK_HINT}"
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
    """The major version in the output of `java -version` (8 for 1.8), or None."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


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
def defaults(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets settings that the session does not have, until the block ends."""
    given = session.conf.getAll
    fresh = {key: value for key, value in settings.items() if key not in given}
    for key, value in fresh.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in fresh:
            session.conf.unset(key)


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
