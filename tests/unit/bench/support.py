"""Runs and results for the tests of the plans with targets, with round figures."""

from __future__ import annotations

from sharecoord.bench.machine import Machine
from sharecoord.bench.standard import results
from sharecoord.bench.standard.plans import Options, throughput_plan
from sharecoord.bench.standard.results import Result, Run

MACHINE = Machine(
    started_at="2026-01-02T03:04:05+00:00",
    cpu_model="Test CPU",
    cores=2,
    memory_mb=8000,
    kernel="Linux 6.1",
    python="CPython 3.11.7",
    kafka="4.3.1",
    librdkafka="2.16.0",
    sqlite="3.40.1",
    packages={"grpcio": "1.85.1", "SQLAlchemy": None},
    commit="abc",
    store_file_system="ext4",
    load_average=(0.1, 0.2, 0.3),
)


def make_run(
    contender: str,
    records_per_s: float,
    *,
    size_bytes: int = 1000,
    repeat: int = 1,
    first_record_s: float = 0.1,
    idle_rss_mb: float | None = None,
    repeated: int = 0,
    cpu_s: float = 1.0,
) -> Run:
    """A run in which every process used so many seconds per million records."""
    processes = ["broker", "client"]
    figures = {
        "records_per_s": records_per_s,
        "first_record_s": first_record_s,
        "repeated_records": repeated,
    }
    if idle_rss_mb is not None:
        processes.append("coordinator")
        figures |= {"idle_rss_mb": idle_rss_mb, "rss_after_mb": idle_rss_mb + 40}
    figures |= {f"cpu_{name}_s_per_million": cpu_s for name in processes}
    figures["cpu_total_s_per_million"] = cpu_s * len(processes)
    return Run(contender, size_bytes, repeat, figures, 0.5)


def make_result(runs: list[Run], *, core: str | None = None, machine: Machine = MACHINE) -> Result:
    """What `sharecoord bench` would make of these runs."""
    plan = throughput_plan(Options(sizes=(1000,), records=600_000))
    return results.make_result(plan, machine, runs, complete=True, core=core)
