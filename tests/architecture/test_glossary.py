"""One word for each idea: names go by docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
WORDS, NAMES = PAGE.split("## Words that name one thing")
ENTRIES = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", WORDS, flags=re.MULTILINE)[1:])
PLACES = {
    word: re.findall(r"`([^`]+)`", places)
    for word, places in re.findall(r"^\| (\w+) \| (`[^|]+) \|$", NAMES, flags=re.MULTILINE)
}


@cache
def named() -> list[tuple[str, str]]:
    """(file, name) of each module, class and public function of the product and the SDK."""
    return list(_named())


def _named() -> Iterator[tuple[str, str]]:
    for folder in ("sharecoord", "sdk/sharecoord_sdk", "sdk/batches/sharecoord_batches"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            place = file.relative_to(ROOT).as_posix()
            if "/_proto/" in place:
                continue
            yield place, file.stem
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    yield place, node.name
            for node in tree.body:
                is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if is_function and not node.name.startswith("_"):
                    yield place, node.name


def words_of(name: str) -> set[str]:
    """The words of a name, without the s of a plural."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {part.lower().removesuffix("s") for part in parts}


def test_entries_stand_in_order_and_say_something() -> None:
    words = [word.split(" (")[0] for word in ENTRIES]
    assert words == sorted(words, key=str.casefold)
    for word, meaning in ENTRIES.items():
        assert meaning.strip().endswith("."), word


@pytest.mark.parametrize("word", sorted(PLACES))
def test_a_word_names_one_thing(word: str) -> None:
    strangers = [
        (place, name)
        for place, name in named()
        if word in words_of(name) and not place.startswith(tuple(PLACES[word]))
    ]
    assert strangers == []


@pytest.mark.parametrize("word", sorted(PLACES))
def test_places_are_there(word: str) -> None:
    assert all(Path(ROOT / place).exists() for place in PLACES[word])
