"""What a job says while it runs where there is no terminal."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from sharecoord.analytics import progress


class Session:
    """What is asked of a session: its name, and its tasks."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.sparkContext = SimpleNamespace(appName="sharecoord lag", statusTracker=lambda: self)

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's name
        self.asked.set()
        return [4, 5]

    def getStageInfo(self, stageId: int) -> object | None:  # noqa: N802, N803 - Spark's names
        return SimpleNamespace(numCompletedTasks=3, numTasks=8) if stageId == 4 else None


def test_a_line_says_step_and_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert progress.LINE_S <= 10
    monkeypatch.setattr(progress, "LINE_S", 0.01)
    session: Any = Session()
    with progress.shown(session, "windows", "stretches", "causes", "share-partitions") as steps:
        steps.next()
        steps.next()
        for _ in range(2):
            session.asked.clear()
            assert session.asked.wait(30)
    first, *_ = capsys.readouterr().err.splitlines()
    line = r"sharecoord lag: step [12]/4 (windows|stretches), 3 of 8 tasks \(0 s\)"
    assert re.fullmatch(line, first)


def test_what_is_over_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.said_at_times(lambda: "Spark starts"):
        pass
    assert capsys.readouterr().err == ""


def test_under_spark_submit_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    with progress.said_at_times(lambda: "Spark starts"):
        assert "progress lines" in names()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with progress.said_at_times(lambda: "Spark starts"):
        assert "progress lines" not in names()
