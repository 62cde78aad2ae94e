"""Runs and plans for the tests of the benchmark, with round figures."""

from __future__ import annotations

from sharecoord.bench.drivers.meter import Measured
from sharecoord.bench.machine import Machine
from sharecoord.bench.plans.throughput import throughput_plan
from sharecoord.bench.results import Result, Run, judge, summarize

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
    cpu_s_per_million: float = 1.0,
) -> Run:
    """A run of half a million records; every process used one second per million."""
    records = 500_000
    cpu = dict.fromkeys(("broker", "client"), cpu_s_per_million / 2)
    if idle_rss_mb is not None:
        cpu["coordinator"] = cpu_s_per_million / 2
    measured = Measured(
        first_record_s=first_record_s,
        records=records,
        value_bytes=records * size_bytes,
        seconds=records / records_per_s,
        cpu_s=cpu,
        repeated=repeated,
    )
    after = None if idle_rss_mb is None else idle_rss_mb + 40
    return Run(contender, size_bytes, repeat, measured, 0.5, idle_rss_mb, after)


def make_result(
    runs: list[Run],
    *,
    sizes: tuple[int, ...] = (1000,),
    core: str | None = None,
    machine: Machine = MACHINE,
) -> Result:
    """What `sharecoord bench` would make of these runs."""
    plan = throughput_plan(sizes=sizes, records=600_000)
    return Result(
        plan=plan.name,
        machine=machine,
        records=plan.records,
        repeats=plan.repeats,
        batch_bytes=plan.batch_bytes,
        complete=True,
        runs=runs,
        summaries=summarize(plan, runs),
        verdicts=judge(plan, runs),
        core=core,
    )
