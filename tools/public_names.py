"""The public names of what users import, read from the sources without importing them.

`python -m tools.public_names` prints them, `--write` keeps them in tests/architecture, where a test
compares: a name that comes or goes is then a line in the change that a reviewer sees.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "architecture" / "public_names.txt"
PUBLIC = ("sdk/sharecoord_sdk", "sdk/batches/sharecoord_batches", "sharecoord/testing")


def public_modules(root: Path) -> list[Path]:
    """The files of the public packages that have no private part in their path."""
    found = []
    for package in PUBLIC:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root / package).with_suffix("").parts
            if not any(part.startswith("_") and part != "__init__" for part in parts):
                found.append(path)
    return found


def module_name(path: Path, root: Path) -> str:
    """The dotted name under which users import a file."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    while parts[0] in ("sdk", "batches"):
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exported(path: Path) -> list[str] | None:
    """The names in a module's `__all__`, sorted; None when it has no `__all__`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return sorted(ast.literal_eval(value))
    return None


def defines_something(path: Path) -> bool:
    """Whether users could import a name from a module: one of its own, or one that it hands on."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    hands_on = path.name == "__init__.py" and any(
        isinstance(node, ast.ImportFrom) and node.module != "__future__" for node in body
    )
    return hands_on or any(isinstance(node, kinds) for node in body)


def listing(root: Path = ROOT) -> str:
    """One line per public name, `module.name`, sorted."""
    lines = []
    for path in public_modules(root):
        lines += [f"{module_name(path, root)}.{name}" for name in exported(path) or []]
    return "".join(f"{line}\n" for line in sorted(lines))


def main() -> int:
    """Prints or writes the listing; returns the exit code."""
    if "--write" in sys.argv:
        KEPT.write_text(listing(), encoding="utf-8")
    else:
        print(listing(), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
