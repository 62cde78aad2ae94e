"""A value whose name says that it is a secret does not stand in its object's `repr`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.sources import ROOT

FOLDERS = ("sharecoord", "sdk")
SECRET = re.compile(r"(^|_)(password|passphrase|secret|authorization|private_key|bearer)$")


def shown_secrets(text: str) -> Iterator[str]:
    """Fields of dataclasses and named tuples that `repr` shows, though their name says secret."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            made = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.bases)]
            has_repr = any(
                isinstance(e, ast.FunctionDef) and e.name == "__repr__" for e in node.body
            )
            if has_repr or not any("dataclass" in each or "NamedTuple" in each for each in made):
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and SECRET.search(ast.unparse(field.target)):
                    value = "" if field.value is None else ast.unparse(field.value)
                    if "repr=False" not in value:
                        yield f"{node.name}.{ast.unparse(field.target)}"


def test_no_secret_stands_in_a_repr() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in shown_secrets(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "give these fields repr=False"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("@dataclass\nclass A:\n    key_password: str", ["A.key_password"]),
        ("@dataclass(slots=True)\nclass A:\n    secret: str = field(default='')", ["A.secret"]),
        ("class A(NamedTuple):\n    password: str", ["A.password"]),
        ("class A(NamedTuple):\n    password: str\n    def __repr__(self): ...", []),
        ("@dataclass\nclass A:\n    secret: str = field(repr=False)\n    secret_file: str", []),
        ("class A:\n    password: str", []),
    ],
)
def test_what_is_found(text: str, found: list[str]) -> None:
    assert list(shown_secrets(text)) == found
