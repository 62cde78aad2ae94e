"""What `analyze fairness --follow` shows, without Spark."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from sharecoord.cli.analyze.follow import GROUPS_SHOWN_MAX, Screen

START_MS = 1_767_571_200_000


def row(group: str = "g", **given: Any) -> dict[str, Any]:
    figures = {"members": 2, "wanting": 2, "demand": 20, "got": 10, "jain": 0.961538}
    more = {"records": 100, "starved": 0, "starved_members": [], "dwell_p99_ms": 45.0, "lag": None}
    place = {"group_id": group, "window_start": START_MS, "window_ms": 10_000}
    return {**place, **figures, **more, **given}


def test_a_line_per_group_and_window(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(as_json=False, color=False)
    with screen.open():
        screen.show([row(), row("h\x1b[2J", starved=1)])
        screen.say("alert begins")
    shown = capsys.readouterr()
    first, second = shown.out.splitlines()
    assert first == (
        "2026-01-05 00:00:10Z g members=2 starved=0 jain=0.962 records=100 "
        "dwell_p99_ms=45.000 lag=-"
    )
    assert second.startswith("2026-01-05 00:00:10Z h\\x1b[2J members=2 starved=1")
    assert shown.err == "sharecoord: alert begins\n"


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(as_json=True, color=True)
    with screen.open():
        screen.show([row()])
    found = json.loads(capsys.readouterr().out)
    assert found == {**row(), "window_end": "2026-01-05 00:00:10Z"}


def printed(screen: Screen) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(screen._table())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_the_newest_window_and_the_worst_groups_first() -> None:
    screen = Screen(as_json=False, color=False)
    assert "waiting for the first window" in printed(screen)
    older = row("gone", window_start=START_MS - 10_000)
    groups = [row(f"g{n:02}", jain=1 - n / 100) for n in range(GROUPS_SHOWN_MAX)]
    screen._newest = {}
    screen._live = _Live()
    screen.show([older, *groups, row("hungry", starved=1, jain=None)])
    text = printed(screen)
    assert "window until 2026-01-05 00:00:10Z" in text
    named = [line.split()[0] for line in text.splitlines()[2:]]
    assert named[:3] == ["hungry", "g39", "g38"]
    assert "1 more groups" in text
    assert "gone" not in text


class _Live:
    """A terminal that takes everything."""

    def update(self, *_: object, **__: object) -> None:
        """Takes it."""
