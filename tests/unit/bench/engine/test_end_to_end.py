"""Every mode with every consumer, small, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from sharecoord.bench.engine import trial
from sharecoord.bench.run.course import run
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest

QUICK: dict[str, Any] = {
    "duration_s": 1.0,
    "warm_up_s": 0.0,
    "repeats": 1,
    "rehearsal": False,
}


def measured(output: Path) -> dict[str, dict[str, float]]:
    """Medians by consumer."""
    stored = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    assert stored["complete"]
    return {
        each["cell"]["consumer"]: {name: spread[0] for name, spread in each["figures"].items()}
        for each in stored["cells"]
    }


@pytest.mark.timeout(180)
def test_every_consumer_is_measured_in_every_mode(
    kafka_broker: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SENDER_START_S", 0.5)
    address = kafka_broker.bootstrap_servers
    kafka = {**QUICK, "kafka": address}
    everybody = "plain,kafka-share,sharecoord"

    drain = {**kafka, "mode": "drain", "records": 2000, "consumers": 2, "partitions": 2}
    assert run({**drain, "consumer": everybody, "key-skew": 1.0}, output=tmp_path / "drain") == 0
    for figures in measured(tmp_path / "drain").values():
        # All were handled; a share group may hand some out again.
        handled = figures["records_per_s"] * figures["drain_s"]
        assert round(handled) == 2000 + figures["repeated_records"]

    latency = {**kafka, "mode": "latency", "rate": 200, "payload_bytes": 100}
    peers = "kafka-share,sharecoord"
    assert run({**latency, "consumer": peers}, output=tmp_path / "latency") == 0
    for figures in measured(tmp_path / "latency").values():
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
        assert figures["missing_records"] == 0

    work = {**kafka, "work_ms": 2, "parallelism": "continuous:4", "records": 2000}
    assert run({**work, "consumer": "sharecoord"}, output=tmp_path / "work") == 0
    found = measured(tmp_path / "work")
    assert found["sharecoord"]["records_per_s"] > 0
    assert 0 < found["sharecoord"]["busy_percent"] <= 100

    rows = parquet.read_table(tmp_path / "latency" / "samples.parquet")
    # A second of the window at least, for both.
    assert len(rows) - rows["latency_ms"].null_count >= 2 * 200
    assert not [name for name in Topics(address).names() if name.startswith("bench-")]


def test_what_events_cost_is_measured(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    address = kafka_broker.bootstrap_servers
    asked = {**QUICK, "kafka": address, "mode": "drain", "records": 2000, "consumer": "sharecoord"}
    assert run({**asked, "events": "none,parquet,kafka"}, output=tmp_path / "events") == 0
    stored = json.loads((tmp_path / "events" / "summary.json").read_text(encoding="utf-8"))
    assert [each["cell"]["events"] for each in stored["cells"]] == ["none", "parquet", "kafka"]
    assert {each["peer"] for each in stored["ratios"]} == {"without events"}
    assert not [name for name in Topics(address).names() if name.endswith("-events")]


def test_what_security_costs_is_measured(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    address = kafka_broker.bootstrap_servers
    asked = {**QUICK, "kafka": address, "mode": "drain", "records": 2000, "consumer": "sharecoord"}
    assert run({**asked, "security": "none,socket,rules"}, output=tmp_path / "security") == 0
    stored = json.loads((tmp_path / "security" / "summary.json").read_text(encoding="utf-8"))
    assert [each["cell"]["security"] for each in stored["cells"]] == ["none", "socket", "rules"]
    assert {each["peer"] for each in stored["ratios"]} == {"without security"}
