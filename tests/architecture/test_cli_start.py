"""`sharecoord --help` answers at once: it loads neither grpc, sqlalchemy nor pyspark."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.sources import ROOT

HEAVY = (
    "grpc",
    "sqlalchemy",
    "alembic",
    "confluent_kafka",
    "google.protobuf",
    "starlette",
    "pyarrow",
    "pyspark",
)

# Calls the console script's function when its module is there, and imports the package that holds
# it in any case; then says which of the heavy modules were loaded.
PROGRAM = """
import importlib, importlib.util, sys
module, function, *heavy = sys.argv[1:]
sys.argv = ["sharecoord", "--help"]
package = module.rpartition(".")[0]
importlib.import_module(package)
if importlib.util.find_spec(module):
    entry = importlib.import_module(module)
    try:
        getattr(entry, function)()
    except SystemExit as end:
        assert end.code in (0, None), end.code
print("loaded:", *[name for name in heavy if name in sys.modules])
"""


def entry_point() -> tuple[str, str]:
    """Module and function behind the command `sharecoord`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["sharecoord"].partition(":")
    return module, function


def loaded(module: str, function: str, folder: Path = ROOT) -> list[str]:
    """The heavy modules that a fresh interpreter, started in `folder`, holds after `--help`."""
    command = [sys.executable, "-c", PROGRAM, module, function, *HEAVY]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].removeprefix("loaded:").split()


def test_help_loads_nothing_heavy() -> None:
    assert loaded(*entry_point()) == []


def test_a_heavy_module_is_seen(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "main.py").write_text("def main():\n    import grpc\n")
    assert loaded("slow.main", "main", tmp_path) == ["grpc"]


def test_a_coordinator_loads_librdkafka_and_rich_with_what_needs_them() -> None:
    program = (
        "import sys\n"
        "from sharecoord.cli.coordinator import serve\n"
        "serve._load_structlog_alone()\n"
        "import sharecoord.app\n"
        "heavy = 'confluent_kafka', 'rich', 'pygments'\n"
        "print(*[name for name in heavy if name in sys.modules])\n"
        "import rich\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
