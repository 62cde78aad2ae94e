"""Length of functions and files, docstrings, leftovers, and words that must not be in the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import python_files, relative, text_files

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 900
"""A class is cut by what it owns: one file about one idea may be as long as this."""

# Spelled in two halves, so that this file passes its own check.
LEFTOVER = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
REGISTRIES = (
    "py" + r"pi\.org",
    "python" + r"hosted\.org",
    "proxy\\." + r"golang\.org",
    "repo1?\\." + r"maven\.(?:apache\.)?org",
    "registry\\." + r"npmjs\.org",
    "docker\\." + r"io/",
    "gh" + r"cr\.io",
    "qu" + r"ay\.io",
    "gc" + r"r\.io",
    "deb\\." + r"debian\.org",
)
REGISTRY = re.compile("|".join(REGISTRIES))
MACHINE_PATH = re.compile(r"(?<![\w.}$)*-])/(?:wo" + r"rk|ro" + r"ot|home/\w+|Users/\w+)(?:/|\b)")
NUMBERED = re.compile(r"\bissue" + r"s? #?\d+\b", re.IGNORECASE)


def long_functions(source: str) -> list[str]:
    """The functions over the limit, with their lengths."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in nodes]
    return [f"{name} has {lines} lines" for name, lines in lengths if lines > FUNCTION_LINES_MAX]


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    """Where a pattern stands, as `file:line: text`."""
    return [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_functions_are_short() -> None:
    found = [
        f"{relative(path)}: {what}"
        for path in python_files()
        for what in long_functions(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_files_are_short() -> None:
    sizes = [(relative(p), p.read_text(encoding="utf-8").count("\n")) for p in python_files()]
    assert [f"{name}: {lines} lines" for name, lines in sizes if lines > FILE_LINES_MAX] == []


def test_every_module_says_what_it_is() -> None:
    trees = [(relative(p), ast.parse(p.read_text(encoding="utf-8"))) for p in python_files()]
    # An empty __init__.py below tests only makes its folder a package.
    missing = [
        name
        for name, tree in trees
        if not ast.get_docstring(tree) and (tree.body or not name.startswith("tests/"))
    ]
    assert missing == []


def test_annotations_are_postponed_wherever_there_are_any() -> None:
    wanted = "from __future__ import annotations"
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.AnnAssign)
    missing = [
        relative(path)
        for path in python_files()
        if wanted not in (source := path.read_text(encoding="utf-8"))
        and any(isinstance(node, kinds) for node in ast.walk(ast.parse(source)))
    ]
    assert missing == []


def test_no_leftovers() -> None:
    assert lines_with(LEFTOVER, text_files()) == []


def test_no_registry_hosts() -> None:
    files = [path for path in text_files() if path.name != "LICENSE"]
    assert lines_with(REGISTRY, files) == []


def test_no_paths_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH, text_files()) == []


def test_no_issue_numbers() -> None:
    assert lines_with(NUMBERED, text_files()) == []


def test_a_long_function_is_seen() -> None:
    body = "    x = 1\n" * FUNCTION_LINES_MAX
    assert long_functions(f"async def f():\n{body}") == ["f has 71 lines"]
    assert long_functions(f"def f():\n{body.removesuffix(body[:10])}") == []


@pytest.mark.parametrize(
    ("pattern", "bad", "good"),
    [
        (LEFTOVER, "# TO" + "DO: later", "# nothing to do"),
        (REGISTRY, "https://py" + "pi.org/simple", "the package index"),
        (REGISTRY, "image: gh" + "cr.io/x/y", "image: x/y"),
        (REGISTRY, "docker." + "io/library/python", "apt-get install docker" + ".io"),
        (MACHINE_PATH, "cd /wo" + "rk/main", "docs/wo" + "rk/main"),
        (MACHINE_PATH, 'open("/ro' + 'ot/x")', "https://host/ro" + "ot/x"),
        (MACHINE_PATH, "/home/" + "ann/src", "~/.cache, $HOME/.cache"),
        (NUMBERED, "see issue" + " #12", "KIP-932, KAFKA-18000"),
    ],
)
def test_the_patterns_see_what_they_are_for(pattern: re.Pattern[str], bad: str, good: str) -> None:
    assert pattern.search(bad)
    assert not pattern.search(good)
