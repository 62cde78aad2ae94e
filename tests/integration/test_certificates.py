"""Certificates of a running coordinator change under load: no stream ends, and metrics tell."""

from __future__ import annotations

import http.client
import itertools
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sharecoord_sdk import ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import LOOPBACK, free_ports
from tests.certificates import Authority, Live, Pair, pem_of, replace_file, shown_at
from tests.support import eventually, unique_name

pytestmark = pytest.mark.timeout(120)

WAIT_S = 30.0
TOKEN = "0123456789abcdef0123456789abcdef"


@dataclass
class Served:
    """A coordinator with certificates at both ports, and metrics behind a token."""

    process: CoordinatorProcess
    live: Live
    management_port: int

    @property
    def port(self) -> int:
        return int(self.process.address.rpartition(":")[2])

    def metrics(self, *authorities: Authority, token: str = TOKEN) -> tuple[int, list[str]]:
        """Status and lines of `/metrics`."""
        context = ssl.create_default_context()
        for each in authorities:
            context.load_verify_locations(each.certificate)
        at = http.client.HTTPSConnection(
            LOOPBACK, self.management_port, timeout=WAIT_S, context=context
        )
        try:
            at.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            answer = at.getresponse()
            return answer.status, answer.read().decode().splitlines()
        finally:
            at.close()

    def figure(self, name: str, *authorities: Authority) -> float | None:
        """A metric by its whole name."""
        for line in self.metrics(*authorities)[1]:
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return None


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture
def served(mock_cluster: MockCluster, ca: Authority, tmp_path: Path) -> Iterator[Served]:
    live = Live(tmp_path / "live", ca.issue("first"), ca.certificate)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    (management_port,) = free_ports(1)
    settings = {
        "tls.cert.file": str(live.certificate),
        "tls.key.file": str(live.key),
        "tls.client.ca.file": str(live.authorities),
        "management.port": management_port,
        "management.tls.cert.file": str(live.certificate),
        "management.tls.key.file": str(live.key),
        "management.metrics.token.file": str(token),
    }
    with CoordinatorProcess(mock_cluster.bootstrap_servers, tmp_path, settings=settings) as process:
        yield Served(process, live, management_port)


def consumer_at(address: str, group: str, ca: Authority, client: Pair) -> ShareConsumer:
    return ShareConsumer(
        {
            "bootstrap.servers": address.replace(LOOPBACK, "localhost"),
            "group.id": group,
            "security.protocol": "ssl",
            "ssl.ca.location": str(ca.certificate),
            "ssl.certificate.location": str(client.certificate),
            "ssl.key.location": str(client.key),
        }
    )


class Load:
    """Records that go in one after the other, and come out of a stream that stays open."""

    def __init__(self, servers: str, topic: str, consumer: ShareConsumer) -> None:
        self._producer = Producer({"bootstrap.servers": servers})
        self._topic = topic
        self._numbers = itertools.count()
        self._consumer = consumer
        self._missing: set[bytes] = set()

    def goes_on(self) -> None:
        """Ten more records come, each once, over the connection that is there."""
        for number in itertools.islice(self._numbers, 10):
            value = b"%d" % number
            self._missing.add(value)
            self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(WAIT_S) == 0

        def all_came() -> bool:
            for message in self._consumer.poll(0.2):
                assert message.error() is None
                self._missing.remove(message.value())
            return not self._missing

        eventually(all_came, WAIT_S, "ten records")


def test_certificates_change_under_load(
    mock_cluster: MockCluster, served: Served, ca: Authority, other_ca: Authority
) -> None:
    topic, group = unique_name("t"), unique_name("g")
    client = ca.issue("client")
    assert f"https://localhost:{served.management_port}/healthz/ready" in served.process.log_tail()
    with consumer_at(served.process.address, group, ca, client) as consumer:
        Producer({"bootstrap.servers": mock_cluster.bootstrap_servers}).list_topics(topic)
        consumer.subscribe([topic])
        load = Load(mock_cluster.bootstrap_servers, topic, consumer)
        load.goes_on()
        # A new certificate of the same authority.
        second = ca.issue("second")
        served.live.put(second)
        eventually(lambda: shown_at(served.port) == pem_of(second), WAIT_S, "the new certificate")
        load.goes_on()
        # Another authority.
        third, another = other_ca.issue("third"), other_ca.issue("client")
        served.live.put(third, other_ca.certificate)
        eventually(lambda: shown_at(served.port) == pem_of(third), WAIT_S, "the new authority")
        load.goes_on()
        with consumer_at(served.process.address, unique_name("g"), other_ca, another) as newcomer:
            newcomer.subscribe([topic])
            eventually(lambda: newcomer.poll(0.2), WAIT_S, "records of a new connection")
        load.goes_on()
    assert served.metrics(other_ca, token="0" * 32)[0] == 401


def test_broken_files_are_told_and_not_used(served: Served, ca: Authority) -> None:
    refused = 'sharecoord_file_refused{settings="tls.cert.file, tls.key.file, tls.client.ca.file"}'
    days = 'sharecoord_certificate_days_left{setting="%s"}'
    eventually(lambda: served.figure(refused, ca) == 0.0, WAIT_S, "the files are good")
    for setting in ("tls.cert.file", "tls.client.ca.file", "management.tls.cert.file"):
        left = eventually(partial(served.figure, days % setting, ca), WAIT_S, setting)
        assert 1.9 < left <= 2.0
    before = shown_at(served.port)
    replace_file(served.live.key, b"broken")
    eventually(lambda: served.figure(refused, ca) == 1.0, WAIT_S, "the metric is red")
    assert shown_at(served.port) == before
    served.live.put(ca.issue("mended"))
    eventually(lambda: served.figure(refused, ca) == 0.0, WAIT_S, "the metric is green")
    assert shown_at(served.port) != before
