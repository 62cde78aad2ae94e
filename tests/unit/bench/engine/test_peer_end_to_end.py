"""The Java peer beside ours on a real broker: every figure that the others have."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.bench.engine import parallel_consumer, trial
from sharecoord.bench.errors import BenchError
from sharecoord.bench.run.course import run
from tests.support import KafkaUnderTest
from tests.unit.bench.engine.test_end_to_end import QUICK, measured

PEERS = "parallel-consumer,sharecoord"


@pytest.mark.timeout(300)
def test_the_java_peer_is_measured_like_ours(
    kafka_broker: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        parallel_consumer.prepare()
    except BenchError as error:
        pytest.skip(error.message)
    monkeypatch.setattr(trial, "_SENDER_START_S", 0.5)
    common = {**QUICK, "kafka": kafka_broker.bootstrap_servers, "consumer": PEERS}

    drain = {**common, "mode": "drain", "records": 3000, "consumers": 2, "partitions": 2}
    work = {"work_ms": 2, "work-distribution": "uniform", "parallelism": "continuous:8"}
    assert run({**drain, **work}, output=tmp_path / "drain") == 0
    for figures in measured(tmp_path / "drain").values():
        handled = figures["records_per_s"] * figures["drain_s"]
        assert round(handled) == 3000 + figures["repeated_records"]
        assert 0 < figures["busy_percent"] <= 100
        # The second member of a plain group may come when the first has taken everything.
        assert 0.5 <= round(figures["jain_ratio"], 6) <= 1
        assert figures["cpu_client_s_per_million"] > 0

    latency = {**common, "mode": "latency", "rate": 200, "parallelism": "continuous:8"}
    assert run(latency, output=tmp_path / "latency") == 0
    for figures in measured(tmp_path / "latency").values():
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
        assert figures["missing_records"] == 0

    batches = {**common, "handler": "batch:50", "parallelism": "continuous:8", "records": 50_000}
    assert run(batches, output=tmp_path / "batches") == 0
    for figures in measured(tmp_path / "batches").values():
        assert 0 < figures["fewest_records"] <= 50_000
        assert "busy_percent" not in figures
