"""Licences, known vulnerabilities and hashes of what is installed beside this project."""

from __future__ import annotations

import email.message
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.sources import ROOT
from tools import dependencies
from tools.dependencies import (
    advisory_findings,
    is_affected,
    licence_findings,
    lock_findings,
    read_advisories,
)

RULES = {"allowed": ["MIT", "BSD-3-Clause"], "named": {"lib": "LGPL-3.0-only"},
         "words": {"MIT License": "MIT"}}  # fmt: skip


def test_nothing_is_found() -> None:
    assert list(dependencies.findings()) == []


def test_the_image_is_installed_by_hashes_and_without_an_index() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert ["--require-hashes" in line or "--no-index" in line for line in installs] == [True, True]
    assert "make sbom" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


class Made(Distribution):
    """A distribution with some metadata."""

    def __init__(self, *lines: tuple[str, str]) -> None:
        message = email.message.Message()
        for name, value in (("Name", "Lib"), ("Version", "1"), *lines):
            message[name] = value
        self._text = str(message)

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        ([("License-Expression", "MIT")], True),
        ([("License-Expression", "GPL-3.0-only OR MIT")], True),
        ([("License-Expression", "GPL-3.0-only AND MIT")], False),
        ([("License-Expression", "MIT AND (BSD-3-Clause)")], True),
        ([("License-Expression", "LGPL-3.0-only")], True),
        ([("License-Expression", "AGPL-3.0-only"), ("License", "MIT License")], False),
        ([("License", "MIT License\n        Permission is hereby granted")], True),
        ([("License", "UNKNOWN"), ("Classifier", "License :: OSI Approved :: MIT License")], True),
        ([("Classifier", "License :: Other/Proprietary License")], False),
        ([], False),
    ],
)
def test_a_licence_has_to_be_allowed(lines: list[tuple[str, str]], allowed: bool) -> None:
    found = list(licence_findings([Made(*lines)], RULES))
    assert (found == []) == allowed, found
    assert all(line.startswith("lib 1: its licence is ") for line in found)


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("1.4", False),
        ("1.5.0rc1", False),
        ("1.5", True),
        ("1.9.9", True),
        ("2.0", False),
        ("3.0", True),
        ("3.1", True),
        ("3.1.1", False),
    ],
)
def test_ranges_of_versions(version: str, affected: bool) -> None:
    events = [
        {"last_affected": "3.1"},
        {"introduced": "1.5"},
        {"fixed": "2.0"},
        {"introduced": "3"},
    ]
    assert is_affected(version, events) == affected


def test_an_event_that_nobody_knows_is_no_all_clear() -> None:
    with pytest.raises(ValueError, match="unknown event limit"):
        is_affected("1", [{"introduced": "0"}, {"limit": "2"}])


def test_a_vulnerable_pin_is_found() -> None:
    known = yaml.safe_load(dependencies.ADVISORIES.read_text(encoding="utf-8"))
    advisories = [*known["by_hand"], *known["database"]]
    found = list(advisory_findings({"pyjwt": "2.3.0", "starlette": "0.49.0"}, advisories))
    assert [line.partition(",")[0] for line in found] == [
        "pyjwt 2.3.0 is vulnerable: CVE-2026-32597",
        "starlette 0.49.0 is vulnerable: GHSA-7f5h-v6xp-fcq8",
        "pyjwt 2.3.0 is vulnerable: PYSEC-2022-202",
    ]


def test_the_database_is_read(tmp_path: Path) -> None:
    events = [{"introduced": "0"}, {"fixed": "2"}]
    affected = [
        {
            "package": {"name": "Py_Lib"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}, {"fixed": "abcdef"}]},
                {"type": "ECOSYSTEM", "events": events},
            ],
        },
        {"package": {"name": "other"}, "ranges": [{"type": "ECOSYSTEM", "events": []}]},
    ]
    folder = tmp_path / "vulns" / "py-lib"
    folder.mkdir(parents=True)
    one = {"id": "PYSEC-1", "aliases": ["CVE-1"], "affected": affected}
    (folder / "PYSEC-1.yaml").write_text(yaml.safe_dump(one))
    (folder / "PYSEC-2.yaml").write_text(yaml.safe_dump({**one, "withdrawn": "2024-01-01"}))
    assert list(read_advisories(tmp_path, ["py-lib", "absent"])) == [
        {"package": "py-lib", "id": "PYSEC-1", "aliases": ["CVE-1"], "events": events}
    ]


LOCK = f"""\
# a comment
lib==1.0 ; sys_platform != 'win32' \\
    --hash=sha256:{"0" * 64} \\
    --hash=sha256:{"1" * 64}
bare==2.0
"""


def test_what_the_lock_lacks_is_found() -> None:
    pinned = {"lib": "1.1", "bare": "2.0", "Absent": "3"}
    assert list(lock_findings(LOCK, ["Lib>=1", "absent[extra]>=3", "bare"], pinned)) == [
        "lib: requirements.lock has 1.0, constraints.txt 1.1",
        "absent[extra]>=3 is not in requirements.lock: run make lock",
        "bare has no hash: run make lock",
    ]
