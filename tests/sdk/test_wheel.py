"""The SDK's wheel: what it holds is enough to run, and holds nothing of the server's."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "sdk"
STUBS = {"admin_service_pb2", "share_service_pb2", "share_types_pb2"}

PROGRAM = """
import sys
sys.path.insert(0, {path!r})
sys.modules["sharecoord"] = None
import sharecoord_sdk
import sharecoord_sdk.testing
import sharecoord_sdk.worker
import sharecoord_sdk.contrib.avro
assert sharecoord_sdk.__file__.startswith({path!r}), sharecoord_sdk.__file__
consumer = sharecoord_sdk.ShareConsumer({{"group.id": "g"}})
admin = sharecoord_sdk.AdminClient({{"client.id": "c"}})
assert not [name for name in sys.modules if name.endswith("_pb2_grpc")]
"""


def wheel_files() -> list[Path]:
    """What setuptools packs: the modules of each package, and the package's data files."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (prefix,) = settings["setuptools"]["packages"]["find"]["include"]
    inits = [path for top in ROOT.glob(prefix) for path in top.rglob("__init__.py")]
    files = {path for init in inits for path in init.parent.glob("*.py")}
    for package, patterns in settings["setuptools"]["package-data"].items():
        files |= {path for each in patterns for path in (ROOT / package).glob(each)}
    return sorted(path.relative_to(ROOT) for path in files)


def test_its_stubs_are_the_messages_that_clients_need() -> None:
    found = [path for path in wheel_files() if path.parent.name == "_proto"]
    named = {path.name for path in found}
    assert named == {"__init__.py"} | {f"{stub}.{kind}" for stub in STUBS for kind in ("py", "pyi")}


def test_no_stub_stands_elsewhere() -> None:
    elsewhere = [path for path in wheel_files() if path.parent.name != "_proto"]
    assert [path for path in elsewhere if "_pb2" in path.stem] == []


def test_it_runs_alone(tmp_path: Path) -> None:
    for path in wheel_files():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    program = PROGRAM.format(path=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
