"""Kafka's own jars, resolved by Maven into a cache that all processes of a user share.

The cache is `$SHARECOORD_CACHE`, else `~/.cache/sharecoord`; a release is in `kafka/<version>/`:
`pom.xml` (what was asked for) and `libs/` (92 jars, 54 MB for 4.3.1). A directory of that name is
complete: it is filled under another name and renamed. A lock file keeps two processes from
downloading the same release at the same time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharecoord.devenv.errors import DevenvError

INSTALL_HINT = "apt-get install -y openjdk-17-jre-headless maven"
MIN_JAVA = 17
CACHE_VARIABLE = "SHARECOORD_CACHE"
DEFAULT_VERSION = "4.3.1"
MAVEN_TIMEOUT_S = 900.0

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sharecoord.devenv</groupId>
  <artifactId>kafka-libs</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_LOG4J2 = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.2"


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """A release of Kafka that can be started here.

    `coordinates` are `group:artifact:version` of what Maven resolves; `zookeeper` tells a release
    whose broker needs ZooKeeper.
    """

    version: str
    coordinates: tuple[str, ...]
    zookeeper: bool = False


def _release(version: str, *more: str, zookeeper: bool = False) -> KafkaRelease:
    return KafkaRelease(version, (f"org.apache.kafka:kafka_2.13:{version}", *more), zookeeper)


RELEASES: dict[str, KafkaRelease] = {
    release.version: release
    for release in (
        _release("4.3.1", "org.apache.kafka:kafka-tools:4.3.1", _LOG4J2),
        _release("4.4.0", "org.apache.kafka:kafka-tools:4.4.0", _LOG4J2),
        _release("4.2.1", "org.apache.kafka:kafka-tools:4.2.1", _LOG4J2),
        _release("3.9.1", "org.apache.kafka:kafka-tools:3.9.1"),
        _release("2.8.2", "org.slf4j:slf4j-simple:1.7.30", zookeeper=True),
    )
}


def kafka_release(version: str) -> KafkaRelease:
    """The release of this version; DevenvError names the known ones."""
    try:
        return RELEASES[version]
    except KeyError:
        known = ", ".join(RELEASES)
        raise DevenvError(
            f"version: Kafka {version!r} is not known here; use one of {known}"
        ) from None


def cache_root() -> Path:
    """The cache of jars: `$SHARECOORD_CACHE`, else `~/.cache/sharecoord` (DevenvError: no home)."""
    try:
        return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/sharecoord").expanduser()
    except RuntimeError as error:
        raise DevenvError(
            f"no home directory is known for the jars (HOME is not set): set {CACHE_VARIABLE}"
        ) from error


def find_java() -> Path:
    """The Java program, of `$JAVA_HOME` or on PATH; DevenvError: none, or older than 17."""
    home = os.environ.get("JAVA_HOME")
    at_home = Path(home) / "bin" / "java" if home else None
    found_java = at_home if at_home and at_home.is_file() else shutil.which("java")
    if found_java is None:
        raise DevenvError(f"java was not found and Kafka needs it: {INSTALL_HINT}")
    java = Path(found_java)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None or int(found.group(1)) < MIN_JAVA:
        what = f"is Java {found.group(1)}" if found else "does not tell its version"
        raise DevenvError(f"{java} {what} and Kafka needs {MIN_JAVA} or newer: {INSTALL_HINT}")
    return java


def find_maven() -> Path:
    """The Maven program on PATH; DevenvError when there is none."""
    maven = shutil.which("mvn")
    if maven is None:
        raise DevenvError(f"mvn was not found and resolves the jars: {INSTALL_HINT}")
    return Path(maven)


def kafka_libs(version: str = DEFAULT_VERSION) -> Path:
    """The directory with the jars of a Kafka release of `RELEASES`, downloaded at the first call.

    DevenvError: the version is not known, Java or Maven is missing, or the download failed.
    """
    pom = _pom(kafka_release(version))
    return resolved_jars(cache_root() / "kafka" / version, pom, main_jar="kafka_*.jar")


def resolved_jars(home: Path, pom: str, *, main_jar: str) -> Path:
    """The directory with the jars that a Maven project needs; downloads them at the first call.

    Args:
        home: Where they are kept; its name is the version.
        pom: The project. Jars of another one are resolved anew.
        main_jar: Pattern of the file name that must be among them.

    Raises:
        DevenvError: Java or Maven is missing, or the download failed.
    """
    if not _complete(home, pom):
        find_java()
        maven = find_maven()
        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            with _locked(home.parent / f"{home.name}.lock"):
                if not _complete(home, pom):  # another process may have been faster
                    _download(maven, home, pom, main_jar)
        except OSError as error:
            fix = f"set {CACHE_VARIABLE} to a directory that can be written"
            raise DevenvError(f"the cache {home} can not be filled: {error}; {fix}") from error
    return home / "libs"


def _pom(release: KafkaRelease) -> str:
    lines = []
    for coordinate in release.coordinates:
        group, artifact, version = coordinate.split(":")
        lines.append(
            f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version></dependency>"
        )
    return _POM.format(dependencies="\n".join(lines))


def _complete(home: Path, pom: str) -> bool:
    """Whether `home` holds what this pom asks for; a cache of an older pom is not complete."""
    stored = home / "pom.xml"
    return stored.is_file() and stored.read_text(encoding="utf-8") == pom


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the file's lock; waits for another holder as long as a download may take.

    Not blocking in the kernel, so that Ctrl-C and timeouts of tests work while it waits.
    """
    deadline = time.monotonic() + MAVEN_TIMEOUT_S
    with path.open("w", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DevenvError(
                        f"another process has held {path} for {MAVEN_TIMEOUT_S:.0f} s: "
                        "look for a mvn that hangs and end it"
                    ) from None
                time.sleep(0.1)
        yield  # closing the file lets go of the lock


def _download(maven: Path, home: Path, pom: str, main_jar: str) -> None:
    """Fills a directory beside `home` and renames it; what was in `home` goes away."""
    with tempfile.TemporaryDirectory(prefix=f".{home.name}.", dir=home.parent) as scratch:
        fresh = Path(scratch) / "fresh"
        fresh.mkdir()
        (fresh / "pom.xml").write_text(pom, encoding="utf-8")
        _run_maven(maven, fresh)
        if not any((fresh / "libs").glob(main_jar)):
            raise DevenvError(f"Maven ended well but there is no {main_jar} in {fresh / 'libs'}")
        if home.exists():
            home.rename(Path(scratch) / "stale")
        fresh.rename(home)


def _run_maven(maven: Path, project: Path) -> None:
    command = [str(maven), "-B", "-q", "-C", "-Dstyle.color=never", "-f", str(project / "pom.xml")]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={project / 'libs'}"]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=MAVEN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DevenvError(
            f"Maven did not end within {MAVEN_TIMEOUT_S:.0f} s: check the network and the mirrors "
            "in ~/.m2/settings.xml"
        ) from error
    if answer.returncode != 0:
        said = "\n".join((answer.stdout + answer.stderr).splitlines()[:15])
        raise DevenvError(
            f"Maven could not resolve the jars (exit code {answer.returncode}); check the "
            f"network and the mirrors in ~/.m2/settings.xml. Maven said:\n{said}"
        )
