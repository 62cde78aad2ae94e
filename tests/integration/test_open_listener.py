"""Who listens for other machines says how it is protected, or that it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import free_ports

pytestmark = pytest.mark.timeout(120)


def open_to_others(servers: str, at: Path, **more: object) -> CoordinatorProcess:
    (port,) = free_ports(1)
    settings = {
        "listen.address": f"0.0.0.0:{port}",
        "log.format": "console",
        # A run of all suites with security gives those nothing that have such a setting.
        "security.audit.sink": "off",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return CoordinatorProcess(servers, at, settings=settings)


def test_an_open_listener_does_not_start_and_says_what_is_missing(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    process = open_to_others(mock_cluster.bootstrap_servers, tmp_path)
    with pytest.raises(DevenvError, match="ended with exit code"):
        process.start()
    said = " ".join(process.log_tail().split())
    assert "there is no TLS" in said
    assert "nothing tells who connects" in said
    assert "security.tokens.file or security.oidc.issuer" in said
    assert "--insecure" in said


def test_one_that_is_accepted_starts_with_a_warning(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    with open_to_others(mock_cluster.bootstrap_servers, tmp_path, listen_insecure=True) as process:
        (line,) = [each for each in process.log_tail().splitlines() if "listener is open" in each]
    assert "warning" in line
    assert "there is no TLS" in line
    assert "nothing tells who connects" in line


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("security.rules.file", "{folder}/empty"),
        ("security.tokens.file", "{folder}/none"),
        ("security.audit.sink", "file:{folder}/none/audit"),
        ("management.metrics.token.file", "{folder}/empty"),
    ],
)
def test_a_file_that_can_not_be_used_is_named_though_kafka_is_away(
    tmp_path: Path, setting: str, value: str
) -> None:
    (tmp_path / "empty").touch()
    (nobody,) = free_ports(1)
    settings = {setting: value.format(folder=tmp_path), "management.enable": True}
    process = CoordinatorProcess(f"127.0.0.1:{nobody}", tmp_path, settings=settings)
    with pytest.raises(DevenvError, match="ended with exit code"):
        process.start()
    assert setting in process.log_tail()
