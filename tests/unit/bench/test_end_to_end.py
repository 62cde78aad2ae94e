"""The whole benchmark, small, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharecoord.bench.engine.figures import PROCESSES, cpu_figure
from sharecoord.bench.standard import run as bench
from sharecoord.bench.standard.plans import CONTENDERS
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest

RECORDS = 50_000


@pytest.mark.timeout(300)
def test_every_consumer_is_measured_on_one_broker(
    kafka_broker: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)  # without the script that times the core
    address = kafka_broker.bootstrap_servers
    output = tmp_path / "result"
    code = bench.run(
        sizes=[100], records=RECORDS, repeats=1, output=output, kafka=address, quick=True
    )
    assert code == 0
    result = json.loads((output / "result.json").read_text(encoding="utf-8"))
    keys = [contender.key for contender in CONTENDERS]
    assert [(run["repeat"], run["key"]) for run in result["runs"]] == [
        (repeat, key) for repeat in (0, 1) for key in keys
    ]
    for run in result["runs"]:
        ours = run["key"].startswith("sharecoord")
        figures = run["figures"]
        processes = {"client", "coordinator"} if ours else {"client"}
        assert {name for name in PROCESSES if cpu_figure(name) in figures} == processes
        assert figures["records_per_s"] > 0
        assert figures["repeated_records"] == 0
        assert ("idle_rss_mb" in figures) == ours
    assert [line["ratio"] is not None for line in result["summaries"]] == [
        contender.peer is not None for contender in CONTENDERS
    ]
    assert not [name for name in Topics(address).names() if name.startswith("bench-")]
