"""CPU time and memory from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import check_procfs, cpu_s, peak_rss_mb, rss_mb, written_bytes

# A command that tries to be mistaken for the fields behind it; user 250 ticks, system 50, and of
# children that have ended 7 and 8.
STAT = "42 (a) R (b c) S " + " ".join(["1"] * 10) + " 250 50 7 8 20 0"

OWN = """
import os, time
from sharecoord.bench.procfs import cpu_s
print(time.process_time(), cpu_s(os.getpid()), time.process_time())
"""


def proc_with(tmp_path: Path, name: str, text: str) -> Path:
    folder = tmp_path / "42"
    folder.mkdir()
    (folder / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_cpu_is_user_and_system_time_whatever_the_command_is_called(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert cpu_s(42, proc=proc_with(tmp_path, "stat", STAT)) == 315 / ticks


def test_cpu_of_children_counts_and_one_that_ends_meanwhile_does_no_harm(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    proc = proc_with(tmp_path, "stat", STAT)
    for pid, children in ((42, "43 44"), (43, "")):
        task = proc / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (task / "children").write_text(children, encoding="utf-8")
    (proc / "43" / "stat").write_text(STAT.replace("42", "43"), encoding="utf-8")
    assert cpu_s(42, proc=proc) == 630 / ticks


def test_memory_is_in_millions_of_bytes(tmp_path: Path) -> None:
    status = "Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t  125000 kB\nThreads:\t1\n"
    proc = proc_with(tmp_path, "status", status)
    assert rss_mb(42, proc=proc) == pytest.approx(128.0)
    assert peak_rss_mb(42, proc=proc) == pytest.approx(0.009216)


def test_a_process_without_memory_has_ended(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="process 42 has no memory"):
        rss_mb(42, proc=proc_with(tmp_path, "status", "Name:\tx\nState:\tZ (zombie)\n"))


def test_our_own_figures_agree_with_the_kernel() -> None:
    # In a process without children; the kernel's figures are in whole ticks.
    said = subprocess.run([sys.executable, "-c", OWN], check=True, capture_output=True, text=True)
    before, read, after = map(float, said.stdout.split())
    assert before - 0.03 <= read <= after + 0.03
    assert rss_mb(os.getpid()) > 5
    assert peak_rss_mb(os.getpid()) >= rss_mb(os.getpid())


def test_written_bytes_are_those_that_go_to_disks(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, "io", "wchar: 9\nread_bytes: 7\nwrite_bytes: 8192\n")
    assert written_bytes(42, proc=proc) == 8192
    (tmp_path / "42" / "io").unlink()
    # Some kernels do not count; others do not tell us of the processes of others.
    assert written_bytes(42, proc=proc) is None


@pytest.mark.parametrize("figure", [cpu_s, rss_mb, peak_rss_mb, written_bytes])
def test_a_process_that_is_not_there_is_named(figure: object, tmp_path: Path) -> None:
    assert callable(figure)
    with pytest.raises(BenchError, match="process 42 can not be measured"):
        figure(42, proc=tmp_path)


def test_a_system_without_proc_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="run the benchmark on Linux"):
        check_procfs(proc=tmp_path)
    check_procfs()
