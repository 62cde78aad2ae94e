"""What the chart renders, for every supported combination of values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sharecoord.config import process
from sharecoord.config.endpoints import check_listen_security, parse_listen_address
from sharecoord.management.server import make_app
from sharecoord.runtime.status.status import StatusBoard
from tests.helm.conftest import (
    CHART,
    COMBINATIONS,
    Helm,
    Manifest,
    Render,
    config_file_of,
    coordinator_of,
    notes,
    of_kind,
    pod_of,
)

pytestmark = pytest.mark.timeout(900)

KUBERNETES = ["1.29", kubernetes_validate.latest_version()]
FOREIGN_KINDS = {"ServiceMonitor"}


def pod_specs(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """Every pod spec, test pods included."""
    return [pod["spec"] for pod in of_kind(manifests, "Pod")] + [pod_of(manifests)]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_helm_lint_is_content(helm: Helm, combination: str) -> None:
    values = str(CHART / "ci" / f"{combination}-values.yaml")
    done = helm.run("lint", "--strict", "--values", values, str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_manifests_are_valid(render: Render, combination: str, version: str) -> None:
    manifests = render(combination)
    kinds = {manifest["kind"] for manifest in manifests}
    assert {"ConfigMap", "Deployment", "ServiceAccount"} <= kinds
    for manifest in manifests:
        assert manifest["metadata"]["namespace"] == "queues"
        if manifest["kind"] not in FOREIGN_KINDS:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_pods_are_closed_by_default(render: Render, combination: str) -> None:
    for pod in pod_specs(render(combination)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod.get("volumes", []))
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            security = container["securityContext"]
            assert security["runAsNonRoot"] is True
            assert security["runAsUser"] == 10001
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_the_chart_makes_no_secret(render: Render, combination: str) -> None:
    manifests = render(combination)
    assert of_kind(manifests, "Secret") == []
    for account in of_kind(manifests, "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("pod_ip", "address"), [("10.0.0.7", "10.0.0.7:7070"), ("fd00::7", "[fd00::7]:7070")]
)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_the_coordinator_accepts_its_configuration(
    render: Render, combination: str, pod_ip: str, address: str, tmp_path: Path
) -> None:
    manifests = render(combination)
    container = coordinator_of(manifests)
    file = tmp_path / "config.yaml"
    file.write_text(config_file_of(manifests))
    environment = {
        variable["name"]: variable["value"].replace("$(POD_IP)", pod_ip)
        for variable in container.get("env", [])
        if variable["name"].startswith("SHARECOORD_") and "value" in variable
    }
    flags: dict[str, object] = {}
    for argument in container["args"][1:]:
        name, _, value = argument.removeprefix("--").partition("=")
        flags |= {SETTING_OF_FLAG[name]: value or True} if name in SETTING_OF_FLAG else {}
    if any(v["name"] == "SHARECOORD_STORE__URL" for v in container.get("env", [])):
        environment["SHARECOORD_STORE__URL"] = "postgresql://user:pass@db/sharecoord"
    config = process.load(file, environment, flags)
    assert config.management.host == "0.0.0.0"
    assert config.management.port == 7071
    assert config.store.url.shared == ("external" in combination)
    is_fleet = "external" in combination
    assert (config.coordinator.mode.value == "fleet") == is_fleet
    assert config.coordinator.advertised_address == (
        parse_listen_address(address) if is_fleet else None
    )
    # Beside it: the port that is named for the others, which a Service or a policy finds.
    door = {port["name"]: port["containerPort"] for port in container["ports"]}.get("peer")
    assert config.coordinator.peer_port == (door or 0)
    assert (door is not None) == is_fleet
    assert config.coordinator.peer_address is None
    is_open = check_listen_security(
        config.listen.address,
        tls=config.tls.enabled,
        knows_clients=config.knows_clients,
        insecure=config.listen.insecure,
    )
    assert bool(is_open) == config.listen.insecure


SETTING_OF_FLAG = {
    "kafka": "kafka.bootstrap.servers",
    "listen": "listen.address",
    "store": "store.url",
    "insecure": "listen.insecure",
    "kafka-listen": "kafka.port.listen",
}


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_mount_has_its_volume(render: Render, combination: str) -> None:
    pod = pod_of(render(combination))
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(paths) == len(set(paths))
        # What is mounted by subPath stays as it was when the pod started.
        assert not any("subPath" in mount for mount in container["volumeMounts"])
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_service_mode_on_sqlite(render: Render) -> None:
    manifests = render("service-sqlite")
    (deployment,) = of_kind(manifests, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    (claim,) = of_kind(manifests, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (service,) = of_kind(manifests, "Service")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {"grpc": 7070, "management": 7071}
    assert "peer" not in {port["name"] for port in coordinator_of(manifests)["ports"]}
    selector = service["spec"]["selector"].items()
    assert selector <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert "--listen=0.0.0.0:7070" in coordinator_of(manifests)["args"]
    assert of_kind(manifests, "PodDisruptionBudget") == []
    assert of_kind(manifests, "NetworkPolicy") == []


def test_service_mode_on_an_external_store(render: Render) -> None:
    manifests = render("service-external")
    (deployment,) = of_kind(manifests, "Deployment")
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["type"] == "RollingUpdate"
    assert of_kind(manifests, "PersistentVolumeClaim") == []
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    assert pod_of(manifests)["topologySpreadConstraints"][0]["maxSkew"] == 1
    # Workers are led to their own port, and to none of the coordinators'.
    (service,) = of_kind(manifests, "Service")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["grpc", "management"]
    store = {variable["name"]: variable for variable in coordinator_of(manifests)["env"]}
    reference = store["SHARECOORD_STORE__URL"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "sharecoord-store", "key": "url"}


def test_one_coordinator_on_an_external_store_stands_alone(render: Render) -> None:
    manifests = render("service-external", replicaCount=1)
    assert of_kind(manifests, "Deployment")[0]["spec"]["strategy"] == {"type": "Recreate"}
    assert of_kind(manifests, "PodDisruptionBudget") == []
    assert "fleet" not in config_file_of(manifests)


def test_probes_of_the_service(render: Render) -> None:
    clear = coordinator_of(render("service-sqlite-clear"))
    assert clear["readinessProbe"]["grpc"] == {"port": 7070}
    assert clear["livenessProbe"]["httpGet"] == {"path": "/healthz/live", "port": "management"}
    assert clear["startupProbe"]["httpGet"] == {"path": "/healthz/ready", "port": "management"}
    # The kubelet's gRPC probe speaks no TLS.
    encrypted = coordinator_of(render("service-sqlite"))
    assert encrypted["readinessProbe"]["httpGet"]["path"] == "/healthz/ready"


def test_own_probes_replace_the_charts(render: Render) -> None:
    own = {"tcpSocket": {"port": 7070}}
    container = coordinator_of(render("service-sqlite", readinessProbe=own, livenessProbe=own))
    assert container["readinessProbe"] == own
    assert container["livenessProbe"] == own


def test_the_sidecar_is_native(render: Render) -> None:
    manifests = render("sidecar-sqlite")
    pod = pod_of(manifests)
    (sidecar,) = pod["initContainers"]
    (app,) = pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/healthz/ready"
    assert "--listen=unix:/run/sharecoord/sharecoord.sock" in sidecar["args"]
    assert app["env"][0] == {
        "name": "SHARECOORD_BOOTSTRAP_SERVER",
        "value": "unix:/run/sharecoord/sharecoord.sock",
    }
    socket = {"name": "sharecoord-socket", "mountPath": "/run/sharecoord"}
    assert socket in sidecar["volumeMounts"]
    assert socket in app["volumeMounts"]
    assert of_kind(manifests, "Service") == []


def test_sidecars_of_several_pods_are_a_fleet_on_tcp(render: Render) -> None:
    manifests = render("sidecar-external")
    sidecar = coordinator_of(manifests)
    assert "--listen=0.0.0.0:7070" in sidecar["args"]
    assert sidecar["readinessProbe"]["grpc"] == {"port": 7070}
    names = {variable["name"] for variable in sidecar["env"]}
    assert {"SHARECOORD_STORE__URL", "SHARECOORD_COORDINATOR__ADVERTISED_ADDRESS"} <= names
    assert pod_of(manifests)["containers"][0]["env"][0]["value"] == "localhost:7070"


@pytest.mark.parametrize("version", KUBERNETES)
def test_a_chart_of_ones_own_can_include_the_sidecar(
    helm: Helm, parent_chart: Path, version: str
) -> None:
    manifests = helm.render(chart=parent_chart)
    kinds = sorted(manifest["kind"] for manifest in manifests)
    assert kinds == ["ConfigMap", "Deployment", "PersistentVolumeClaim"]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)
    (config_map,) = of_kind(manifests, "ConfigMap")
    volumes = {volume["name"]: volume for volume in pod_of(manifests)["volumes"]}
    assert volumes["sharecoord-config"]["configMap"]["name"] == config_map["metadata"]["name"]
    assert coordinator_of(manifests)["restartPolicy"] == "Always"


def test_the_copyable_example_is_what_the_chart_renders(helm: Helm) -> None:
    values = str(CHART / "ci" / "sidecar-sqlite-values.yaml")
    rendered = helm.render("--values", values)
    example = CHART / "examples" / "sidecar-deployment.yaml"
    kept = list(yaml.safe_load_all(example.read_text(encoding="utf-8")))
    assert rendered == kept, "wanted? then run: make chart-example"


def test_a_changed_configuration_restarts_the_pods(render: Render) -> None:
    def checksum(manifests: list[Manifest]) -> str:
        template = of_kind(manifests, "Deployment")[0]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    before, after = (
        render("service-sqlite"),
        render("service-sqlite", config={"log.level": "debug"}),
    )
    assert checksum(before) != checksum(after)


def test_a_claim_of_ones_own_is_used(render: Render) -> None:
    manifests = render("service-sqlite", **{"store.sqlite.existingClaim": "mine"})
    assert of_kind(manifests, "PersistentVolumeClaim") == []
    volumes = {volume["name"]: volume for volume in pod_of(manifests)["volumes"]}
    assert volumes["sharecoord-state"]["persistentVolumeClaim"] == {"claimName": "mine"}


def test_optional_objects(render: Render) -> None:
    manifests = render("service-sqlite-clear")
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["path"] == "/metrics"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (policy,) = of_kind(manifests, "NetworkPolicy")
    ports = [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]]
    assert ports == ["grpc", "management"]
    assert coordinator_of(manifests)["image"].startswith("registry.example/sharecoord@sha256:")


def peers_of(policy: Manifest) -> dict[str, list[Manifest]]:
    """Who may connect to each port."""
    return {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"]}


def allows(peers: list[Manifest], labels: Manifest) -> bool:
    """Whether a pod of the release's own namespace with these labels may connect."""
    return any(
        each["podSelector"].get("matchLabels", {}).items() <= labels.items()
        for each in peers
        if each.keys() == {"podSelector"}
    )


STRANGERS = [{"namespaceSelector": {"matchLabels": {"sharecoord": "worker"}}}]


@pytest.mark.parametrize("grpc_from", [[], STRANGERS])
@pytest.mark.parametrize("combination", ["service-external", "sidecar-external"])
def test_a_network_policy_lets_a_fleet_reach_itself_and_nobody_else(
    render: Render, combination: str, grpc_from: list[Manifest]
) -> None:
    manifests = render(combination, **{"networkPolicy.grpcFrom": grpc_from})
    (policy,), (deployment,) = (of_kind(manifests, k) for k in ("NetworkPolicy", "Deployment"))
    own = deployment["spec"]["template"]["metadata"]["labels"]
    peers = peers_of(policy)["peer"]
    assert allows(peers, own)
    # One rule, of labels that the release's pods alone have: no namespace, no block of addresses.
    assert [each.keys() for each in peers] == [{"podSelector"}]
    assert peers[0]["podSelector"].keys() == {"matchLabels"}
    for stranger in (
        {"app.kubernetes.io/name": "another", "app.kubernetes.io/instance": "shop"},
        {**own, "app.kubernetes.io/instance": "another"},
        {"sharecoord": "worker"},
        {},
    ):
        assert not allows(peers, stranger)
    (test_pod,) = of_kind(manifests, "Pod") or [{"metadata": {"labels": {}}}]
    assert not allows(peers, test_pod["metadata"]["labels"])


@pytest.mark.parametrize(
    ("combination", "own_workers"), [("service-external", False), ("sidecar-external", True)]
)
def test_coordinators_do_not_come_in_by_the_workers_port(
    render: Render, combination: str, own_workers: bool
) -> None:
    """Beside sidecars the pods are the workers', too, which are sent to another pod's sidecar."""
    manifests = render(combination, **{"networkPolicy.grpcFrom": STRANGERS})
    (policy,), (deployment,) = (of_kind(manifests, k) for k in ("NetworkPolicy", "Deployment"))
    peers = peers_of(policy)["grpc"]
    assert peers[0] == STRANGERS[0]
    assert allows(peers, deployment["spec"]["template"]["metadata"]["labels"]) is own_workers
    assert not allows(peers, {"app.kubernetes.io/name": "another"})


def test_a_coordinator_alone_has_no_door_for_others(render: Render) -> None:
    manifests = render("service-sqlite-clear")
    (policy,) = of_kind(manifests, "NetworkPolicy")
    assert peers_of(policy).keys() == {"grpc", "management"}
    assert "peer" not in {port["name"] for port in coordinator_of(manifests)["ports"]}


def test_a_network_policy_lets_the_test_pod_ask_for_health(render: Render) -> None:
    prometheus = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    manifests = render("service-sqlite-clear", **{"networkPolicy.managementFrom": prometheus})
    (policy,), (pod,) = (of_kind(manifests, kind) for kind in ("NetworkPolicy", "Pod"))
    peers = peers_of(policy)["management"]
    assert peers[0] == prometheus[0]
    assert allows(peers, pod["metadata"]["labels"])
    assert not allows(peers, {"app.kubernetes.io/name": "another"})


@pytest.mark.parametrize(("given", "limit_s"), [({}, 3600), ({"startupTimeoutSeconds": 45}, 45)])
def test_a_start_may_take_as_long_as_a_migration(
    render: Render, given: dict[str, int], limit_s: int
) -> None:
    probe = coordinator_of(render("service-sqlite", **given))["startupProbe"]
    assert 0 <= probe["failureThreshold"] * probe["periodSeconds"] - limit_s < 2


def test_the_notes_name_paths_that_are_there(helm: Helm) -> None:
    served = {getattr(route, "path", "") for route in make_app(StatusBoard()).routes}
    named = set(re.findall(r"http://localhost:7071(/\S*)", notes(helm, "service-sqlite")))
    assert named
    assert named <= served


def test_the_drain_fits_into_the_grace_period(render: Render) -> None:
    manifests = render("service-sqlite")
    sleep_s = int(coordinator_of(manifests)["lifecycle"]["preStop"]["exec"]["command"][1])
    assert sleep_s + 2 < pod_of(manifests)["terminationGracePeriodSeconds"]
    assert "lifecycle" not in coordinator_of(render("service-sqlite", preStopSleepSeconds=0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["mode=daemon"], "/mode"),
        (["replicaCount=two"], "/replicaCount"),
        (["kafka.bootstrapServers=kafka"], "/kafka/bootstrapServers"),
        (["store.type=redis"], "/store/type"),
        (["image.pullPolicy=Sometimes"], "/image/pullPolicy"),
        (["image.digest=sha256:abc"], "/image/digest"),
        (["service.grpcPort=70700"], "/service/grpcPort"),
        (["sidecar.socketDir=run"], "/sidecar/socketDir"),
        (["config.colour.blue=1"], "colour"),
        (["replicas=2"], "replicas"),
        (["store.external.password=x"], "password"),
    ],
)
def test_the_schema_refuses_wrong_values(helm: Helm, values: list[str], message: str) -> None:
    base = ["--values", str(CHART / "ci" / "service-sqlite-values.yaml")]
    refusal = helm.refusal(*base, *[f"--set={value}" for value in values])
    assert "values don't meet the specifications of the schema" in refusal
    assert message.strip("/").replace("/", ".") in refusal.replace("/", ".")


@pytest.mark.parametrize(
    ("combination", "value", "message"),
    [
        ("service-sqlite", "kafka.bootstrapServers=", "kafka.bootstrapServers is empty: set it"),
        ("service-sqlite", "replicaCount=2", "store.type is sqlite, which serves one coordinator"),
        ("service-sqlite", "tls.existingSecret=", "listens on TCP and has no TLS: set"),
        ("service-external", "tls.peerName=", "tls.peerName is empty: set it to a DNS name"),
        ("service-external", "store.external.existingSecret=", "store.external.existingSecret is"),
        ("sidecar-sqlite", "sidecar.app.image=", "sidecar.app.image is empty: set it"),
        ("sidecar-sqlite", "sidecar.replicas=2", "store.type is sqlite, which serves one"),
        ("sidecar-external", "insecure=false", "listens on TCP and has no TLS: set"),
    ],
)
def test_contradictions_are_refused_with_the_fix(
    helm: Helm, combination: str, value: str, message: str
) -> None:
    base = ["--values", str(CHART / "ci" / f"{combination}-values.yaml")]
    assert message in helm.refusal(*base, f"--set={value}")


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"kafka": {"sasl.password": "p"}}, True),
        ({"kafka": {"sasl": {"oauthbearer": {"client": {"secret": "p"}}}}}, True),
        ({"kafka.ssl.key.pem": "-----BEGIN PRIVATE KEY-----\nMIIE\n"}, True),
        ({"store.url": "postgresql://u:p4ss@h/d"}, True),
        ({"kafka.sasl.password": "${env:KAFKA_PASSWORD}"}, False),
        ({"store": {"url": "postgresql://u:${file:/run/secrets/db}@h:5432/d"}}, False),
        ({"log.level": "debug", "security.tokens.file": "/etc/tokens"}, False),
    ],
)
def test_no_secret_gets_into_the_config_map(
    helm: Helm, config: dict[str, object], refused: bool, tmp_path: Path
) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"config": config}), encoding="utf-8")
    base = ["--values", str(CHART / "ci" / "service-sqlite-values.yaml"), "--values", str(values)]
    if refused:
        assert "config has a secret in it, which would stand in a ConfigMap" in helm.refusal(*base)
    else:
        assert helm.render(*base)


@pytest.mark.parametrize(
    ("combination", "values", "is_insecure"),
    [
        ("service-sqlite", (), False),
        ("service-sqlite", ("insecure=true",), True),
        ("service-sqlite-clear", (), True),
        ("sidecar-sqlite", (), False),
    ],
)
def test_what_is_open_is_accepted_only_by_name(
    helm: Helm, combination: str, values: Sequence[str], *, is_insecure: bool
) -> None:
    base = ["--values", str(CHART / "ci" / f"{combination}-values.yaml")]
    manifests = helm.render(*base, *(f"--set={value}" for value in values))
    assert ("--insecure" in coordinator_of(manifests)["args"]) == is_insecure


def test_the_chart_is_of_the_same_version_as_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (CHART.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert version is not None
    assert chart["appVersion"] == version.group(1)
