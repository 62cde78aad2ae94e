"""Generates the stubs: the messages that clients need into the SDK, all else into the server.

The SDK calls methods by their path, so its stubs are messages alone. The service stubs, and the
protocol between coordinators, are in `sharecoord/wire/_proto`.

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
SDK, SERVER = Path("sdk/sharecoord_sdk/_proto"), Path("sharecoord/wire/_proto")
IMPORT = re.compile(r"^from sharecoord\.((?:\w+\.)*v1) import (\w+)", re.MULTILINE)
CLIENT_PACKAGE = "v1"


def place_of(name: str, package: str) -> Path:
    """The folder of a stub, by its module's name and the package of its proto."""
    is_message = not name.endswith("_grpc")
    return SDK if is_message and package == CLIENT_PACKAGE else SERVER


def generated() -> dict[Path, str]:
    """The text of every stub, by its path in the repository; imports fit that place."""
    protos = sorted(PROTO.rglob("*.proto"))
    header = '"""Generated stubs; see `make proto`."""\n'
    found = {SDK / "__init__.py": header, SERVER / "__init__.py": header}
    with tempfile.TemporaryDirectory() as raw:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"]
        command += [f"--python_out={raw}", f"--pyi_out={raw}", f"--grpc_python_out={raw}"]
        subprocess.run([*command, *map(str, protos)], check=True)
        for path in sorted(Path(raw).rglob("*.py*")):
            text = path.read_text(encoding="utf-8")
            if path.stem.endswith("_grpc") and "class " not in text:
                # The proto has no service.
                continue
            package = ".".join(path.relative_to(raw).parts[1:-1])
            target = place_of(path.stem, package)
            found[target / path.name] = IMPORT.sub(
                lambda match, target=target: (
                    f"from {_package_of(match[2], match[1], target)} import {match[2]}"
                ),
                text,
            )
    return found


def _package_of(name: str, package: str, importer: Path) -> str:
    """The package to import a stub from, as a stub in the folder `importer` writes it."""
    return "." if place_of(name, package) == importer else "sharecoord_sdk._proto"


def main() -> int:
    """Generates, or with `--check` compares; returns the exit code."""
    stubs = generated()
    if "--check" not in sys.argv:
        for path, text in stubs.items():
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
        return 0
    stale = [
        str(path)
        for path, text in stubs.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    ]
    folders = (ROOT / SDK, ROOT / SERVER)
    kept = {path.relative_to(ROOT) for each in folders for path in each.glob("*.py*")}
    stale += [f"{path} (of no proto)" for path in sorted(kept - stubs.keys())]
    if stale:
        print(f"stubs are not current: {', '.join(stale)}; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
