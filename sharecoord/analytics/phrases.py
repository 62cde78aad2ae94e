"""Sentences that the verdicts of several jobs have in common; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def missing_changes(row: Mapping[str, Any]) -> list[str]:
    """A sentence on how incomplete the event log is, from a row with `census.completeness`."""
    if row["complete"] is None or row["complete"] >= 1:
        return []
    expected = row["changes_expected"]
    return [f"the log lacks {expected - row['changes_seen']} of {expected} changes"]


def locks_of(records: int) -> str:
    """The locks of some records as people say it."""
    return "the lock of one record" if records == 1 else f"locks of {records} records"
