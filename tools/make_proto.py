"""Generates the stubs into the SDK, the only place where they exist, with relative imports.

Run by `make proto` inside an environment that holds grpcio-tools 1.73.1 (a newer generator would
shut the SDK out of applications with an older protobuf). `--check` fails when the stubs in the
tree are not what the protos give.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
TARGET = ROOT / "sdk" / "sharecoord_sdk" / "_proto"
ABSOLUTE = re.compile(r"^from sharecoord\.((?:\w+\.)*)v1 import (\w+)", re.MULTILINE)
ABSOLUTE_PYI = re.compile(r"\bsharecoord\.v1\.(\w+_pb2)\b")


def generate(out: Path) -> None:
    """Writes the stubs of every proto below `out`, flat, with relative imports."""
    protos = sorted(str(p.relative_to(PROTO)) for p in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as raw:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"]
        command += [f"--python_out={raw}", f"--pyi_out={raw}", f"--grpc_python_out={raw}"]
        subprocess.run([*command, *protos], check=True)
        for path in sorted(Path(raw).rglob("*.py*")):
            text = ABSOLUTE.sub(r"from . import \2", path.read_text(encoding="utf-8"))
            (out / path.name).write_text(text, encoding="utf-8")
    (out / "__init__.py").write_text('"""Generated stubs; see `make proto`."""\n', "utf-8")


def main() -> int:
    """Generates, or with `--check` compares; returns the exit code."""
    if "--check" not in sys.argv:
        TARGET.mkdir(parents=True, exist_ok=True)
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        stale = [
            p.name
            for p in sorted(Path(fresh).iterdir())
            if not (TARGET / p.name).is_file() or (TARGET / p.name).read_bytes() != p.read_bytes()
        ]
    if stale:
        print(f"stubs are not current: {', '.join(stale)}; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
