"""The plan of the shapes, small, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharecoord.bench.cluster import Cluster
from sharecoord.bench.engine.cell import Consumer
from sharecoord.bench.engine.figures import PROCESSES, cpu_figure
from sharecoord.bench.engine.settings import read_plan
from sharecoord.bench.run import course
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest

RECORDS = 50_000


@pytest.mark.timeout(300)
def test_every_consumer_is_measured_in_a_shape(
    kafka_broker: KafkaUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = kafka_broker.broker
    if broker is not None:
        own = Cluster(broker.bootstrap_servers, broker.pid, broker.log_dir)
        monkeypatch.setattr(course, "open_cluster", lambda *_, **__: own)
    address = kafka_broker.bootstrap_servers
    shape = {"payload-bytes": 1000, "batch-bytes": 1_000_000, "compression": "lz4"}
    small = {"records": RECORDS, "repeats": 1, "rehearsal": False, "kafka": address}
    output = tmp_path / "result"
    assert course.run({**small, **shape}, plan="shapes", output=output) == 0
    stored = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    assert [(each["cell"]["consumer"], each["cell"]["ack"]) for each in stored["cells"]] == [
        ("plain", "implicit"),
        *[(consumer, ack) for ack in ("implicit", "explicit") for consumer in PEERS],
    ]
    for trial in stored["trials"]:
        ours = stored["cells"][trial["cell"]]["cell"]["consumer"] == Consumer.SHARECOORD
        figures = trial["figures"]
        processes = {"client", *(["coordinator"] if ours else []), *(["broker"] if broker else [])}
        assert {name for name in PROCESSES if cpu_figure(name) in figures} == processes
        assert figures["records_per_s"] > 0
        assert figures["repeated_records"] == 0
        assert ("idle_rss_mb" in figures) == ours
        if broker is not None:
            assert figures["batch_records"] * 1010 == pytest.approx(1_000_000, rel=0.03)
            assert figures["value_bytes_per_stored"] > 2
    report = (output / "report.md").read_text(encoding="utf-8")
    assert "| ack explicit " in report
    assert len([each for each in stored["verdicts"] if each["figure"] == "records_per_s"]) == 2
    assert not [name for name in Topics(address).names() if name.startswith("bench-")]


PEERS = (str(Consumer.KAFKA_SHARE), str(Consumer.SHARECOORD))


def test_the_shapes_are_the_plan_of_this_name() -> None:
    assert set(PEERS) < set(read_plan("shapes")["dimensions"]["consumer"])
