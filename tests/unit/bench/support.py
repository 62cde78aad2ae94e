"""The machine of results in tests."""

from __future__ import annotations

from sharecoord.bench.machine import Machine

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
