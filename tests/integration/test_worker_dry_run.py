"""A dry run of a worker against a real coordinator: topics, settings, and nothing is joined."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sharecoord_sdk import AdminClient

from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.support import KafkaUnderTest, unique_name

APP = """
from sharecoord_sdk import Worker

worker = Worker({"bootstrap.servers": "ADDRESS", "group.id": "GROUP"})

for topic in TOPICS:
    @worker.handler(topic)
    async def handle(order: dict) -> None: ...
"""


def test_a_dry_run_asks_the_coordinator(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path
) -> None:
    there, missing, group = topic(), unique_name("missing"), unique_name("group")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator:

        def dry_run(*topics: str) -> subprocess.CompletedProcess[str]:
            text = APP.replace("ADDRESS", coordinator.address).replace("GROUP", group)
            (tmp_path / "app.py").write_text(text.replace("TOPICS", repr(topics)), encoding="utf-8")
            command = [
                sys.executable,
                "-W",
                "error",
                "-m",
                "sharecoord_sdk.worker",
                "app",
                "--dry-run",
            ]
            return subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )

        good = dry_run(there)
        assert (good.returncode, good.stderr) == (0, ""), good
        assert "  share.record.lock.duration.ms = 30000 (default)" in good.stdout
        assert f"  topic {there}: " in good.stdout
        bad = dry_run(there, missing)
        assert bad.returncode == 1
        assert f"problem: topic {missing}: the cluster has no topic '{missing}'" in bad.stdout
        with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
            assert admin.list_groups() == [], "nothing was made"
