"""Who gets in: the chart's values about it, and what reaches the coordinator of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from sharecoord.config import process
from sharecoord.config.process import ProcessConfig
from sharecoord.config.process_settings import SecurityConfig
from sharecoord.config.setting import settings_of
from sharecoord.security.files import WatchedFiles
from sharecoord.security.rules import read_rules
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


def config_of(manifests: list[Manifest], folder: Path) -> ProcessConfig:
    """What the coordinator makes of the file alone."""
    file = folder / "config.yaml"
    file.write_text(config_file_of(manifests), encoding="utf-8")
    store = {"SHARECOORD_STORE__URL": "postgresql://user:pass@db/sharecoord"}
    return process.load(file, store, {})


def test_every_setting_of_security_has_a_value(render: Render, tmp_path: Path) -> None:
    config = config_of(render("service-external-secure"), tmp_path)
    unset = {
        setting.name
        for attribute, setting in settings_of(SecurityConfig).items()
        if getattr(config.security, attribute) == getattr(SecurityConfig(), attribute)
    }
    assert unset == set()
    assert config.security.oidc_clock_skew_ms == 10_000
    assert config.security.audit_queue_max_bytes == 8 << 20
    assert [name.value for name in config.security.certificate_names] == ["uri", "common-name"]
    assert config.knows_clients
    assert not config.listen.reflection
    assert config.tls.client_ca_file == "/etc/sharecoord/tls/ca.crt"


def test_without_values_the_program_decides_and_the_audit_goes_to_stdout(
    render: Render, tmp_path: Path
) -> None:
    written = yaml.safe_load(config_file_of(render("sidecar-sqlite")))
    assert written == {
        "management": {"host": "0.0.0.0", "port": 7071},
        "security.audit.sink": "stdout",
    }


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_file_that_the_settings_name_is_mounted(render: Render, combination: str) -> None:
    manifests = render(combination)
    mounts = {mount["mountPath"] for mount in coordinator_of(manifests)["volumeMounts"]}
    named = re.findall(r"/etc/sharecoord/\S+", config_file_of(manifests))
    assert {path.rpartition("/")[0] for path in named} <= mounts


def test_secrets_are_mounted_from_what_is_there(render: Render) -> None:
    volumes = {
        volume["name"].removeprefix("sharecoord-"): volume
        for volume in pod_of(render("service-external-secure"))["volumes"]
    }
    secrets = {
        name: volume["secret"]["secretName"]
        for name, volume in volumes.items()
        if "secret" in volume
    }
    assert secrets == {
        "tls": "sharecoord-tls",
        "tokens": "sharecoord-tokens",
        "oidc": "idp-ca",
        "management-tls": "sharecoord-management",
        "metrics-token": "sharecoord-metrics",
    }
    assert {volumes[name]["secret"]["defaultMode"] for name in secrets} == {0o440}
    assert volumes["rules"]["configMap"] == {"name": "sharecoord-rules"}


# -- rules -----------------------------------------------------------------------------------------


def rules_of(manifests: list[Manifest]) -> Manifest:
    """The chart's ConfigMap with the rules, which is the one that is mounted."""
    (volume,) = [v for v in pod_of(manifests)["volumes"] if v["name"] == "sharecoord-rules"]
    (found,) = [
        config_map
        for config_map in of_kind(manifests, "ConfigMap")
        if config_map["metadata"]["name"] == volume["configMap"]["name"]
    ]
    return found


def checksum_of(manifests: list[Manifest]) -> str:
    """What restarts the pods when it changes."""
    template = of_kind(manifests, "Deployment")[0]["spec"]["template"]
    return str(template["metadata"]["annotations"]["checksum/config"])


NOBODY_MAY = "rules: []\n"


def test_inline_rules_are_written_as_they_are(render: Render) -> None:
    """So the line that a decision names is the line of the user's file."""
    values = yaml.safe_load(
        (CHART / "ci" / "service-sqlite-tokens-values.yaml").read_text(encoding="utf-8")
    )
    data = rules_of(render("service-sqlite-tokens"))["data"]
    assert data == {"rules.yaml": values["security"]["rules"]["inline"]}
    assert read_rules(data["rules.yaml"].encode())


def test_changed_rules_restart_no_pod(render: Render) -> None:
    before = render("service-sqlite-tokens")
    after = render("service-sqlite-tokens", **{"security.rules.inline": NOBODY_MAY})
    assert rules_of(after)["data"] == {"rules.yaml": NOBODY_MAY}
    assert checksum_of(before) == checksum_of(after)
    assert of_kind(before, "Deployment") == of_kind(after, "Deployment")


def test_changed_rules_reach_the_coordinator(render: Render, tmp_path: Path) -> None:
    """As the kubelet brings them: it writes a new folder, and turns the link `..data` to it."""
    versions = (
        rules_of(render("service-sqlite-tokens")),
        rules_of(render("service-sqlite-tokens", **{"security.rules.inline": NOBODY_MAY})),
    )
    for number, config_map in enumerate(versions):
        (tmp_path / f"..{number}").mkdir()
        for name, text in config_map["data"].items():
            (tmp_path / f"..{number}" / name).write_text(text, encoding="utf-8")
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "rules.yaml").symlink_to("..data/rules.yaml")
    name = "security.rules.file"
    rules = WatchedFiles(
        {name: str(tmp_path / "rules.yaml")}, lambda contents: read_rules(contents[name])
    )
    before = rules.value
    assert not rules.look()
    (tmp_path / "..data_tmp").symlink_to("..1")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    assert rules.look()
    assert rules.value is not before
    assert rules.problem == ""


def test_a_chart_of_ones_own_gets_the_rules_too(helm: Helm, parent_chart: Path) -> None:
    inline = f"--set-json=sharecoord.security.rules.inline={json.dumps(NOBODY_MAY)}"
    manifests = helm.render(inline, chart=parent_chart)
    assert rules_of(manifests)["data"] == {"rules.yaml": NOBODY_MAY}
    mounts = [mount["mountPath"] for mount in coordinator_of(manifests)["volumeMounts"]]
    assert "/etc/sharecoord/rules" in mounts


# -- the management port ---------------------------------------------------------------------------


def test_a_management_port_with_tls_is_asked_over_it(render: Render) -> None:
    manifests = render("service-external-secure")
    container = coordinator_of(manifests)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    (service,) = of_kind(manifests, "Service")
    assert {port["appProtocol"] for port in service["spec"]["ports"]} == {"https"}
    (pod,) = of_kind(manifests, "Pod")
    assert pod["spec"]["containers"][0]["args"][1].startswith("https://")


def test_prometheus_shows_the_token_and_checks_the_certificate(render: Render) -> None:
    (monitor,) = of_kind(render("service-external-secure"), "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "sharecoord-management", "key": "ca.crt"}},
        "serverName": "shop-sharecoord.queues.svc",
    }
    assert endpoint["authorization"] == {
        "credentials": {"name": "sharecoord-metrics", "key": "token"}
    }


def test_an_own_tls_config_replaces_the_charts(render: Render) -> None:
    own = {"serverName": "metrics.example"}
    values = {"metrics.serviceMonitor.tlsConfig": own}
    (monitor,) = of_kind(render("service-external-secure", **values), "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["tlsConfig"] == own


def test_a_clear_management_port_is_asked_in_clear_text(render: Render) -> None:
    (monitor,) = of_kind(render("service-sqlite-clear"), "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0].keys() == {"port", "path", "interval"}


def test_the_notes_say_who_gets_in(helm: Helm) -> None:
    text = notes(helm, "service-external-secure")
    assert "a certificate (each must have one), or a token, or a token of https://idp" in text
    assert "ConfigMap sharecoord-rules" in text
    assert "https://localhost:7071/metrics" in text
    assert "http://" not in text
    assert "insecure=true accepts that" in notes(helm, "service-sqlite-clear")


# -- the sidecar's socket --------------------------------------------------------------------------


def test_the_mode_of_the_socket(render: Render, tmp_path: Path) -> None:
    assert config_of(render("sidecar-sqlite"), tmp_path).listen.socket_mode == 0o600
    assert config_of(render("sidecar-sqlite-rules"), tmp_path).listen.socket_mode == 0o660


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("security.tokens.existingSecret=Bad_Name", "security.tokens.existingSecret"),
        ("security.tokens.token=abc", "token"),
        ("security.tokens.key=a/b", "security.tokens.key"),
        ("security.oidc.jwks=http://idp.example/keys", "security.oidc.jwks"),
        ("security.oidc.clockSkew=soon", "security.oidc.clockSkew"),
        ("security.audit.sink=syslog", "security.audit.sink"),
        ("security.audit.queueMax=1", "security.audit.queueMax"),
        ("security.certificateNames={serial}", "security.certificateNames"),
        ("sidecar.socketMode=0777", "sidecar.socketMode"),
        ("tls.clientCa=ca.crt", "tls.clientCa"),
        ("reflection=off", "reflection"),
    ],
)
def test_the_schema_refuses_wrong_values(helm: Helm, value: str, place: str) -> None:
    base = ["--values", str(CHART / "ci" / "service-sqlite-values.yaml")]
    refusal = helm.refusal(*base, f"--set={value}")
    assert "values don't meet the specifications of the schema" in refusal
    assert place in refusal.replace("/", ".")


@pytest.mark.parametrize(
    ("combination", "values", "message"),
    [
        (
            "service-sqlite",
            ["security.oidc.issuer=https://idp.example", "security.oidc.jwks=/keys.json"],
            "security.oidc.issuer is set and security.oidc.audience is empty",
        ),
        (
            "service-sqlite",
            ["security.oidc.audience=queue"],
            "security.oidc.audience is set and security.oidc.issuer is empty",
        ),
        (
            "service-sqlite",
            ["security.oidc.groupsClaim=roles"],
            "security.oidc.groupsClaim is set and security.oidc.audience is empty",
        ),
        (
            "service-external-secure",
            ["security.oidc.jwks=/etc/keys/jwks.json"],
            "security.oidc.caSecret is set, and security.oidc.jwks is no https:// address",
        ),
        (
            "service-sqlite-tokens",
            ["security.rules.existingConfigMap=rules"],
            "security.rules.existingConfigMap and security.rules.inline are both set",
        ),
        ("service-sqlite", ["tls.clientCa=false"], "nothing tells who connects"),
        ("service-sqlite-tokens", ["security.tokens.existingSecret="], "nothing tells who"),
        ("service-sqlite-tokens", ["tls.existingSecret="], "listens on TCP and has no TLS: set"),
        ("sidecar-sqlite", ["tls.clientCa=true"], "the coordinator speaks no TLS"),
        ("sidecar-external", ["sidecar.socketMode=0660"], "sidecar.socketMode is set, and"),
        (
            "service-sqlite",
            ["config.management.tls.cert.file=/etc/tls.crt"],
            "config has management.tls.cert.file, of which the probes would know nothing",
        ),
        ("service-sqlite-clear", ["tls.clientCa=true"], "the coordinator speaks no TLS"),
        (
            "service-sqlite",
            ["metrics.serviceMonitor.tlsConfig.serverName=a"],
            "metrics.serviceMonitor.tlsConfig is set, and the management port speaks no TLS",
        ),
        (
            "service-sqlite-tokens",
            ["config.security.tokens.file=/etc/tokens"],
            "config has security.tokens.file, which the chart sets",
        ),
        (
            "service-sqlite",
            [r"config.tls\.client\.ca\.file=/etc/ca.crt"],
            "config has tls.client.ca.file, which the chart sets",
        ),
        (
            "service-sqlite",
            [r"config.security.audit\.sink=off"],
            "config has security.audit.sink, which the chart sets",
        ),
    ],
)
def test_contradictions_are_refused_with_the_fix(
    helm: Helm, combination: str, values: Sequence[str], message: str
) -> None:
    base = ["--values", str(CHART / "ci" / f"{combination}-values.yaml")]
    assert message in helm.refusal(*base, *(f"--set={value}" for value in values))


@pytest.mark.parametrize(
    "values",
    [
        ["security.tokens.existingSecret=tokens"],
        [
            "security.oidc.issuer=https://idp.example",
            "security.oidc.audience=queue",
            "security.oidc.jwks=https://idp.example/jwks.json",
        ],
        ["config.security.tokens.file=/run/tokens"],
        [r"config.tls\.client.ca\.file=/run/ca.crt"],
        ["extraEnv[0].name=SHARECOORD_SECURITY__TOKENS_FILE", "extraEnv[0].value=/run/tokens"],
        ["extraEnvFrom[0].secretRef.name=settings"],
        ["insecure=true"],
    ],
)
def test_each_way_to_know_clients_is_enough(helm: Helm, values: Sequence[str]) -> None:
    base = [
        "--values",
        str(CHART / "ci" / "service-sqlite-values.yaml"),
        "--set=tls.clientCa=false",
    ]
    assert of_kind(helm.render(*base, *(f"--set={value}" for value in values)), "Deployment")
