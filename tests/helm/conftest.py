"""A real Helm, and what it renders."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.sources import ROOT

CHART = ROOT / "helm" / "sharecoord"
COMBINATIONS = sorted(path.stem.removesuffix("-values") for path in CHART.glob("ci/*-values.yaml"))
Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
HELM_BUILD_TIMEOUT_S = 900


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    """The manifests of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pod_of(manifests: list[Manifest]) -> dict[str, Any]:
    """The pod spec of the one Deployment."""
    (deployment,) = of_kind(manifests, "Deployment")
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def coordinator_of(manifests: list[Manifest]) -> dict[str, Any]:
    """The coordinator's container, wherever it stands."""
    pod = pod_of(manifests)
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    (found,) = [container for container in containers if container["name"] == "sharecoord"]
    coordinator: dict[str, Any] = found
    return coordinator


def config_file_of(manifests: list[Manifest]) -> str:
    """The coordinator's configuration file."""
    (text,) = [
        config_map["data"]["config.yaml"]
        for config_map in of_kind(manifests, "ConfigMap")
        if "config.yaml" in config_map["data"]
    ]
    return str(text)


class Helm:
    """Runs Helm in a home of its own, so that nobody's plug-ins and repositories matter."""

    def __init__(self, program: str, home: Path) -> None:
        self._program = program
        self._environment = {
            "HOME": str(home),
            "PATH": "/usr/bin:/bin",
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_DATA_HOME": str(home / "data"),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs one command; the caller looks at the exit code."""
        return subprocess.run(
            [self._program, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def render(self, *arguments: str, chart: Path = CHART) -> list[Manifest]:
        """The manifests of `helm template`, test pods included.

        Raises:
            AssertionError: Helm refused; the message is Helm's.
        """
        done = self.run("template", "shop", str(chart), "--namespace", "queues", *arguments)
        assert done.returncode == 0, done.stderr
        return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]

    def refusal(self, *arguments: str) -> str:
        """What Helm says when it refuses to render."""
        done = self.run("template", "shop", str(CHART), *arguments)
        assert done.returncode != 0, "Helm rendered what it had to refuse"
        return done.stderr


def notes(helm: Helm, combination: str) -> str:
    """What Helm prints after an installation."""
    values = str(CHART / "ci" / f"{combination}-values.yaml")
    done = helm.run("install", "shop", str(CHART), "--dry-run=client", "--values", values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm from the PATH or from the cache; built by Go when there is none."""
    done = subprocess.run(
        [ROOT / "tools" / "ensure_helm.sh"],
        capture_output=True,
        text=True,
        check=False,
        timeout=HELM_BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return Helm(done.stdout.strip(), tmp_path_factory.mktemp("helm-home"))


@pytest.fixture
def render(helm: Helm) -> Render:
    """Renders the chart with values given as Python data, on top of a file of `ci/`."""

    def rendered(base: str, **values: object) -> list[Manifest]:
        sets = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
        return helm.render("--values", str(CHART / "ci" / f"{base}-values.yaml"), *sets)

    return rendered


@pytest.fixture
def parent_chart(tmp_path: Path) -> Path:
    """The example chart that has this one as a dependency, vendored as `helm dependency` does."""
    parent = tmp_path / "worker"
    shutil.copytree(CHART / "examples" / "parent-chart", parent)
    shutil.copytree(CHART, parent / "charts" / "sharecoord")
    return parent
