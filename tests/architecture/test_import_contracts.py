"""The import contracts hold, and each of them breaks when its rule is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

PACKAGES = [
    "analytics",
    "api",
    "bench",
    "cli",
    "config",
    "core",
    "demo",
    "devenv",
    "events",
    "ingest",
    "kafka",
    "management",
    "observability",
    "peers",
    "runtime",
    "runtime/admin",
    "runtime/fleet",
    "runtime/group",
    "runtime/kernel",
    "runtime/letters",
    "runtime/member",
    "runtime/memory",
    "runtime/partition",
    "runtime/status",
    "security",
    "store",
    "testing",
    "wire",
]
MODULES = ("app", "errors", "ports", "runtime/coordinator")

# Contract, and imports that it must refuse: importer -> what its file says.
BROKEN: dict[str, dict[str, str]] = {
    "layers": {
        "sharecoord.demo.x": "import sharecoord.cli",
        "sharecoord.bench.x": "import sharecoord.demo",
        "sharecoord.app": "import sharecoord.demo",
        "sharecoord.api.x": "import sharecoord.app",
        "sharecoord.management.x": "import sharecoord.api",
        "sharecoord.runtime.x": "import sharecoord.management",
        "sharecoord.ports": "import sharecoord.runtime",
        "sharecoord.core.x": "import sharecoord.ports",
        "sharecoord.security.x": "import sharecoord.ports",
        "sharecoord.config.x": "import sharecoord.core",
        "sharecoord.errors": "import sharecoord.config",
    },
    "runtime-rooms": {
        "sharecoord.runtime.kernel.x": "import sharecoord.runtime.member",
        "sharecoord.runtime.partition.x": "import sharecoord.runtime.group",
        "sharecoord.runtime.group.x": "import sharecoord.runtime.fleet",
        "sharecoord.runtime.coordinator": "import sharecoord.runtime.admin",
    },
    "core": {"sharecoord.core.x": "import sharecoord.wire"},
    "core-rooms": {
        "sharecoord.core.window": "import sharecoord.core.order",
        "sharecoord.core.order": "import sharecoord.core.partition",
        "sharecoord.core.partition": "import sharecoord.core.fleet",
        "sharecoord.core.fleet": "",
    },
    "no-cycles": {
        "sharecoord.bench.a": (
            "import typing\nif typing.TYPE_CHECKING:\n    import sharecoord.bench.b"
        ),
        "sharecoord.bench.b": "import sharecoord.bench.a",
    },
    "adapters": {"sharecoord.store.x": "import sharecoord.wire"},
    "adapters-on-kafka": {"sharecoord.ingest.x": "import sharecoord.store"},
    "peers": {"sharecoord.peers.x": "import sharecoord.kafka"},
    "adapters-hidden": {
        "sharecoord.runtime.x": "import sharecoord.store",
        "sharecoord.api.x": "import sharecoord.observability",
    },
    "kafka-hidden": {"sharecoord.runtime.x": "import sharecoord.kafka"},
    "tools-hidden": {"sharecoord.app": "import sharecoord.testing"},
    "confluent-kafka": {
        "sharecoord.runtime.x": "import confluent_kafka.admin",
        "sharecoord.analytics.x": "import confluent_kafka",
        "sharecoord_sdk.x": "import confluent_kafka",
    },
    "sql": {"sharecoord.api.x": "import sqlalchemy.orm"},
    "grpc": {"sharecoord.runtime.x": "import grpc.aio", "sharecoord.cli.x": "import grpc"},
    "pyarrow": {"sharecoord.runtime.x": "import pyarrow.parquet"},
    "pyspark": {"sharecoord.bench.x": "import pyspark"},
    "analytics": {"sharecoord.analytics.x": "import sharecoord.ports"},
    "sdk-alone": {"sharecoord_sdk.x": "import sharecoord.errors"},
    "batches-alone": {
        "sharecoord_batches.x": "import sharecoord.errors",
        "sharecoord_batches.y": "import sharecoord_sdk",
    },
    "sdk-users": {"sharecoord.runtime.x": "import sharecoord_sdk"},
    "stubs": {"sharecoord.cli.x": "from sharecoord_sdk import _proto"},
    "wire": {"sharecoord.wire.x": "import sharecoord_sdk"},
}

# Imports that every contract must let pass.
ALLOWED: dict[str, str] = {
    "sharecoord.cli.x": "import sharecoord.app, sharecoord.demo, sharecoord_sdk",
    "sharecoord.app": "import sharecoord.api, sharecoord.store, sharecoord.kafka, sharecoord.peers",
    "sharecoord.api.x": "import grpc.aio, sharecoord.runtime, sharecoord.wire",
    "sharecoord.runtime.x": "import sharecoord.ports, sharecoord.core",
    "sharecoord.ports": "import sharecoord.core",
    "sharecoord.config.x": "import sharecoord.errors, yaml",
    "sharecoord.store.x": "import sqlalchemy, alembic, sharecoord.ports, sharecoord.store",
    "sharecoord.ingest.x": "import sharecoord.kafka, sharecoord.core",
    "sharecoord.kafka.x": "import confluent_kafka, sharecoord.ports",
    "sharecoord.peers.x": "import sharecoord.wire, grpc",
    "sharecoord.wire.x": "from sharecoord_sdk import _proto\nimport sharecoord.core, grpc_status",
    "sharecoord.analytics.kafka_source": "import confluent_kafka, pyspark, sharecoord.core",
    "sharecoord.testing.x": "import sharecoord.store, sharecoord.api, sharecoord_sdk",
    "sharecoord.devenv.x": "import confluent_kafka, sharecoord.store",
    "sharecoord_sdk.x": "from sharecoord_sdk import _proto\nimport grpc",
    "sharecoord_batches.x": "import cramjam, sharecoord_batches",
}


def lay_out(root: Path, imports: dict[str, str]) -> None:
    """Writes a tree with all packages, empty but for these imports."""
    files = {f"sharecoord/{name}/__init__.py" for name in PACKAGES}
    files |= {f"sharecoord/{name}.py" for name in MODULES}
    files |= {"sharecoord/__init__.py", "sharecoord_sdk/__init__.py"}
    files |= {"sharecoord_sdk/_proto/__init__.py", "sharecoord_batches/__init__.py"}
    texts = dict.fromkeys(sorted(files), "")
    for module, text in imports.items():
        texts[f"{module.replace('.', '/')}.py"] = f"{text}\n"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def lint(folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs import-linter on the packages below `folder`; returns exit code and output."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    command += ["--config", str(ROOT / ".importlinter"), "--no-cache", "--no-logo", *arguments]
    places = [folder, folder / "sdk", folder / "sdk" / "batches", ROOT]
    path = os.pathsep.join(map(str, places))
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def contracts() -> set[str]:
    """The ids of all contracts."""
    prefix = "[importlinter:contract:"
    lines = (ROOT / ".importlinter").read_text(encoding="utf-8").splitlines()
    return {line.removeprefix(prefix).rstrip("]") for line in lines if line.startswith(prefix)}


def test_the_contracts_hold() -> None:
    code, output = lint(ROOT)
    assert code == 0, output


def test_every_contract_has_its_counterexample() -> None:
    assert contracts() == set(BROKEN)


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    lay_out(tmp_path, ALLOWED)
    code, output = lint(tmp_path)
    assert code == 0, output
    assert f"Contracts: {len(BROKEN)} kept, 0 broken." in output


@pytest.mark.parametrize("contract", sorted(BROKEN))
def test_a_broken_rule_is_found(tmp_path: Path, contract: str) -> None:
    lay_out(tmp_path, BROKEN[contract])
    code, output = lint(tmp_path, "--contract", contract)
    assert code == 1, output
    assert "Contracts: 0 kept, 1 broken." in output
    missing = [importer for importer in BROKEN[contract] if not is_named(importer, output)]
    assert missing == [], output


def is_named(importer: str, output: str) -> bool:
    """Whether an importer is named; a contract on cycles names both ends without their package."""
    return importer in output or f".{importer.rpartition('.')[2]} " in output
