"""The machine of a measurement: hardware, system, versions, load."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from confluent_kafka import libversion

PACKAGES = ("sharecoord", "confluent-kafka", "grpcio", "protobuf", "SQLAlchemy")
ROOT = Path(__file__).resolve().parents[2]
_GIT_TIMEOUT_S = 10.0
_BUSY_PER_CORE: Final = 0.25
"""The load of other work before the run, per core, above which it takes turns with ours."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a machine that absolute figures depend on.

    Attributes:
        started_at: ISO 8601, UTC.
        cpu_model: As the kernel names it.
        cores: Cores that this process may use.
        memory_mb: Memory of the machine, 10^6 bytes.
        kernel: System and release.
        python: Version, and so are the next but those said otherwise.
        kafka: Version of the broker, or the address of a given one.
        librdkafka: See `python`.
        sqlite: See `python`.
        packages: Versions by name; None for one that is not installed.
        commit: Of this project's sources, with `-dirty` after changes; empty outside of git.
        store_file_system: Type of the file system under the SQLite file.
        load_average: Runnable processes over 1, 5 and 15 minutes, when the run began.
    """

    started_at: str
    cpu_model: str
    cores: int
    memory_mb: int
    kernel: str
    python: str
    kafka: str
    librdkafka: str
    sqlite: str
    packages: dict[str, str | None]
    commit: str
    store_file_system: str
    load_average: tuple[float, float, float]

    @property
    def busy(self) -> bool:
        """Whether other work ran at the start: then ratios and CPU time hold, speeds do not."""
        return self.load_average[0] > _BUSY_PER_CORE * self.cores

    def rows(self) -> list[list[str]]:
        """Pairs of a property and its value, as every report shows them."""
        return [
            ["began", self.started_at],
            ["CPU", f"{self.cpu_model}, {self.cores} cores for us"],
            ["memory", f"{self.memory_mb:,} MB"],
            ["kernel", self.kernel],
            ["Python", self.python],
            ["Kafka", self.kafka],
            ["librdkafka", self.librdkafka],
            ["SQLite", f"{self.sqlite}, on {self.store_file_system}"],
            *([name, release or "not installed"] for name, release in self.packages.items()),
            ["commit", self.commit or "unknown"],
            [
                "load average at the start (1, 5, 15 min)",
                ", ".join(f"{value:.2f}" for value in self.load_average),
            ],
        ]


def describe_machine(*, kafka: str, store_directory: Path) -> Machine:
    """Looks at this machine now."""
    return Machine(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu_model=_field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_mb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {sys.version.split()[0]}",
        kafka=kafka,
        librdkafka=libversion()[0],
        sqlite=sqlite3.sqlite_version,
        packages={name: _version(name) for name in PACKAGES},
        commit=_commit(ROOT),
        store_file_system=file_system(store_directory, _mounts()),
        load_average=os.getloadavg(),
    )


def file_system(path: Path, mounts: Iterable[str]) -> str:
    """Type of the file system that holds a path."""
    resolved = path.resolve()
    best = (-1, "unknown")
    for line in mounts:
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        # Of two on the same point the later one is on top.
        if resolved.is_relative_to(point) and len(point.parts) >= best[0]:
            best = (len(point.parts), fields[2])
    return best[1]


def _mounts() -> list[str]:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
            # Looking must not write: others may be using the same checkout.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
