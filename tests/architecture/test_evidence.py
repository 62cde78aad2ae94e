"""Every row of docs/evidence/*.md names a proof that exists.

A row is `| promise | proof | figure |`; its proofs are the code spans after the first column: a
test (`tests/unit/test_x.py::test_y`), a make target (`make bench`), a command (`sharecoord doctor`)
or a file of the repository. One of them must exist.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, relative

EVIDENCE = ROOT / "docs" / "evidence"
CODE_SPAN = re.compile(r"`([^`]+)`")
RULE = re.compile(r"^\|[\s|:-]+$")


def rows(text: str) -> list[tuple[int, str, str]]:
    """The table rows of a page, headers left out: line number, promise, the other cells."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        is_header = number < len(lines) and RULE.match(lines[number])
        if line.startswith("|") and not RULE.match(line) and not is_header:
            promise, _, rest = line.strip("|").partition("|")
            found.append((number, promise.strip(), rest))
    return found


def names_of_tests(source: str) -> set[str]:
    """The tests of a file, as pytest names them: `test_x`, `TestX::test_y`."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner}" for inner in _functions(node.body)} | {node.name}
        names |= _functions([node])
    # State machines of Hypothesis are bound to a name: TestWindow = Machine.TestCase.
    names |= set(re.findall(r"^(Test\w+)\s*=", source, re.MULTILINE))
    return names


def _functions(body: list[ast.stmt]) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in body if isinstance(node, kinds)}


def exists(proof: str, root: Path) -> bool:
    """Whether a proof can be run or read in this tree."""
    if "::" in proof:
        file, _, name = proof.partition("::")
        path = root / file
        bare = name.split("[")[0].removesuffix("::runTest")
        return path.is_file() and bare in names_of_tests(path.read_text(encoding="utf-8"))
    if proof.startswith("make "):
        makefile = (root / "Makefile").read_text(encoding="utf-8")
        return re.search(rf"^{re.escape(proof.split()[1])}:", makefile, re.MULTILINE) is not None
    if proof.startswith("sharecoord "):
        return (root / "sharecoord" / "cli" / "main.py").is_file()
    return (root / proof).exists()


def rows_without_proof(folder: Path, root: Path) -> list[str]:
    """The rows of every page below `folder` that name no proof that exists."""
    return [
        f"{relative(page, root)}:{number}: {promise}"
        for page in sorted(folder.glob("*.md"))
        for number, promise, rest in rows(page.read_text(encoding="utf-8"))
        if not any(exists(proof, root) for proof in CODE_SPAN.findall(rest))
    ]


def test_every_promise_has_a_proof_that_exists() -> None:
    assert rows_without_proof(EVIDENCE, ROOT) == []


@pytest.mark.parametrize(
    ("proof", "found"),
    [
        ("tests/test_a.py::test_one", True),
        ("tests/test_a.py::test_one[case-1]", True),
        ("tests/test_a.py::test_on", False),
        ("tests/test_a.py::TestGroup::test_two", True),
        ("tests/test_a.py::TestMachine::runTest", True),
        ("tests/test_b.py::test_one", False),
        ("make bench", True),
        ("make nothing", False),
        ("sharecoord doctor", False),
        ("tests/test_a.py", True),
        ("docs/nowhere.md", False),
    ],
)
def test_a_proof_is_looked_up(tmp_path: Path, proof: str, found: bool) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "Makefile").write_text("bench: venv\n\trun\n")
    (tmp_path / "tests" / "test_a.py").write_text(
        "def test_one(): ...\n"
        "class TestGroup:\n    def test_two(self): ...\n"
        "TestMachine = Machine.TestCase\n"
    )
    assert exists(proof, tmp_path) is found


def test_a_row_without_proof_is_reported(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("bench:\n")
    (tmp_path / "page.md").write_text(
        "# Page\n\n| promise | proof | figure |\n|---|---|---|\n"
        "| fast | `make bench` | 3x |\n| safe | a good design | |\n"
    )
    assert rows_without_proof(tmp_path, tmp_path) == ["page.md:6: safe"]
