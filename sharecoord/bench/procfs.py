"""CPU time and memory of processes, from Linux' /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sharecoord.bench.errors import BenchError

PROC = Path("/proc")
# Positions behind the command's closing bracket in /proc/PID/stat; see proc_pid_stat(5).
_UTIME, _STIME, _CUTIME, _CSTIME = 11, 12, 13, 14


def cpu_s(pid: int, *, proc: Path = PROC) -> float:
    """CPU seconds of a process and its children, user and system, those that ended included.

    In steps of the kernel's clock tick (10 ms). BenchError when there is no such process.
    """
    return _ticks(pid, proc) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int, proc: Path) -> int:
    # First the children: one that ends meanwhile is in the figures of its parent, too.
    ticks = 0
    for child in _children(pid, proc):
        with contextlib.suppress(BenchError):
            ticks += _ticks(child, proc)
    # The command is in brackets and may itself contain brackets and blanks.
    fields = _read(proc / str(pid) / "stat", pid).rpartition(")")[2].split()
    return ticks + sum(int(fields[at]) for at in (_UTIME, _STIME, _CUTIME, _CSTIME))


def _children(pid: int, proc: Path) -> list[int]:
    """Children of all threads of a process; empty where the kernel does not list them."""
    found: list[int] = []
    for listing in (proc / str(pid) / "task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, listing.read_text(encoding="ascii").split())
    return found


def rss_mb(pid: int, *, proc: Path = PROC) -> float:
    """Resident memory of a process in MB (10^6 bytes); BenchError when there is none."""
    return _memory_mb("VmRSS:", pid, proc)


def peak_rss_mb(pid: int, *, proc: Path = PROC) -> float:
    """Greatest resident memory of a process so far, in MB; BenchError when there is no such."""
    return _memory_mb("VmHWM:", pid, proc)


def _memory_mb(field: str, pid: int, proc: Path) -> float:
    for line in _read(proc / str(pid) / "status", pid).splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"process {pid} has no memory any more: it has ended")


def written_bytes(pid: int, *, proc: Path = PROC) -> int | None:
    """Bytes that a process has had written to disks, in whole pages; `write_bytes` of /proc/PID/io.

    What goes to a file system in memory does not count. None where the kernel does not count the
    bytes, or not for us; BenchError when there is no such process.
    """
    path = proc / str(pid) / "io"
    if not path.parent.is_dir():
        raise BenchError(f"process {pid} can not be measured: it has ended")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), None)


def check_procfs(*, proc: Path = PROC) -> None:
    """BenchError unless this system has /proc with the figures of processes."""
    if not (proc / "self" / "stat").is_file():
        raise BenchError(
            f"CPU time and memory of processes are read from {proc}/PID/stat, which is not here: "
            "run the benchmark on Linux"
        )


def _read(path: Path, pid: int) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BenchError(f"process {pid} can not be measured: {error}") from error
