"""docs/architecture.md shows the code as it is: its rooms, its files, its names."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.architecture.sources import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PRODUCT = ROOT / "sharecoord"
TABLES = {
    package: re.findall(r"^\| (?:`(\w+)/`|\(top\))[^|]*\|[^|]*\| ([^|]+) \|$", rows, re.MULTILINE)
    for package, rows in re.findall(
        r"^\| room of `(\w+)/` .*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE
    )
}


@pytest.mark.parametrize("package", ["core", "runtime"])
def test_each_room_stands_on_the_map(package: str) -> None:
    rooms = {f.name for f in (PRODUCT / package).iterdir() if (f / "__init__.py").exists()}
    assert {room for room, _ in TABLES[package] if room} == rooms


@pytest.mark.parametrize("package", ["core", "runtime"])
def test_the_most_important_names_are_there(package: str) -> None:
    for room, names in TABLES[package]:
        found = re.findall(r"`(\w+)\.(\w+)`", names)
        assert len(found) in (1, 3), room
        for module, name in found:
            path = ".".join(filter(None, ("sharecoord", package, room, module)))
            assert hasattr(importlib.import_module(path), name), f"{path}.{name}"


def test_each_file_of_the_kafka_port_stands_on_the_map() -> None:
    there = {f"api/kafka/{file.name}" for file in (PRODUCT / "api" / "kafka").glob("[!_]*.py")}
    rows = re.findall(r"^\| `(api/kafka/\w+\.py)` \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(there)


def test_files_on_the_map_are_there() -> None:
    for place in set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE)):
        sdk = ROOT / "sdk" / "sharecoord_sdk" / place
        assert (PRODUCT / place).exists() or (ROOT / place).exists() or sdk.exists(), place
