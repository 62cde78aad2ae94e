"""The chart's Kafka port: who is led where, and who gets there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helm.conftest import (
    CHART,
    Helm,
    Manifest,
    Render,
    coordinator_of,
    notes,
    of_kind,
)

pytestmark = pytest.mark.timeout(900)

ADVERTISED = "SHARECOORD_KAFKA__PORT_ADVERTISED"
SERVICE, FLEET, SIDECAR = (
    f"{name}-kafka-port" for name in ("service-sqlite", "service-external", "sidecar-sqlite")
)


def variables_of(manifests: list[Manifest]) -> dict[str, str]:
    """The variables of the coordinator that have a plain value, in their order."""
    given = coordinator_of(manifests).get("env", [])
    return {each["name"]: each.get("value", "") for each in given}


def ports_of(manifests: list[Manifest]) -> dict[str, int]:
    """The ports of the coordinator's container."""
    return {port["name"]: port["containerPort"] for port in coordinator_of(manifests)["ports"]}


def peers_of(manifests: list[Manifest]) -> dict[str, list[Manifest]]:
    """Who may connect to each port."""
    (policy,) = of_kind(manifests, "NetworkPolicy")
    return {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}


def test_one_coordinator_is_told_by_the_name_of_its_service(render: Render) -> None:
    manifests = render(SERVICE)
    assert "--kafka-listen=0.0.0.0:19092" in coordinator_of(manifests)["args"]
    assert ports_of(manifests)["kafka"] == 19092
    assert variables_of(manifests)[ADVERTISED] == "shop-sharecoord.queues.svc:9093"
    (service,) = of_kind(manifests, "Service")
    (port,) = [each for each in service["spec"]["ports"] if each["name"] == "kafka"]
    assert (port["port"], port["targetPort"]) == (9093, "kafka")
    assert peers_of(manifests)["kafka"] == [{"podSelector": {}}]


def test_what_leads_to_it_from_outside_is_told(render: Render) -> None:
    values = {"kafkaPort.advertised": "queue.example:443", "service.type": "LoadBalancer"}
    manifests = render(SERVICE, **values)
    assert variables_of(manifests)[ADVERTISED] == "queue.example:443"


def test_each_coordinator_of_a_fleet_is_told_by_its_pod(render: Render) -> None:
    """All connections of a client must reach the same one, which a Service does not see to."""
    manifests = render(FLEET)
    variables = variables_of(manifests)
    assert variables[ADVERTISED] == "[$(POD_IP)]:9092"
    names = list(variables)
    assert names.index("POD_IP") < names.index(ADVERTISED)
    peers = peers_of(manifests)
    assert peers["kafka"] == [{"namespaceSelector": {"matchLabels": {"sharecoord": "worker"}}}]
    assert peers["grpc"] == [{"podSelector": {}}]


@pytest.mark.parametrize("replicas", [1, 3])
def test_beside_an_application_it_is_at_localhost(render: Render, replicas: int) -> None:
    store = {"type": "external", "external": {"existingSecret": "store"}}
    manifests = render(
        SIDECAR,
        insecure=True,
        **{
            "sidecar.replicas": replicas,
            "networkPolicy.enabled": True,
            "store": store if replicas > 1 else {"type": "sqlite"},
        },
    )
    assert "--kafka-listen=localhost:9092" in coordinator_of(manifests)["args"]
    assert "kafka" not in ports_of(manifests)
    assert "kafka" not in peers_of(manifests)
    assert ADVERTISED not in variables_of(manifests)


def test_a_chart_of_ones_own_gets_it_too(helm: Helm, parent_chart: Path) -> None:
    manifests = helm.render("--set=sharecoord.kafkaPort.enabled=true", chart=parent_chart)
    assert "--kafka-listen=localhost:9092" in coordinator_of(manifests)["args"]


def test_it_is_off_by_default(render: Render) -> None:
    manifests = render("service-external")
    assert "kafka" not in ports_of(manifests)
    assert "kafka" not in peers_of(manifests)
    assert ADVERTISED not in variables_of(manifests)
    (service,) = of_kind(manifests, "Service")
    assert "kafka" not in {port["name"] for port in service["spec"]["ports"]}
    assert not any("kafka-listen" in each for each in coordinator_of(manifests)["args"])


def test_the_notes_say_where(helm: Helm) -> None:
    text = notes(helm, SERVICE)
    assert "svc:9093, and are led to shop-sharecoord.default.svc:9093" in text
    assert "bootstrap.servers=localhost:9092" in notes(helm, SIDECAR)


@pytest.mark.parametrize(
    ("combination", "values", "message"),
    [
        (FLEET, ["kafkaPort.advertised=a:1"], "one address for several coordinators"),
        (SIDECAR, ["kafkaPort.advertised=a:1"], "no Kafka port that others reach"),
        ("service-sqlite", ["kafkaPort.advertised=a:1"], "no Kafka port that others reach"),
        (SERVICE, ["kafkaPort.port=7071"], "a port that the coordinator has in use"),
        (SERVICE, ["tls.existingSecret="], "listens on TCP and has no TLS"),
        (SERVICE, [r"config.kafka\.port\.listen=localhost:1"], "config has kafka.port.listen"),
        (SERVICE, ["config.kafka.port.advertised=a:1"], "config has kafka.port.advertised"),
        (SERVICE, ["kafkaPort.port=80"], "kafkaPort.port"),
        (SERVICE, ["kafkaPort.advertised=a"], "kafkaPort.advertised"),
        (SERVICE, ["service.kafkaPort=0"], "service.kafkaPort"),
        (SERVICE, ["kafkaPort.listen=a:1"], "kafkaPort"),
    ],
)
def test_what_can_not_be_is_refused(
    helm: Helm, combination: str, values: Sequence[str], message: str
) -> None:
    base = ["--values", str(CHART / "ci" / f"{combination}-values.yaml")]
    refusal = helm.refusal(*base, *(f"--set={value}" for value in values))
    assert message in refusal.replace("/", ".")
