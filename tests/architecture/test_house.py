"""Makefile, CI, pinned versions, container and license fit together."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.sources import ROOT


def read(name: str) -> str:
    """A file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def pins() -> dict[str, str]:
    """Exact versions by canonical name."""
    lines = [line for line in read("constraints.txt").splitlines() if re.match(r"\w", line)]
    pairs = [line.split("==") for line in lines]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[str]:
    """What the distributions, their extras and the test group ask for."""
    server = tomllib.loads(read("pyproject.toml"))
    sdk = tomllib.loads(read("sdk/pyproject.toml"))
    found = [*server["project"]["dependencies"], *sdk["project"]["dependencies"]]
    batches = tomllib.loads(read("sdk/batches/pyproject.toml"))["project"]
    found += batches["dependencies"]
    for project in (server["project"], batches):
        for extra in project["optional-dependencies"].values():
            found += extra
    found += server["dependency-groups"]["test"] + server["build-system"]["requires"]
    return sorted({text for text in found if not text.startswith("sharecoord-")})


@pytest.mark.parametrize("text", requirements())
def test_every_requirement_is_pinned_within_its_bounds(text: str) -> None:
    wanted = Requirement(text)
    pinned = pins()
    name = canonicalize_name(wanted.name)
    assert name in pinned, f"add {name}==... to constraints.txt"
    assert wanted.specifier.contains(pinned[name], prereleases=True)


@pytest.mark.parametrize("folder", ["sdk", "sdk/batches"])
def test_the_server_pins_the_other_distributions_to_its_own_version(folder: str) -> None:
    server = tomllib.loads(read("pyproject.toml"))["project"]
    other = tomllib.loads(read(f"{folder}/pyproject.toml"))["project"]
    assert server["version"] == other["version"]
    wanted = [Requirement(text) for text in server["dependencies"]]
    (pinned,) = (each for each in wanted if each.name == other["name"])
    assert str(pinned.specifier) == f"=={server['version']}"
    assert pinned.extras <= set(other.get("optional-dependencies", {}))


def test_help_lists_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", read("Makefile"), re.MULTILINE)
    assert phony is not None
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ}
    )
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert sorted(listed) == sorted(phony.group(1).split())


def test_ci_lints_and_runs_the_test_command() -> None:
    script = read(".ci/run")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "set -euo pipefail" in script
    assert 0 < script.index("\nmake lint\n") < script.index("\nmake test ")


@pytest.mark.parametrize("path", sorted((ROOT / "tools").glob("*.sh")), ids=lambda p: p.name)
def test_shell_tools_stop_at_the_first_error(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_the_container_is_closed_by_default() -> None:
    lines = read("Dockerfile").splitlines()
    last = {line.split()[0]: line for line in lines if re.match(r"[A-Z]+ ", line)}
    assert last["USER"] == "USER 10001:10001"
    assert last["ENTRYPOINT"] == 'ENTRYPOINT ["sharecoord"]'
    assert last["CMD"] == 'CMD ["serve"]'
    assert last["VOLUME"] == 'VOLUME ["/var/lib/sharecoord"]'
    assert not re.search(r"\b(curl|wget|ADD)\b", "\n".join(lines))


def test_the_license_is_the_declared_one() -> None:
    declared = tomllib.loads(read("pyproject.toml"))["project"]["license"]
    assert declared == "Apache-2.0"
    assert "Apache License\n                           Version 2.0" in read("LICENSE")
    # Wheels of this one are handed out alone.
    assert read("sdk/batches/LICENSE") == read("LICENSE")


def test_the_changelog_has_a_place_for_the_next_change() -> None:
    assert re.search(r"^## \[Unreleased\]$", read("CHANGELOG.md"), re.MULTILINE)
