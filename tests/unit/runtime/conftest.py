"""Every decision of every test is checked before it is applied."""

from __future__ import annotations

import pytest

from sharecoord.core.partition.decisions import Decision
from sharecoord.core.partition.share_partition import SharePartition
from tests.invariants import check_decision


@pytest.fixture(autouse=True)
def checked_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = SharePartition.apply

    def checked(partition: SharePartition, decision: Decision) -> None:
        check_decision(partition, decision)
        apply(partition, decision)

    monkeypatch.setattr(SharePartition, "apply", checked)
