"""Suites with security on: `SHARECOORD_TEST_SECURITY=on`, as `make test SECURITY=on` sets it.

Every coordinator of every suite then has a file of a thousand rules, of which the last one allows
everything, quotas, tokens and an audit trail. All tests must hold as they do without. Tests that
are about security keep the rules that they give themselves.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sharecoord.devenv.security import rules_text
from sharecoord.security.audit import AuditLog
from sharecoord.security.files import WatchedFiles
from sharecoord.security.guard import Guard
from sharecoord.security.rules import SETTING as RULES
from sharecoord.security.rules import Rules, read_rules

VARIABLE: Final = "SHARECOORD_TEST_SECURITY"
IS_ON: Final = os.environ.get(VARIABLE, "off") == "on"

_QUEUE_BYTES: Final = 4 << 20


def guard_of(coordinator_id: str) -> Guard:
    """The guard of a coordinator inside the process of a test."""
    if not IS_ON:
        return Guard(coordinator_id=coordinator_id)
    return Guard(_rules(), _trail(), coordinator_id=coordinator_id)


@functools.cache
def _rules() -> WatchedFiles[Rules]:
    """One object for all coordinators: the rules never change."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yaml"
        file.write_text(rules_text(["User:anonymous", "*"]), encoding="utf-8")
        return WatchedFiles({RULES: str(file)}, lambda contents: read_rules(contents[RULES]))


@functools.cache
def _trail() -> AuditLog:
    return AuditLog(_Nowhere(), queue_max_bytes=_QUEUE_BYTES)


class _Nowhere:
    """Takes every line, and keeps none."""

    def write(self, lines: Sequence[bytes]) -> int:
        """Takes all."""
        return len(lines)

    def close(self) -> None:
        """Nothing is open."""
