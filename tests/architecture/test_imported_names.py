"""Whatever a test or a tool imports from this checkout exists there.

A suite that is not run before a commit would otherwise break at its import, unseen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.sources import ROOT, python_files, relative

# Where packages of the checkout begin.
PLACES = (ROOT, ROOT / "sdk", ROOT / "sdk" / "batches")
IMPORTERS = ("tests/", "tools/")

# Compiled, or generated from proto/.
BUILT = {"sharecoord_batches._native"}
GENERATED = "._proto."


def module_file(name: str, places: tuple[Path, ...] = PLACES) -> Path | None:
    """The file of a module of this checkout, none for those of libraries."""
    for place in places:
        base = place.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def is_here(name: str, places: tuple[Path, ...] = PLACES) -> bool:
    """If the first part of a module's name is a package of this checkout."""
    first = name.split(".")[0]
    return any((place / first).is_dir() for place in places)


@cache
def names_of(path: Path) -> frozenset[str] | None:
    """What a module binds at its outermost level; none if it decides that while it runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
            if node.name == "__getattr__":
                return None
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((each.asname or each.name).split(".")[0] for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return None if "*" in found else frozenset(found)


def missing(path: Path, places: tuple[Path, ...] = PLACES) -> Iterator[str]:
    """The names that a file imports from this checkout and that are not there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if not is_here(node.module, places) or GENERATED in node.module:
            continue
        source = module_file(node.module, places)
        bound = names_of(source) if source else frozenset()
        for each in node.names:
            module = f"{node.module}.{each.name}"
            if bound is None or each.name in bound or module in BUILT:
                continue
            if module_file(module, places) is None:
                yield f"{node.lineno}: {node.module} has no {each.name}"


def test_every_imported_name_exists() -> None:
    importers = [path for path in python_files() if relative(path).startswith(IMPORTERS)]
    assert len(importers) > 100
    wrong = [f"{relative(path)}:{each}" for path in importers for each in missing(path)]
    assert not wrong, "\n".join(wrong)


def test_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "desk.py").write_text("class Desk:\n    pass\n\nONCE = 1\n")
    user = tmp_path / "tests" / "test_it.py"
    user.write_text(
        "import os\nfrom tests import desk\nfrom tests.desk import ONCE, Desk, Reader\n"
    )
    assert list(missing(user, (tmp_path,))) == ["3: tests.desk has no Reader"]
    user.write_text("from tests.chair import Desk\nfrom collections import Counter\n")
    assert list(missing(user, (tmp_path,))) == ["1: tests.chair has no Desk"]
