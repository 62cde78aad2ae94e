"""Core decides and does nothing else; analytics and the SDK stay light to ship."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.sources import ROOT, python_files, relative

CORE = ROOT / "sharecoord" / "core"
ANALYTICS = ROOT / "sharecoord" / "analytics"
SDK = ROOT / "sdk" / "sharecoord_sdk"

# No clock, no waiting, no log, no chance, no thread, no outside world.
NOT_IN_CORE = {
    "asyncio",
    "concurrent",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "secrets",
    "selectors",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
}
HEAVY = {"alembic", "confluent_kafka", "grpc", "pandas", "pyarrow", "sqlalchemy"}


def imported_modules(nodes: Iterator[ast.AST]) -> set[str]:
    """The absolute names of the modules that these nodes import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def imports_of(path: Path) -> set[str]:
    """Everything that a file imports, wherever it does."""
    return imported_modules(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports_at_start(path: Path) -> set[str]:
    """What importing a file imports at once (not what its functions import later)."""
    return imported_modules(iter(ast.parse(path.read_text(encoding="utf-8")).body))


def core_may_import(module: str) -> bool:
    """The standard library's pure part, core itself, errors and config."""
    if module.startswith("sharecoord"):
        return module.startswith(("sharecoord.core", "sharecoord.errors", "sharecoord.config"))
    top = module.split(".")[0]
    return top in sys.stdlib_module_names and top not in NOT_IN_CORE


def test_core_imports_nothing_but_the_pure_standard_library_errors_and_config() -> None:
    found = [
        f"{relative(path)} imports {module}"
        for path in python_files(CORE)
        for module in sorted(imports_of(path))
        if not core_may_import(module)
    ]
    assert found == []


def test_core_never_waits() -> None:
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = [
        relative(path)
        for path in python_files(CORE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds)
    ]
    assert found == []


def test_analytics_imports_nothing_heavy_at_start() -> None:
    """What reads Kafka may: functions import it, and nothing else at its start."""
    lazy = {
        f"sharecoord.analytics.kafka_source.{name}" for name in ("alert_topic", "client", "decode")
    }
    files = {
        relative(path).removesuffix(".py").replace("/", "."): path
        for path in python_files(ANALYTICS)
    }
    assert lazy <= files.keys()
    found = [
        f"{name} imports {module}"
        for name, path in files.items()
        if name not in lazy
        for module in sorted(imports_at_start(path))
        if module.split(".")[0] in HEAVY or module in lazy
    ]
    assert found == []


def test_the_sdk_needs_grpc_and_protobuf_alone() -> None:
    """What an extra brings is imported by one file, or by what is called after it in `contrib`."""
    optional = {
        ("avro.py", "fastavro"),
        ("tls_files.py", "cryptography"),
        ("tracing.py", "opentelemetry"),
        ("_transactions.py", "confluent_kafka"),
        ("whole.py", "sharecoord_batches"),
        # For type checkers alone, which bring it: defaults of type variables.
        ("records.py", "typing_extensions"),
    }
    found = []
    for path in python_files(SDK):
        parts = path.relative_to(SDK).parts
        own = {parts[1]} if parts[0] == "contrib" else set()
        allowed = {*sys.stdlib_module_names, "grpc", "google", SDK.name, *own}
        found += [
            f"{relative(path)} imports {module}"
            for module in sorted(imports_of(path))
            if module.split(".")[0] not in allowed
            and (path.name, module.split(".")[0]) not in optional
        ]
    assert found == []
    assert not [
        f"{relative(path)} imports {module} at its start"
        for path in python_files(SDK)
        for module in imports_at_start(path)
        if module.split(".")[0] in {name for _, name in optional}
    ]


def test_what_core_may_import() -> None:
    good = ["enum", "collections.abc", "sharecoord.core.states", "sharecoord.errors"]
    bad = ["time", "asyncio.tasks", "grpc", "sharecoord", "sharecoord.store.tables"]
    assert [module for module in good + bad if core_may_import(module)] == good
