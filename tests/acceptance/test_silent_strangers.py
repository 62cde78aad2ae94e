"""Ten thousand strangers at the Kafka port who say nothing: members go on, and all is freed."""

from __future__ import annotations

import contextlib
import hashlib
import selectors
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharecoord.api.kafka.connections.listener import BACKLOG
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.runtime.kernel.open_files import raise_limit
from tests.certificates import Authority
from tests.kafka_door import KafkaDoor
from tests.support import eventually

pytestmark = pytest.mark.timeout(300)

STRANGERS, LIMIT = 10_000, 3_000
TIMEOUT_S = 5
SECRET = "sct_member"
WAIT_S = 60
LINES_PER_S = 1
"""Of the log, for each kind of line, at most."""

SLOW_S = 5
"""Longest heartbeat meanwhile, on a machine that does other things as well."""


class Crowd:
    """Connections that are open and silent."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self.open = 0

    def add(self, count: int) -> None:
        """Connects so many more."""
        for _ in range(count):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((LOOPBACK, self._port))
            self._selector.register(one, selectors.EVENT_READ)
            self.open += 1

    def look(self) -> None:
        """Forgets those that the coordinator has ended."""
        for key, _ in self._selector.select(0):
            one: Any = key.fileobj
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b"", "nobody answers a stranger"
            self._selector.unregister(one)
            one.close()
            self.open -= 1

    def all_gone(self) -> bool:
        """Whether all have been ended."""
        self.look()
        return self.open == 0


@pytest.fixture
def served(mock_cluster: MockCluster, tmp_path: Path) -> Iterator[tuple[CoordinatorProcess, int]]:
    pair = Authority(tmp_path).issue("server")
    tokens = [{"name": "member", "sha256": hashlib.sha256(SECRET.encode()).hexdigest()}]
    (tmp_path / "tokens.yaml").write_text(yaml.safe_dump(tokens))
    (port,) = free_ports(1)
    settings = {
        "kafka.port.listen": f"localhost:{port}",
        "kafka.port.max.connections": LIMIT,
        "kafka.port.max.connections.per.ip": LIMIT,
        "kafka.port.authentication.timeout.ms": TIMEOUT_S * 1000,
        "tls.cert.file": str(pair.certificate),
        "tls.key.file": str(pair.key),
        "security.tokens.file": str(tmp_path / "tokens.yaml"),
    }
    with CoordinatorProcess(mock_cluster.bootstrap_servers, tmp_path, settings=settings) as process:
        yield process, port


def test_ten_thousand_silent_strangers_hold_nobody_up(
    served: tuple[CoordinatorProcess, int], tmp_path: Path
) -> None:
    process, port = served
    assert raise_limit() > STRANGERS + 1_000
    begun_s, files_before = time.monotonic(), open_files(process)
    with KafkaDoor(port, tmp_path / "ca" / "ca.pem") as member:
        assert member.log_in("PLAIN", "member", SECRET) == (0, "")
        beat = {"group_id": "g", "member_id": "m", "subscribed_topic_names": ("t",)}
        assert member.ask(76, 1, **beat, member_epoch=0).error_code.value == 0
        crowd, slowest = Crowd(port), timedelta()
        for _ in range(STRANGERS // 500):
            crowd.add(500)
            before_s = time.monotonic()
            assert member.ask(76, 1, **beat, member_epoch=1).error_code.value == 0
            slowest = max(slowest, timedelta(seconds=time.monotonic() - before_s))
            assert open_files(process) <= files_before + LIMIT + BACKLOG + 50
            crowd.look()
        assert slowest.total_seconds() < SLOW_S
        eventually(crowd.all_gone, WAIT_S, what="an end of all of them")
        assert member.ask(76, 1, **beat, member_epoch=1).error_code.value == 0
        # One is left: the member's own.
        eventually(lambda: open_files(process) <= files_before + 10, WAIT_S, what="freed files")
    log = (tmp_path / "coordinator.log").read_text().splitlines()
    for said in ("one more is refused", "no TLS with a client"):
        lines = [line for line in log if said in line]
        assert 0 < len(lines) <= (time.monotonic() - begun_s + 10) * LINES_PER_S
    assert not [line for line in log if '"level": "error"' in line]


def open_files(process: CoordinatorProcess) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
